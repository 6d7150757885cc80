use std::fs;
use std::path::Path;

use muster_sealing::{KEYRING, KeyId, KeyUse, KeyringFault, Keys, KeysStatus, Protected, UnlockKey, UnlockRefusal};
use proptest::prelude::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn file(folder: &Path) -> Vec<u8> {
    fs::read(folder.join(KEYRING)).unwrap()
}

fn ids(keys: &Keys, for_use: KeyUse) -> Vec<KeyId> {
    keys.of(for_use).unwrap().iter().map(|key| key.id()).collect()
}

/// A keyring under version 5 of this key.
fn sealed(folder: &Path) -> (Keys, UnlockKey) {
    let (keys, key) = (Keys::open(folder).unwrap(), UnlockKey::new());
    keys.ensure().unwrap();
    assert_eq!(keys.protect(5, Some(&key)), Ok(Protected::Changed));
    (keys, key)
}

#[test]
fn new_keyring_is_clear_and_private() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = folder();
    let keys = Keys::open(dir.path()).unwrap();
    assert_eq!((keys.status(), keys.of(KeyUse::Raft).unwrap_err()), (KeysStatus::Absent, KeyringFault::Absent));
    keys.ensure().unwrap();
    let before = ids(&keys, KeyUse::Raft);
    keys.ensure().unwrap();
    assert_eq!(keys.status(), KeysStatus::Open { version: 0, sealed: false });
    let again = Keys::open(dir.path()).unwrap();
    assert_eq!((again.status(), ids(&again, KeyUse::Raft)), (keys.status(), before));
    assert_eq!(again.id(), keys.id());
    assert_eq!(fs::metadata(keys.path()).unwrap().mode() & 0o777, 0o600);
}

/// SEAL-5. Test 33: a wrong, an older and a right key; nothing on disk changes.
#[test]
fn only_the_key_of_its_version_opens_a_keyring() {
    let dir = folder();
    let (keys, older) = sealed(dir.path());
    let (raft, newer) = (ids(&keys, KeyUse::Raft), UnlockKey::new());
    assert_eq!(keys.protect(9, Some(&newer)), Ok(Protected::Changed));
    let before = file(dir.path());
    let locked = Keys::open(dir.path()).unwrap();
    let wrong = UnlockRefusal::WrongKey { version: 9 };
    assert_eq!(locked.status(), KeysStatus::Locked { version: 9 });
    assert_eq!(locked.of(KeyUse::Raft).unwrap_err(), KeyringFault::Locked { version: 9 });
    assert_eq!(locked.ensure(), Err(KeyringFault::Locked { version: 9 }));
    assert_eq!(locked.protect(10, None), Err(KeyringFault::Locked { version: 9 }));
    assert_eq!(locked.unlock(&UnlockKey::new()), Err(wrong.clone()));
    assert_eq!(locked.unlock(&older), Err(wrong));
    assert_eq!(locked.unlock(&newer), Ok(()));
    assert_eq!(locked.status(), KeysStatus::Open { version: 9, sealed: true });
    assert_eq!(ids(&locked, KeyUse::Raft)[..raft.len()], raft, "the former ones still open what they sealed");
    assert_eq!(locked.unlock(&newer), Err(UnlockRefusal::NotLocked));
    assert_eq!(file(dir.path()), before);
}

/// K15, test 38.
#[test]
fn random_keys_are_never_taken_for_the_right_one() {
    let dir = folder();
    let (_, key) = sealed(dir.path());
    let locked = Keys::open(dir.path()).unwrap();
    for _ in 0..10_000 {
        assert_eq!(locked.unlock(&UnlockKey::new()), Err(UnlockRefusal::WrongKey { version: 5 }));
    }
    assert_eq!(locked.unlock(&key), Ok(()));
}

/// SEAL-6, K17, test 37.
#[test]
fn versions_of_the_unlock_key_only_grow() {
    let dir = folder();
    let (keys, key) = sealed(dir.path());
    let before = file(dir.path());
    assert_eq!(keys.protect(5, Some(&key)), Ok(Protected::Unchanged));
    assert_eq!(keys.protect(4, Some(&UnlockKey::new())), Ok(Protected::Stale));
    assert_eq!(keys.protect(4, None), Ok(Protected::Stale));
    assert_eq!(keys.protect(5, Some(&UnlockKey::new())), Err(KeyringFault::Conflict { version: 5 }));
    assert_eq!(keys.protect(5, None), Err(KeyringFault::Conflict { version: 5 }));
    assert_eq!(file(dir.path()), before, "nothing was written");
    assert_eq!(keys.protect(6, None), Ok(Protected::Changed));
    assert_eq!(Keys::open(dir.path()).unwrap().status(), KeysStatus::Open { version: 6, sealed: false });
    assert_eq!(keys.protect(5, Some(&key)), Ok(Protected::Stale), "switched off is a version, too");
}

/// K7: what was written while the master key lay in clear is sealed anew.
#[test]
fn first_unlock_key_brings_new_data_keys() {
    let dir = folder();
    let keys = Keys::open(dir.path()).unwrap();
    keys.ensure().unwrap();
    let clear = ids(&keys, KeyUse::Raft);
    let clear_file = file(dir.path());
    keys.protect(3, Some(&UnlockKey::new())).unwrap();
    let both = ids(&keys, KeyUse::Raft);
    assert_eq!((both.len(), both[0]), (2, clear[0]), "the old one still opens the old data");
    keys.drop_keys(KeyUse::Raft, &[both[0]]).unwrap();
    assert_eq!(ids(&keys, KeyUse::Raft), both, "SEAL-3: a file is still under it");
    keys.drop_keys(KeyUse::Raft, &[]).unwrap();
    assert_eq!(ids(&keys, KeyUse::Raft), both[1..]);
    assert_eq!(ids(&keys, KeyUse::Identity).len(), 2, "of another use");
    // An older copy of the keyring opens with its own key, and has none for the present data.
    fs::write(dir.path().join(KEYRING), clear_file).unwrap();
    let older = Keys::open(dir.path()).unwrap();
    assert!(ids(&older, KeyUse::Raft).iter().all(|id| !both[1..].contains(id)));
}

#[test]
fn clones_share_what_was_unlocked() {
    let dir = folder();
    let (_, key) = sealed(dir.path());
    let locked = Keys::open(dir.path()).unwrap();
    let clone = locked.clone();
    locked.unlock(&key).unwrap();
    assert_eq!(clone.status(), KeysStatus::Open { version: 5, sealed: true });
    clone.remove().unwrap();
    assert_eq!((locked.status(), locked.path().exists()), (KeysStatus::Absent, false));
}

/// No byte of a keyring or of an unlock key is in what `Debug` shows.
#[test]
fn debug_shows_no_secrets() {
    let dir = folder();
    let (keys, _) = sealed(dir.path());
    let shown = format!("{keys:?} {:?}", keys.of(KeyUse::Raft).unwrap());
    assert!(shown.contains("<secret>") && !shown.contains("wrapped"), "{shown}");
}

/// Test 41: a torn write leaves the old file (a rename), but a disk can cut a file off. Every prefix is damage.
#[test]
fn every_prefix_of_a_keyring_is_damaged() {
    let dir = folder();
    let (_, key) = sealed(dir.path());
    let whole = file(dir.path());
    for end in 0..whole.len() {
        fs::write(dir.path().join(KEYRING), &whole[..end]).unwrap();
        let fault = Keys::open(dir.path()).unwrap_err();
        assert!(matches!(fault, KeyringFault::Damaged(_)), "{end}: {fault}");
    }
    fs::write(dir.path().join(KEYRING), &whole).unwrap();
    assert_eq!(Keys::open(dir.path()).unwrap().unlock(&key), Ok(()));
}

/// SEAL-5. A flipped bit is damage, or a newer format, and never a wrong key or another keyring.
#[test]
fn flipped_bits_in_a_keyring_are_found() {
    let dir = folder();
    let (keys, key) = sealed(dir.path());
    let (whole, raft) = (file(dir.path()), ids(&keys, KeyUse::Raft));
    for at in 0..whole.len() {
        for bit in [at % 8, 5] {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            fs::write(dir.path().join(KEYRING), &changed).unwrap();
            match Keys::open(dir.path()) {
                Err(KeyringFault::Damaged(_) | KeyringFault::Newer(_)) => {}
                Err(other) => panic!("byte {at} bit {bit}: {other}"),
                Ok(found) => match found.unlock(&key) {
                    // White space, or the authentication code in another spelling.
                    Ok(()) => assert_eq!(ids(&found, KeyUse::Raft), raft, "byte {at} bit {bit}"),
                    Err(UnlockRefusal::Fault(KeyringFault::Damaged(_))) => {}
                    Err(other) => panic!("byte {at} bit {bit}: {other}"),
                },
            }
        }
    }
}

/// An attacker can compute `sum`, but not `check`, and cannot move a wrapped key to another place.
#[test]
fn keyring_with_a_recomputed_sum_is_still_found() {
    let dir = folder();
    let (keys, key) = sealed(dir.path());
    let newest = ids(&keys, KeyUse::Raft)[1];
    let mut parsed: serde_json::Value = serde_json::from_slice(&file(dir.path())).unwrap();
    // The older key, which once lay in clear, for what is written from now on.
    let list = parsed["keyring"]["keys"].as_array_mut().unwrap();
    list.retain(|entry| entry["id"] != newest.0);
    let body = serde_json::to_string(&parsed["keyring"]).unwrap();
    // The members in the order of the format.
    let (id, version) = (&parsed["keyring"]["id"], &parsed["keyring"]["version"]);
    let slot = &parsed["keyring"]["slots"][0];
    let keys_text: Vec<String> = parsed["keyring"]["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|k| format!("{{\"id\":{},\"use\":{},\"wrapped\":{}}}", k["id"], k["use"], k["wrapped"]))
        .collect();
    let ordered = format!(
        "{{\"id\":{id},\"version\":{version},\"slots\":[{{\"kind\":\"unlock\",\"version\":{},\"wrapped\":{}}}],\"keys\":[{}]}}",
        slot["version"],
        slot["wrapped"],
        keys_text.join(",")
    );
    assert_eq!(ordered.len(), body.len());
    let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, ordered.as_bytes());
    let sum: String = sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{{\"v\":1,\"sum\":\"{sum}\",\"check\":{},\"keyring\":{ordered}}}", parsed["check"]);
    fs::write(dir.path().join(KEYRING), text).unwrap();
    let found = Keys::open(dir.path()).unwrap();
    let refused = found.unlock(&key).unwrap_err();
    assert!(matches!(refused, UnlockRefusal::Fault(KeyringFault::Damaged(_))), "{refused}");
}

#[test]
fn keyring_of_a_newer_build_is_named_as_such() {
    let dir = folder();
    let (_, _) = sealed(dir.path());
    let text = String::from_utf8(file(dir.path())).unwrap().replace("\"v\": 1", "\"v\": 2");
    fs::write(dir.path().join(KEYRING), &text).unwrap();
    assert_eq!(Keys::open(dir.path()).unwrap_err(), KeyringFault::Newer(2));
    assert_eq!(file(dir.path()), text.as_bytes());
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let dir = folder();
        fs::write(dir.path().join(KEYRING), &bytes).unwrap();
        prop_assert!(Keys::open(dir.path()).is_err());
    }
}

/// The former unlock key opens the data keys in an earlier copy of the file: another unlock key brings new ones, for both uses. Also after
/// a crash while autolock was switched off, which leaves a file with a clear slot.
#[test]
fn another_unlock_key_brings_new_data_keys() {
    let dir = folder();
    let (keys, former) = sealed(dir.path());
    fs::write(dir.path().join(".keyring.json.tmp"), "with a clear slot").unwrap();
    let copy = file(dir.path());
    keys.protect(9, Some(&UnlockKey::new())).unwrap();
    let newest = [KeyUse::Raft, KeyUse::Identity].map(|for_use| keys.newest(for_use).unwrap());
    assert!(!dir.path().join(".keyring.json.tmp").exists());
    fs::write(dir.path().join(KEYRING), copy).unwrap();
    let copied = Keys::open(dir.path()).unwrap();
    copied.unlock(&former).unwrap();
    for for_use in [KeyUse::Raft, KeyUse::Identity] {
        assert!(ids(&copied, for_use).iter().all(|id| !newest.contains(id)), "{for_use:?}");
    }
    // Switched off, the keys lie in clear anyway.
    keys.protect(10, None).unwrap();
    assert_eq!(keys.newest(KeyUse::Raft), Some(newest[0]));
}

/// SEAL-2. Writers of one keyring wait for each other: none loses the key of another.
#[test]
fn concurrent_writers_lose_no_key() {
    let dir = folder();
    let keys = Keys::open(dir.path()).unwrap();
    keys.ensure().unwrap();
    let uses = [KeyUse::Raft, KeyUse::Identity, KeyUse::Raft, KeyUse::Identity];
    let made: Vec<(KeyUse, KeyId)> = std::thread::scope(|scope| {
        let writers = uses.map(|for_use| {
            let keys = keys.clone();
            scope.spawn(move || (0..5).map(|_| (for_use, keys.add_key(for_use).unwrap())).collect::<Vec<_>>())
        });
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let reopened = Keys::open(dir.path()).unwrap();
    for (for_use, key) in made {
        assert!(ids(&reopened, for_use).contains(&key), "{for_use:?}");
    }
}
