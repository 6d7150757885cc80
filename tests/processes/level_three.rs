//! Changes of feature level 3, in a cluster founded, filled and snapshotted by a build of level 2: certificates on record,
//! reported labels, outcomes by caller, a separate history for lease events.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_client::{CallError, Connection};
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{ErrorCode, Liveness, Membership, RequestId, Role, SessionId};
use serde_json::Value;

use crate::feature_level::{at_level_two_with, becomes, level};
use crate::harness::{World, eventually, eventually_so};

/// Several snapshots within the run, and a log behind the last one.
const SNAPSHOTS: &str = "snapshot_entries = 60\nkeep_entries = 20\n";

/// One request with a chosen id, over a node's socket. It is repeated while its outcome is unknown.
#[track_caller]
fn call(world: &World, at: &str, request: Request, id: RequestId) -> Result<Value, ErrorCode> {
    let socket = world.socket(at);
    eventually(&format!("{at} answers {request:?}"), || {
        let asked = world.wait_for(async {
            let mut connection = Connection::to_socket(&socket).await.ok()?;
            Some(connection.call(request.clone(), id, Duration::from_secs(60)).await)
        });
        match asked? {
            Ok(text) => Some(Ok(serde_json::from_str(&text).expect("JSON"))),
            Err(CallError::Refused(error)) if error.code.exit_status() == ErrorCode::NoQuorum.exit_status() => None,
            Err(CallError::Refused(error)) => Some(Err(error.code)),
            Err(_) => None,
        }
    })
}

fn fresh() -> RequestId {
    RequestId::fresh(muster_kernel::Clock.wall(), rand::random())
}

fn token(role: Role) -> Request {
    Request::TokenCreate { role, ttl_ms: None, uses: Some(1) }
}

fn acquire(name: &str) -> Request {
    let lease = LeaseRef { namespace: "default".to_owned(), name: name.to_owned() };
    let (holder, session) = (name.to_owned(), SessionId(7));
    Request::Lease(LeaseRequest::Acquire { lease, holder, session, duration_ms: 600_000 })
}

fn labels(world: &World, name: &str) -> BTreeMap<String, String> {
    world.seen("n1", name).expect("it is a node").labels
}

/// Restarts a node with this label and no other.
fn reports(world: &mut World, name: &str, label: &str) {
    world.node(name).stop();
    world.node(name).start(&["--label", label]).ready();
    let (key, value) = label.split_once('=').expect("a label");
    eventually_so("its label is reported", || labels(world, name).get(key).is_some_and(|v| v == value));
}

/// Kinds of events with their texts.
fn events(world: &World) -> Vec<(String, String)> {
    let list = world.muster(&["events"]).ended(0).json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let what = |event: &Value| (text(&event["kind"]), format!("{} {}", text(&event["before"]), text(&event["after"])));
    list["items"].as_array().expect("items").iter().map(what).collect()
}

fn has_event_about(world: &World, kind: &str, what: &str) -> bool {
    events(world).iter().any(|(of, text)| of == kind && text.contains(what))
}

fn serial(world: &World, name: &str) -> String {
    let node = world.seen("n1", name).expect("it is a node");
    node.certificate.serial.expect("the node has a certificate")
}

#[test]
#[ignore = "full tier"]
fn state_of_level_two_works_at_level_three() {
    let mut world = at_level_two_with(SNAPSHOTS);
    let managers = ["n1", "n2", "n3"];
    let (seed, worker) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    world.node("n4").start(&["--join", &seed, "--token", &worker, "--label", "first=1"]).ready();
    world.muster(&["node", "update", "n4", "--label-add", "rack=r1"]).ended(0);
    reports(&mut world, "n4", "second=2");
    assert!(labels(&world, "n4").contains_key("first"), "level 2 forgets no label of a node");
    for args in [&["node", "rename", "n4", "db-1"][..], &["cert", "rotate", "n4", "--revoke"]] {
        let refused = world.muster(args);
        assert_ne!(refused.code, 0, "level 2 knows no {args:?}: {}", refused.stdout);
    }
    world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
    world.muster(&["node", "demote", "n4", "--wait=300s"]).ended(0);
    call(&world, "n4", acquire("early"), fresh()).expect("n4 holds a lease");
    let (retried, shared) = (fresh(), fresh());
    let made = call(&world, "n1", token(Role::Worker), retried).expect("a token");
    for write in 0..150 {
        let label = format!("w={write}");
        world.muster(&["node", "update", "n1", "--label-add", &label]).ended(0);
    }
    for name in managers {
        eventually_so("it has a snapshot of level 2", || {
            let raft = std::fs::read_dir(world.node(name).folder.join("raft")).expect("it is a manager");
            raft.flatten().any(|file| file.file_name().to_string_lossy().starts_with("snapshot-"))
        });
    }

    for name in managers {
        becomes(&mut world, name, 3);
        world.node(name).ready();
    }
    eventually_so("the level is raised", || level(&world, "n1") == 3);
    eventually_so("all nodes are ready", || world.nodes_seen_by("n1").iter().all(|node| node.state == Liveness::Ready));

    // Outcomes: a retry from level 2 is still one; from now on an id belongs to its caller and stands for one request.
    assert_eq!(call(&world, "n1", token(Role::Worker), retried), Ok(made.clone()), "it is not created twice");
    let tokens = world.muster(&["token", "ls"]).ended(0).json();
    let count = tokens["items"].as_array().expect("items").iter().filter(|token| token["id"] == made["id"]).count();
    assert_eq!(count, 1, "{tokens}");
    let theirs = call(&world, "n1", token(Role::Worker), shared).expect("a token");
    call(&world, "n4", acquire("late"), shared).expect("another caller's request of that id is another request");
    assert_eq!(call(&world, "n1", token(Role::Worker), shared), Ok(theirs.clone()), "a retry");
    let reused = call(&world, "n1", token(Role::Manager), shared);
    assert!(reused.is_err(), "one id for two requests: {reused:?}");

    // Events from before and after.
    for name in ["early", "late"] {
        assert!(
            has_event_about(&world, "lease", name) || has_event_about(&world, "lease", "n4"),
            "{name}: {:?}",
            events(&world)
        );
    }
    assert!(events(&world).iter().any(|(kind, _)| kind == "role"), "the role events of level 2 are kept");

    // Labels: a node's report replaces its earlier reports, and the operator's labels stay.
    reports(&mut world, "n4", "third=3");
    reports(&mut world, "n4", "fourth=4");
    let kept = labels(&world, "n4");
    assert!(!kept.contains_key("third") && kept.get("rack").is_some_and(|rack| rack == "r1"), "{kept:?}");

    // Certificates: those of level 2 are accepted until nodes have recorded ones.
    for name in ["n1", "n2", "n3", "n4"] {
        let before = serial(&world, name);
        world.muster(&["cert", "rotate", name, "--revoke"]).ended(0);
        eventually_so("it has another certificate", || serial(&world, name) != before);
    }
    eventually_so("no node was locked out", || {
        let nodes = world.nodes_seen_by("n1");
        nodes.iter().all(|node| node.state == Liveness::Ready && node.conditions.is_empty())
    });

    // Names belong to the operator; roles change; a new manager takes over all of it, as do restarted ones.
    world.muster(&["node", "rename", "n4", "db-1"]).ended(0);
    world.muster(&["node", "promote", "db-1", "--wait=300s"]).ended(0);
    world.muster(&["node", "demote", "db-1", "--wait=300s"]).ended(0);
    let new = world.join_more(1, Role::Manager).remove(0);
    eventually_so("it is a voter", || world.seen("n1", &new).is_some_and(|node| node.membership == Membership::Voter));
    for name in ["n1", "n2", "n3", "n4", new.as_str()] {
        world.node(name).kill();
    }
    for name in ["n1", "n2", "n3", "n4", new.as_str()] {
        world.node(name).start(&[]);
    }
    for name in ["n1", "n2", "n3", "n4", new.as_str()] {
        world.node(name).ready();
    }
    let node = eventually("it is listed under its name", || {
        world.seen("n1", "db-1").filter(|node| node.state == Liveness::Ready)
    });
    assert_eq!(node.labels.get("rack").map(String::as_str), Some("r1"), "{:?}", node.labels);
    // (Of level 2 each request since has pushed an outcome out.)
    assert_eq!(call(&world, &new, token(Role::Worker), shared), Ok(theirs), "{new} remembers");
    assert_eq!(level(&world, &new), 3);
}
