//! What is secret in the identity directory, sealed and in clear.

use std::fs;
use std::path::Path;
use std::time::Duration;

use muster_messages::{Role, Secret, WallTime};
use muster_pki::{IdentityFault, IdentityStore, LeftKeyring, NODE_LIFETIME};
use muster_sealing::{KeyUse, KeysStatus, SET_ASIDE, UnlockKey};

use crate::fixture::*;

const AT: WallTime = WallTime(1_700_000_000_000);

fn text(data: &Path, file: &str) -> String {
    fs::read_to_string(data.join("identity").join(file)).unwrap()
}

/// The middle of a private key: none of its lines.
fn is_in_clear(text: &str, key: &Secret) -> bool {
    let body: Vec<&str> = key.expose().lines().filter(|line| !line.starts_with('-')).collect();
    body.iter().any(|line| text.contains(line))
}

/// Test 36. SEAL-4: the private key of a worker lies in clear, that of a manager never since there is a keyring.
#[test]
fn key_is_sealed_on_managers_and_clear_on_workers() {
    let data = tempfile::tempdir().unwrap();
    let store = IdentityStore::open(data.path()).unwrap();
    let cluster = Cluster::new(1);
    let worker = cluster.node(2, Role::Worker);
    store.save_credentials(&worker).unwrap();
    assert!(is_in_clear(&text(data.path(), "credentials.pem"), &worker.key_pem));
    assert!(!store.holds_sealed().unwrap());
    // Promoted: the Raft data brings the keyring.
    store.keys().ensure().unwrap();
    let manager = cluster.node(2, Role::Manager);
    store.save_credentials(&manager).unwrap();
    assert!(!is_in_clear(&text(data.path(), "credentials.pem"), &manager.key_pem));
    let read = IdentityStore::open(data.path()).unwrap().load_credentials().unwrap().unwrap();
    assert_eq!((read.key_pem, read.cert_pem), (manager.key_pem.clone(), manager.cert_pem.clone()));
    let key = UnlockKey::new();
    store.keys().protect(3, Some(&key)).unwrap();
    store.reseal().unwrap();
    let locked = IdentityStore::open(data.path()).unwrap();
    let fault = locked.load_credentials().unwrap_err();
    assert!(matches!(fault, IdentityFault::Keyring { .. }), "{fault}");
    locked.keys().unlock(&key).unwrap();
    assert_eq!(locked.load_credentials().unwrap().unwrap().key_pem, manager.key_pem);
    // Demoted: the order is certificate, Raft data, keyring. A crash before the last leaves a keyring that nothing needs.
    store.save_credentials(&worker).unwrap();
    let demoted = IdentityStore::open(data.path()).unwrap();
    assert!(matches!(demoted.keys().status(), KeysStatus::Locked { version: 3 }));
    assert!(!demoted.holds_sealed().unwrap());
    assert_eq!(demoted.load_credentials().unwrap().unwrap().key_pem, worker.key_pem);
}

/// A manager of an earlier build, and one whose keys changed: the files are sealed with the newest key, and no older one is left.
#[test]
fn secrets_are_sealed_anew_with_the_newest_key() {
    let data = tempfile::tempdir().unwrap();
    let store = IdentityStore::open(data.path()).unwrap();
    let manager = Cluster::new(1).node(2, Role::Manager);
    store.save_credentials(&manager).unwrap();
    let attempt = store.join_attempt(None).unwrap();
    assert!(is_in_clear(&text(data.path(), "credentials.pem"), &manager.key_pem), "without a keyring");
    store.keys().ensure().unwrap();
    store.keys().protect(1, Some(&UnlockKey::new())).unwrap();
    let mut before = None;
    for _again in 0..3 {
        store.reseal().unwrap();
        let now = text(data.path(), "credentials.pem") + &text(data.path(), "join.json");
        assert!(before.replace(now.clone()).is_none_or(|before| before == now), "repeated, it writes nothing");
        assert!(!is_in_clear(&text(data.path(), "credentials.pem"), &manager.key_pem));
        assert!(!is_in_clear(&text(data.path(), "join.json"), &attempt.key_pem));
        assert_eq!(store.join_attempt(None).unwrap(), attempt);
        assert_eq!(store.load_credentials().unwrap().unwrap().key_pem, manager.key_pem);
        assert_eq!(store.keys().of(KeyUse::Identity).unwrap().len(), 1);
    }
}

#[test]
fn root_key_of_a_founding_is_never_in_clear() {
    let data = tempfile::tempdir().unwrap();
    let store = IdentityStore::open(data.path()).unwrap();
    let founding = store.begin_founding("c".parse().unwrap(), AT).unwrap();
    let founder = store.founder_credentials(&founding, vec![], NODE_LIFETIME, AT).unwrap();
    for file in fs::read_dir(data.path().join("identity")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        assert!(!is_in_clear(&text, &founding.root_key_pem) && !is_in_clear(&text, &founder.key_pem));
    }
    let again = IdentityStore::open(data.path()).unwrap();
    assert_eq!(again.load_founding().unwrap(), Some(founding.clone()));
    let repeated = again.founder_credentials(&founding, vec![], Duration::from_secs(3600), AT).unwrap();
    assert_eq!(repeated.key_pem, founder.key_pem);
}

/// SEAL-5: without its keyring, with another node's, and changed: named, and nothing is written.
#[test]
fn sealed_credentials_need_their_own_keyring() {
    let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = IdentityStore::open(data.path()).unwrap();
    store.keys().ensure().unwrap();
    let cluster = Cluster::new(1);
    store.save_credentials(&cluster.node(2, Role::Manager)).unwrap();
    let foreign = IdentityStore::open(other.path()).unwrap();
    foreign.keys().ensure().unwrap();
    foreign.save_credentials(&cluster.node(3, Role::Manager)).unwrap();
    let (keyring, credentials) = (store.keys().path().to_owned(), data.path().join("identity/credentials.pem"));
    let (whole, before) = (fs::read(&keyring).unwrap(), fs::read_to_string(&credentials).unwrap());
    let load = || IdentityStore::open(data.path()).unwrap().load_credentials().map(|found| found.is_some());
    fs::remove_file(&keyring).unwrap();
    assert!(matches!(load(), Err(IdentityFault::Keyring { .. })), "missing");
    fs::copy(foreign.keys().path(), &keyring).unwrap();
    let fault = load().unwrap_err();
    assert!(matches!(&fault, IdentityFault::OtherKeyring { .. }), "another node's does not count as damage: {fault}");
    fs::write(&keyring, "{").unwrap();
    assert!(matches!(IdentityStore::open(data.path()), Err(IdentityFault::Keyring { .. })), "damaged");
    fs::write(&keyring, whole).unwrap();
    // The sealed key in another file, and with a changed character.
    let block: String =
        before.lines().take_while(|line| !line.contains("CERTIFICATE")).map(|line| format!("{line}\n")).collect();
    // Behind the key id, which is in its first characters.
    let (head, rest) = block.split_at(block.len() / 2);
    let changed = format!("{head}{}", rest.replacen(char::is_lowercase, "Q", 3));
    fs::write(&credentials, before.replace(&block, &changed)).unwrap();
    assert!(matches!(load(), Err(IdentityFault::Damaged { .. })));
    let moved = block.replace("SEALED PRIVATE KEY", "SEALED FILE");
    fs::write(data.path().join("identity/founding.json"), moved).unwrap();
    assert!(matches!(store.load_founding(), Err(IdentityFault::Damaged { .. })));
    fs::write(&credentials, &before).unwrap();
    assert!(load().unwrap());
}

/// A keyring leaves a worker, and never a manager: its key may have been sealed meanwhile.
#[test]
fn keyring_leaves_workers_only() {
    let data = tempfile::tempdir().unwrap();
    let store = IdentityStore::open(data.path()).unwrap();
    let (cluster, key) = (Cluster::new(1), UnlockKey::new());
    store.save_credentials(&cluster.node(2, Role::Manager)).unwrap();
    store.keys().ensure().unwrap();
    assert_eq!(store.leave_keyring(false).unwrap(), LeftKeyring::Kept, "in clear, and a manager's");
    let manager = cluster.node(2, Role::Manager);
    store.save_credentials(&manager).unwrap();
    assert_eq!(store.leave_keyring(false).unwrap(), LeftKeyring::Kept);
    assert_eq!(store.load_credentials().unwrap().unwrap().key_pem, manager.key_pem);
    store.keys().protect(3, Some(&key)).unwrap();
    store.save_credentials(&cluster.node(2, Role::Worker)).unwrap();
    let (identity, sealed) = (data.path().join("identity"), fs::read(store.keys().path()).unwrap());
    // Open in memory, or locked: the cluster forgets version 3 with the worker's certificate.
    for (n, store) in [store, IdentityStore::open(data.path()).unwrap()].into_iter().enumerate() {
        fs::write(identity.join("keyring.json"), &sealed).unwrap();
        assert_eq!(store.leave_keyring(true).unwrap(), LeftKeyring::SetAside, "{n}");
        assert_eq!(store.keys().status(), KeysStatus::Absent);
        assert!(identity.join(SET_ASIDE).exists() && !store.keys().path().exists());
        store.keys().ensure().expect("a promoted worker gets another one");
        assert_eq!(store.leave_keyring(true).unwrap(), LeftKeyring::Kept, "it needs no key of the cluster");
        assert_eq!(store.leave_keyring(false).unwrap(), LeftKeyring::Removed);
    }
    let set_aside =
        || fs::read_dir(&identity).unwrap().flatten().filter(|file| fs::read(file.path()).unwrap() == sealed);
    assert_eq!(set_aside().count(), 2, "none replaces another");
    muster_sealing::delete_set_aside(&identity).unwrap();
    assert_eq!(set_aside().count(), 0);
}
