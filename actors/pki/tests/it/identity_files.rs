//! Identity on disk: complete or absent, and never used in part.
use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::fixture::{Cluster, HOUR, ago, now};
use muster_messages::{RaftId, RefusalReason, Role};
use muster_pki::*;
use tempfile::TempDir;

fn store() -> (TempDir, IdentityStore) {
    let data = TempDir::new().unwrap();
    let store = IdentityStore::open(data.path()).unwrap();
    (data, store)
}

fn fault<T: std::fmt::Debug>(result: Result<T, IdentityFault>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn empty_folder_has_no_identity() {
    let (_data, store) = store();
    assert!(store.load_credentials().unwrap().is_none());
    assert!(store.load_founding().unwrap().is_none());
    assert_eq!(store.load_node().unwrap(), LocalNode::default());
}

/// A folder that cannot be looked into is not an absent identity: with a token the node would join a second time.
#[test]
fn unreadable_folder_is_not_an_absent_identity() {
    let (data, store) = store();
    assert!(!IdentityStore::exists(data.path()).unwrap());
    store.save_credentials(&Cluster::new(1).node(2, Role::Worker)).unwrap();
    assert!(IdentityStore::exists(data.path()).unwrap());
    let other = TempDir::new().unwrap();
    std::os::unix::fs::symlink(IDENTITY_FOLDER, other.path().join(IDENTITY_FOLDER)).unwrap();
    IdentityStore::exists(other.path()).unwrap_err(); // a link to itself; root may read everything else
}

#[test]
fn credentials_and_local_state_survive_a_restart() {
    let (data, store) = store();
    let cluster = Cluster::new(1);
    let creds = cluster.node(2, Role::Worker);
    let node = LocalNode {
        managers: vec!["127.0.0.1:4400".to_owned()],
        name: Some("web-1".parse().unwrap()),
        held_member_id: Some(RaftId(4)),
        ended: Some(Ended { reason: RefusalReason::Removed, message: "gone".to_owned(), at: now() }),
        admission_closed: true,
    };
    store.save_credentials(&creds).unwrap();
    store.save_node(&node).unwrap();

    let again = IdentityStore::open(data.path()).unwrap();
    let read = again.load_credentials().unwrap().unwrap();
    assert_eq!((read.identity, read.key_pem), (creds.identity, creds.key_pem));
    assert_eq!((read.cert_pem, read.root_pem), (creds.cert_pem, creds.root_pem));
    assert_eq!(again.load_node().unwrap(), node);
    let folder = data.path().join("identity");
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    for file in fs::read_dir(folder).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_crash_while_renewing_leaves_the_old_identity() {
    let (data, store) = store();
    let cluster = Cluster::new(1);
    let old = cluster.node(2, Role::Worker);
    store.save_credentials(&old).unwrap();
    // The temporary file of a write that ended before its rename.
    let tmp = data.path().join("identity/.credentials.pem.tmp");
    fs::write(&tmp, "-----BEGIN PRIVATE KEY-----\n").unwrap();
    assert_eq!(store.load_credentials().unwrap().unwrap().identity, old.identity);
    let new = cluster.node(2, Role::Manager);
    store.save_credentials(&new).unwrap();
    assert_eq!(store.load_credentials().unwrap().unwrap().identity, new.identity);
    assert!(!tmp.exists());
}

#[test]
fn expired_credentials_are_loaded_because_they_can_still_rekey() {
    let (_data, store) = store();
    let cluster = Cluster::new(1);
    let mut profile = cluster.profile(2, Role::Worker);
    (profile.now, profile.lifetime) = (ago(HOUR * 3), HOUR);
    store.save_credentials(&cluster.credentials(&profile)).unwrap();
    let loaded = store.load_credentials().unwrap().unwrap();
    assert!(loaded.identity.not_after < now());
}

#[test]
fn damaged_files_are_named_with_remedy_without_content() {
    let (data, store) = store();
    let cluster = Cluster::new(1);
    let creds = cluster.node(2, Role::Worker);
    store.save_credentials(&creds).unwrap();
    let path = data.path().join("identity/credentials.pem");
    let whole = fs::read_to_string(&path).unwrap();
    let foreign = Cluster::new(3).root.cert_pem;
    for damaged in [
        String::new(),
        whole[..whole.len() / 2].to_owned(),
        whole.replacen("MII", "MIJ", 1),
        format!("{}{}{}", new_key().expose(), creds.cert_pem, creds.root_pem),
        format!("{}{}{}", creds.key_pem.expose(), creds.cert_pem, foreign),
        format!("{}{}", creds.cert_pem, creds.root_pem),
        "x".repeat(300 * 1024),
    ] {
        fs::write(&path, damaged).unwrap();
        let text = fault(store.load_credentials());
        assert!(text.contains("credentials.pem is damaged") && text.contains("backup"), "{text}");
    }
    for (file, secret) in [("node.json", "{\"managers\": 7}"), ("founding.json", "{\"root_key_pem\": \"KEY\"}")] {
        fs::write(data.path().join("identity").join(file), secret).unwrap();
    }
    assert!(fault(store.load_node()).contains("node.json is damaged: line 1"));
    let text = fault(store.load_founding());
    assert!(text.contains("founding.json is damaged") && !text.contains("KEY"), "{text}");
}

#[test]
fn inconsistent_credentials_are_never_written() {
    let (_data, store) = store();
    let cluster = Cluster::new(1);
    let good = cluster.node(2, Role::Worker);
    store.save_credentials(&good).unwrap();
    let mut bad = cluster.node(2, Role::Manager);
    bad.key_pem = new_key();
    assert!(store.save_credentials(&bad).is_err());
    assert_eq!(store.load_credentials().unwrap().unwrap().identity, good.identity);
}

#[test]
fn join_attempt_is_stable_until_it_succeeds() {
    let (_data, store) = store();
    let first = store.join_attempt(None).unwrap();
    assert_eq!(store.join_attempt(None).unwrap(), first);
    assert_eq!(store.join_attempt(Some(first.node)).unwrap(), first);
    let other = Cluster::new(1).node(77, Role::Worker);
    let (rekeyed, _) = other.identity.node().unwrap();
    let second = store.join_attempt(Some(rekeyed)).unwrap();
    assert_eq!(second.node, rekeyed);
    assert_ne!(second.request_id, first.request_id);
    store.joined(&other).unwrap();
    assert!(store.load_credentials().unwrap().is_some());
    assert_ne!(store.join_attempt(None).unwrap().request_id, second.request_id);
    store.forget_join_attempt().unwrap();
    store.forget_join_attempt().unwrap();
}

#[test]
fn each_step_of_founding_can_be_repeated() {
    let (data, store) = store();
    let name = || "default".parse().unwrap();
    let founding = store.begin_founding(name(), now()).unwrap();
    let store = IdentityStore::open(data.path()).unwrap();
    assert_eq!(store.begin_founding(name(), now()).unwrap(), founding);
    assert_eq!(store.load_founding().unwrap(), Some(founding.clone()));
    let creds = store.founder_credentials(&founding, vec![], NODE_LIFETIME, now()).unwrap();
    let again = store.founder_credentials(&founding, vec![], NODE_LIFETIME, now()).unwrap();
    assert_eq!(creds.identity, again.identity);
    assert_eq!(creds.identity.node(), Some((founding.node, Role::Manager)));
    assert_eq!(creds.identity.granted, None);
    assert_eq!(founding.cluster_record().id, creds.identity.cluster);
    store.finish_founding().unwrap();
    store.finish_founding().unwrap();
    assert_eq!(store.load_founding().unwrap(), None);
    let kept = fs::read_to_string(data.path().join("identity/credentials.pem")).unwrap();
    let root_key = founding.root_key_pem.expose().lines().nth(1).unwrap();
    assert!(!kept.contains(root_key), "the root key leaves the disk with founding.json");
}
