//! What sealing costs on a disk: a member's writes into directories in clear and sealed, and beside a change of the data key. `muster bench
//! sealing` measures with it. No member runs in these directories, and only here does this build make one in clear.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use muster_messages::RaftId;
use muster_messages::wire::SnapshotHead;
use muster_sealing::{KeyUse, KeyringFault, Keys};
use raft_engine::env::DefaultFileSystem;

use super::engine::EngineDisk;
use super::files::{Lock, make_dir};
use super::reseal::on_own_thread;
use super::seal::{Seal, no_key};
use super::{DiskThread, LogDisk as _, LogFault, Report};
use crate::core::{Durable, Entry, HardMark, digest};

/// The most writes beside a change of the key: one may come before it, and the next waits for its end.
const MOST_MEANWHILE: usize = 100;

/// Batches of entries, each written with one sync.
#[derive(Clone, Copy, Debug)]
pub struct Batches {
    pub count: u32,
    /// In each batch.
    pub entries: u32,
    /// Of each entry.
    pub bytes: u32,
}

/// How long the writes of a member took around a change of its data key.
#[derive(Clone, Debug)]
pub struct KeyChange {
    pub before: Vec<Duration>,
    /// Those that began between the request for the change and its end: the longest is the pause of the disk.
    pub meanwhile: Vec<Duration>,
    pub took: Duration,
}

/// Writes batches into a new directory below `folder`, and returns how long each took. Ends early once `continues` is false. Blocks.
pub fn writes(
    folder: &Path,
    sealed: bool,
    batches: Batches,
    continues: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Duration>, LogFault> {
    let (dir, keys) = prepare(folder)?;
    make_dir(&dir)?;
    on_own_thread(|| {
        let seal = if sealed { Some(Seal::begin(&dir, &keys)?) } else { None };
        let mut disk = EngineDisk::open_log(&dir, &Arc::new(DefaultFileSystem), seal)?;
        disk.write(&[founded(vec![7; 64])])?;
        let mut times = Vec::new();
        for number in (0..batches.count).take_while(|_| continues()) {
            let write = batches.appended(number);
            let begun = Instant::now();
            disk.write(&[write])?;
            times.push(begun.elapsed());
        }
        Ok(times)
    })
}

/// Writes a state of this size and then batches into a new sealed directory below `folder`, and replaces its data key beside further batches,
/// one after the other. Blocks.
pub fn key_change(
    folder: &Path,
    state: usize,
    batches: Batches,
    continues: &(dyn Fn() -> bool + Sync),
) -> Result<KeyChange, LogFault> {
    let (dir, keys) = prepare(folder)?;
    let mut member = Member::open(&dir, &keys)?;
    member.write(founded(vec![7; state]))?;
    let mut before = Vec::new();
    for number in (0..batches.count).take_while(|_| continues()) {
        before.push(member.write(batches.appended(number))?);
    }
    let key = keys.add_key(KeyUse::Raft).map_err(|fault| of_keyring(&keys, &fault))?;
    let begun = Instant::now();
    member.disk.reseal()?;
    let mut meanwhile = Vec::new();
    for number in (0..).skip(before.len()).take(MOST_MEANWHILE) {
        meanwhile.push(member.write(batches.appended(number))?);
        if member.disk.is_sealed_with(key) == Some(true) {
            let took = begun.elapsed();
            drop(member);
            drop(Lock::take(&dir)?); // its thread has closed the directory
            return Ok(KeyChange { before, meanwhile, took });
        }
    }
    Err(LogFault::io(dir, "its data key was not replaced"))
}

/// The folders of a data directory, the one of the identity included: the second record of acknowledged writes lies there.
fn prepare(folder: &Path) -> Result<(PathBuf, Keys), LogFault> {
    let identity = folder.join("identity");
    make_dir(&identity)?;
    let keys = Keys::open(&identity).map_err(|fault| no_key(&identity, &fault))?;
    keys.ensure().map_err(|fault| of_keyring(&keys, &fault))?;
    Ok((folder.join("raft"), keys))
}

fn of_keyring(keys: &Keys, fault: &KeyringFault) -> LogFault {
    no_key(keys.path(), fault)
}

/// The first write of a member, with its state.
pub(super) fn founded(data: Vec<u8>) -> Durable {
    let (bytes, digest) = (data.len() as u64, digest(&data));
    let head = SnapshotHead { index: 1, term: 1, voters: vec![1], learners: Vec::new(), bytes, digest };
    Durable {
        sync: true,
        start_over: Some(RaftId(1)),
        install: Some((head, Arc::new(data))),
        hard: HardMark { term: 1, vote: 0, commit: 1 },
        ..Durable::default()
    }
}

impl Batches {
    /// The batch of this number, from 0 on, behind the first write.
    fn appended(self, number: u32) -> Durable {
        let (size, number) = (u64::from(self.entries), u64::from(number));
        let (first, last) = (2 + number * size, 1 + (number + 1) * size);
        let data = vec![7; self.bytes as usize];
        let entry = |index| Entry { index, term: 1, data: data.clone().into(), ..Entry::default() };
        Durable {
            sync: true,
            hard: HardMark { term: 1, vote: 1, commit: last },
            entries: (first..=last).map(entry).collect(),
            ..Durable::default()
        }
    }
}

/// Writes through a member's disk thread, one batch after the other.
struct Member {
    disk: DiskThread,
    reports: Receiver<Report>,
    written: u64,
}

impl Member {
    fn open(dir: &Path, keys: &Keys) -> Result<Self, LogFault> {
        let (disk, _nothing_yet) = DiskThread::open(dir, keys)?;
        let (sender, reports) = mpsc::channel();
        disk.listen(Box::new(move |report| drop(sender.send(report))));
        Ok(Self { disk, reports, written: 0 })
    }

    fn write(&mut self, write: Durable) -> Result<Duration, LogFault> {
        self.written += 1;
        let begun = Instant::now();
        self.disk.write(vec![Durable { number: self.written, ..write }])?;
        while self.disk.persisted() < self.written {
            match self.reports.recv() {
                Ok(Report::Persisted) => {}
                Ok(Report::Failed(fault)) => return Err(fault),
                Err(_) => return Err(LogFault::io("raft", "the disk thread has ended")),
            }
        }
        Ok(begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::seal_tests::{holds, image};
    use super::super::{DirSeal, seal_of};
    use super::*;

    const FEW: Batches = Batches { count: 3, entries: 2, bytes: 100 };
    /// What the entries hold.
    const TEXT: &str = "\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}\u{7}";

    #[test]
    fn trial_writes_in_clear_and_sealed() {
        for sealed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let times = writes(folder.path(), sealed, FEW, &|| true).unwrap();
            assert_eq!(times.len(), 3);
            let (dir, keys) = (folder.path().join("raft"), Keys::open(&folder.path().join("identity")).unwrap());
            assert_eq!(holds(&image(&dir), TEXT), !sealed, "what is compared differs in this");
            match seal_of(&dir, &keys).unwrap() {
                DirSeal::Sealed { newest, .. } => assert!(sealed && newest),
                found => assert!(!sealed && found == DirSeal::Clear, "{found:?}"),
            }
        }
    }

    #[test]
    fn trial_ends_once_it_is_interrupted() {
        let (folder, asked) = (tempfile::tempdir().unwrap(), AtomicU32::new(0));
        let once = || asked.fetch_add(1, Ordering::Relaxed) == 0;
        assert_eq!(writes(folder.path(), true, FEW, &once).unwrap().len(), 1);
    }

    /// The key is another one when it returns, and the writes before and meanwhile are there.
    #[test]
    fn trial_replaces_the_key_beside_writes() {
        let folder = tempfile::tempdir().unwrap();
        let change = key_change(folder.path(), 100_000, FEW, &|| true).unwrap();
        assert_eq!(change.before.len(), 3);
        assert!(change.meanwhile.iter().max() <= Some(&change.took) && !change.meanwhile.is_empty(), "{change:?}");
        let (dir, keys) = (folder.path().join("raft"), Keys::open(&folder.path().join("identity")).unwrap());
        let left = keys.of(KeyUse::Raft).unwrap();
        assert_eq!(left.len(), 1, "the former key is gone");
        assert_eq!(seal_of(&dir, &keys), Ok(DirSeal::Sealed { key: left[0].id(), newest: true }));
        let entries = on_own_thread(|| {
            let mut disk = EngineDisk::open(&dir, &keys)?;
            Ok(disk.content()?.entries.len())
        });
        assert_eq!(entries, Ok(2 * (3 + change.meanwhile.len())));
    }
}
