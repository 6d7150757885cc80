//! Managers that are killed while the unlock key changes: each of them starts again with a key that is on record, and follows.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{WAIT_LIMIT, World, eventually, eventually_so, scenario_pause};
use crate::sealed_disk::{key_lines, showing, token_secrets};

/// Each change, with the milliseconds until a manager is killed: from before its keyring is written to after its Raft data was rewritten.
/// The moments are spread instead of observed: the states of its disk between them are many, and last shorter than a look at it. What must
/// hold is the same at each of them.
const CHANGES: [(&[&str], u64); 12] = [
    (&["autolock", "on"], 0),
    (&["autolock", "rotate"], 0),
    (&["autolock", "rotate"], 5),
    (&["autolock", "off", "--yes"], 2),
    (&["autolock", "on"], 10),
    (&["autolock", "rotate"], 20),
    (&["autolock", "off", "--yes"], 20),
    (&["autolock", "on"], 30),
    (&["autolock", "off", "--yes"], 0),
    (&["autolock", "on"], 50),
    (&["autolock", "rotate"], 40),
    (&["autolock", "rotate"], 80),
];

/// Starts a manager again, and gives it the key that it needs, as an operator does.
fn started_again(world: &mut World, name: &str) {
    world.node(name).start(&[]);
    let status = eventually("it starts, or says that it is locked", || {
        let status = world.muster_at(name, &["status"]);
        (status.code == 0).then(|| status.json())
    });
    if status["locked"] == true {
        let version = status["version"].as_u64().expect("a version").to_string();
        let other = world.other_than(&[name]);
        let key = world.muster_insists_at(&other, &["autolock", "key", "--version", &version]);
        let file = world.folder().join("key");
        std::fs::write(&file, key["key"].as_str().expect("a key")).expect("the world's folder is writable");
        world.muster_at(name, &["unlock", "--key-file", file.to_str().expect("a path")]).ended(0);
    }
    world.node(name).ready();
}

/// Waits until every manager reports the present version with all of its disk sealed, or in clear.
fn all_follow(world: &World) -> Value {
    eventually("every manager follows", || {
        let status = world.muster_insists(&["autolock", "status"]);
        let wanted = if status["enabled"] == true { "sealed" } else { "clear" };
        let managers = status["managers"].as_array().expect("a list");
        let follows = |manager: &Value| manager["state"] == wanted && manager["version"] == status["version"];
        managers.iter().all(follows).then_some(status)
    })
}

/// SEAL-2, SEAL-3, SEAL-9: no manager is locked out, and in the end no disk shows a key of before.
#[test]
#[ignore = "full tier"]
fn killed_managers_follow_each_change_of_the_key() {
    let mut world = World::with(3, 0);
    let mut secrets = token_secrets(&world);
    let backup = world.folder().join("backup");
    world.muster(&["backup", backup.to_str().expect("a path")]).ended(0);
    secrets.extend(key_lines(&String::from_utf8_lossy(&std::fs::read(&backup).expect("a backup"))));
    for (n, (change, delay)) in CHANGES.into_iter().enumerate() {
        let names = ["n1", "n2", "n3"];
        let victim = if n % 2 == 0 { world.leader_seen_by("n1") } else { names[n % 3].to_owned() };
        let answer = world.muster_insists(change);
        secrets.extend(answer["key"].as_str().map(str::to_owned));
        scenario_pause("the time between the change and the kill", Duration::from_millis(delay));
        world.node(&victim).kill();
        started_again(&mut world, &victim);
        let status = all_follow(&world);
        assert_eq!(status["needs_old_key"], Value::Array(vec![]), "{change:?}");
        for name in names {
            let folder = world.node(name).folder.clone();
            if status["enabled"] != true {
                let text = std::fs::read(folder.join("identity/keyring.json")).expect("a keyring");
                let keyring: Value = serde_json::from_slice(&text).expect("JSON");
                let master = keyring["keyring"]["slots"][0]["key"].as_str().expect("a slot in clear");
                secrets.push(master.to_owned());
            } else {
                eventually_so("nothing of before is in clear", || showing(&folder, &secrets).is_empty());
            }
        }
    }
}

/// A kill in time needs three rounds. Far more, so that a busy machine does not decide.
const MAX_ROUNDS: usize = 60;

/// The ids of the data keys in a keyring, by use; they are in clear.
pub fn data_keys(folder: &Path) -> Vec<(String, String)> {
    let text = std::fs::read(folder.join("identity/keyring.json")).expect("a manager has a keyring");
    let keyring: Value = serde_json::from_slice(&text).expect("JSON");
    let keys = keyring["keyring"]["keys"].as_array().expect("its keys").iter();
    keys.map(|key| (key["use"].to_string(), key["id"].to_string())).collect()
}

/// Kills a manager while it rewrites its data. False: it was done before the signal came.
fn is_killed_while_rewriting(world: &mut World, name: &str, former: &[(String, String)]) -> bool {
    let folder = world.node(name).folder.clone();
    let next = folder.join("raft.reseal-next");
    let end = Instant::now() + WAIT_LIMIT;
    // Without a pause: it lasts for some syncs of the disk.
    while !next.exists() && data_keys(&folder).iter().any(|key| former.contains(key)) || data_keys(&folder) == former {
        assert!(Instant::now() < end, "{name} does not rewrite its data");
    }
    world.node(name).kill();
    next.exists()
}

/// SEAL-3, SEAL-8: each manager, the leader among them, ends the rewrite when it starts again; the former data and its keys are gone, and
/// nothing is lost or shown.
#[test]
#[ignore = "full tier"]
fn managers_killed_while_they_rewrite_their_data_end_it() {
    let mut world = World::with(3, 0);
    let mut secrets = token_secrets(&world);
    world.muster(&["autolock", "on", "--wait=300s"]).ended(0);
    let mut killed = BTreeSet::new();
    // On a slow machine the rewrite may be over before the signal: then the same manager is next again.
    for round in 0..MAX_ROUNDS {
        let Some(name) = ["n1", "n2", "n3"].into_iter().find(|name| !killed.contains(name)) else { break };
        world.muster(&["node", "update", "n1", "--label-add", &format!("round={round}")]).ended(0);
        all_follow(&world);
        let folder = world.node(name).folder.clone();
        let former = data_keys(&folder);
        let by = world.other_than(&[name]);
        secrets.push(world.muster_insists_at(&by, &["autolock", "rotate"])["key"].as_str().expect("a key").to_owned());
        if is_killed_while_rewriting(&mut world, name, &former) {
            killed.insert(name);
        }
        started_again(&mut world, name);
        all_follow(&world);
        for name in ["n1", "n2", "n3"] {
            let folder = world.node(name).folder.clone();
            eventually_so("the former data and its keys are gone", || {
                let beside = ["raft.reseal-next", "raft.reseal-old"].iter().any(|left| folder.join(left).exists());
                !beside && data_keys(&folder).len() == 2
            });
            assert_eq!(showing(&folder, &secrets), Vec::<String>::new(), "{name}");
        }
        assert!(data_keys(&folder).iter().all(|key| !former.contains(key)), "{name}");
        let seen = world.seen("n1", "n1").expect("n1 is a node");
        assert_eq!(seen.labels.get("round"), Some(&round.to_string()), "what was acknowledged is kept");
    }
    assert_eq!(killed.len(), 3, "each was killed in the middle once, in at most {MAX_ROUNDS} rounds: {killed:?}");
}
