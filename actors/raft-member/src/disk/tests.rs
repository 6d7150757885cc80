use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use muster_messages::{FIRST_INCARNATION, RaftId, Revision, Tables};

use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission};

use super::engine::{EngineDisk, OpenFor};
use super::*;
use crate::core::{Compaction, Entry, HardMark, LogPoint, SnapshotJob, digest};

/// The keys beside a member's directory.
pub(super) fn keys(dir: &Path) -> Keys {
    Keys::open(dir.parent().unwrap()).unwrap()
}

pub(super) fn state(dir: &Path) -> DirState {
    super::state(dir, &keys(dir))
}

pub(super) fn acked_file(dir: &Path) -> PathBuf {
    dir.join("acked/number")
}

fn entry(index: u64, term: u64, size: usize) -> Entry {
    Entry { index, term, data: vec![index as u8; size].into(), ..Entry::default() }
}

pub(super) fn job(index: u64, term: u64) -> SnapshotJob {
    SnapshotJob::new(
        LogPoint { index, term },
        (vec![1], vec![]),
        Tables { revision: Revision(index), ..Tables::default() },
    )
}

pub(super) fn founded() -> Durable {
    super::trial::founded(job(1, 1).run().1)
}

pub(super) fn append(from: u64, to: u64, term: u64, commit: u64) -> Durable {
    let entries = (from..=to).map(|i| entry(i, term, 100)).collect();
    Durable { sync: true, hard: HardMark { term, vote: 1, commit }, entries, ..Durable::default() }
}

/// Writes on the disk's own thread, as the member does, and releases the directory.
pub(super) fn write(dir: &Path, writes: Vec<Durable>) {
    let (disk, _) = DiskThread::open(dir, &keys(dir)).unwrap();
    write_with(&disk, writes);
    disk.close();
}

pub(super) fn write_with(disk: &DiskThread, mut writes: Vec<Durable>) {
    let (sender, reports) = mpsc::channel();
    disk.listen(Box::new(move |report| sender.send(report).unwrap()));
    for (i, w) in writes.iter_mut().enumerate() {
        w.number = disk.persisted() + 1 + i as u64;
    }
    let last = writes.last().unwrap().number;
    for w in writes {
        disk.write(vec![w]).unwrap();
    }
    while disk.persisted() < last {
        assert!(matches!(reports.recv().unwrap(), Report::Persisted));
    }
}

pub(super) fn recover(dir: &Path) -> Result<Recovered, LogFault> {
    DiskThread::open(dir, &keys(dir)).map(|(_, recovered)| recovered)
}

fn find(dir: &Path, part: &str) -> PathBuf {
    let mut files: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.to_string_lossy().contains(part)).collect();
    files.sort();
    files.pop().unwrap_or_else(|| panic!("no {part} in {}", dir.display()))
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 0x10;
    fs::write(file, bytes).unwrap();
}

/// Where the last written batch ends, by the bytes that are not zero.
fn written(file: &Path) -> usize {
    fs::read(file).unwrap().iter().rposition(|b| *b != 0).unwrap() + 1
}

pub(super) struct Temp {
    _dir: tempfile::TempDir,
}
impl Temp {
    pub(super) fn new() -> (Self, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raft");
        (Self { _dir: dir }, path)
    }
}

#[test]
fn written_data_is_there_after_a_restart() {
    let (temp, dir) = Temp::new();
    assert_eq!(state(&dir), DirState::Absent);
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    write(&dir, vec![append(8, 12, 3, 9)]);
    let r = recover(&dir).unwrap();
    assert_eq!(
        (r.member_id, r.hard, r.truncated),
        (Some(RaftId(1)), HardMark { term: 3, vote: 1, commit: 9 }, LogPoint { index: 1, term: 1 })
    );
    let terms: Vec<_> = r.entries.iter().map(|e| (e.index, e.term)).collect();
    let want: Vec<_> = (2..8).map(|i| (i, 2)).chain((8..=12).map(|i| (i, 3))).collect();
    assert_eq!(terms, want, "an overlap replaces the old entries");
    assert_eq!(state(&dir), DirState::Present { raft_id: RaftId(1), incarnation: Some(FIRST_INCARNATION) });
    drop(temp);
}

#[test]
fn shorter_log_after_an_overlap_is_not_a_loss() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 20, 2, 3)]);
    write(&dir, vec![append(4, 5, 3, 4)]);
    assert_eq!(recover(&dir).unwrap().entries.len(), 4);
}

#[test]
fn the_disk_and_the_simulated_disk_agree() {
    let (head, data) = job(12, 2).run();
    let (late, late_data) = job(40, 5).run();
    let writes = [
        founded(),
        append(2, 20, 2, 15),
        Durable {
            sync: true,
            hard: HardMark { term: 2, vote: 1, commit: 15 },
            compact: Some(Compaction { head: head.clone(), keep_after: LogPoint { index: 9, term: 2 } }),
            ..Durable::default()
        },
        append(18, 25, 3, 17),
        Durable {
            sync: true,
            hard: HardMark { term: 5, vote: 0, commit: 40 },
            install: Some((late, Arc::new(late_data))),
            entries: (41..45).map(|i| entry(i, 5, 10)).collect(),
            ..Durable::default()
        },
        append(44, 50, 6, 44),
        Durable { sync: true, start_over: Some(RaftId(9)), ..Durable::default() },
        append(1, 3, 7, 0),
    ];
    for upto in 1..=writes.len() {
        let (_temp, dir) = Temp::new();
        let (disk, _) = DiskThread::open(&dir, &keys(&dir)).unwrap();
        disk.snapshot_files().store(&head, &data).unwrap();
        let mut sim = SimDisk::default();
        sim.take_snapshot(&job(12, 2));
        write_with(&disk, writes[..upto].to_vec());
        drop(disk);
        sim.write(&writes[..upto]).unwrap();
        let (real, simulated) = (recover(&dir).unwrap(), sim.recover().unwrap());
        assert_eq!(
            (real.member_id, real.hard, real.truncated),
            (simulated.member_id, simulated.hard, simulated.truncated),
            "{upto}"
        );
        assert_eq!((real.snapshot, real.entries), (simulated.snapshot, simulated.entries), "{upto}");
    }
}

#[test]
fn flipped_byte_in_acknowledged_record_is_reported() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    write(&dir, vec![append(11, 30, 2, 20)]);
    let log = find(&dir.join("log"), ".raftlog");
    let end = written(&log);
    let whole = fs::read(&log).unwrap();
    let acked = fs::read(acked_file(&dir)).unwrap();
    let mut noticed = 0;
    // The file's own header is 16 bytes of magic and version.
    for at in (20..end).step_by(37) {
        fs::write(&log, &whole).unwrap();
        fs::write(acked_file(&dir), &acked).unwrap();
        flip(&log, at);
        match state(&dir) {
            DirState::Damaged(LogFault { file, .. }) => {
                assert_eq!(file, log, "byte {at}");
                noticed += 1;
            }
            other => panic!("byte {at} of {end}: {other:?}"),
        }
    }
    assert!(noticed > 20);
}

#[test]
fn torn_unacknowledged_record_is_dropped() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    let log = find(&dir.join("log"), ".raftlog");
    let before = written(&log);
    let acked = fs::read(acked_file(&dir)).unwrap();
    write(&dir, vec![append(11, 30, 2, 20)]);
    let after = written(&log);
    // The process died in the middle of the second write, before it was acknowledged.
    let whole = fs::read(&log).unwrap();
    for end in [before + 1, before + 9, (before + after) / 2, after - 1] {
        let mut torn = whole[..end].to_vec();
        torn.resize(whole.len() + 4096, 0);
        fs::write(&log, torn).unwrap();
        fs::write(acked_file(&dir), &acked).unwrap();
        assert_eq!(recover(&dir).unwrap().entries.len(), 9, "torn at {end} of {before}..{after}");
    }
}

/// Its sectors reached the disk in a different order: the end is there, and the middle is not.
#[test]
fn last_record_without_its_middle_is_dropped() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    let log = find(&dir.join("log"), ".raftlog");
    let before = written(&log);
    let acked = fs::read(acked_file(&dir)).unwrap();
    write(&dir, vec![append(8, 30, 3, 7)]);
    let mut torn = fs::read(&log).unwrap();
    torn[before + 512..before + 1024].fill(0);
    fs::write(&log, &torn).unwrap();
    let fault = recover(&dir).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Damaged, "it was acknowledged");
    fs::write(&log, &torn).unwrap();
    fs::write(acked_file(&dir), &acked).unwrap();
    let found = recover(&dir).unwrap();
    assert_eq!((found.entries.len(), found.hard.term), (9, 2), "it was not");
}

#[test]
fn lost_acknowledged_tail_is_reported() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    let log = find(&dir.join("log"), ".raftlog");
    let before = written(&log);
    write(&dir, vec![append(11, 30, 2, 20)]);
    let whole = fs::read(&log).unwrap();
    fs::write(&log, &whole[..before]).unwrap();
    let fault = recover(&dir).unwrap_err();
    assert_eq!((fault.kind, fault.file), (FaultKind::Damaged, log));
    assert!(fault.why.contains("acknowledged"), "{}", fault.why);
    fs::remove_dir_all(dir.join("log")).unwrap();
    assert_eq!(recover(&dir).unwrap_err().kind, FaultKind::Damaged, "the whole log is gone");
}

#[test]
fn damaged_snapshot_is_reported() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    let snapshot = find(&dir, "snapshot-");
    let whole = fs::read(&snapshot).unwrap();
    flip(&snapshot, whole.len() / 2);
    assert!(matches!(state(&dir), DirState::Damaged(LogFault { file, .. }) if file == snapshot));
    fs::write(&snapshot, &whole[..whole.len() - 1]).unwrap();
    assert!(matches!(state(&dir), DirState::Damaged(_)));
    fs::remove_file(&snapshot).unwrap();
    assert!(matches!(state(&dir), DirState::Damaged(LogFault { file, .. }) if file == snapshot));
}

#[test]
fn data_of_a_newer_build_does_not_count_as_damaged() {
    let (_temp, dir) = Temp::new();
    let (mut head, mut data) = job(1, 1).run();
    data[1] = 6; // the variant after the newest one
    head.digest = digest(&data);
    write(&dir, vec![Durable { install: Some((head, Arc::new(data))), ..founded() }, append(2, 10, 2, 5)]);
    assert!(matches!(state(&dir), DirState::Newer(LogFault { why, .. }) if why.contains("a newer build wrote")));
}

#[test]
fn one_torn_acked_slot_is_survived_and_two_are_damage() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    flip(&acked_file(&dir), 12);
    assert!(recover(&dir).is_ok());
    flip(&acked_file(&dir), 4096 + 12);
    assert!(matches!(state(&dir), DirState::Damaged(LogFault { file, .. }) if file == acked_file(&dir)));
}

#[test]
fn wipe_mark_empties_the_directory_at_the_next_start() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    wipe(&dir).unwrap();
    assert_eq!(state(&dir), DirState::Absent);
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    let (running, _) = DiskThread::open(&dir, &keys(&dir)).unwrap();
    mark_for_wipe(&dir).unwrap();
    write_with(&running, vec![append(11, 12, 2, 5)]);
    drop(running);
    assert_eq!(recover(&dir).unwrap().member_id, None);
    assert_eq!(state(&dir), DirState::Absent);
}

#[test]
fn second_owner_of_a_directory_waits_for_the_first() {
    let (_temp, dir) = Temp::new();
    let (first, _) = DiskThread::open(&dir, &keys(&dir)).unwrap();
    let path = dir.clone();
    let second = std::thread::spawn(move || recover(&path).map(|r| r.entries.len()));
    write_with(&first, vec![founded(), append(2, 10, 2, 5)]);
    drop(first);
    assert_eq!(second.join().unwrap(), Ok(9));
}

#[test]
fn log_size_is_bounded() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded()]);
    let (disk, _) = DiskThread::open(&dir, &keys(&dir)).unwrap();
    let mut last = 1;
    for _ in 0..40 {
        let entries = (last + 1..=last + 40).map(|i| entry(i, 2, 100_000)).collect();
        last += 40;
        let hard = HardMark { term: 2, vote: 1, commit: last };
        let (head, data) = job(last, 2).run();
        disk.snapshot_files().store(&head, &data).unwrap();
        let compact = Some(Compaction { head, keep_after: LogPoint { index: last - 5, term: 2 } });
        write_with(
            &disk,
            vec![
                Durable { sync: true, hard, entries, ..Durable::default() },
                Durable { sync: true, hard, compact, ..Durable::default() },
            ],
        );
    }
    drop(disk);
    let r = recover(&dir).unwrap();
    assert_eq!((r.entries.len(), r.snapshot.unwrap().0.index), (5, last));
    let size: u64 = fs::read_dir(dir.join("log")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(size < 100 << 20, "{size} bytes after 160 MB");
    let snapshots = fs::read_dir(&dir)
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("snapshot-"));
    assert_eq!(snapshots.count(), 1);
}

#[test]
fn queued_writes_cost_one_sync() {
    let (_temp, dir) = Temp::new();
    let mut disk = EngineDisk::open(&dir, &keys(&dir)).unwrap();
    disk.recover().unwrap();
    let cost = |disk: &mut EngineDisk, writes: &[Durable]| {
        let before = disk.syncs();
        disk.write(writes).unwrap();
        disk.syncs() - before
    };
    assert_eq!(cost(&mut disk, &[founded(), append(2, 2, 1, 1), append(3, 3, 1, 2)]), 1);
    assert_eq!(cost(&mut disk, &[Durable { sync: false, ..append(4, 4, 1, 3) }]), 0, "no caller waits for it");
    let written = disk.syncs();
    disk.rest().unwrap();
    disk.rest().unwrap();
    assert_eq!(disk.syncs() - written, 1, "the number beside the log, once");
}

type Fd = <DefaultFileSystem as FileSystem>::Handle;

/// The real file system, whose syncs fail on demand.
#[derive(Default)]
struct FailingFs {
    fails: Arc<AtomicBool>,
}
struct FailingFile {
    fd: Arc<Fd>,
    fails: Arc<AtomicBool>,
}

impl FailingFs {
    fn fails(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }
    fn file(&self, fd: io::Result<Fd>) -> io::Result<FailingFile> {
        Ok(FailingFile { fd: Arc::new(fd?), fails: Arc::clone(&self.fails) })
    }
}

impl Handle for FailingFile {
    fn truncate(&self, offset: usize) -> io::Result<()> {
        self.fd.truncate(offset)
    }
    fn file_size(&self) -> io::Result<usize> {
        self.fd.file_size()
    }
    fn sync(&self) -> io::Result<()> {
        if self.fails.load(Ordering::SeqCst) { Err(io::Error::from_raw_os_error(5)) } else { self.fd.sync() }
    }
}

impl FileSystem for FailingFs {
    type Handle = FailingFile;
    type Reader = <DefaultFileSystem as FileSystem>::Reader;
    type Writer = <DefaultFileSystem as FileSystem>::Writer;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<FailingFile> {
        self.file(DefaultFileSystem.create(path))
    }
    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<FailingFile> {
        self.file(DefaultFileSystem.open(path, permission))
    }
    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        DefaultFileSystem.delete(path)
    }
    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        DefaultFileSystem.rename(from, to)
    }
    fn new_reader(&self, file: Arc<FailingFile>) -> io::Result<Self::Reader> {
        DefaultFileSystem.new_reader(Arc::clone(&file.fd))
    }
    fn new_writer(&self, file: Arc<FailingFile>) -> io::Result<Self::Writer> {
        DefaultFileSystem.new_writer(Arc::clone(&file.fd))
    }
}

fn files_of_the_log(dir: &Path) -> Vec<u64> {
    let files = fs::read_dir(dir.join("log")).unwrap().map(|e| e.unwrap().path());
    let mut inodes: Vec<u64> = files
        .filter(|f| f.extension().is_some_and(|e| e == "raftlog"))
        .map(|f| fs::metadata(f).unwrap().ino())
        .collect();
    inodes.sort();
    inodes
}

/// F9. The process survives, however often a sync fails; doubtful data is rewritten before it is used again.
#[test]
fn log_is_rewritten_after_a_failed_sync() {
    let (_temp, dir) = Temp::new();
    let fs = Arc::new(FailingFs::default());
    let mut disk = EngineDisk::open_in(&dir, &fs, &keys(&dir), OpenFor::Writing).unwrap();
    disk.recover().unwrap();
    disk.write(&[founded(), append(2, 10, 2, 5)]).unwrap();
    fs.fails(true);
    for _ in 0..2 {
        assert_eq!(disk.write(&[append(11, 12, 2, 6)]).unwrap_err().kind, FaultKind::Unsynced);
    }
    fs.fails(false);
    assert_eq!(
        disk.write(&[append(11, 12, 2, 6)]).unwrap_err().kind,
        FaultKind::Unsynced,
        "the next sync reports no error"
    );
    fs.fails(true);
    drop(disk);
    let before = files_of_the_log(&dir);
    let fault = EngineDisk::open_in(&dir, &fs, &keys(&dir), OpenFor::Writing).err().unwrap();
    assert_ne!(fault.kind, FaultKind::Damaged, "{fault}");
    fs.fails(false);
    let mut disk = EngineDisk::open_in(&dir, &fs, &keys(&dir), OpenFor::Writing).unwrap();
    let entries = disk.recover().unwrap().entries.len();
    assert!(entries == 9 || entries == 11, "the acknowledged entries, perhaps with the unacknowledged ones: {entries}");
    let after = files_of_the_log(&dir);
    assert!(after.iter().all(|file| !before.contains(file)), "{before:?} {after:?}");
    let last = 1 + entries as u64;
    disk.write(&[append(last + 1, last + 2, 2, 6)]).unwrap();
    drop(disk);
    assert_eq!(recover(&dir).unwrap().entries.len(), entries + 2);
    assert_eq!(files_of_the_log(&dir)[..1], after[..1], "once is enough");
}

/// F9. A crash in the middle of a rewrite.
#[test]
fn interrupted_log_rewrite_is_finished_at_the_next_start() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    fs::write(dir.join("doubtful"), "").unwrap();
    fs::create_dir(dir.join("log.anew")).unwrap(); // begun
    assert_eq!(recover(&dir).unwrap().entries.len(), 9);
    fs::write(dir.join("doubtful"), "").unwrap();
    fs::rename(dir.join("log"), dir.join("log.anew")).unwrap(); // written, and not yet in its place
    assert_eq!(recover(&dir).unwrap().entries.len(), 9);
    assert!(!dir.join("doubtful").exists() && !dir.join("log.anew").exists() && !dir.join("log.doubtful").exists());
}

/// F9. The running member has everything that it handed to the disk.
#[test]
fn running_member_rewrites_its_log_after_a_failed_sync() {
    let (_temp, dir) = Temp::new();
    let fs = Arc::new(FailingFs::default());
    let (disk, _) = DiskThread::open_in(&dir, &fs, &keys(&dir), OpenFor::Writing).unwrap();
    write_with(&disk, vec![founded(), append(2, 10, 2, 5)]);
    let (sender, reports) = mpsc::channel();
    disk.listen(Box::new(move |report| sender.send(report).unwrap()));
    fs.fails(true);
    disk.write(vec![Durable { number: 3, ..append(11, 12, 2, 6) }]).unwrap();
    let Report::Failed(fault) = reports.recv().unwrap() else { panic!("it cannot be durable") };
    assert_eq!(fault.kind, FaultKind::Unsynced);
    fs.fails(false);
    let all = Durable { number: 3, start_over: Some(RaftId(1)), ..append(6, 12, 2, 6) };
    let renewed = DiskThread::renew(&dir, &fs, &keys(&dir), (job(5, 2), all)).unwrap();
    let (sender, reports) = mpsc::channel();
    renewed.listen(Box::new(move |report| sender.send(report).unwrap()));
    renewed.write(vec![Durable { number: 4, ..append(13, 13, 2, 6) }]).unwrap();
    while renewed.persisted() < 4 {
        assert!(matches!(reports.recv().unwrap(), Report::Persisted));
    }
    drop(renewed);
    let found = recover(&dir).unwrap();
    assert_eq!((found.member_id, found.truncated.index, found.entries.len()), (Some(RaftId(1)), 5, 8));
    assert_eq!(found.hard.vote, 1);
}

/// F10.
#[test]
fn log_without_its_acked_file_is_damaged() {
    for empty in [false, true] {
        let (_temp, dir) = Temp::new();
        write(&dir, vec![founded(), append(2, 10, 2, 5)]);
        let acked = acked_file(&dir);
        if empty {
            fs::write(&acked, "").unwrap();
        } else {
            fs::remove_file(&acked).unwrap();
        }
        assert!(matches!(state(&dir), DirState::Damaged(LogFault { file, .. }) if file == acked));
    }
}

pub(super) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|e| e.unwrap()) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// F10. The directory is restored from an older copy, with all its own records.
#[test]
fn older_directory_is_detected_by_the_witness() {
    let (temp, dir) = Temp::new();
    let identity = temp._dir.path().join("identity");
    fs::create_dir(&identity).unwrap();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    let older = temp._dir.path().join("older");
    copy_dir(&dir, &older);
    write(&dir, vec![append(11, 30, 2, 20)]);
    let put_back = || {
        fs::remove_dir_all(&dir).unwrap();
        copy_dir(&older, &dir);
    };
    put_back();
    let fault = recover(&dir).unwrap_err();
    assert!(fault.kind == FaultKind::Damaged && fault.why.contains("raft-acked"), "{fault}");
    // A new member id in an empty directory counts from the beginning.
    fs::remove_dir_all(&dir).unwrap();
    write(&dir, vec![Durable { start_over: Some(RaftId(9)), ..founded() }, append(2, 3, 2, 2)]);
    assert_eq!(recover(&dir).unwrap().member_id, Some(RaftId(9)));
    // Without the identity beside it, a copy is as good as any.
    let alone = tempfile::tempdir().unwrap();
    copy_dir(&older, &alone.path().join("raft"));
    fs::copy(keys(&dir).path(), keys(&alone.path().join("raft")).path()).unwrap();
    assert_eq!(recover(&alone.path().join("raft")).unwrap().entries.len(), 9);
}

/// F10.
#[test]
fn data_marked_as_lost_is_damaged() {
    let (_temp, dir) = Temp::new();
    write(&dir, vec![founded(), append(2, 10, 2, 5)]);
    mark_lost(&dir, "entry 12 was acknowledged").unwrap();
    assert!(matches!(state(&dir), DirState::Damaged(LogFault { why, .. }) if why == "entry 12 was acknowledged"));
    wipe(&dir).unwrap();
    assert_eq!(state(&dir), DirState::Absent);
}
