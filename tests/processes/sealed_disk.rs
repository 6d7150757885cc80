//! What the disk of a node shows to a reader who has no key.

use std::path::Path;

use muster_messages::{Liveness, Role};
use muster_pki::IdentityStore;
use muster_raft_member::disk;
use muster_sealing::UnlockKey;

use crate::harness::{World, eventually_so};

const VALUE: &str = "the-value-of-an-object-0123456789";

/// Every file below a folder, with its content.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
        if kind.is_dir() {
            found.extend(files(&path));
        } else if kind.is_file() {
            found.push((path.display().to_string(), std::fs::read(&path).expect("a file")));
        }
    }
    found
}

/// The files that hold 16 bytes in a row of one of these.
pub fn showing(folder: &Path, secrets: &[String]) -> Vec<String> {
    let runs: std::collections::BTreeSet<&[u8]> =
        secrets.iter().flat_map(|secret| secret.as_bytes().windows(16)).collect();
    let shows = |content: &[u8]| content.windows(16).any(|part| runs.contains(part));
    files(folder).into_iter().filter(|(_, content)| shows(content)).map(|(name, _)| name).collect()
}

/// The secrets of the join tokens.
pub fn token_secrets(world: &World) -> Vec<String> {
    let secret = |token: String| token.rsplit('-').next().expect("a token ends with its secret").to_owned();
    [Role::Worker, Role::Manager].map(|role| secret(world.token(role))).into()
}

/// The parts of lines that hold the secret of a P-256 key: the public key after it is in certificates, too.
pub fn key_lines(pem: &str) -> Vec<String> {
    let inside = pem.replace("\\n", "\n");
    let lines: Vec<&str> = inside.lines().skip_while(|line| !line.contains("PRIVATE KEY")).skip(1).take(2).collect();
    let [first, second] = lines[..] else { return Vec::new() };
    // The first characters are the same in all keys of the kind.
    vec![first.trim()[40..].to_owned(), second.trim()[..26].to_owned()]
}

/// After founding, joins, writes, snapshots and restarts; with a clear slot, with an unlock key, and in clear again.
#[test]
#[ignore = "full tier"]
fn a_managers_disk_shows_no_secrets() {
    let mut world = World::with_settings("snapshot_entries = 100\nkeep_entries = 10\n", 2, 1);
    let mut secrets = token_secrets(&world);
    world.muster(&["node", "update", "n3", "--label-add", &format!("secret={VALUE}")]).ended(0);
    secrets.push(VALUE.to_owned());
    let backup = world.folder().join("backup");
    world.muster(&["backup", backup.to_str().expect("a path")]).ended(0);
    let root = key_lines(&String::from_utf8_lossy(&std::fs::read(&backup).expect("a backup")));
    assert!(!root.is_empty(), "a backup holds the root key");
    secrets.extend(root);
    assert!(!showing(world.folder(), &secrets).is_empty(), "the search finds existing secrets");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", world.node("n1").pid())).expect("it runs");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "a core file would show them: {core}");
    for write in 0..120 {
        world.muster(&["node", "update", "n1", "--label-add", &format!("w={write}")]).ended(0);
    }
    for name in ["n1", "n2"] {
        let raft = world.node(name).folder.join("raft");
        eventually_so("it has a snapshot", || {
            let files = std::fs::read_dir(&raft).expect("it is a manager");
            files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("snapshot-"))
        });
        world.node(name).stop();
        let folder = world.node(name).folder.clone();
        let store = IdentityStore::open(&folder).expect("an identity");
        let own = store.load_credentials().expect("readable").expect("credentials").key_pem;
        secrets.extend(key_lines(own.expose()));
        // The keyring alone opens them.
        assert_eq!(showing(&folder, &secrets), Vec::<String>::new(), "{name}, with a clear slot");

        let (clear, key) = (std::fs::read(store.keys().path()).expect("a keyring"), UnlockKey::new());
        store.keys().protect(1, Some(&key)).expect("sealed");
        disk::update_seal(&raft, store.keys()).expect("under a new key");
        store.reseal().expect("under a new key");
        let clear: serde_json::Value = serde_json::from_slice(&clear).expect("JSON");
        let master = clear["keyring"]["slots"][0]["key"].as_str().expect("it was clear").to_owned();
        let mut all = secrets.clone();
        all.extend([master, key.to_text().to_string()]);
        assert_eq!(showing(&folder, &all), Vec::<String>::new(), "{name}, with an unlock key");
        let locked = IdentityStore::open(&folder).expect("an identity");
        assert!(locked.holds_sealed().expect("readable") && locked.load_credentials().is_err());
        store.keys().protect(2, None).expect("clear");
        world.node(name).start(&[]).ready();
    }
    eventually_so("both are back with their data", || {
        world.seen("n1", "n3").is_some_and(|node| node.labels.get("secret").is_some_and(|value| value == VALUE))
    });
    let worker = world.node("n3").folder.clone();
    assert!(!worker.join("identity/keyring.json").exists(), "a worker has none");
}

/// SEAL-4: a keyring lies on managers only, and a worker's key is in clear.
#[test]
fn keyring_comes_with_promotion_and_goes_with_demotion() {
    let mut world = World::with(2, 1);
    let folder = world.node("n3").folder.clone();
    let keyring = folder.join("identity/keyring.json");
    let is_sealed = || IdentityStore::open(&folder).is_ok_and(|store| store.holds_sealed().is_ok_and(|sealed| sealed));
    assert!(!keyring.exists() && !is_sealed());
    for _again in 0..2 {
        world.muster(&["node", "promote", "n3", "--wait=300s"]).ended(0);
        eventually_so("the key is sealed", || keyring.exists() && is_sealed());
        world.muster(&["node", "demote", "n3", "--wait=300s"]).ended(0);
        eventually_so("the key is in clear, and the keyring gone", || !keyring.exists() && !is_sealed());
    }
    world.node("n3").stop();
    world.node("n3").start(&[]).ready();
    eventually_so("it is back", || world.seen("n1", "n3").is_some_and(|node| node.state == Liveness::Ready));
}
