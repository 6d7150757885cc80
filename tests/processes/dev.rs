//! `muster dev`: clusters that leave nothing behind.

use std::path::Path;
use std::sync::Arc;

use muster::cli::dev::state::State;
use muster_local_cluster::{ProcessId, temporary_folder};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Front, Permit, Ran, eventually_so, permit};

fn processes(folder: &Path) -> Vec<ProcessId> {
    let state = State::read(&folder.join(".muster")).expect("the state can be read");
    state.nodes.iter().filter_map(|node| node.running()).collect()
}

/// A place on this machine for a cluster that no [`World`](crate::harness::World) keeps, and a folder for it.
fn place() -> (Arc<Permit>, TempDir) {
    (permit(), temporary_folder("test").expect("a temporary folder"))
}

#[track_caller]
fn all_gone(processes: &[ProcessId]) {
    eventually_so("no process is left", || processes.iter().all(|process| !process.is_alive()));
}

/// The temporary folders that a process has made and not removed.
fn folders_of(pid: i32) -> Vec<String> {
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("the temporary folder can be read");
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("muster-tour-{pid}-"))).collect()
}

#[test]
#[ignore = "full tier"]
fn a_cluster_in_front_comes_up_is_found_and_goes_with_ctrl_c() {
    let (_permit, folder) = place();
    let mut front = Front::start(folder.path(), &["dev", "up"]);
    front.says("Ctrl-C stops it");
    let running = processes(folder.path());
    assert_eq!(running.len(), 5);
    // Every user of this machine reads command lines, and lists the tokens of nobody: what let the nodes in is used up.
    for process in &running {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).expect("it runs");
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(line.contains("musterd") && !line.contains("MSTR-"), "{line}");
    }
    let tokens = Ran::new(folder.path(), &["token", "ls", "-o", "json"]).ended(0).json();
    let left: Vec<_> =
        tokens["items"].as_array().expect("items").iter().filter(|t| t["expires_at"] != Value::Null).collect();
    assert!(left.len() == 2 && left.iter().all(|token| token["uses_left"] == 0), "{left:?}");
    let status = Ran::new(folder.path(), &["status", "-o", "json"]).ended(0).json();
    assert_eq!((&status["nodes"]["managers"], &status["nodes"]["workers"]), (&3.into(), &2.into()));
    assert_eq!(status["self"]["role"], "manager", "managers are asked first");
    let second = Ran::new(folder.path(), &["dev", "up", "-o", "json"]).ended(6);
    assert_eq!(second.error_code(), "already_running");
    let second = Ran::new(folder.path(), &["dev", "up"]).ended(6);
    assert!(second.stderr.contains("n5") && second.stderr.contains("dev down"), "{}", second.stderr);
    front.signal(Signal::INT);
    assert_eq!(front.exit(), Some(0));
    all_gone(&running);
}

#[test]
#[ignore = "full tier"]
fn a_detached_cluster_stays_until_it_is_told_and_is_resumed_with_its_data() {
    let (_permit, folder) = place();
    let up = ["dev", "up", "--managers", "1", "--workers", "1", "--detach"];
    Ran::new(folder.path(), &up).ended(0);
    let running = processes(folder.path());
    assert_eq!(running.len(), 2);
    let id = |folder: &Path| Ran::new(folder, &["status", "-o", "json"]).ended(0).json()["cluster"]["id"].clone();
    let founded = id(folder.path());
    Ran::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
    Ran::new(folder.path(), &["dev", "down"]).ended(0);
    let up = ["dev", "up", "--detach", "-o", "json"];
    let again = Ran::new(folder.path(), &up).ended(0).json();
    assert_eq!(again["nodes"].as_array().map(Vec::len), Some(2), "{again}");
    assert_eq!(id(folder.path()), founded);
    let running = processes(folder.path());
    Ran::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
}

/// B16: a node that was down when it was removed hears of it at the next start, and never gets ready.
#[test]
#[ignore = "full tier"]
fn a_removed_node_does_not_hold_up_the_next_start() {
    let (_permit, folder) = place();
    Ran::new(folder.path(), &["dev", "up", "--managers", "1", "--workers", "1", "--detach"]).ended(0);
    let running = processes(folder.path());
    let state = State::read(&folder.path().join(".muster")).expect("the state can be read");
    let removed = state.nodes[1].running().expect("n2 runs");
    removed.signal(Signal::KILL);
    all_gone(&[removed]);
    Ran::new(folder.path(), &["node", "rm", "n2", "--force"]).ended(0);
    Ran::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
    Ran::new(folder.path(), &["dev", "up", "--detach"]).ended(0);
    let nodes = Ran::new(folder.path(), &["node", "ls", "-o", "json"]).ended(0).json();
    assert_eq!(nodes["items"].as_array().map(Vec::len), Some(1), "{nodes}");
    let running = processes(folder.path());
    assert_eq!(running.len(), 1, "the removed one does not run");
    Ran::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
}

#[test]
#[ignore = "full tier"]
fn a_cluster_in_front_dies_with_a_killed_muster() {
    let (_permit, folder) = place();
    let mut front = Front::start(folder.path(), &["dev", "up", "--managers", "1", "--workers", "1"]);
    front.says("Ctrl-C stops it");
    let running = processes(folder.path());
    assert_eq!(running.len(), 2);
    front.signal(Signal::KILL);
    assert_eq!(front.exit(), None);
    all_gone(&running);
    // What a dead keeper left does not stop the next one.
    Ran::new(folder.path(), &["dev", "up", "--detach"]).ended(0);
    let running = processes(folder.path());
    Ran::new(folder.path(), &["dev", "down"]).ended(0);
    all_gone(&running);
}

#[test]
fn the_tour_tells_its_whole_story_and_leaves_nothing() {
    let (_permit, folder) = place();
    let told = Ran::new(folder.path(), &["dev", "tour", "-o", "json"]).ended(0).json();
    let steps = told["steps"].as_array().expect("steps").clone();
    assert_eq!(steps.len(), 11, "{told}");
    assert!(steps.iter().all(|step| step["ok"] == true && step["ms"].is_u64()), "{told}");
    assert!(!folder.path().join(".muster").exists(), "it uses a folder of its own");
}

#[test]
#[ignore = "full tier"]
fn an_interrupted_tour_leaves_nothing() {
    let (_permit, folder) = place();
    let mut front = Front::start(folder.path(), &["dev", "tour"]);
    front.says("found a cluster");
    let children = children_of(front.id.pid);
    assert!(children.len() >= 5, "{children:?}");
    assert_eq!(folders_of(front.id.pid).len(), 1);
    front.signal(Signal::TERM);
    assert_eq!(front.exit(), Some(1));
    all_gone(&children);
    assert!(folders_of(front.id.pid).is_empty(), "its folder is gone");
}

/// The processes that a process has started, from `/proc`.
fn children_of(pid: i32) -> Vec<ProcessId> {
    let all = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let parent = |child: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.get(stat.rfind(')')? + 1..)?.split_whitespace().nth(1)?.parse::<i32>().ok()
    };
    pids.filter(|child| parent(*child) == Some(pid)).filter_map(ProcessId::of).collect()
}
