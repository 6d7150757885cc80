//! Kill -9 of the leader and of another node in each step of a root's life: published, signing, retired, revoked. Each step ends, no node is
//! locked out, and no disk shows a key.

use std::time::Duration;

use muster_messages::{AuthorityState, RootId};
use serde_json::Value;

use crate::harness::{EndedMuster, World, eventually, eventually_so, scenario_pause};
use crate::rotation::{roots, state, trusted_by};
use crate::sealed_disk::{key_lines, showing};

const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];
/// Milliseconds from the start of the command to the kills: before the leader has the request, to after the step has begun. They are
/// spread instead of observed: that a request has reached the leader and is not applied yet shows nowhere outside of the leader. What must
/// hold is the same at each of them, so a slow machine only shifts which moments are tried.
const DELAYS: [u64; 4] = [0, 15, 40, 90];

/// Takes a step while the leader and another node die, and starts them again. The operator repeats it until it is answered.
#[track_caller]
fn killed_meanwhile(world: &mut World, step: &[&str], other: &str, delay: u64) -> Value {
    let leader = world.leader_seen_by(&world.other_than(&["n4", "n5"]));
    let other = if leader == other { "n4" } else { other };
    let by = world.other_than(&[&leader, other, "n4", "n5"]);
    let socket = world.socket(&by).to_str().expect("the folder's path is text").to_owned();
    let words: Vec<String> = ["--socket", &socket, "-o", "json", "--timeout", "60s"].map(str::to_owned).into();
    let words: Vec<String> = words.into_iter().chain(step.iter().map(|word| (*word).to_owned())).collect();
    let folder = world.folder().to_owned();
    let asked = std::thread::spawn(move || {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        EndedMuster::new(&folder, &words)
    });
    scenario_pause("the time between the request and the kills", Duration::from_millis(delay));
    for name in [leader.as_str(), other] {
        world.node(name).kill();
    }
    for name in [leader.as_str(), other] {
        world.node(name).start(&[]);
    }
    for name in [leader.as_str(), other] {
        world.node(name).ready();
    }
    let first = asked.join().expect("it does not panic");
    if first.code == 0 {
        return first.json();
    }
    println!("{} ended with {}: {}", first.line, first.code, first.stderr.trim());
    eventually(&format!("{step:?} is answered"), || {
        let again = world.muster_at(&by, step);
        (again.code == 0).then(|| again.json())
    })
}

/// No node is locked out: all are ready, and have renewed.
#[track_caller]
fn all_follow(world: &mut World, active: RootId, trusted: &[RootId]) {
    eventually_so("every node has renewed", || {
        let roots = roots(world, "n1");
        roots.active == Some(active) && roots.renewed.n == 5 && roots.renewed.missing.is_empty()
    });
    for name in NODES {
        eventually_so("it trusts these roots, and no other", || {
            let mut has = trusted_by(world, name);
            has.sort_unstable();
            has == trusted
        });
    }
    world.all_settled();
    for name in NODES {
        world.is_recorded_as_ready("n1", name);
    }
}

/// The keys of roots that were ever on record are on no disk in clear.
#[track_caller]
fn no_disk_shows_keys(world: &mut World, secrets: &mut Vec<String>, step: &str) {
    let file = world.folder().join("backup");
    let path = file.to_str().expect("a path").to_owned();
    world.muster_insists(&["backup", &path]);
    let text = String::from_utf8_lossy(&std::fs::read(&file).expect("a backup")).into_owned();
    std::fs::remove_file(file).expect("it was written");
    let keys: Vec<String> =
        text.split("-----BEGIN ").filter(|part| part.starts_with("PRIVATE KEY")).flat_map(key_lines).collect();
    assert!(!keys.is_empty(), "a backup holds the root's key");
    secrets.extend(keys);
    for name in NODES {
        let folder = world.node(name).folder.clone();
        assert_eq!(showing(&folder, secrets), Vec::<String>::new(), "{name}, after {step}");
    }
}

#[test]
#[ignore = "full tier"]
fn each_step_of_a_root_ends_although_nodes_are_killed() {
    let mut world = World::with(3, 2);
    let mut secrets = Vec::new();
    for (round, delay) in DELAYS.into_iter().enumerate() {
        let other = ["n5", "n3", "n4", "n2"][round];
        let old = roots(&world, "n1").active.expect("a root signs");
        let prepared = killed_meanwhile(&mut world, &["ca", "rotate", "--prepare"], other, delay);
        let new: RootId = prepared["root"].as_str().and_then(|id| id.parse().ok()).expect("the answer names a root");
        let mut both = [old, new];
        both.sort_unstable();
        all_follow(&mut world, old, &both);
        no_disk_shows_keys(&mut world, &mut secrets, "publication");

        killed_meanwhile(&mut world, &["ca", "activate", &new.to_string()], other, delay);
        all_follow(&mut world, new, &both);
        no_disk_shows_keys(&mut world, &mut secrets, "activation");

        killed_meanwhile(&mut world, &["ca", "retire", &old.to_string()], other, delay);
        eventually_so("it is retired", || state(&roots(&world, "n1"), old) == Some(AuthorityState::Retired));
        all_follow(&mut world, new, &[new]);
        no_disk_shows_keys(&mut world, &mut secrets, "retirement");

        killed_meanwhile(&mut world, &["ca", "revoke", &old.to_string()], other, delay);
        eventually_so("it is revoked", || state(&roots(&world, "n1"), old) == Some(AuthorityState::Revoked));
        all_follow(&mut world, new, &[new]);
    }
    // All steps in one, as after a theft.
    for (delay, other) in [(30, "n5"), (120, "n4")] {
        let old = roots(&world, "n1").active.expect("a root signs");
        killed_meanwhile(&mut world, &["ca", "rotate", "--compromised"], other, delay);
        // A request whose answer was lost is repeated, and may begin another rotation: all of them must be over.
        let new = eventually("the old root is revoked, and no rotation is under way", || {
            let roots = roots(&world, "n1");
            let over = roots.target.is_none() && state(&roots, old) == Some(AuthorityState::Revoked);
            roots.active.filter(|_| over)
        });
        all_follow(&mut world, new, &[new]);
    }
    no_disk_shows_keys(&mut world, &mut secrets, "revocation");
}
