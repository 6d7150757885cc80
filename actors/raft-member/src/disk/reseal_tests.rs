//! Rewriting a directory: crashes at every step, failures, other owners, a running member.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_messages::{FEATURE_LEVEL, RaftId, Revision};
use muster_sealing::UnlockKey;
use raft_engine::env::DefaultFileSystem;

use super::engine::{EngineDisk, OpenFor};
use super::files::Lock;
use super::seal_tests::{SECRET, holds, image, key_of, same, secrets, write_clear};
use super::tests::{Temp, append, copy_dir, founded, job, keys, recover, state, write, write_with};
use super::*;
use crate::core::{Compaction, LogPoint};

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
    let next = dir.with_file_name("raft.reseal-next");
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
        assert!(!copy.join("raft.reseal-old").exists() && !copy.join("raft.reseal-next").exists(), "{name}");
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
        assert_eq!(
            (seal_of(&dir, &keys(&dir)), dir.with_file_name("raft.reseal-next").exists()),
            (Ok(DirSeal::Clear), false)
        );
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
    copy_dir(&dir, &dir.with_file_name("raft.reseal-next"));
    let fault = reseal::exchange_for_tests(&dir, &mut |_| Err(io::Error::from_raw_os_error(16))).unwrap_err();
    assert!(fault.kind == FaultKind::Io && dir.exists() && !dir.with_file_name("raft.reseal-old").exists());
    assert!(same(&recover(&dir).unwrap(), &before));
    // Neither the new directory nor the old one has the name: a power loss, or a file system that became read-only.
    fs::rename(&dir, dir.with_file_name("raft.reseal-old")).unwrap();
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
    fs::rename(&dir, dir.with_file_name("raft.reseal-next")).unwrap();
    copy_dir(&dir.with_file_name("raft.reseal-next"), &dir.with_file_name("raft.reseal-old"));
    assert!(same(&recover(&link).unwrap(), &before));
}

#[test]
fn wipe_leaves_no_half_exchanged_data() {
    let (_temp, dir) = Temp::new();
    write_clear(&dir, &secrets(FEATURE_LEVEL));
    for name in ["raft.reseal-next", "raft.reseal-old"] {
        copy_dir(&dir, &dir.with_file_name(name));
    }
    wipe(&dir).unwrap();
    assert!(!holds(&image(dir.parent().unwrap()), SECRET));
    for beside in ["raft.reseal-next", "raft.reseal-old"] {
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
    disk.reseal().unwrap();
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
    disk.reseal().unwrap();
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
    assert!(key_of(&dir).is_some() && !dir.with_file_name("raft.reseal-next").exists());
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
        super::files::remove_all(&golden).unwrap();
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

/// Marks of other threads, made while the directory was rewritten, hold for the new one.
#[test]
fn marks_made_during_a_rewrite_are_kept() {
    for mark in ["lost", "wipe"] {
        let (_temp, dir) = Temp::new();
        write(&dir, secrets(FEATURE_LEVEL));
        let shared = keys(&dir);
        shared.add_key(KeyUse::Raft).unwrap();
        let path = dir.clone();
        let (copies, mut copy) = (tempfile::tempdir().unwrap(), PathBuf::new());
        reseal_in(&dir, &shared, &mut |step| match step {
            "log" => fs::write(path.join(mark), "why"),
            "exchanged" => {
                copy = copies.path().join("data");
                copy_dir(path.parent().unwrap(), &copy);
                Ok(())
            }
            _ => Ok(()),
        });
        // Killed before the mark was moved.
        let killed = state(&copy.join("raft"));
        assert!(copy.join("raft/log").exists(), "a reader wipes nothing");
        assert_eq!(matches!(killed, DirState::Damaged(_)), mark == "lost", "{killed:?}");
        assert_eq!(fs::read(dir.join(mark)).unwrap(), b"why");
        let found = state(&dir);
        assert_eq!(matches!(found, DirState::Damaged(_)), mark == "lost", "{found:?}");
        for found in [killed, found] {
            assert_eq!(found == DirState::Absent, mark == "wipe", "{found:?}");
        }
    }
}

/// Another incarnation has set the directory aside and begun again: the former owner neither exchanges it nor writes to it.
#[test]
fn rewrite_of_a_replaced_directory_touches_nothing() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let shared = keys(&dir);
    shared.add_key(KeyUse::Raft).unwrap();
    let aside = dir.with_file_name("raft.damaged");
    let (path, other) = (dir.clone(), shared.clone());
    let mut replace = |step: &str| {
        if step == "synced" {
            fs::rename(&path, &aside)?;
            let (path, keys) = (path.clone(), other.clone());
            std::thread::spawn(move || super::write(&path, founded(), &keys).unwrap()).join().unwrap();
        }
        Ok(())
    };
    let lock = Lock::take(&dir).unwrap();
    let refused = reseal::reseal(&dir, &Arc::new(DefaultFileSystem), (&shared, lock), &mut replace);
    assert_eq!(refused.err().map(|fault| fault.kind), Some(FaultKind::Io));
    let found = DiskThread::open(&dir, &shared).unwrap().1;
    assert_eq!((found.member_id, found.entries.len()), (Some(RaftId(1)), 0), "the new data");
}

/// What cannot be moved or deleted with the directory: a link or a mount point in it.
#[test]
fn directory_with_a_link_in_it_stays_as_it_is() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let (_other, elsewhere) = Temp::new();
    fs::rename(dir.join("log"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, dir.join("log")).unwrap();
    let shared = keys(&dir);
    let before = key_of(&dir);
    shared.add_key(KeyUse::Raft).unwrap();
    let found = DiskThread::open(&dir, &shared).unwrap().1;
    assert_eq!((found.entries.len(), key_of(&dir)), (19, before), "not sealed anew");
    assert!(matches!(seal_of(&dir, &shared), Ok(DirSeal::Sealed { newest: false, .. })));
}

/// The former data cannot be deleted: the member runs, and the report says that the disk is not sealed.
#[test]
fn leftover_that_cannot_be_deleted_is_reported_and_no_obstacle() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    // Neither a directory nor empty: `remove_dir_all` fails.
    fs::write(dir.with_file_name("raft.reseal-next"), "").unwrap();
    let shared = keys(&dir);
    let (disk, found) = DiskThread::open(&dir, &shared).unwrap();
    assert_eq!(found.entries.len(), 19);
    assert!(matches!(seal_of(&dir, &shared), Ok(DirSeal::Sealed { newest: false, .. })));
    assert_eq!(disk.is_sealed_with(key_of(&dir).unwrap()), Some(false));
    fs::remove_file(dir.with_file_name("raft.reseal-next")).unwrap();
    disk.reseal().unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while disk.is_sealed_with(key_of(&dir).unwrap()) != Some(true) {
        assert!(std::time::Instant::now() < until, "it looks again");
        std::thread::yield_now();
    }
    // A copy with another name is not a leftover.
    let copy = dir.with_file_name("raft.old");
    drop(disk);
    copy_dir(&dir, &copy);
    recover(&dir).unwrap();
    assert!(copy.exists());
}

#[test]
fn reading_leaves_a_wipe_to_the_owner() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    super::files::mark_for_wipe(&dir).unwrap();
    let before = image(&dir);
    for _again in 0..2 {
        assert_eq!(state(&dir), DirState::Absent);
        assert!(image(&dir) == before, "nothing is created or deleted");
    }
}

#[test]
fn mount_point_is_refused_before_anything_is_written() {
    let (_temp, dir) = Temp::new();
    write(&dir, secrets(FEATURE_LEVEL));
    let (fs, lock) = (Arc::new(DefaultFileSystem), Lock::take(&dir).unwrap());
    let mut written = Vec::new();
    let mut step = |name| {
        written.push(name);
        Ok(())
    };
    let refused = reseal::reseal(Path::new("/proc"), &fs, (&keys(&dir), lock), &mut step).map(drop).unwrap_err();
    assert_eq!(written, [""; 0]);
    assert!(refused.to_string().contains("a mount point, a subvolume, or"), "{refused}");
}
