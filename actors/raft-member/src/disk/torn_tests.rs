//! Power loss during writes: any of the unsynced sectors have reached the disk, in any order. The real disk code, over a file
//! system that remembers what each write replaced.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use muster_messages::Rng;
use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission, WriteExt};

use super::engine::{EngineDisk, OpenFor};
use super::tests::{Temp, append, copy_dir, founded, keys, recover};
use super::*;
use crate::core::HardMark;

const SECTOR: usize = 512;

type Fd = <DefaultFileSystem as FileSystem>::Handle;
type RealWriter = <DefaultFileSystem as FileSystem>::Writer;

/// An unsynced write, and the bytes that it replaced.
struct Loose {
    path: PathBuf,
    offset: u64,
    was: Vec<u8>,
}

/// A file system that loses unsynced sectors.
#[derive(Clone, Default)]
struct TornFs {
    loose: Arc<Mutex<VecDeque<Loose>>>,
    /// Syncs report success, but do nothing.
    lies: bool,
}

struct TornFile {
    fd: Arc<Fd>,
    path: PathBuf,
    fs: TornFs,
}

struct TornWriter {
    real: RealWriter,
    path: PathBuf,
    fs: TornFs,
}

impl TornFs {
    fn file(&self, path: &Path, fd: io::Result<Fd>) -> io::Result<TornFile> {
        Ok(TornFile { fd: Arc::new(fd?), path: path.to_owned(), fs: self.clone() })
    }
    fn forget(&self, path: &Path) {
        self.loose.lock().unwrap().retain(|write| write.path != path);
    }

    /// The files that a machine finds after it restarts, in a separate directory.
    fn after_power_loss(&self, dir: &Path, to: &Path, rng: &mut Rng) {
        copy_dir(dir, to);
        for write in self.loose.lock().unwrap().iter().rev() {
            let Ok(inside) = write.path.strip_prefix(dir) else { continue };
            let Ok(file) = File::options().write(true).open(to.join(inside)) else { continue };
            for (n, sector) in write.was.chunks(SECTOR).enumerate() {
                if rng.sample().is_multiple_of(2) {
                    file.write_all_at(sector, write.offset + (n * SECTOR) as u64).unwrap();
                }
            }
        }
    }
}

impl Handle for TornFile {
    fn truncate(&self, offset: usize) -> io::Result<()> {
        self.fd.truncate(offset)
    }
    fn file_size(&self) -> io::Result<usize> {
        self.fd.file_size()
    }
    fn sync(&self) -> io::Result<()> {
        if !self.fs.lies {
            self.fs.forget(&self.path);
        }
        Ok(())
    }
}

impl Write for TornWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let offset = self.real.stream_position()?;
        let mut was = vec![0; buf.len()];
        let file = File::open(&self.path)?;
        let mut there = 0;
        while let n @ 1.. = file.read_at(&mut was[there..], offset + there as u64)? {
            there += n;
        }
        let written = self.real.write(buf)?;
        was.truncate(written);
        self.fs.loose.lock().unwrap().push_back(Loose { path: self.path.clone(), offset, was });
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.real.flush()
    }
}
impl Seek for TornWriter {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.real.seek(to)
    }
}
impl WriteExt for TornWriter {
    fn truncate(&mut self, offset: usize) -> io::Result<()> {
        self.real.truncate(offset)
    }
    fn allocate(&mut self, offset: usize, size: usize) -> io::Result<()> {
        self.real.allocate(offset, size)
    }
}

impl FileSystem for TornFs {
    type Handle = TornFile;
    type Reader = <DefaultFileSystem as FileSystem>::Reader;
    type Writer = TornWriter;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<TornFile> {
        self.file(path.as_ref(), DefaultFileSystem.create(&path))
    }
    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<TornFile> {
        self.file(path.as_ref(), DefaultFileSystem.open(&path, permission))
    }
    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.forget(path.as_ref());
        DefaultFileSystem.delete(path)
    }
    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        DefaultFileSystem.rename(from, to)
    }
    fn new_reader(&self, file: Arc<TornFile>) -> io::Result<Self::Reader> {
        DefaultFileSystem.new_reader(Arc::clone(&file.fd))
    }
    fn new_writer(&self, file: Arc<TornFile>) -> io::Result<TornWriter> {
        let real = DefaultFileSystem.new_writer(Arc::clone(&file.fd))?;
        Ok(TornWriter { real, path: file.path.clone(), fs: file.fs.clone() })
    }
}

/// A founded member, and appends, of which later ones sometimes replace earlier entries, with writes between them that need no
/// sync. The last append is in progress at the power loss: none is begun before the previous one is synced.
fn some_writes(rng: &mut Rng) -> (Vec<Durable>, usize) {
    let (appends, unsynced) = (1 + rng.index(6), rng.index(3));
    let (mut last, mut term, mut commit) = (1, 1, 1);
    let mut writes = vec![founded()];
    let mut synced = 1;
    for n in 1..=appends {
        if n == appends {
            synced = writes.len();
            for _ in 0..unsynced {
                let hard = HardMark { term, vote: 1, commit };
                writes.push(Durable { hard, ..Durable::default() });
            }
        }
        let first = (last + 1 - rng.index(3) as u64).max(commit + 1);
        term += u64::from(first <= last);
        last = first + rng.index(25) as u64;
        let write = append(first, last, term, commit);
        commit += rng.index((last - commit) as usize / 2 + 1) as u64;
        writes.push(Durable { sync: n < appends, ..write });
    }
    for (number, write) in (1..).zip(&mut writes) {
        write.number = number;
    }
    (writes, synced)
}

/// The result of the first so many writes.
fn result_of(writes: &[Durable]) -> Recovered {
    let mut sim = SimDisk::default();
    writes.iter().for_each(|write| sim.put(write.clone()));
    sim.sync(writes.len() as u64);
    sim.recover().unwrap()
}

fn same(a: &Recovered, b: &Recovered) -> bool {
    (a.member_id, a.hard, a.truncated) == (b.member_id, b.hard, b.truncated)
        && a.snapshot == b.snapshot
        && a.entries == b.entries
}

/// Writes until the power loss. Returns the recovered state, and the states that are allowed.
fn write_until_power_loss(seed: u64, lies: bool) -> (Result<Recovered, LogFault>, Vec<Recovered>) {
    let (temp, dir) = Temp::new();
    let after = dir.with_file_name("after");
    let mut rng = Rng::seeded(seed);
    let (writes, synced) = some_writes(&mut rng);
    let fs = Arc::new(TornFs { lies, ..TornFs::default() });
    let mut disk = EngineDisk::open_in(&dir, &fs, &keys(&dir), OpenFor::Writing).unwrap();
    for write in &writes {
        disk.write(std::slice::from_ref(write)).unwrap();
    }
    fs.after_power_loss(&dir, &after, &mut rng);
    let found = recover(&after);
    drop((disk, temp));
    (found, (synced..=writes.len()).map(|n| result_of(&writes[..n])).collect())
}

/// Each on its own thread: raft-engine caches blocks per thread.
fn each_seed(lies: bool, check: impl Fn(u64, Result<Recovered, LogFault>, &[Recovered]) + Sync) {
    for seed in 1..=60 {
        let check = &check;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (found, may_be) = write_until_power_loss(seed, lies);
                check(seed, found, &may_be);
            });
        });
    }
}

/// DISK-1: synced writes are there, and of the others a prefix. A record whose end is there and whose middle is not does not
/// count.
#[test]
fn torn_and_reordered_writes_leave_a_prefix() {
    each_seed(false, |seed, found, may_be| {
        let found = found.unwrap_or_else(|why| panic!("{seed}: {why}"));
        let last = found.entries.last().map(|e| (e.index, e.term));
        assert!(may_be.iter().any(|one| same(one, &found)), "{seed}: it ends with {last:?}");
    });
}

/// DISK-1: if a disk reports a sync that did not happen, the loss is reported.
#[test]
fn loss_by_a_lying_disk_is_reported() {
    let named = std::sync::atomic::AtomicUsize::new(0);
    each_seed(true, |seed, found, may_be| match found {
        Ok(found) => assert!(may_be.iter().any(|one| same(one, &found)), "{seed}: a loss was not reported"),
        Err(why) => {
            assert_eq!(why.kind, FaultKind::Damaged, "{seed}: {why}");
            named.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(named.into_inner() > 0, "some of them lose something");
}
