//! Sealed directories: what lies on the disk, conversion, change of the data key.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use muster_messages::{
    Change, ClusterId, ClusterRecord, Command, FEATURE_LEVEL, Incarnation, Name, NodeId, NodeRecord, Principal,
    Revision, Role, Secret, WallTime,
};
use muster_sealing::{Protected, UnlockKey};
use raft_engine::env::DefaultFileSystem;

use super::engine::EngineDisk;
use super::files::{Lock, make_dir};
use super::seal::{Seal, SealHead};
use super::tests::{Temp, acked_file, append, copy_dir, founded, keys, recover, state, write};
use super::*;
use crate::core::{Entry, HardMark, LogPoint, SnapshotJob, command_entry};

pub(super) const SECRET: &str = "the root key of a cluster: 0123456789abcdef";

/// A write whose snapshot and entries hold the secret, at a feature level.
pub(super) fn secrets(level: u32) -> Vec<Durable> {
    let at = WallTime(1_700_000_000_000);
    let cluster = ClusterRecord {
        id: ClusterId::from_entropy(7),
        name: Name::sanitized("default"),
        incarnation: Incarnation(1),
        feature_level: level,
        root_cert_pem: "root".to_owned(),
        root_key_pem: Secret::new(SECRET),
        founded_at: at,
        revision: Revision(0),
    };
    let founder = NodeRecord::new(NodeId::from_entropy(1), Name::sanitized("n1"), Role::Manager, at);
    let change = Change::Found { cluster: Box::new(cluster), founder: Box::new(founder), tokens: vec![] };
    let command = Command::idempotent(at, Principal::Operator, "a test").change(change);
    let tables = Tables { revision: Revision(1), ..Tables::default() };
    let (head, data) = SnapshotJob::new(LogPoint { index: 1, term: 1 }, (vec![1], vec![]), tables).run();
    let entry = Entry { index: 2, term: 2, context: SECRET.into(), ..command_entry(&command).unwrap() };
    let hard = HardMark { term: 2, vote: 1, commit: 2 };
    vec![
        Durable { install: Some((head, Arc::new(data))), ..founded() },
        Durable { sync: true, hard, entries: vec![entry], ..Durable::default() },
        // Without content: an earlier build's log is applied before it is converted.
        Durable {
            entries: (3..=20).map(|index| Entry { index, term: 2, ..Entry::default() }).collect(),
            hard: HardMark { term: 2, vote: 1, commit: 5 },
            ..append(3, 3, 2, 5)
        },
    ]
}

/// A directory as earlier builds wrote it.
pub(super) fn write_clear(dir: &Path, writes: &[Durable]) {
    make_dir(dir).unwrap();
    let (dir, writes) = (dir.to_owned(), writes.to_vec());
    let written = std::thread::spawn(move || {
        let lock = Lock::take(&dir).unwrap();
        let mut disk = EngineDisk::open_log(&dir, &Arc::new(DefaultFileSystem), None).unwrap();
        writes.iter().for_each(|write| disk.write(std::slice::from_ref(write)).unwrap());
        drop((disk, lock));
    });
    written.join().unwrap();
}

/// Everything below a folder, as bytes.
pub(super) fn image(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let path = entry.path();
        bytes.extend(entry.file_name().to_string_lossy().bytes());
        bytes.extend(if path.is_dir() { image(&path) } else { fs::read(&path).unwrap() });
    }
    bytes
}

pub(super) fn holds(bytes: &[u8], secret: &str) -> bool {
    // No run of 16 bytes of it.
    secret.as_bytes().windows(16).any(|run| bytes.windows(16).any(|part| part == run))
}

pub(super) fn same(a: &Recovered, b: &Recovered) -> bool {
    (a.member_id, a.hard, a.truncated) == (b.member_id, b.hard, b.truncated)
        && (&a.snapshot, &a.entries) == (&b.snapshot, &b.entries)
}

pub(super) fn key_of(dir: &Path) -> Option<KeyId> {
    SealHead::of(dir).unwrap().map(|head| head.key)
}

/// Test 40 for this directory. SEAL-1.
#[test]
fn nothing_secret_of_a_member_is_in_clear() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let entry = &recover(&dir).unwrap().entries[0];
    assert!(holds(&entry.data, SECRET) && holds(&entry.context, SECRET), "it is there");
    let (head, data) = SnapshotJob::new(
        LogPoint { index: 20, term: 2 },
        (vec![1], vec![]),
        Tables { revision: Revision(20), ..Tables::default() },
    )
    .run();
    let text = [SECRET.as_bytes(), &data].concat();
    let (disk, _) = DiskThread::open(&dir, &keys(&dir)).unwrap();
    disk.snapshot_files().store(&head, &text).unwrap();
    drop(disk);
    assert!(!holds(&image(&dir), SECRET));
    assert_eq!(seal_of(&dir, &keys(&dir)), Ok(DirSeal::Sealed { key: key_of(&dir).unwrap(), newest: true }));
}

/// SEAL-5: without the keyring, and with a locked one, the data does not count as damaged, and nothing changes.
#[test]
fn missing_or_locked_keyring_is_not_damage() {
    let (temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    drop(Lock::take(&dir).unwrap()); // the writer has closed it
    let (file, before) = (keys(&dir).path().to_owned(), image(&dir));
    let whole = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let DirState::Unreadable(fault) = state(&dir) else { panic!("without its keyring") };
    assert!(fault.kind == FaultKind::NoKey && fault.file.ends_with("keyring.json"), "{fault}");
    assert_eq!(DiskThread::open(&dir, &keys(&dir)).err().map(|fault| fault.kind), Some(FaultKind::NoKey));
    assert!(!file.exists(), "a new keyring would open nothing");
    // Of another node.
    let (_other, other) = Temp::new();
    write(&other, vec![founded()]);
    fs::copy(keys(&other).path(), &file).unwrap();
    assert!(matches!(state(&dir), DirState::Unreadable(LogFault { kind: FaultKind::NoKey, .. })));
    fs::write(&file, &whole).unwrap();
    let key = UnlockKey::new();
    keys(&dir).protect(4, Some(&key)).unwrap();
    let DirState::Unreadable(fault) = state(&dir) else { panic!("locked") };
    assert!(fault.kind == FaultKind::NoKey && fault.why.contains("version 4"), "{fault}");
    assert!(image(&dir) == before, "no byte has changed");
    let unlocked = keys(&dir);
    unlocked.unlock(&key).unwrap();
    assert!(matches!(super::state(&dir, &unlocked), DirState::Present { .. }));
    drop(temp);
}

/// Test 41: records of another index, term, generation, node or directory in place of the right ones.
#[test]
fn records_open_only_in_their_own_place() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let (_other, other) = Temp::new();
    write(&other, secrets(FEATURE_LEVEL));
    let keys_of = keys(&dir);
    let mut seal = Seal::of(&dir, &keys_of).unwrap().unwrap();
    let entry = Entry { index: 7, term: 3, data: b"data".to_vec().into(), ..Entry::default() };
    let stored = seal.seal_entry(5, &entry);
    assert_eq!(seal.open_entry(5, &stored).unwrap(), entry);
    assert!(seal.open_entry(6, &stored).is_err(), "another generation");
    for moved in [
        Entry { index: 8, ..stored.clone() },
        Entry { term: 4, ..stored.clone() },
        Entry { data: seal.seal_meta(b"data").into(), ..stored.clone() },
        Entry { data: Vec::new().into(), ..stored.clone() },
    ] {
        assert!(seal.open_entry(5, &moved).is_err());
    }
    let mut configuration = stored.clone();
    configuration.set_entry_type(raft::eraftpb::EntryType::EntryConfChangeV2);
    assert!(seal.open_entry(5, &configuration).is_err(), "another kind");
    // Another directory of the same node, and another node.
    let beside = dir.with_file_name("beside");
    make_dir(&beside).unwrap();
    assert!(Seal::begin(&beside, &keys_of).unwrap().open_entry(5, &stored).is_err());
    assert!(Seal::of(&other, &keys(&other)).unwrap().unwrap().open_entry(5, &stored).is_err());
}

/// Test 41, against a whole directory: the log, the snapshot, the description of another one in their place.
#[test]
fn parts_of_another_directory_are_damage() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let before = dir.with_file_name("before");
    copy_dir(&dir, &before);
    // The same node begins again, under the same key.
    wipe(&dir).unwrap();
    write(&dir, secrets(FEATURE_LEVEL));
    for part in ["log", "seal.json"] {
        let mixed = dir.with_file_name(format!("mixed-{part}"));
        copy_dir(&dir, &mixed);
        if part == "log" {
            fs::remove_dir_all(mixed.join(part)).unwrap();
            copy_dir(&before.join(part), &mixed.join(part));
        } else {
            fs::copy(before.join(part), mixed.join(part)).unwrap();
        }
        assert!(matches!(state(&mixed), DirState::Damaged(_)), "{part}");
    }
    assert!(matches!(state(&dir), DirState::Present { .. }));
    assert!(matches!(state(&before), DirState::Present { .. }), "a copy that was set aside still opens");
}

#[test]
fn flipped_bytes_in_seal_and_snapshot_are_found() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let snapshot = |entry: io::Result<fs::DirEntry>| entry.unwrap().path();
    let snapshot =
        fs::read_dir(&dir).unwrap().map(snapshot).find(|path| path.display().to_string().contains("snapshot-"));
    for file in [dir.join("seal.json"), snapshot.unwrap()] {
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x04;
            fs::write(&file, changed).unwrap();
            let found = state(&dir);
            assert!(
                matches!(found, DirState::Damaged(_) | DirState::Newer(_)),
                "{}: byte {at}: {found:?}",
                file.display()
            );
        }
        fs::write(&file, whole).unwrap();
    }
    assert!(matches!(state(&dir), DirState::Present { .. }));
}

/// Test 43: an earlier build reads `acked` before it reads or changes anything else. It fails there, and takes nothing for damaged.
#[test]
fn earlier_builds_stop_at_a_sealed_directory() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let fault = super::acked::Acked::open(&dir, false).unwrap_err();
    assert_eq!((fault.kind, fault.file), (FaultKind::Io, dir.join("acked")));
    assert!(acked_file(&dir).exists());
}

/// Test 43.
#[test]
fn directory_of_an_earlier_build_is_converted_once() {
    let (_temp, dir) = Temp::new();
    write_clear(&dir, &secrets(FEATURE_LEVEL));
    assert!(holds(&image(&dir), SECRET));
    assert_eq!(seal_of(&dir, &keys(&dir)), Ok(DirSeal::Clear));
    let before = read(&dir, &keys(&dir)).unwrap();
    assert_eq!(key_of(&dir), None, "reading leaves it as it is");
    assert!(same(&recover(&dir).unwrap(), &before));
    let key = key_of(&dir).expect("it is sealed");
    assert!(!holds(&image(dir.parent().unwrap()), SECRET), "neither here nor beside");
    write(&dir, vec![append(21, 22, 3, 20)]);
    let found = recover(&dir).unwrap();
    assert_eq!((found.entries.len(), found.entries[..19] == before.entries[..], key_of(&dir)), (21, true, Some(key)));
}

/// Until the cluster has reached the level, the node may return to the earlier build.
#[test]
fn directory_of_a_lower_feature_level_stays_clear() {
    let (_temp, dir) = Temp::new();
    write_clear(&dir, &secrets(2));
    let before = read(&dir, &keys(&dir)).unwrap();
    assert!(same(&recover(&dir).unwrap(), &before));
    write(&dir, vec![append(21, 22, 3, 20)]);
    assert_eq!(recover(&dir).unwrap().entries.len(), 21);
    assert_eq!((seal_of(&dir, &keys(&dir)), keys(&dir).path().exists()), (Ok(DirSeal::Clear), false));
}

/// SEAL-3, SEAL-8. After the first unlock key, and on request.
#[test]
fn new_data_key_rewrites_the_whole_directory() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let (before, clear) = (recover(&dir).unwrap(), key_of(&dir).unwrap());
    let shared = keys(&dir);
    assert_eq!(shared.protect(3, Some(&UnlockKey::new())), Ok(Protected::Changed));
    assert_eq!(seal_of(&dir, &shared), Ok(DirSeal::Sealed { key: clear, newest: false }));
    let kept = dir.with_file_name("raft.fenced");
    copy_dir(&dir, &kept);
    assert!(same(&super::read(&dir, &shared).unwrap(), &before), "reading does not rewrite");
    for _again in 0..2 {
        assert!(same(&DiskThread::open(&dir, &shared).unwrap().1, &before));
        assert_eq!(seal_of(&dir, &shared), Ok(DirSeal::Sealed { key: key_of(&dir).unwrap(), newest: true }));
        let ids: Vec<KeyId> = shared.of(KeyUse::Raft).unwrap().iter().map(|key| key.id()).collect();
        assert_eq!(ids, [clear, key_of(&dir).unwrap()], "data that was set aside still needs the former key");
    }
    assert!(same(&super::read(&kept, &shared).unwrap(), &before));
    fs::remove_dir_all(&kept).unwrap();
    DiskThread::open(&dir, &shared).unwrap();
    assert_eq!(shared.of(KeyUse::Raft).unwrap().len(), 1, "no file is under it any more");
    shared.add_key(KeyUse::Raft).unwrap();
    let second = key_of(&dir);
    assert!(same(&DiskThread::open(&dir, &shared).unwrap().1, &before));
    assert_ne!(key_of(&dir), second);
}
