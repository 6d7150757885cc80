//! Programs that get their identities from their node, with libraries for SPIFFE that know nothing of Muster.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Cluster, EndedProgram, Program, eventually, fetched, here};

/// A cluster whose worker serves workloads.
struct Served {
    cluster: Cluster,
    socket: PathBuf,
    trust_domain: String,
}

impl Served {
    fn up() -> Self {
        let mut cluster = Cluster::up();
        let socket = cluster.folder().join("run/workloads.sock");
        cluster.kill("n4");
        cluster.restart_with("n4", &["--workload-socket", socket.to_str().expect("text")]);
        let status = cluster.document(&["status"]);
        let trust_domain = status["cluster"]["id"].as_str().expect("an id").to_owned();
        Self { cluster, socket, trust_domain }
    }
    fn id(&self, name: &str) -> String {
        format!("spiffe://{}/workload/{name}", self.trust_domain)
    }
    #[track_caller]
    fn set(&self, name: &str, selector: &str, more: &[&str]) {
        self.cluster.muster(&[&["workload", "set", name, "--yes", "--selector", selector], more].concat()).ended(0);
    }
    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Program::command(program);
        command.env("SPIFFE_ENDPOINT_SOCKET", format!("unix://{}", self.socket.display()));
        command.current_dir(self.cluster.folder()).args(words);
        command
    }
    fn rust(&self, program: &Path, words: &[&str]) -> Program {
        Program::start(words[0], self.command(program, words))
    }
    fn python(&self, words: &[&str]) -> Command {
        let program = here().join("programs/workload.py");
        let words = [&[program.to_str().expect("text")], words].concat();
        self.command(&fetched().join("python-spiffe/bin/python"), &words)
    }
    /// The Rust program under a path of its own.
    fn copy(&self, name: &str) -> PathBuf {
        let path = self.cluster.folder().join(name);
        std::fs::copy(workload_tls(), &path).expect("the folder is writable");
        path
    }
}

fn workload_tls() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_workload_tls"))
}

fn own_user() -> String {
    format!("unix:uid:{}", rustix::process::geteuid().as_raw())
}

#[test]
fn libraries_get_follow_and_lose_identities() {
    let served = Served::up();
    let refused = EndedProgram::of(served.python(&["fetch"])).ended(1);
    assert!(refused.stderr.contains("PERMISSION_DENIED"), "{}", refused.stderr);

    served.set("shop/web", &own_user(), &["--hint", "front"]);
    let id = served.id("shop/web");
    let held = |text: &str| format!("holds {id} {text}");
    let mut rust = served.rust(workload_tls(), &["watch"]);
    rust.wait_for_line(&held("hint front roots 1 chain 1"));
    let fetched = EndedProgram::of(served.python(&["fetch"])).ended(0).stdout;
    assert_eq!(fetched, format!("fetched {id}\ntrusts {} roots 1\n", served.trust_domain));
    let mut python = Program::start("python", served.python(&["watch"]));
    python.wait_for_line(&held("roots 1"));

    // A crash costs streams, which they open again.
    served.cluster.muster(&["actors", "crash", "node/workloads", "--node", "n4"]).ended(0);
    served.set("shop/web", &own_user(), &["--hint", "back"]);
    rust.wait_for_line(&held("hint back roots 1 chain 1"));
    python.wait_for_line(&held("roots 1"));

    served.cluster.muster(&["workload", "rm", "shop/web"]).ended(0);
    rust.wait_for_line("holds nothing");
    served.set("shop/api", &own_user(), &[]);
    rust.wait_for_line(&format!("holds {}", served.id("shop/api")));
    python.wait_for_line(&format!("holds {}", served.id("shop/api")));
}

#[test]
fn programs_trust_each_other_through_a_root_rotation() {
    let served = Served::up();
    let [server, caller, late] = ["server", "caller", "late"].map(|name| {
        let program = served.copy(name);
        served.set(&format!("shop/{name}"), &format!("unix:path:{}", program.display()), &[]);
        program
    });
    let address = muster_local_cluster::free_address().expect("a free port").to_string();
    let mut server = served.rust(&server, &["serve", &address, &served.trust_domain]);
    server.wait_for_line(&format!("serves as {}", served.id("shop/server")));
    let call = ["call", &address, &served.id("shop/server")];
    let mut caller = served.rust(&caller, &call);
    caller.wait_for_line(": hello");
    // The programs above are this workload, too; it comes last by its name, so none of them takes it for its default.
    served.set("z/python", &own_user(), &[]);
    let mut python = Program::start("python", served.python(&["watch"]));
    python.wait_for_line(&format!("holds {} roots 1", served.id("z/python")));

    let settled = served.cluster.document(&["ca", "rotate", "--wait"]);
    assert_eq!(settled["settled"], true, "{settled}");
    // Its certificate is of the new root, those of the others are of the old one.
    let mut late = served.rust(&late, &call);
    late.wait_for_line("call 20: hello");
    let asked = caller.said();
    let [before, after] = [&asked, &late.said()].map(|said| {
        let issuer = said.lines().find_map(|line| line.strip_prefix("calls with a certificate of issuer "));
        issuer.filter(|issuer| issuer.len() == 40).expect("its issuer").to_owned()
    });
    assert_ne!(before, after, "there are two roots, and the late certificate is of the other one");
    assert!(!asked.contains("failed") && !late.said().contains("failed"), "{asked}\n{}", late.said());
    assert!(!server.said().contains("refused"), "{}", server.said());
    python.wait_for_line(&format!("holds {} roots 2", served.id("z/python")));
    // Another identity than the one expected is refused.
    let mut wrong = served.rust(&served.cluster.folder().join("late"), &["call", &address, &served.id("shop/late")]);
    wrong.wait_for_line("failed");
}

/// The next leader renews certificates as the former one did, and no call fails meanwhile.
#[test]
fn certificates_are_renewed_over_changes_of_the_leader() {
    let served = Served::up();
    let programs = ["server", "caller"].map(|name| (name, served.copy(name)));
    let renew = |dns: &str| {
        // Another name in the certificate: each is replaced at once, as it is at half of its life.
        for (name, program) in &programs {
            let selector = format!("unix:path:{}", program.display());
            served.set(&format!("shop/{name}"), &selector, &["--dns", dns]);
        }
        // Last by its name, so that it is the default of neither.
        served.set("z/watch", &own_user(), &["--dns", dns]);
    };
    renew("first.example");
    let address = muster_local_cluster::free_address().expect("a free port").to_string();
    let [(_, server), (_, caller)] = &programs;
    let mut server = served.rust(server, &["serve", &address, &served.trust_domain]);
    server.wait_for_line(&format!("serves as {}", served.id("shop/server")));
    let mut caller = served.rust(caller, &["call", &address, &served.id("shop/server")]);
    caller.wait_for_line(": hello");
    let held = format!("holds {}", served.id("z/watch"));
    let mut watches = [served.rust(workload_tls(), &["watch"]), Program::start("python", served.python(&["watch"]))];
    watches.iter_mut().for_each(|watch| drop(watch.wait_for_line(&held)));

    // It prints a line for each message, and each renewal is one.
    let renewed = |watches: &mut [Program; 2], dns: &str| {
        watches.iter_mut().for_each(|watch| drop(watch.said()));
        renew(dns);
        watches.iter_mut().for_each(|watch| drop(watch.wait_for_line(&held)));
    };
    let killed = served.cluster.leader();
    served.cluster.kill(&killed);
    let elected = served.cluster.leader();
    assert_ne!(elected, killed);
    renewed(&mut watches, "second.example");

    let managers = ["n1", "n2", "n3"].map(str::to_owned);
    let next = managers.into_iter().find(|name| *name != killed && *name != elected).expect("a third manager");
    eventually("the other manager leads", || {
        let _tried = served.cluster.muster(&["raft", "transfer-leader", &next]);
        (served.cluster.leader() == next).then_some(())
    });
    renewed(&mut watches, "third.example");

    caller.said();
    caller.wait_for_line(": hello");
    assert!(!caller.said().contains("failed"), "{}", caller.said());
    assert!(!server.said().contains("refused"), "{}", server.said());
    for watch in &mut watches {
        assert!(!watch.said().contains("holds nothing"), "{}", watch.said());
    }
}

/// Tokens of one library are good for the other, before, while and after the root is replaced.
#[test]
fn tokens_are_good_through_a_root_rotation() {
    let served = Served::up();
    let program = Path::new(env!("CARGO_BIN_EXE_workload_jwt"));
    served.set("shop/web", &own_user(), &[]);
    let refused = EndedProgram::of(served.python(&["jwt", "db"])).ended(1);
    assert!(refused.stderr.contains("PERMISSION_DENIED"), "{}", refused.stderr);
    served.set("shop/web", &own_user(), &["--jwt"]);
    let id = served.id("shop/web");
    let shown = |audience: &str, keys: usize| {
        let said = EndedProgram::of(served.python(&["jwt", audience])).ended(0).stdout;
        let token = said.lines().last().expect("a token").to_owned();
        let parsed = format!("parsed {id} keys {keys}");
        assert_eq!(said, format!("token of {id} for ['{audience}']\nvalidated {id}\n{parsed}\n{token}\n"));
        token
    };
    let first = shown("db", 1);
    let judge = |token: &str| {
        let good = format!("good {id}\n");
        assert_eq!(EndedProgram::of(served.command(program, &["judge", "db", token])).ended(0).stdout, good);
        assert_eq!(EndedProgram::of(served.python(&["judge", "db", token])).ended(0).stdout, good);
    };
    judge(&first);
    for (audience, token) in [("other", first.as_str()), ("db", &first[..first.len() - 8])] {
        EndedProgram::of(served.command(program, &["judge", audience, token])).ended(1);
        EndedProgram::of(served.python(&["judge", audience, token])).ended(1);
    }
    let mut rust = served.rust(program, &["show", "db"]);
    rust.wait_for_line(&format!("token of {id} {id} keys 1"));

    let settled = served.cluster.document(&["ca", "rotate", "--wait"]);
    assert_eq!(settled["settled"], true, "{settled}");
    rust.wait_for_line(&format!("token of {id} {id} keys 2"));
    judge(&first);
    judge(&shown("db", 2));
    // The node may hold a token for `db` that the former root signed after the other one was published. It holds none for this audience.
    let later = shown("later", 2);
    let kid = |token: &str| token.split('.').next().map(str::to_owned);
    assert_ne!(kid(&first), kid(&later), "the other root signs");
}
