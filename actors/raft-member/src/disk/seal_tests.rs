//! Sealed directories: what lies on the disk, conversion, change of the data key, crashes at every step.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_messages::{
    Change, ClusterId, ClusterRecord, Command, FEATURE_LEVEL, Incarnation, Name, NodeId, NodeRecord, Principal, RaftId,
    Revision, Role, Secret, WallTime,
};
use muster_sealing::{Protected, UnlockKey};
use raft_engine::env::DefaultFileSystem;

use super::engine::{EngineDisk, OpenFor};
use super::files::{Lock, make_dir};
use super::seal::{Seal, SealHead};
use super::tests::{Temp, acked_file, append, copy_dir, founded, job, keys, recover, state, write, write_with};
use super::*;
use crate::core::{Compaction, Entry, HardMark, LogPoint, SnapshotJob, command_entry};

const SECRET: &str = "the root key of a cluster: 0123456789abcdef";

/// A write whose snapshot and entries hold the secret, at a feature level.
fn secrets(level: u32) -> Vec<Durable> {
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
fn write_clear(dir: &Path, writes: &[Durable]) {
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
fn image(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let path = entry.path();
        bytes.extend(entry.file_name().to_string_lossy().bytes());
        bytes.extend(if path.is_dir() { image(&path) } else { fs::read(&path).unwrap() });
    }
    bytes
}

fn holds(bytes: &[u8], secret: &str) -> bool {
    // No run of 16 bytes of it.
    secret.as_bytes().windows(16).any(|run| bytes.windows(16).any(|part| part == run))
}

fn same(a: &Recovered, b: &Recovered) -> bool {
    (a.member_id, a.hard, a.truncated) == (b.member_id, b.hard, b.truncated)
        && (&a.snapshot, &a.entries) == (&b.snapshot, &b.entries)
}

fn key_of(dir: &Path) -> Option<KeyId> {
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

/// A copy of the whole data directory after each change of the disk.
fn copies_at_each_step(
    data: &Path,
    copies: &Path,
    rewrite: impl FnOnce(&mut dyn FnMut(&'static str) -> io::Result<()>),
) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    rewrite(&mut |name| {
        let copy = copies.join(format!("{:02}-{name}", found.len()));
        copy_dir(data, &copy);
        found.push((name.to_owned(), copy));
        Ok(())
    });
    found
}

fn reseal_in(dir: &Path, shared: &Keys, step: &mut dyn FnMut(&'static str) -> io::Result<()>) {
    let lock = Lock::take(dir).unwrap();
    drop(reseal::reseal(dir, &Arc::new(DefaultFileSystem), (shared, lock), step).unwrap());
}

/// Tests 39 and 43: the process is killed after each file operation. The data is complete, and under one key; the next start
/// finishes, and leaves nothing behind. SEAL-2, SEAL-3, SEAL-8.
#[test]
fn killed_at_any_step_the_directory_is_old_or_new() {
    for begin in ["clear", "sealed"] {
        let (_temp, dir) = Temp::new();
        match begin {
            "clear" => write_clear(&dir, &secrets(FEATURE_LEVEL)),
            _ => write(&dir, secrets(FEATURE_LEVEL)),
        }
        let before = read(&dir, &keys(&dir)).unwrap();
        let shared = keys(&dir);
        if begin == "sealed" {
            shared.add_key(KeyUse::Raft).unwrap();
        }
        let copies = tempfile::tempdir().unwrap();
        let steps = copies_at_each_step(dir.parent().unwrap(), copies.path(), |step| reseal_in(&dir, &shared, step));
        let names: Vec<&str> = steps.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "space",
                "keyring",
                "made",
                "described",
                "snapshot",
                "log",
                "synced",
                "exchanging",
                "exchanged",
                "deleted"
            ]
        );
        for (name, copy) in steps {
            let raft = copy.join("raft");
            assert!(same(&read(&raft, &keys(&raft)).unwrap(), &before), "{begin}, {name}: readable as it is");
            assert!(same(&recover(&raft).unwrap(), &before), "{begin}, {name}: the member starts");
            let newest = DirSeal::Sealed { key: key_of(&raft).unwrap(), newest: true };
            assert_eq!(seal_of(&raft, &keys(&raft)), Ok(newest), "{begin}, {name}");
            let names = fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            assert_eq!(names, ["keyring.json", "raft"], "{begin}, {name}: nothing is left behind");
            assert_eq!(keys(&raft).of(KeyUse::Raft).unwrap().len(), 1, "{begin}, {name}: one key is left");
            assert!(!holds(&image(&copy), SECRET), "{begin}, {name}");
        }
    }
}

/// File systems without an atomic exchange.
#[test]
fn killed_between_two_renames_the_exchange_is_finished() {
    let (_temp, dir) = Temp::new();
    write_clear(&dir, &secrets(FEATURE_LEVEL));
    let before = read(&dir, &keys(&dir)).unwrap();
    let next = dir.with_file_name("raft.next");
    copy_dir(&dir, &next);
    let copies = tempfile::tempdir().unwrap();
    let steps = copies_at_each_step(dir.parent().unwrap(), copies.path(), |step| {
        reseal::exchange_for_tests(&dir, step).unwrap();
        step("moved again").unwrap();
    });
    assert_eq!(steps.len(), 2);
    for (name, copy) in steps {
        let raft = copy.join("raft");
        assert_eq!(raft.exists(), name == "moved again");
        assert!(same(&recover(&raft).unwrap(), &before), "{name}");
        assert!(key_of(&raft).is_some(), "{name}");
        assert!(!copy.join("raft.old").exists() && !copy.join("raft.next").exists(), "{name}");
    }
}

/// A full disk, or any other failure, before the exchange: the directory stays as it is, and the member starts with it.
#[test]
fn failed_rewrite_leaves_the_directory_as_it_is() {
    for fails_at in ["space", "made", "described", "snapshot", "log", "synced", "exchanging"] {
        let (_temp, dir) = Temp::new();
        write_clear(&dir, &secrets(FEATURE_LEVEL));
        let before = read(&dir, &keys(&dir)).unwrap();
        let mut fail = |name: &str| match name == fails_at {
            true => Err(io::Error::from_raw_os_error(28)),
            false => Ok(()),
        };
        reseal_in(&dir, &keys(&dir), &mut fail);
        assert_eq!((seal_of(&dir, &keys(&dir)), dir.with_file_name("raft.next").exists()), (Ok(DirSeal::Clear), false));
        assert!(same(&read(&dir, &keys(&dir)).unwrap(), &before), "{fails_at}");
        assert_eq!(keys(&dir).path().exists(), !["space"].contains(&fails_at), "refused before it starts");
        assert!(same(&recover(&dir).unwrap(), &before), "{fails_at}: and at the next start it is converted");
        assert!(key_of(&dir).is_some());
    }
}

/// As on a mount point, or if the second of two renames fails.
#[test]
fn failed_exchange_by_renames_restores_the_directory() {
    let (_temp, dir) = Temp::new();
    write_clear(&dir, &secrets(FEATURE_LEVEL));
    let before = read(&dir, &keys(&dir)).unwrap();
    copy_dir(&dir, &dir.with_file_name("raft.next"));
    let fault = reseal::exchange_for_tests(&dir, &mut |_| Err(io::Error::from_raw_os_error(16))).unwrap_err();
    assert!(fault.kind == FaultKind::Io && dir.exists() && !dir.with_file_name("raft.old").exists());
    assert!(same(&recover(&dir).unwrap(), &before));
    // Neither the new directory nor the old one has the name: a power loss, or a file system that became read-only.
    fs::rename(&dir, dir.with_file_name("raft.old")).unwrap();
    assert!(same(&recover(&dir).unwrap(), &before), "the old data is used if it is all that is left");
}

/// What a symbolic link names is rewritten, and nothing is left of it in clear.
#[test]
fn directory_behind_a_symbolic_link_is_converted() {
    let (_temp, link) = Temp::new();
    let (_other, dir) = Temp::new();
    write_clear(&dir, &secrets(FEATURE_LEVEL));
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    let before = read(&link, &keys(&link)).unwrap();
    assert!(same(&recover(&link).unwrap(), &before));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && key_of(&dir).is_some());
    assert!(!holds(&image(dir.parent().unwrap()), SECRET));
    let names = fs::read_dir(dir.parent().unwrap()).unwrap().count();
    assert_eq!(names, 1, "nothing is left beside it");
    assert_eq!(keys_in_use(&link).unwrap(), [key_of(&dir).unwrap(); 2]);
    // Between two renames the link names nothing.
    fs::rename(&dir, dir.with_file_name("raft.next")).unwrap();
    copy_dir(&dir.with_file_name("raft.next"), &dir.with_file_name("raft.old"));
    assert!(same(&recover(&link).unwrap(), &before));
}

#[test]
fn wipe_leaves_no_half_exchanged_data() {
    let (_temp, dir) = Temp::new();
    write_clear(&dir, &secrets(FEATURE_LEVEL));
    for name in ["raft.next", "raft.old"] {
        copy_dir(&dir, &dir.with_file_name(name));
    }
    wipe(&dir).unwrap();
    assert!(!holds(&image(dir.parent().unwrap()), SECRET));
    for beside in ["raft.next", "raft.old"] {
        copy_dir(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clear-directory").as_path(),
            &dir.with_file_name(beside),
        );
    }
    fs::remove_dir_all(&dir).unwrap();
    wipe(&dir).unwrap();
    assert!(!holds(&image(dir.parent().unwrap()), SECRET), "without the directory itself");
}

/// SEAL-3: data whose description cannot be read may be under any key.
#[test]
fn no_key_is_dropped_beside_an_unreadable_description() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let kept = dir.with_file_name("raft.fenced");
    copy_dir(&dir, &kept);
    let whole = fs::read(kept.join("seal.json")).unwrap();
    fs::write(kept.join("seal.json"), "{").unwrap();
    let shared = keys(&dir);
    shared.add_key(KeyUse::Raft).unwrap();
    DiskThread::open(&dir, &shared).unwrap();
    assert!(keys_in_use(&dir).is_err() && shared.of(KeyUse::Raft).unwrap().len() == 2);
    fs::write(kept.join("seal.json"), whole).unwrap();
    assert!(matches!(super::state(&kept, &shared), DirState::Present { .. }));
}

/// The description is lost: the data counts as damaged, and the member gets it from the others.
#[test]
fn sealed_directory_without_its_description_is_damaged() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    fs::remove_file(dir.join("seal.json")).unwrap();
    let DirState::Damaged(fault) = state(&dir) else { panic!("without its description") };
    assert_eq!(fault.file, dir.join("seal.json"));
    assert_eq!(DiskThread::open(&dir, &keys(&dir)).err().map(|fault| fault.kind), Some(FaultKind::Damaged));
}

/// While a member runs: what was written before, meanwhile and afterwards is under the new key, and a snapshot that was written into the
/// former directory is not named by the log of the new one.
#[test]
fn running_member_follows_a_new_data_key() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let shared = keys(&dir);
    let (disk, before) = DiskThread::open(&dir, &shared).unwrap();
    let former = key_of(&dir).unwrap();
    write_with(&disk, vec![append(21, 25, 2, 5)]);
    let (head, data) = job(10, 2).run();
    let files = disk.snapshot_files();
    files.store(&head, &data).unwrap();
    shared.protect(3, Some(&UnlockKey::new())).unwrap();
    disk.reseal();
    let newest = shared.newest(KeyUse::Raft);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while disk.snapshot_files().key() != newest {
        assert!(std::time::Instant::now() < until, "it is not rewritten");
        std::thread::yield_now();
    }
    let compact = Compaction { keep_after: LogPoint { index: 8, term: 2 }, head };
    write_with(&disk, vec![Durable { compact: Some(compact), ..append(26, 27, 2, 5) }]);
    assert_eq!(key_of(&dir), newest);
    assert!(files.key() == Some(former) && newest != Some(former));
    assert_eq!(shared.of(KeyUse::Raft).unwrap().len(), 1, "the former key is gone");
    drop(disk);
    let (disk, found) = DiskThread::open(&dir, &shared).unwrap();
    assert_eq!((found.snapshot.map(|(head, _)| head.index), found.entries.len()), (Some(1), 27 - 1));
    // A snapshot of the new directory is named.
    let (head, data) = job(12, 2).run();
    disk.snapshot_files().store(&head, &data).unwrap();
    let compact = Compaction { keep_after: LogPoint { index: 9, term: 2 }, head };
    disk.reseal();
    write_with(&disk, vec![Durable { compact: Some(compact), ..append(28, 28, 2, 5) }]);
    drop(disk);
    let found = DiskThread::open(&dir, &shared).unwrap().1;
    assert_eq!((found.truncated.index, found.snapshot.map(|(head, _)| head.index)), (9, Some(12)));
    assert_eq!((found.entries.len(), found.member_id), (28 - 9, before.member_id));
    assert!(!holds(&image(&dir), SECRET));
}

/// A second owner that waits for the lock of a directory that is exchanged meanwhile gets no lock of the deleted one.
#[test]
fn second_owner_waits_while_a_directory_is_rewritten() {
    let (_temp, dir) = Temp::new();
    write_clear(&dir, &secrets(FEATURE_LEVEL));
    let before = read(&dir, &keys(&dir)).unwrap();
    let mut second = None;
    let (path, shared) = (dir.clone(), keys(&dir));
    let open = move |(path, keys): (PathBuf, Keys)| DiskThread::open(&path, &keys).map(|(_, found)| found);
    let arguments = (path, shared.clone());
    let mut step = |name: &str| {
        if name == "described" {
            let arguments = arguments.clone();
            second = Some(std::thread::spawn(move || open(arguments)));
        }
        Ok(())
    };
    let lock = Lock::take(&dir).unwrap();
    let lock = reseal::reseal(&dir, &Arc::new(DefaultFileSystem), (&shared, lock), &mut step).unwrap();
    let refused = second.unwrap().join().unwrap().err().map(|fault| fault.kind);
    assert_eq!(refused, Some(FaultKind::Io), "the directory has an owner");
    drop(lock);
    assert!(same(&recover(&dir).unwrap(), &before));
    assert!(key_of(&dir).is_some() && !dir.with_file_name("raft.next").exists());
}

/// K14: entries that are not committed survive a change of the key.
#[test]
fn uncommitted_entries_survive_a_change_of_the_key() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5), Durable { sync: false, ..append(11, 12, 2, 5) }]);
    let shared = keys(&dir);
    shared.add_key(KeyUse::Raft).unwrap();
    let found = DiskThread::open(&dir, &shared).unwrap().1;
    assert_eq!((found.entries.len(), found.hard.commit, found.member_id), (11, 5, Some(RaftId(1))));
    let disk = EngineDisk::open_in(&dir, &Arc::new(DefaultFileSystem), &shared, OpenFor::Reading).unwrap();
    drop(disk);
}

/// A directory in the format of earlier builds, as a file of this repository: a later build still converts it. `UPDATE=1` writes it again.
#[test]
fn recorded_clear_directory_is_converted() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clear-directory");
    if std::env::var_os("UPDATE").is_some() {
        let (_temp, dir) = Temp::new();
        write_clear(&dir, &secrets(FEATURE_LEVEL));
        super::engine::remove_all(&golden).unwrap();
        copy_dir(&dir, &golden);
        for entry in fs::read_dir(golden.join("log")).unwrap().map(|entry| entry.unwrap().path()) {
            // Without the zeros after the last record.
            let bytes = fs::read(&entry).unwrap();
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            fs::write(&entry, &bytes[..end]).unwrap();
        }
    }
    let (_temp, dir) = Temp::new();
    copy_dir(&golden, &dir);
    assert!(holds(&image(&dir), SECRET));
    assert_eq!(seal_of(&dir, &keys(&dir)), Ok(DirSeal::Clear));
    let found = recover(&dir).unwrap();
    assert!(key_of(&dir).is_some() && !holds(&image(dir.parent().unwrap()), SECRET));
    assert_eq!((found.member_id, found.entries.len(), found.hard.commit), (Some(RaftId(1)), 19, 5));
    assert_eq!(found.snapshot.map(|(head, tables)| (head.index, tables.revision)), Some((1, Revision(1))));
    assert_eq!(String::from_utf8_lossy(&found.entries[0].context), SECRET);
}
