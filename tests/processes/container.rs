//! The recipe of the container image, carried out without an engine: its instructions in a folder that has only the libraries of the base, then
//! its entry point as the first process of namespaces of its own, below a root that is read-only but for the volume. Needs root.
//!
//! What an engine adds is not shown: fetching the base, its layers, its seccomp profile, and its networks.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use muster_local_cluster::ProcessId;
use rustix::process::Signal;

use crate::harness::{MUSTERD, Permit, eventually_so, permit};
use crate::package::{is_installed, run};

const RECIPE: &str = include_str!("../../packaging/container/Containerfile");
/// What a container finds in its environment, beside the recipe's own.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Becomes the first process of the namespaces: $0 the folder, $1 the volume's place, $2 the user, then the command.
const START: &str = r#"
set -e
root="$0/root" volume=$1 user=$2
shift 2
mount --bind "$root" "$root"
mount --bind "$0/volume" "$root$volume"
mount -t proc proc "$root/proc"
for device in null urandom; do mount --bind "/dev/$device" "$root/dev/$device"; done
mount -o remount,bind,ro "$root"
ip link set lo up
exec setpriv --no-new-privs env -i "$@" chroot --userspec="$user" --groups= "$root" ENTRY
"#;

/// The instructions, in order: each with its arguments. A line that ends in `\` continues.
fn instructions() -> Vec<(String, String)> {
    let text: Vec<&str> = RECIPE.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = text.join("\n").replace("\\\n", " ");
    let split = |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()));
    joined.lines().filter_map(split).collect()
}

/// The words of a command in its JSON form, the only one that starts no shell.
fn words(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_else(|why| panic!("{json}: {why}"))
}

/// Copies a file with the libraries that it is linked with.
fn copy_linked(program: &Path, root: &Path, to: &str) {
    let into = |from: &Path, to: &str| {
        let path = root.join(to.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("it is ours");
        std::fs::copy(from, &path).unwrap_or_else(|why| panic!("{} to {}: {why}", from.display(), path.display()));
    };
    into(program, to);
    for library in run(Command::new("ldd").arg(program)).split_whitespace().filter(|word| word.starts_with('/')) {
        into(Path::new(library), library);
    }
}

/// What the recipe makes.
#[derive(Default)]
struct Image {
    environment: Vec<String>,
    settings: BTreeMap<String, String>,
}

impl Image {
    /// Carries the instructions out in `folder/root`.
    fn build(folder: &Path) -> Self {
        let (mut image, root) = (Self::default(), folder.join("root"));
        for below in ["proc", "dev", "usr/bin"] {
            std::fs::create_dir_all(root.join(below)).expect("it is ours");
        }
        for device in ["null", "urandom"] {
            File::create(root.join("dev").join(device)).expect("it is ours");
        }
        // Of the base: what RUN needs, and the libraries.
        for program in ["sh", "install"] {
            let found = run(Command::new("sh").args(["-c", &format!("command -v {program}")]));
            copy_linked(Path::new(found.trim()), &root, &format!("/bin/{program}"));
        }
        let programs = Path::new(MUSTERD).parent().expect("a program is in a folder");
        for (name, rest) in instructions() {
            match name.as_str() {
                "COPY" => {
                    let (mode, files) =
                        rest.strip_prefix("--chmod=").expect("the mode").split_once(' ').expect("files");
                    let (files, to) = files.rsplit_once(' ').expect("a destination");
                    for file in files.split(' ') {
                        copy_linked(&programs.join(file), &root, &format!("{to}{file}"));
                        let at = root.join(to.trim_start_matches('/')).join(file);
                        run(Command::new("chmod").arg(mode).arg(at));
                    }
                }
                "RUN" => drop(run(Command::new("chroot").arg(&root).args(["/bin/sh", "-c", rest.as_str()]))),
                "ENV" => image.environment.extend(rest.split(' ').map(ToOwned::to_owned)),
                _ => drop(image.settings.insert(name, rest)),
            }
        }
        image
    }

    fn get(&self, name: &str) -> &str {
        self.settings.get(name).unwrap_or_else(|| panic!("the recipe has {name}"))
    }
}

/// HARNESS-1: its processes end when it is dropped, and with the test's process.
struct Container<'a> {
    image: &'a Image,
    folder: &'a Path,
    unshare: Child,
    _permit: Arc<Permit>,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if self.unshare.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        // The kernel ends all processes of the namespaces before the first one, and their mounts with them.
        match self.first() {
            Some(first) => first.signal(Signal::KILL),
            None => drop(self.unshare.kill()),
        }
        let _ = self.unshare.wait();
    }
}

impl<'a> Container<'a> {
    /// With these variables beside the recipe's, as `--env` gives them.
    fn start(image: &'a Image, folder: &'a Path, more: &[&str]) -> Self {
        let permit = permit();
        let entry = words(image.get("ENTRYPOINT")).join(" ");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--kill-child", "--fork", "--propagation", "private"]);
        command.args(["--mount", "--pid", "--ipc", "--uts", "--net", "sh", "-c", &START.replace("ENTRY", &entry)]);
        command.arg(folder).args([image.get("VOLUME"), image.get("USER"), PATH]).args(&image.environment).args(more);
        let log = File::create(folder.join("log")).expect("it is ours");
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        let unshare = command.spawn().expect("it is installed");
        Self { image, folder, unshare, _permit: permit }
    }

    /// Its first process: the only child of `unshare`.
    fn first(&self) -> Option<ProcessId> {
        let unshare = self.unshare.id();
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
        ProcessId::of(children.trim().parse().ok()?)
    }

    fn pid(&self) -> i32 {
        self.first().unwrap_or_else(|| panic!("it runs: {}", self.log())).pid
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// A command in it, as its user: whether it succeeds, and what it prints.
    fn tries(&self, words: &[String]) -> (bool, String) {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid().to_string(), "--mount", "--pid", "--ipc", "--uts", "--net", "--"]);
        command.args(["env", "-i", PATH]).args(&self.image.environment).args(["chroot", "--groups="]);
        command.arg(format!("--userspec={}", self.image.get("USER"))).arg(self.folder.join("root")).args(words);
        let ended = command.output().expect("it is installed");
        let text = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (ended.status.success(), text)
    }

    /// Waits until the recipe's health check succeeds.
    fn becomes_healthy(&mut self) {
        let check = words(self.image.get("HEALTHCHECK").split_once(" CMD ").expect("a command").1);
        eventually_so("its health check succeeds", || {
            let ended = self.unshare.try_wait().expect("it is ours");
            assert_eq!(ended, None, "it runs: {}", self.log());
            self.log().contains("musterd ready") && self.tries(&check).0
        });
    }

    fn shows(&self, arguments: &str) -> String {
        let words: Vec<String> = arguments.split(' ').map(ToOwned::to_owned).collect();
        let (succeeded, text) = self.tries(&words);
        assert!(succeeded, "{arguments}: {text}");
        text
    }

    /// Sends the recipe's signal, and returns the exit status.
    fn stops(mut self) -> Option<i32> {
        assert_eq!(self.image.get("STOPSIGNAL"), "SIGTERM");
        self.first().expect("it runs").signal(Signal::TERM);
        let mut status = None;
        eventually_so("it has ended", || {
            status = self.unshare.try_wait().expect("it is ours");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

#[test]
#[ignore = "full tier"]
fn container_recipe_runs_a_node_as_its_user() {
    let programs = ["setpriv", "unshare", "nsenter", "ldd", "chroot", "ip"];
    if !programs.into_iter().all(is_installed) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("not root: nothing was checked");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let folder = folder.path();
    let image = Image::build(folder);
    // No registry's name, and no name for which there would have to be a line in /etc/passwd.
    assert_eq!(image.get("FROM"), "${BASE}");
    assert!(!image.get("ARG").contains('/'), "{}", image.get("ARG"));
    let user: u32 = image.get("USER").split(':').next().and_then(|user| user.parse().ok()).expect("a number");
    assert_ne!(user, 0);
    // A new volume begins as the image's folder.
    let volume: PathBuf = folder.join("root").join(image.get("VOLUME").trim_start_matches('/'));
    let owned = std::fs::metadata(&volume).expect("the recipe makes it");
    assert_eq!((owned.uid(), owned.mode() & 0o777), (user, 0o700));
    run(Command::new("cp").arg("-a").arg(&volume).arg(folder.join("volume")));

    let mut founded = Container::start(&image, folder, &["MUSTER_INIT=true"]);
    founded.becomes_healthy();
    let status = std::fs::read_to_string(format!("/proc/{}/status", founded.pid())).expect("it runs");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
    assert!(field("Uid:").split_whitespace().all(|id| id == user.to_string()), "{status}");
    assert!(field("NSpid:").ends_with("\t1") && field("CapEff:").chars().all(|digit| digit == '0'), "{status}");
    assert!(founded.log().contains(&format!("listen=0.0.0.0:{} ", image.get("EXPOSE"))), "{}", founded.log());
    let listed = founded.shows("muster node ls -q");
    assert_eq!(founded.stops(), Some(0));

    // A new container on the same volume is the same node; variables of the first start do no harm.
    let mut resumed = Container::start(&image, folder, &["MUSTER_INIT=true"]);
    resumed.becomes_healthy();
    assert_eq!(resumed.shows("muster node ls -q"), listed);
    assert_eq!(resumed.stops(), Some(0));
}
