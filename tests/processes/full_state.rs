//! A state without room for more: what would make it larger is refused, and the cluster keeps serving.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use muster_client::Failure;
use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{ErrorCode, ManagedKey};
use serde_json::{Value, json};

use crate::harness::{WAIT_LIMIT, World, between_checks, eventually};

/// The end of the table `[raft]`, and a limit that is reached soon. Users' data may take three quarters of it.
const SETTINGS: &str = "snapshot_bytes = 262144\n[mesh]\nmax_snapshot_bytes = 2097152\n";
const MAX_DATA_BYTES: usize = 2_097_152 / 4 * 3;
const OBJECT_BYTES: usize = 60_000;
/// A refusal may rest on an estimate, until the state is measured. After this many there is no room.
const REFUSALS: u32 = 20;

fn key(number: u32) -> ManagedKey {
    ManagedKey { kind: "table".to_owned(), namespace: "default".to_owned(), name: format!("o{number}") }
}

fn put(world: &World, at: &str, number: u32) -> Result<Value, Failure> {
    let body = json!({"text": "x".repeat(OBJECT_BYTES)}).to_string();
    let put = ReconcilerRequest::ObjectPut { key: key(number), labels: BTreeMap::new(), body };
    world.ask(at, Request::Reconciler(put))
}

/// Stores objects until one more is refused, and says so clearly.
fn fill(world: &World, at: &str, stored: &mut BTreeSet<u32>) {
    let (end, mut refused) = (Instant::now() + WAIT_LIMIT, 0);
    while refused < REFUSALS {
        assert!(Instant::now() < end, "neither stored nor refused");
        let next = (0..).find(|number| !stored.contains(number)).expect("numbers do not end");
        match put(world, at, next) {
            Ok(_) => {
                stored.insert(next);
                refused = 0;
                let bytes = stored.len() * OBJECT_BYTES;
                assert!(bytes < MAX_DATA_BYTES, "{bytes} bytes are stored");
            }
            Err(failure) if failure.is(ErrorCode::StateFull) => {
                assert!(failure.message.contains("the replicated state is full: about"), "{}", failure.message);
                refused += 1;
                between_checks();
            }
            Err(failure) if failure.may_pass() => between_checks(), // no leader
            Err(failure) => panic!("{failure:?}"),
        }
    }
    assert!(stored.len() * OBJECT_BYTES > MAX_DATA_BYTES / 2, "{} objects do not fill the state", stored.len());
}

#[test]
#[ignore = "full tier"]
fn full_state_is_refused_and_outlives_its_leader() {
    let mut world = World::with_settings(SETTINGS, 3, 1);
    let leader = world.leader_seen_by("n1");
    let mut stored = BTreeSet::new();
    fill(&world, &leader, &mut stored);
    world.node(&leader).kill();

    let by = world.other_than(&[&leader, "n4"]);
    // The next leader refuses for the same reason, also through the other manager.
    fill(&world, &by, &mut stored);
    let other = world.other_than(&[&leader, &by, "n4"]);
    fill(&world, &other, &mut stored);
    assert_ne!(world.leader_seen_by(&by), leader);
    // Another manager gets all of it, and the old leader what it has missed.
    world.muster_insists_at(&by, &["node", "promote", "n4", "--wait=300s"]);
    world.node(&leader).start(&[]).ready();
    world.is_recorded_as_ready(&by, &leader);
    world.all_settled();

    for number in 0..3 {
        let delete = Request::Reconciler(ReconcilerRequest::ObjectDelete { key: key(number) });
        eventually("what frees room is accepted", || match world.ask(&by, delete.clone()) {
            Ok(_) => Some(()),
            Err(failure) if failure.is(ErrorCode::NotFound) => Some(()), // the answer to the first request was lost
            Err(failure) if failure.may_pass() => None,
            Err(failure) => panic!("{failure:?}"),
        });
        stored.remove(&number);
    }
    eventually("there is room again", || match put(&world, &by, 0) {
        Ok(_) => Some(()),
        Err(failure) if failure.is(ErrorCode::StateFull) || failure.may_pass() => None,
        Err(failure) => panic!("{failure:?}"),
    });
    stored.insert(0);
    fill(&world, &by, &mut stored);
    for name in ["n1", "n2", "n3", "n4"] {
        let log = world.nodes_log(name);
        assert!(!log.contains("panicked"), "{name}: {log}");
    }
}
