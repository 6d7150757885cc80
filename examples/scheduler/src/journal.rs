//! The scheduler's data: a journal of numbered records that all its processes append to, in one folder that they share.
//!
//! A record is appended by linking a complete file to the next number, which fails if another process was faster: it reads that record and
//! decides again. So a process that is frozen or killed at any point delays no other, and what it decided on old data is never written. A
//! database does the same with a transaction that compares a version.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
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
            let line = record.to_string();
            // A name with a space, for example: no process could read the journal any more.
            if line.parse::<Record>().as_ref() != Ok(&record) {
                let why = format!("{line:?} would be read as another record: names are single words");
                return Err(io::Error::new(ErrorKind::InvalidInput, why));
            }
            // A file of its own: one of a process that was killed may be a record already, and process ids are used again.
            let aside = self.folder.join(format!("new-{:016x}", RandomState::new().hash_one(std::process::id())));
            let mut file = File::create_new(&aside)?;
            writeln!(file, "{line}")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("scheduler-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        folder
    }

    fn add(journal: &mut Journal, job: &str) -> io::Result<()> {
        journal.append(|_| Some(Record::Add { job: job.to_owned(), queue: None })).map(drop)
    }

    /// It was killed between the link and the removal, and its process id is used again.
    #[test]
    fn file_left_by_a_killed_process_is_not_written_again() {
        let folder = folder("left");
        let mut journal = Journal::open(folder.clone()).unwrap();
        add(&mut journal, "a").unwrap();
        std::fs::hard_link(folder.join("00000001"), folder.join(format!("new-{}", std::process::id()))).unwrap();
        add(&mut journal, "b").unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("00000001")).unwrap(), "add a\n");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn record_that_no_process_could_read_is_refused() {
        let folder = folder("words");
        let mut journal = Journal::open(folder.clone()).unwrap();
        for job in ["send mail", "mail all users now", "a\nlead 9 x"] {
            assert_eq!(add(&mut journal, job).unwrap_err().kind(), ErrorKind::InvalidInput, "{job:?}");
        }
        add(&mut journal, "a").unwrap();
        assert_eq!(Journal::open(folder.clone()).unwrap().state.records(), 1);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
