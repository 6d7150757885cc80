//! A copied data directory with a second process on it: what cloning a virtual machine does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use muster_messages::NodeId;
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{World, eventually, eventually_so};

/// Short intervals, so that past duplicates disappear within a test.
const SHORT_TIMINGS: &str = "[sessions]\nwarn_every = \"4s\"\n[dispatcher]\nquiet = \"3s\"\n";

fn clone_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the world's folder is writable");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("readable");
        let (kind, target) = (entry.file_type().expect("a kind"), to.join(entry.file_name()));
        if kind.is_dir() {
            clone_folder(&entry.path(), &target);
        } else if kind.is_file() {
            // A temporary file of a running daemon may be gone meanwhile.
            let _copied = std::fs::copy(entry.path(), target);
        }
    }
}

/// A copy of a node's directory, named `copy`, at its own address. Not started.
fn copy(world: &mut World, name: &str) {
    let from = world.node(name).folder.clone();
    let to = world.node("copy").folder.clone();
    clone_folder(&from, &to);
}

fn id_of(world: &World, name: &str) -> NodeId {
    world.seen("n1", name).expect("it is a node").id
}

/// The addresses of the processes that `status` names for a node.
fn named(world: &World, at: &str, node: NodeId) -> BTreeSet<String> {
    let ran = world.muster_at(at, &["status"]);
    let status = if ran.code == 0 { ran.json() } else { Value::Null };
    let duplicates = status["duplicates"].as_array().into_iter().flatten();
    let processes = duplicates.filter(|d| d["node"] == node.to_string()).filter_map(|d| d["processes"].as_array());
    processes.flatten().filter_map(|p| p["addr"].as_str().map(str::to_owned)).collect()
}

/// `status`, `node inspect`, the event log and the leader's metrics name both.
#[track_caller]
fn both_are_named(world: &mut World, node: NodeId, both: &BTreeSet<String>) {
    // Only the leader knows the duplicates: an answer from a replica, which a busy machine may cause, has none. And a report is over
    // if no sign was seen for a few seconds.
    eventually_so("status names both", || named(world, "n1", node) == *both);
    eventually_so("the node's conditions name both", || {
        let inspected = world.muster(&["node", "inspect", node.as_str()]).ended(0).json();
        let conditions = inspected["conditions"].as_array().expect("conditions");
        let condition = conditions.iter().find(|c| c["reason"] == "duplicate_identity");
        let message = condition.and_then(|c| c["since"].is_string().then_some(c["message"].as_str()?));
        message.is_some_and(|message| both.iter().all(|addr| message.contains(addr)))
    });
    let event = eventually("an event", || node_events(world, node).into_iter().next());
    assert!(both.iter().all(|addr| event.contains(addr)), "{event}");
    eventually_so("the leader's metrics name both", || {
        let leader = world.leader_seen_by("n1");
        let metrics = world.metrics(&leader);
        both.iter().all(|addr| {
            let wanted = [format!("node=\"{node}\""), format!("address=\"{addr}\"")];
            metrics.lines().any(|l| l.starts_with("muster_duplicate_identity{") && wanted.iter().all(|w| l.contains(w)))
        })
    });
}

/// Its events.
fn node_events(world: &World, node: NodeId) -> Vec<String> {
    let events = world.muster(&["events"]).ended(0).json();
    let items = events.as_array().or(events["items"].as_array()).expect("events").clone();
    let about = items.iter().filter(|e| e["node"] == node.to_string() && e["reason"] == "duplicate identity");
    about.filter_map(|e| e["after"].as_str().map(str::to_owned)).collect()
}

/// A manager's mesh view of the processes of a node.
fn identity(world: &World, at: &str) -> Value {
    let ask = ActorsAsk::Inspect { path: "node/manager/mesh".to_owned() };
    let mesh = world.ask(at, Request::Actors { node: ActorsOf::Here, ask }).unwrap_or_default();
    mesh["view"]["identity"].clone()
}

/// The address of the process that this manager accepts as that node.
fn accepted_address(world: &World, at: &str, node: NodeId) -> Option<String> {
    let identity = identity(world, at);
    let processes = identity["processes"].as_array().into_iter().flatten();
    let of_node = processes.filter(|p| p["node"] == node.to_string()).filter_map(|p| p["addr"].as_str());
    of_node.map(str::to_owned).next()
}

/// The addresses that this manager refuses as that node.
fn refused(world: &World, at: &str, node: NodeId) -> Vec<String> {
    let identity = identity(world, at);
    let duplicates = identity["duplicates"].as_array().into_iter().flatten();
    let of_node = duplicates.filter(|d| d["node"] == node.to_string());
    of_node.filter_map(|d| d["refused"]["addr"].as_str().map(str::to_owned)).collect()
}

/// The leader of each term, from all nodes' logs.
fn leaders(world: &World, names: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut terms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in names {
        for line in world.nodes_log(name).lines() {
            if let Some((_, rest)) = line.split_once("became the Raft leader term=") {
                let term = rest.split_whitespace().next().unwrap_or_default().to_owned();
                terms.entry(term).or_default().insert((*name).to_owned());
            }
        }
    }
    terms
}

/// E45.
#[test]
#[ignore = "full tier"]
fn copied_worker_directory_is_reported_as_duplicate() {
    let mut world = World::new();
    world.settings += SHORT_TIMINGS;
    world.node("n1").start(&["--init"]).ready();
    let workers = world.join_more(1, muster_messages::Role::Worker);
    let (worker, node) = (workers[0].clone(), id_of(&world, &workers[0]));
    copy(&mut world, &worker);
    world.node("copy").start(&[]);
    let both: BTreeSet<String> = [&*worker, "copy"].map(|name| world.node(name).listen.to_string()).into();
    both_are_named(&mut world, node, &both);
    let log = world.nodes_log("n1");
    let said = log.lines().filter(|l| l.contains("two processes use the identity of one node")).count();
    assert!((1..=2).contains(&said), "once for the host and once for the leader, not repeatedly:\n{log}");

    world.node("copy").kill();
    eventually_so("the duplicate is no longer reported", || named(&world, "n1", node).is_empty());
    // The record follows the remaining process only after that: until then it may name the copy's host.
    eventually_so("the record is that of the original", || {
        let ran = world.muster(&["node", "inspect", node.as_str()]);
        ran.code == 0 && ran.json()["conditions"] == serde_json::json!([])
    });
    assert_eq!(node_events(&world, node).len(), 1, "one event, however often they alternated");
}

/// E45. The copy lacks the start of the original that its peers know, so it has no vote, even after the original ended.
#[test]
#[ignore = "full tier"]
fn copied_manager_directory_never_votes() {
    let mut world = World::with(3, 0);
    let node = id_of(&world, "n3");
    world.node("n3").stop();
    copy(&mut world, "n3");
    world.node("n3").start(&[]).ready();
    world.all_settled();
    world.node("copy").start(&[]);
    let address = world.node("copy").listen.to_string();
    for name in ["n1", "n2"] {
        eventually_so("the copy is not accepted", || refused(&world, name, node) == [address.clone()]);
    }
    assert!(world.node("copy").is_starting(), "it is no manager, and says why");
    eventually_so("it says why", || world.nodes_log("copy").contains("manager refuses this process"));
    let both: BTreeSet<String> = ["n3", "copy"].map(|name| world.node(name).listen.to_string()).into();
    both_are_named(&mut world, node, &both);

    // Elections, with the original and without it.
    for _ in 0..3 {
        let leader = world.leader_seen_by("n1");
        let transfer_target = if leader == "n1" { "n2" } else { "n1" };
        world.make_lead(transfer_target);
    }
    world.node("n3").kill();
    let count = |world: &World| identity(world, "n1")["duplicates_refused"].as_u64().unwrap_or(0);
    let before = count(&world);
    eventually_so("it is refused again without the original", || count(&world) >= before + 2);
    assert!(world.node("copy").is_starting());
    let text = world.nodes_log("n1");
    assert!(text.contains("is a copy of an older state"), "{text}");
    world.node("n3").start(&[]).ready();
    let leaders = leaders(&world, &["n1", "n2", "n3", "copy"]);
    assert!(leaders.values().all(|who| who.len() == 1 && !who.contains("copy")), "{leaders:?}");
    assert!(leaders.len() >= 3, "the logs name the leaders: {leaders:?}");
}

/// E45. A copy of a directory in use looks like another start of it: it waits while the original answers.
#[test]
#[ignore = "full tier"]
fn copied_manager_waits_while_original_answers() {
    let mut world = World::with(3, 0);
    let node = id_of(&world, "n3");
    world.make_lead("n1");
    // Copied at one moment, as a machine snapshot. File by file, the log could be older than the acknowledgement record.
    world.node("n3").freeze();
    copy(&mut world, "n3");
    world.node("n3").signal(Signal::CONT);
    world.node("copy").start(&[]);
    let address = world.node("copy").listen.to_string();
    for name in ["n1", "n2"] {
        eventually_so("the copy is not accepted", || refused(&world, name, node) == [address.clone()]);
    }
    assert!(world.nodes_log("n1").contains("and answers"), "{}", world.nodes_log("n1"));
    assert!(world.node("copy").is_starting());
    // A copy cannot be told from the same node restarted elsewhere after its machine froze.
    world.node("n3").freeze();
    world.node("copy").ready();
    let original = world.node("n3").listen.to_string();
    // If two managers accept different processes, the one that accepted the original is right while the original answers.
    for name in ["n1", "n2"] {
        eventually_so("the copy is accepted", || accepted_address(&world, name, node) == Some(address.clone()));
    }
    world.node("n3").signal(Signal::CONT);
    // The copy stays, unless the original acknowledged entries after it was copied (the event about the duplicate is one):
    // then the copy finds its log damaged, its member id is replaced, and the process that answers first gets the new one.
    let one_is_accepted = |name: &str| {
        let accepted = accepted_address(&world, name, node)?;
        let other = if accepted == address { &original } else { &address };
        (refused(&world, name, node) == [other.clone()]).then_some(accepted)
    };
    eventually_so("both managers accept the same process and refuse the other", || {
        one_is_accepted("n1").is_some_and(|accepted| one_is_accepted("n2") == Some(accepted))
    });
    let leaders = leaders(&world, &["n1", "n2", "n3", "copy"]);
    assert!(leaders.values().all(|who| who.len() == 1), "{leaders:?}");
}
