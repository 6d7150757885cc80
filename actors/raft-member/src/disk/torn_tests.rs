//! The power goes while the disk has not everything: of what was not synced any sectors have reached the platter, in whatever
//! order. The real disk, over a file system that remembers what each write replaced.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use muster_messages::Dice;
use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission, WriteExt};

use super::engine::EngineDisk;
use super::tests::{Temp, append, copy_dir, founded, recover};
use super::*;
use crate::core::HardMark;

const SECTOR: usize = 512;

type Fd = <DefaultFileSystem as FileSystem>::Handle;
type RealWriter = <DefaultFileSystem as FileSystem>::Writer;

/// A write that was not synced, and what was there before.
struct Loose {
    path: PathBuf,
    offset: u64,
    was: Vec<u8>,
}

/// See the module.
#[derive(Clone, Default)]
struct TornFs {
    loose: Arc<Mutex<VecDeque<Loose>>>,
    /// Syncs say that they are done, and do nothing.
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

    /// What a machine finds that starts again, in a directory of its own.
    fn after_the_power_went(&self, dir: &Path, to: &Path, dice: &mut Dice) {
        copy_dir(dir, to);
        for write in self.loose.lock().unwrap().iter().rev() {
            let Ok(inside) = write.path.strip_prefix(dir) else { continue };
            let Ok(file) = File::options().write(true).open(to.join(inside)) else { continue };
            for (n, sector) in write.was.chunks(SECTOR).enumerate() {
                if dice.roll().is_multiple_of(2) {
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

/// A seat that is founded, and appends of which the later ones sometimes replace earlier entries; between them what needs no
/// sync. The last append is on its way when the power goes: no other one is begun before it is synced.
fn some_writes(dice: &mut Dice) -> (Vec<Durable>, usize) {
    let (appends, notes) = (1 + dice.index(6), dice.index(3));
    let (mut last, mut term, mut commit) = (1, 1, 1);
    let mut writes = vec![founded()];
    let mut synced = 1;
    for n in 1..=appends {
        if n == appends {
            synced = writes.len();
            for _ in 0..notes {
                let hard = HardMark { term, vote: 1, commit };
                writes.push(Durable { hard, ..Durable::default() });
            }
        }
        let first = (last + 1 - dice.index(3) as u64).max(commit + 1);
        term += u64::from(first <= last);
        last = first + dice.index(25) as u64;
        let write = append(first, last, term, commit);
        commit += dice.index((last - commit) as usize / 2 + 1) as u64;
        writes.push(Durable { sync: n < appends, ..write });
    }
    for (number, write) in (1..).zip(&mut writes) {
        write.number = number;
    }
    (writes, synced)
}

/// What the first so many writes add up to.
fn adds_up_to(writes: &[Durable]) -> Recovered {
    let mut sim = SimDisk::default();
    writes.iter().for_each(|write| sim.put(write.clone()));
    sim.sync(writes.len() as u64);
    sim.recover().unwrap()
}

fn same(a: &Recovered, b: &Recovered) -> bool {
    (a.seat, a.hard, a.truncated) == (b.seat, b.hard, b.truncated) && a.snapshot == b.snapshot && a.entries == b.entries
}

/// Writes until the power goes: what is found, and what may be found.
fn power_goes(seed: u64, lies: bool) -> (Result<Recovered, LogFault>, Vec<Recovered>) {
    let (temp, dir) = Temp::new();
    let after = dir.with_file_name("after");
    let mut dice = Dice::seeded(seed);
    let (writes, synced) = some_writes(&mut dice);
    let fs = Arc::new(TornFs { lies, ..TornFs::default() });
    let mut disk = EngineDisk::open_in(&dir, &fs).unwrap();
    for write in &writes {
        disk.write(std::slice::from_ref(write)).unwrap();
    }
    fs.after_the_power_went(&dir, &after, &mut dice);
    let found = recover(&after);
    drop((disk, temp));
    (found, (synced..=writes.len()).map(|n| adds_up_to(&writes[..n])).collect())
}

/// Each on a thread of its own: raft-engine remembers blocks by thread.
fn each_seed(lies: bool, judge: impl Fn(u64, Result<Recovered, LogFault>, &[Recovered]) + Sync) {
    for seed in 1..=60 {
        let judge = &judge;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (found, may_be) = power_goes(seed, lies);
                judge(seed, found, &may_be);
            });
        });
    }
}

/// DISK-1: what was synced is there, and of the rest a beginning. A record whose end is there and whose middle is not is none.
#[test]
fn torn_and_reordered_writes_leave_a_beginning_of_them() {
    each_seed(false, |seed, found, may_be| {
        let found = found.unwrap_or_else(|why| panic!("{seed}: {why}"));
        let last = found.entries.last().map(|e| (e.index, e.term));
        assert!(may_be.iter().any(|one| same(one, &found)), "{seed}: it ends with {last:?}");
    });
}

/// DISK-1: a loss is named, where a disk says that it has synced and has not.
#[test]
fn what_a_lying_disk_has_lost_is_named() {
    let named = std::sync::atomic::AtomicUsize::new(0);
    each_seed(true, |seed, found, may_be| match found {
        Ok(found) => assert!(may_be.iter().any(|one| same(one, &found)), "{seed}: something is lost without a word"),
        Err(why) => {
            assert_eq!(why.kind, FaultKind::Damaged, "{seed}: {why}");
            named.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(named.into_inner() > 0, "some of them lose something");
}
