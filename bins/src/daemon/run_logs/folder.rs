//! The files of run logs: a folder for each reconciler, and one or several files for each run.
//!
//! Owns        `runs/RECONCILER/TERM-RUN-OFFSET.log` in the data directory. A file begins at OFFSET of the run's output; the
//!             next one begins where it ends, or later: then what lies between was dropped or lost. If the end of the output was, an
//!             empty file marks where it would have ended.
//! Inputs      output in its order; reads; what is running, which is not deleted.
//! Outputs     files of mode 0600.
//! Invariants  RUNLOG-1  no name leads out of the folder: only a DNS label is one of a reconciler's folders, and only numbers name a file.
//!             RUNLOG-2  the folder stays within its [`Limits`], up to one run's files for each run that is in progress.
//! Why files that begin at an offset: the first and the newest part of a long output stay, a reader's position never changes its
//! meaning, and a restart has nothing to repair.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use muster_messages::is_dns_label;
use muster_messages::wire::RunKey;

/// What the folder may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Files of one run: the first one and the newest ones.
    pub files_per_run: usize,
    /// Runs of one reconciler.
    pub runs: usize,
    /// Bytes of all files, each counted as a disk block at least.
    pub bytes: u64,
}

impl Limits {
    /// A failing migration is retried about once a minute: as many runs as the cluster has records of, and 4 MiB hold the output of a talkative one.
    /// 128 MiB is less than the Raft log of a busy manager.
    pub const DEFAULT: Self = Self { file_bytes: 1 << 20, files_per_run: 4, runs: 32, bytes: 128 << 20 };

    fn run_bytes(&self) -> u64 {
        self.file_bytes.saturating_mul(u64::try_from(self.files_per_run).unwrap_or(u64::MAX))
    }
}

/// What a file takes on disk at least.
const BLOCK: u64 = 4096;

/// One run of a reconciler: its term and its number in that term. Later runs are greater.
pub type Run = (u64, u64);

fn run_of(key: &RunKey) -> Run {
    (key.term.0, key.of_term)
}

/// A file with the part of the output that begins at `offset`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    run: Run,
    offset: u64,
    bytes: u64,
    path: PathBuf,
}

impl Part {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// A piece of a run's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins: at the requested offset, or behind what is missing.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// More is there already, perhaps behind what is missing.
    pub is_followed: bool,
}

impl Piece {
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(size(&self.bytes))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    limits: Limits,
}

impl Folder {
    pub fn new(root: PathBuf, limits: Limits) -> Self {
        Self { root, limits }
    }

    /// The folder of a reconciler. RUNLOG-1.
    fn of(&self, reconciler: &str) -> io::Result<PathBuf> {
        if is_dns_label(reconciler) {
            return Ok(self.root.join(reconciler));
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a reconciler"))
    }

    /// Its files, in the order of their runs and offsets. None: it has no folder. Files with other names are left alone.
    fn parts(&self, reconciler: &str) -> io::Result<Vec<Part>> {
        let entries = match fs::read_dir(self.of(reconciler)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let part = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let (run, offset) = parsed(entry.file_name().to_str()?)?;
            // Of the name itself, not of what a link leads to.
            let found = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some(Part { run, offset, bytes: found.len(), path: entry.path() })
        };
        let mut parts: Vec<Part> = entries.filter_map(part).collect();
        parts.sort_unstable_by_key(|part| (part.run, part.offset));
        Ok(parts)
    }

    /// At most `max` bytes from `offset` on. `None`: nothing of this run is here. Empty: nothing follows.
    pub fn read(&self, key: &RunKey, offset: u64, max: usize) -> io::Result<Option<Piece>> {
        let mut parts = self.parts(&key.reconciler)?;
        parts.retain(|part| part.run == run_of(key));
        if parts.is_empty() {
            return Ok(None);
        }
        let end = parts.last().map_or(0, Part::end);
        let mut piece: Option<Piece> = None;
        for part in parts.iter().filter(|part| part.end() > offset) {
            let begun = piece.get_or_insert_with(|| Piece { offset: part.offset.max(offset), ..Piece::default() });
            let (from, room) = (begun.end(), max.saturating_sub(begun.bytes.len()));
            if room == 0 || part.offset > from {
                begun.is_followed = true;
                break;
            }
            match read_part(part, from, room) {
                // Deleted since: as if it had been before.
                Err(error) if error.kind() == io::ErrorKind::NotFound && begun.bytes.is_empty() => piece = None,
                read => begun.bytes.extend(read?),
            }
        }
        Ok(Some(piece.unwrap_or_else(|| Piece { offset: offset.min(end), ..Piece::default() })))
    }

    /// Makes room for one more run of this reconciler: deletes its oldest ones, and of all reconcilers the oldest ones while they
    /// take too much. A run that `is_running` stays. What cannot be listed or deleted keeps nothing else from being deleted: then it is the
    /// first failure that is returned.
    pub fn make_room(&self, reconciler: &str, is_running: impl Fn(&str, Run) -> bool) -> io::Result<()> {
        let mut of_all: BTreeMap<(Run, String), Vec<Part>> = BTreeMap::new();
        let mut outcome = Ok(());
        for name in self.reconcilers()? {
            match self.parts(&name) {
                Ok(parts) => {
                    for part in parts {
                        of_all.entry((part.run, name.clone())).or_default().push(part);
                    }
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let kept = self.limits.runs.saturating_sub(1);
        let mut surplus = of_all.keys().filter(|(_, name)| name == reconciler).count().saturating_sub(kept);
        let on_disk = |parts: &[Part]| parts.iter().map(|part| part.bytes.max(BLOCK)).sum::<u64>();
        let mut bytes = of_all.values().map(|parts| on_disk(parts)).sum::<u64>();
        let room = self.limits.bytes.saturating_sub(self.limits.run_bytes());
        // In the order of terms, which is that of time.
        for ((run, name), parts) in &of_all {
            let is_surplus = name == reconciler && surplus > 0;
            if (!is_surplus && bytes <= room) || is_running(name, *run) {
                continue;
            }
            if is_surplus {
                surplus -= 1;
            }
            let deleted = parts.iter().try_for_each(|part| remove(&part.path));
            if deleted.is_ok() {
                bytes = bytes.saturating_sub(on_disk(parts));
            }
            outcome = outcome.and(deleted);
        }
        outcome
    }

    fn reconcilers(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        Ok(entries.filter_map(name).filter(|name| is_dns_label(name)).collect())
    }

    /// Begins the files of a run.
    pub fn writer(&self, key: &RunKey) -> io::Result<Writer> {
        let folder = self.of(&key.reconciler)?;
        Ok(Writer { folder, run: run_of(key), limits: self.limits, offset: 0, file: None, begun: Vec::new() })
    }
}

/// Writes the output of one run. After a failure it continues: what could not be written is missing.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    run: Run,
    limits: Limits,
    /// Of the output.
    offset: u64,
    /// The newest file, and how much more it may take.
    file: Option<(File, u64)>,
    /// The offsets of its files.
    begun: Vec<u64>,
}

impl Writer {
    /// Writes what follows. On failure the number of bytes that are lost, and why.
    pub fn write(&mut self, mut output: &[u8]) -> Result<(), (u64, io::Error)> {
        let end = self.offset.saturating_add(size(output));
        while !output.is_empty() {
            match self.write_some(output) {
                Ok(written) => output = output.get(written..).unwrap_or_default(),
                Err(error) => {
                    self.drop_empty_file();
                    self.skip(size(output));
                    return Err((size(output), error));
                }
            }
        }
        debug_assert_eq!(self.offset, end);
        Ok(())
    }

    /// Begins with an empty file: a run that writes nothing has a log, too.
    pub fn begin(&mut self) -> io::Result<()> {
        self.file = Some((self.next_file()?, self.limits.file_bytes));
        Ok(())
    }

    /// Without it, what is lost is known to be missing.
    fn drop_empty_file(&mut self) {
        if self.file.take().is_some() && self.begun.last() == Some(&self.offset) {
            let _left = self.begun.pop().map(|offset| remove(&self.path(offset)));
        }
    }

    /// This much of the output is missing.
    pub fn skip(&mut self, bytes: u64) {
        if bytes > 0 {
            self.offset = self.offset.saturating_add(bytes);
            self.file = None;
        }
    }

    /// Marks where the output ends, if its end is missing.
    pub fn end(&mut self) -> io::Result<()> {
        if self.file.is_none() { self.begin() } else { Ok(()) }
    }

    fn write_some(&mut self, output: &[u8]) -> io::Result<usize> {
        if self.file.as_ref().is_none_or(|(_, room)| *room == 0) {
            self.begin()?;
        }
        let Some((file, room)) = &mut self.file else { return Ok(0) };
        let most = usize::try_from(*room).unwrap_or(usize::MAX).min(output.len());
        let written = file.write(output.get(..most).unwrap_or_default())?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let bytes = u64::try_from(written).unwrap_or(u64::MAX);
        *room = room.saturating_sub(bytes);
        self.offset = self.offset.saturating_add(bytes);
        Ok(written)
    }

    /// Begins the next file, once there is room for it: the first one and the newest ones stay.
    fn next_file(&mut self) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        while self.begun.len() > 1 && self.begun.len() >= self.limits.files_per_run {
            remove(&self.path(self.begun[1]))?;
            self.begun.remove(1);
        }
        let path = self.path(self.offset);
        // A link that another program has put there is not followed: the file must be new.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        self.begun.push(self.offset);
        Ok(file)
    }

    fn path(&self, offset: u64) -> PathBuf {
        let (term, of_term) = self.run;
        self.folder.join(format!("{term}-{of_term}-{offset}.log"))
    }
}

pub(super) fn size(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// The run and the offset in a file's name. RUNLOG-1.
fn parsed(name: &str) -> Option<(Run, u64)> {
    let numbers: Vec<&str> = name.strip_suffix(".log")?.split('-').collect();
    let [term, of_term, offset] = numbers.as_slice() else { return None };
    Some(((term.parse().ok()?, of_term.parse().ok()?), offset.parse().ok()?))
}

fn read_part(part: &Part, from: u64, max: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(&part.path)?;
    file.seek(SeekFrom::Start(from.saturating_sub(part.offset)))?;
    // No more than was there when it was listed: what follows may belong to the next file's offset.
    let most = part.end().saturating_sub(from).min(u64::try_from(max).unwrap_or(u64::MAX));
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
