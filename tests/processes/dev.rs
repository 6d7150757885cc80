//! `muster dev`: clusters that leave nothing behind.

use std::path::Path;
use std::sync::Arc;

use muster::cli::dev::state::State;
use muster_local_cluster::{ProcessId, temporary_folder};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{EndedMuster, ForegroundMuster, Permit, eventually_so, permit};

fn processes(folder: &Path) -> Vec<ProcessId> {
    let state = State::read(&folder.join(".muster")).expect("the state can be read");
    state.nodes.iter().filter_map(|node| node.running()).collect()
}

/// A permit and a folder for a cluster outside any [`World`](crate::harness::World).
fn permit_and_folder() -> (Arc<Permit>, TempDir) {
    (permit(), temporary_folder("test").expect("a temporary folder"))
}

#[track_caller]
fn all_gone(processes: &[ProcessId]) {
    eventually_so("no process is left", || processes.iter().all(|process| !process.is_alive()));
}

/// What `muster` prints about the folder's cluster. It finds a daemon by itself.
#[track_caller]
fn asked(folder: &Path, args: &[&str]) -> Value {
    EndedMuster::new(folder, &[&["-o", "json"], args].concat()).ended(0).json()
}

/// Temporary folders that a process created and did not remove.
fn folders_of(pid: i32) -> Vec<String> {
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("the temporary folder can be read");
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("muster-tour-{pid}-"))).collect()
}

#[test]
#[ignore = "full tier"]
fn foreground_dev_cluster_starts_and_stops_with_ctrl_c() {
    let (_permit, folder) = permit_and_folder();
    let mut front = ForegroundMuster::start(folder.path(), &["dev", "up"]);
    front.wait_for_line("Ctrl-C stops it");
    let running = processes(folder.path());
    assert_eq!(running.len(), 5);
    // Command lines are public, so they must contain no usable token: those of the joins are used up.
    for process in &running {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).expect("it runs");
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(line.contains("musterd") && !line.contains("MSTR-"), "{line}");
    }
    let tokens = asked(folder.path(), &["token", "ls"]);
    let left: Vec<_> =
        tokens["items"].as_array().expect("items").iter().filter(|t| t["expires_at"] != Value::Null).collect();
    assert!(left.len() == 2 && left.iter().all(|token| token["uses_left"] == 0), "{left:?}");
    // Of those that answer, a manager.
    let status = asked(folder.path(), &["status"]);
    assert_eq!(status["self"]["role"], "manager", "{status}");
    assert_eq!((&status["nodes"]["managers"], &status["nodes"]["workers"]), (&3.into(), &2.into()));
    let second = EndedMuster::new(folder.path(), &["dev", "up", "-o", "json"]).ended(6);
    assert_eq!(second.error_code(), "already_running");
    let second = EndedMuster::new(folder.path(), &["dev", "up"]).ended(6);
    assert!(second.stderr.contains("n5") && second.stderr.contains("dev down"), "{}", second.stderr);
    front.signal(Signal::INT);
    assert_eq!(front.exit(), Some(0));
    all_gone(&running);
}

#[test]
#[ignore = "full tier"]
fn detached_dev_cluster_stops_on_request_and_resumes() {
    let (_permit, folder) = permit_and_folder();
    let up = ["dev", "up", "--managers", "1", "--workers", "1", "--detach"];
    EndedMuster::new(folder.path(), &up).ended(0);
    let running = processes(folder.path());
    assert_eq!(running.len(), 2);
    let id = |folder: &Path| asked(folder, &["status"])["cluster"]["id"].clone();
    let founded = id(folder.path());
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);
    let up = ["dev", "up", "--detach", "-o", "json"];
    let again = EndedMuster::new(folder.path(), &up).ended(0).json();
    assert_eq!(again["nodes"].as_array().map(Vec::len), Some(2), "{again}");
    assert_eq!(id(folder.path()), founded);
    let running = processes(folder.path());
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
}

/// Beside those that run, which stay as they are.
#[test]
#[ignore = "full tier"]
fn dev_up_starts_nodes_that_have_ended() {
    let (_permit, folder) = permit_and_folder();
    let up = ["dev", "up", "--managers", "1", "--workers", "1", "--detach"];
    EndedMuster::new(folder.path(), &up).ended(0);
    let [manager, killed]: [ProcessId; 2] = processes(folder.path()).try_into().expect("both run");
    let complete = EndedMuster::new(folder.path(), &["dev", "up", "--detach"]).ended(6);
    assert!(!complete.stderr.contains("--detach"), "{}", complete.stderr);
    killed.signal(Signal::KILL);
    all_gone(&[killed]);
    // In the foreground it would end with its terminal, and the other one would not.
    let refused = EndedMuster::new(folder.path(), &["dev", "up"]).ended(6);
    assert!(refused.stderr.contains("(1 of 2 nodes)"), "{}", refused.stderr);
    assert!(refused.stderr.contains("`muster dev up --detach` starts n2:"), "{}", refused.stderr);
    let again = EndedMuster::new(folder.path(), &["dev", "up", "--detach"]).ended(0).stdout;
    assert!(again.contains("1 of 2 nodes are running") && again.contains("starting n2\n"), "{again}");
    assert!(again.contains("\n2 nodes are up after ") && !again.contains("removed"), "{again}");
    let running = processes(folder.path());
    assert!(running.len() == 2 && running[0] == manager && running[1] != killed, "{running:?}");
    eventually_so("both are ready", || asked(folder.path(), &["status"])["nodes"]["ready"] == 2);

    // It has nothing to start, and says why.
    running[1].signal(Signal::KILL);
    all_gone(&running[1..]);
    asked(folder.path(), &["node", "rm", "n2", "--force"]);
    let without = EndedMuster::new(folder.path(), &["dev", "up", "--detach"]).ended(0).stdout;
    assert!(without.contains("removed from the cluster, and not running: n2"), "{without}");
    assert_eq!(processes(folder.path()), [manager]);
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
}

/// It says at once which manager needs the key, and waits for it; the worker waits for the manager.
#[test]
#[ignore = "full tier"]
fn dev_up_names_locked_managers_and_waits() {
    let (_permit, folder) = permit_and_folder();
    EndedMuster::new(folder.path(), &["dev", "up", "--managers", "1", "--workers", "1", "--detach"]).ended(0);
    let on = asked(folder.path(), &["autolock", "on", "--wait=60s"]);
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);

    let mut up = ForegroundMuster::start(folder.path(), &["dev", "up", "--detach"]);
    up.wait_for_line(&format!("locked: needs version {} of the unlock key", on["version"]));
    let line = up.seen().lines().find(|line| line.contains("locked: needs")).expect("it was read").to_owned();
    assert!(line.starts_with("n1 ") && line.contains("n1/muster.sock`"), "{line}");
    assert!(up.id.is_alive(), "it waits");
    let key = folder.path().join("key");
    std::fs::write(&key, on["key"].as_str().expect("a key")).expect("the folder is writable");
    let socket = folder.path().join(".muster/n1/muster.sock");
    let [socket, key] = [&socket, &key].map(|path| path.to_str().expect("the folder's path is text"));
    EndedMuster::new(folder.path(), &["--socket", socket, "unlock", "--key-file", key]).ended(0);
    up.wait_for_line("2 nodes are up after");
    assert_eq!(up.exit(), Some(0));
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);
}

/// B16: a node removed while it was down learns it at the next start, and never becomes ready.
#[test]
#[ignore = "full tier"]
fn removed_node_does_not_block_dev_restart() {
    let (_permit, folder) = permit_and_folder();
    EndedMuster::new(folder.path(), &["dev", "up", "--managers", "1", "--workers", "1", "--detach"]).ended(0);
    let running = processes(folder.path());
    let state = State::read(&folder.path().join(".muster")).expect("the state can be read");
    let removed = state.nodes[1].running().expect("n2 runs");
    removed.signal(Signal::KILL);
    all_gone(&[removed]);
    asked(folder.path(), &["node", "rm", "n2", "--force"]);
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
    EndedMuster::new(folder.path(), &["dev", "up", "--detach"]).ended(0);
    let nodes = asked(folder.path(), &["node", "ls"]);
    assert_eq!(nodes["items"].as_array().map(Vec::len), Some(1), "{nodes}");
    let running = processes(folder.path());
    assert_eq!(running.len(), 1, "the removed node does not run");
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
}

#[test]
#[ignore = "full tier"]
fn foreground_dev_cluster_dies_with_killed_muster() {
    let (_permit, folder) = permit_and_folder();
    let mut front = ForegroundMuster::start(folder.path(), &["dev", "up", "--managers", "1", "--workers", "1"]);
    front.wait_for_line("Ctrl-C stops it");
    let running = processes(folder.path());
    assert_eq!(running.len(), 2);
    front.signal(Signal::KILL);
    assert_eq!(front.exit(), None);
    all_gone(&running);
    // Leftovers of a dead keeper do not stop the next one.
    EndedMuster::new(folder.path(), &["dev", "up", "--detach"]).ended(0);
    let running = processes(folder.path());
    EndedMuster::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
}

#[test]
fn tour_completes_and_leaves_nothing() {
    let (_permit, folder) = permit_and_folder();
    let tour = EndedMuster::new(folder.path(), &["dev", "tour", "-o", "json"]).ended(0).json();
    let steps = tour["steps"].as_array().expect("steps").clone();
    assert_eq!(steps.len(), 14, "{tour}");
    assert!(steps.iter().all(|step| step["ok"] == true && step["ms"].is_u64()), "{tour}");
    assert!(!folder.path().join(".muster").exists(), "it uses its own folder");
}

#[test]
#[ignore = "full tier"]
fn interrupted_tour_leaves_nothing() {
    let (_permit, folder) = permit_and_folder();
    let mut front = ForegroundMuster::start(folder.path(), &["dev", "tour"]);
    front.wait_for_line("create a cluster");
    let children = children_of(front.id.pid);
    assert!(children.len() >= 5, "{children:?}");
    assert_eq!(folders_of(front.id.pid).len(), 1);
    front.signal(Signal::TERM);
    assert_eq!(front.exit(), Some(1));
    all_gone(&children);
    assert!(folders_of(front.id.pid).is_empty(), "its folder is gone");
}

/// Child processes of a process, from `/proc`.
fn children_of(pid: i32) -> Vec<ProcessId> {
    let all = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let parent = |child: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.get(stat.rfind(')')? + 1..)?.split_whitespace().nth(1)?.parse::<i32>().ok()
    };
    pids.filter(|child| parent(*child) == Some(pid)).filter_map(ProcessId::of).collect()
}
