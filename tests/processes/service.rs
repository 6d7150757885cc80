//! A daemon under a service manager: what it reports, what SIGHUP changes, and what its commands inherit.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{EndedMuster, MUSTERD, Node, World, eventually_so};

/// What systemd would receive.
struct ServiceManager {
    socket: UnixDatagram,
    seen: Vec<String>,
}

impl ServiceManager {
    /// Of a node's next process, which feeds a watchdog of so many microseconds.
    fn of(world: &mut World, name: &str, watchdog: u64) -> Self {
        let path = world.folder().join(format!("{name}.notify"));
        let socket = UnixDatagram::bind(&path).expect("the world's folder is writable");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a duration");
        let variables = [("NOTIFY_SOCKET", path.into_os_string()), ("WATCHDOG_USEC", watchdog.to_string().into())];
        world.node(name).environment.extend(variables);
        Self { socket, seen: Vec::new() }
    }

    /// Waits for the next line with this text, and forgets those before it.
    #[track_caller]
    fn receives(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        eventually_so(text, || {
            if let Ok(len) = self.socket.recv(&mut bytes) {
                let message = String::from_utf8_lossy(&bytes[..len]);
                self.seen.extend(message.lines().map(str::to_owned));
            }
            let found = self.seen.iter().position(|line| line.contains(text));
            found.map(|at| self.seen.drain(..=at)).is_some()
        });
    }
}

#[test]
fn daemon_reports_its_state_to_its_service_manager() {
    let mut world = World::new();
    let mut systemd = ServiceManager::of(&mut world, "n1", 300_000);
    world.node("n1").start(&["--init"]);
    systemd.receives("READY=1");
    systemd.receives("STATUS=manager, leader, 1 of 1 manager reachable");
    for _ in 0..3 {
        systemd.receives("WATCHDOG=1");
    }
    world.node("n1").ready();
    world.node("n1").signal(Signal::HUP);
    for line in ["RELOADING=1", "MONOTONIC_USEC=", "READY=1"] {
        systemd.receives(line);
    }
    // A start is complete when only another node can move it on.
    let mut other = ServiceManager::of(&mut world, "n2", 0);
    let (absent, token) = (world.node("n3").listen.to_string(), world.token(muster_messages::Role::Worker));
    world.node("n2").start(&["--join", &absent, "--token", &token]);
    other.receives("READY=1");
    other.receives(&format!("STATUS=joining through {absent}"));

    world.node("n1").signal(Signal::TERM);
    systemd.receives("STOPPING=1");
    assert_eq!(world.node("n1").exit(), Some(0));
}

/// A17. As the unit of `packaging/systemd` passes it: an empty credential where no token is.
#[test]
fn join_token_comes_as_a_credential() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(muster_messages::Role::Worker));
    let credentials = world.folder().join("credentials");
    std::fs::create_dir(&credentials).expect("the world's folder is writable");
    let credential = credentials.join("muster-join-token");
    std::fs::write(&credential, "\n").expect("it is ours");
    world.node("n2").environment.push(("CREDENTIALS_DIRECTORY", credentials.into()));
    world.node("n2").start(&["--join", &seed]);
    assert_eq!(world.node("n2").exit(), Some(2));
    let said = world.nodes_log("n2");
    assert!(said.contains("the credential muster-join-token that systemd passes is empty"), "{said}");

    std::fs::write(&credential, &token).expect("it is ours");
    world.node("n2").start(&["--join", &seed]).ready();
    let process = Path::new("/proc").join(world.node("n2").pid().to_string());
    for file in ["cmdline", "environ"] {
        let bytes = std::fs::read(process.join(file)).expect("the daemon runs");
        assert!(!String::from_utf8_lossy(&bytes).contains(&token), "{file} has the token");
    }
    assert!(!world.nodes_log("n2").contains(&token));
    // It has an identity now.
    std::fs::write(&credential, "\n").expect("it is ours");
    world.node("n2").stop();
    world.node("n2").start(&["--join", &seed]).ready();
}

/// Writes a node's file, and asks its daemon to read it.
fn reload(world: &mut World, text: &str, outcome: &str) {
    let node = world.node("n1");
    std::fs::write(node.folder.join("test.toml"), text).expect("it is ours");
    node.signal(Signal::HUP);
    eventually_so(outcome, || world.nodes_log("n1").contains(outcome));
}

fn applied(world: &World, program: &Path, writes: &Path) {
    let text = format!(
        "name = \"once\"\nrelease = \"1.0.0\"\nscope = \"db\"\nfloor = \"1.0.0\"\n[command]\nargv = [{program:?}, \"-c\", \
         \"env > {0}; for line in $(cat /proc/self/oom_score_adj) $(ulimit -Sn) $(umask); do echo $line >> {0}; done; \
         mv {0} {0}.done\"]\n",
        writes.display()
    );
    let file = world.folder().join("once.toml");
    std::fs::write(&file, text).expect("the world's folder is writable");
    EndedMuster::new(
        world.folder(),
        &[
            "--socket",
            &world.socket("n1").display().to_string(),
            "reconciler",
            "apply",
            "-f",
            &file.display().to_string(),
        ],
    )
    .ended(0);
}

/// What systemd sets for a service beside what the tests need.
const OF_THE_SERVICE: [&str; 6] =
    ["CREDENTIALS_DIRECTORY", "INVOCATION_ID", "LISTEN_FDS", "LISTEN_PID", "STATE_DIRECTORY", "SYSTEMD_EXEC_PID"];

/// Beside the daemon that it is about, a check neither calls its ports taken nor takes anything from it.
#[test]
fn check_config_knows_that_the_daemon_runs() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    let node = world.node("n1");
    let check = |node: &Node| {
        let ended = Command::new(MUSTERD).args(node.arguments()).arg("--check-config").output().expect("it is built");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    assert_eq!(check(node), (Some(0), String::new()));
    node.stop();
    let _taken = std::net::TcpListener::bind(node.listen).expect("its daemon has ended");
    let (status, faults) = check(node);
    assert!(status == Some(2) && faults.contains("--listen") && faults.lines().count() == 1, "{faults}");
}

#[test]
fn reload_applies_all_of_a_configuration_or_nothing() {
    let mut world = World::new();
    // It reads no notification: with three beats in 3 ms the socket is full at once, and nothing may wait for it.
    let _full = ServiceManager::of(&mut world, "n1", 3_000);
    let node = world.node("n1");
    // As a service manager starts it: with the usual limit and mask, spared when memory runs out if this user may do that, and with what is
    // meant for the service alone.
    let start = "echo -500 > /proc/self/oom_score_adj; ulimit -S -n 777; umask 027; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", start, MUSTERD]).args(node.arguments());
    command.envs(OF_THE_SERVICE.map(|variable| (variable, "1")));
    let config = node.folder.join("test.toml");
    std::fs::create_dir_all(&node.folder).expect("the world's folder is writable");
    std::fs::write(&config, "[reconcilers]\ncommands = []\n").expect("the world's folder is writable");
    command.args(["--init", "--release", "1.0.0", "--config"]).arg(&config);
    node.spawn(command).ready();
    let written = world.folder().join("env");
    applied(&world, Path::new("/bin/sh"), &written);

    reload(&mut world, "[reconcilers]\ncommands = [\n", "the configuration was not reloaded");
    reload(&mut world, "[reconcilers]\ncomands = []\n", "unknown field `comands`");
    // A pipe without a writer would keep a reader for ever.
    std::fs::remove_file(&config).expect("it is ours");
    let made = Command::new("mkfifo").arg(&config).status().expect("mkfifo is installed");
    assert!(made.success());
    world.node("n1").signal(Signal::HUP);
    eventually_so("a pipe is refused", || world.nodes_log("n1").contains("it is not a regular file"));
    std::fs::remove_file(&config).expect("it is ours");
    let restart = "[reconcilers]\ncommands = []\n[api]\nmax_body = 70000\n";
    reload(&mut world, restart, "needs_restart=\"api.max_body\"");
    let done = written.with_extension("done");
    assert!(!done.exists(), "no program was allowed");

    let both = "log = \"info,muster=debug\"\n[reconcilers]\ncommands = [\"/bin/sh\"]\n";
    reload(&mut world, both, "reloaded the configuration applied=\"log, reconcilers.commands\"");
    eventually_so("the command has run", || done.exists());
    let text = std::fs::read_to_string(&done).expect("it was written");
    assert!(text.contains("\nMUSTER_SOCKET=") || text.starts_with("MUSTER_SOCKET="), "{text}");
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "MUSTER_COMMAND_INHERITS"].into_iter().chain(OF_THE_SERVICE) {
        assert!(!text.lines().any(|line| line.starts_with(&format!("{variable}="))), "{variable}: {text}");
    }
    assert!(text.ends_with("\n0\n777\n0027\n"), "{text}");
    world.node("n1").stop();
}
