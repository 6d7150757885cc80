//! Attacks by other users of a node's machine: on its metrics port, and with prepared folders.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use muster_attacks::caller::Caller;
use muster_attacks::cluster::Cluster;
use muster_local_cluster::{WAIT_LIMIT, temporary_folder};
use muster_messages::protocol::Service;
use muster_messages::wire::Request;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const PROGRAM: &str = env!("CARGO_BIN_EXE_muster-attack");
/// Another user. Only root can give files away; otherwise a world-writable folder stands in.
const OTHER_UID: u32 = 65534;

/// S9: 260 half-sent requests once took all 256 files of a daemon.
#[tokio::test]
async fn partial_scrapes_do_not_exhaust_file_descriptors() {
    let cluster = Cluster::up(Path::new(PROGRAM), 1, 0).await.expect("a cluster");
    let node = cluster.node("n1");
    let pid = node.pid().and_then(Pid::from_raw).expect("it runs");
    let limit = Rlimit { current: Some(256), maximum: getrlimit(Resource::Nofile).maximum };
    prlimit(Some(pid), Resource::Nofile, limit).expect("it is our child");
    let metrics = node.metrics().expect("it serves them").to_owned();
    let mut partial = Vec::new();
    for round in 0..300 {
        let mut stream = TcpStream::connect(&metrics).await.expect("the port listens");
        let _ended = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: ").await;
        partial.push(stream);
        if round % 50 == 49 {
            let status = cluster.ask("n1", Request::Status { fresh: true }).await;
            assert!(status.is_ok(), "after {round} half-sent requests the socket answers: {status:?}");
            let tls = Caller::unauthenticated(node.listen, Service::Http.alpn()).tls().await;
            assert!(tls.is_ok(), "after {round} half-sent requests the port answers: {:?}", tls.err());
        }
    }
    assert!(node.metric("muster_raft_term").await.is_ok(), "a scrape finds its place");
}

/// `muster` in a folder.
fn muster(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("muster").args(args).current_dir(folder).env_remove("MUSTER_SOCKET");
    command.output().expect("the program runs")
}

/// As another user would leave it.
fn of_another_user(path: &Path) {
    if chown(path, Some(OTHER_UID), None).is_err() {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    }
}

fn refused(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    said
}

/// S13: links in a prepared folder once overwrote files of root.
#[test]
fn data_directory_of_another_user_is_refused_unchanged() {
    let folder = temporary_folder("prepared").expect("a temporary folder");
    let (precious, dir) = (folder.path().join("precious"), folder.path().join(".muster"));
    std::fs::write(&precious, "kept").expect("the folder is ours");
    std::fs::create_dir(&dir).expect("the folder is ours");
    for name in ["dev.lock", "musterd.toml", "dev.json", "lock"] {
        symlink(&precious, dir.join(name)).expect("the folder is ours");
    }
    of_another_user(&dir);
    let said = refused(&muster(folder.path(), &["dev", "up"]));
    assert!(said.contains("--dir"), "{said}");
    refused(&muster(folder.path(), &["dev", "down"]));
    let mut daemon = Command::new(PROGRAM);
    daemon.args(["musterd", "--init", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&dir);
    let daemon = daemon.output().expect("the program runs");
    let said = String::from_utf8_lossy(&daemon.stderr).into_owned();
    assert!(daemon.status.code() == Some(1) && said.contains("--data-dir"), "{said}");
    assert_eq!(std::fs::read(&precious).expect("it is there"), b"kept");
}

/// S13: a socket in the current folder once gave root a token of the attacker's cluster.
#[test]
fn socket_served_by_another_user_is_not_used() {
    let folder = temporary_folder("socket").expect("a temporary folder");
    let dir = folder.path().join(".muster");
    std::fs::create_dir_all(dir.join("x")).expect("the folder is ours");
    let listener = UnixListener::bind(dir.join("x/muster.sock")).expect("the folder is ours");
    of_another_user(&dir);
    std::thread::spawn(move || {
        // The socket answers any request.
        while let Ok((mut asker, _)) = listener.accept() {
            let _gone = asker.write_all(b"MSTR-1-of-another-cluster");
        }
    });
    let said = refused(&muster(folder.path(), &["token", "show", "worker"]));
    assert!(said.contains("--socket"), "{said}");
}

/// S10, S13: umask and earlier builds left Raft's log, with the root key, readable to others.
#[tokio::test]
async fn data_directory_is_private_to_its_user() {
    let cluster = Cluster::up(Path::new(PROGRAM), 1, 0).await.expect("a cluster");
    let (mut open, mut seen) = (Vec::new(), 0);
    let mut folders = vec![cluster.node("n1").folder.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let entry = entry.expect("the folder can be read");
            let found = match entry.metadata() {
                Ok(found) => found,
                // A temporary file of a running daemon.
                Err(gone) if gone.kind() == ErrorKind::NotFound => continue,
                Err(error) => panic!("{}: {error}", entry.path().display()),
            };
            seen += 1;
            if found.permissions().mode() & 0o077 != 0 {
                open.push((entry.path(), found.permissions().mode() & 0o777));
            }
            if found.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(seen > 5, "identity, log and socket: {seen}");
    tokio::time::timeout(Duration::from_secs(60), cluster.settled()).await.expect("in time").expect("it serves");
}

/// S3: another user watches every process of a `muster dev up` and its folder, from its first moment, and once had a
/// manager's token within a second.
#[test]
fn dev_cluster_tokens_are_hidden_from_other_users() {
    // Another user can read this folder; only root can become one.
    let folder = temporary_folder("seen").expect("a temporary folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    let text = folder.path().to_str().expect("plain").to_owned();
    let (looked, stop) = (folder.path().join("looked"), folder.path().join("stop"));
    // `[-]`: so that the spy does not match itself.
    let script = r#"while [ ! -e "$1/stop" ]; do
        for process in /proc/[0-9]*; do
            if grep -qs "$1/.muster" "$process/cmdline"; then
                echo a process
                cat "$process/cmdline" "$process/environ" 2>/dev/null | tr '\0' '\n' | grep 'MSTR[-]1'
            fi
        done
        grep -rhs 'MSTR[-]1' "$1/.muster"
    done"#;
    let mut spy = Command::new("sh");
    spy.args(["-c", script, "spy", &text]).stdout(std::fs::File::create(&looked).expect("the folder is ours"));
    spy.stderr(std::process::Stdio::null());
    if rustix::process::geteuid().is_root() {
        spy.uid(OTHER_UID).gid(OTHER_UID);
    } else {
        println!("not root: the spy runs as the same user and skips what it may read anyway");
        return;
    }
    let mut spy = spy.spawn().expect("sh runs");
    let dir = format!("{text}/.muster");
    let up = ["dev", "up", "--dir", &dir, "--managers", "2", "--workers", "1", "--detach"];
    let up = muster(folder.path(), &up);
    // Its findings are checked once the daemons are down.
    let (saw, end) =
        (|| std::fs::read_to_string(&looked).is_ok_and(|text| text.contains("a process")), Instant::now() + WAIT_LIMIT);
    while up.status.success() && !saw() && Instant::now() < end {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    std::fs::write(&stop, "").expect("the folder is ours");
    let down = muster(folder.path(), &["dev", "down", "--dir", &dir]);
    spy.wait().expect("it is our child");
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    let looked = std::fs::read_to_string(&looked).expect("it wrote");
    assert!(looked.contains("a process"), "it saw the daemons");
    assert!(!looked.contains("MSTR"), "{looked}");
}
