//! The scheduler's data: a journal of numbered records that all its processes append to, in one folder that they share.
//!
//! A record is appended by linking a complete file to the next number, which fails if another process was faster: it reads that record and
//! decides again. So a process that is frozen or killed at any point delays no other, and what it decided on old data is never written. A
//! database does the same with a transaction that compares a version.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use crate::state::{Record, State};

/// A process's view of the journal.
pub struct Journal {
    folder: PathBuf,
    /// What the records so far make.
    pub state: State,
}

impl Journal {
    /// Opens the journal in a folder, which is created.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let mut journal = Self { folder, state: State::default() };
        journal.read()?;
        Ok(journal)
    }

    /// Reads what others have appended.
    pub fn read(&mut self) -> io::Result<()> {
        loop {
            let path = self.path(self.state.records() + 1);
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
            let record: Record =
                text.trim_end().parse().map_err(|why| io::Error::other(format!("{}: {why}", path.display())))?;
            self.state.apply(&record);
        }
    }

    /// Appends the record that `decide` chooses by the newest state. `None`: nothing is appended.
    ///
    /// A failure of the disk leaves open whether the record is there: the next reading shows it.
    pub fn append(&mut self, decide: impl Fn(&State) -> Option<Record>) -> io::Result<Option<Record>> {
        loop {
            self.read()?;
            let Some(record) = decide(&self.state) else { return Ok(None) };
            let aside = self.folder.join(format!("new-{}", std::process::id()));
            let mut file = File::create(&aside)?;
            writeln!(file, "{record}")?;
            file.sync_all()?;
            let linked = std::fs::hard_link(&aside, self.path(self.state.records() + 1));
            std::fs::remove_file(&aside)?;
            match linked {
                Ok(()) => File::open(&self.folder)?.sync_all()?,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            self.state.apply(&record);
            return Ok(Some(record));
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:08}"))
    }
}
