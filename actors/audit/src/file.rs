//! The file of the audit log.
//!
//! Owns        the open file, and the rotated files.
//! Inputs      one [`Job`] at a time, on a thread that may block.
//! Invariants  AUDIT-5  a line is whole: a write that fails midway is undone, and after a crash the next entry begins a new line.
//! Why the path is checked before each write: a program that rotates the file by renaming need not send a signal.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use muster_pki::private::{Symlinks, append_to_own_file, check_surroundings, open_regular};

use crate::core::Job;

/// Receives the lines. Runs on its own thread; may block.
pub trait Sink: Send {
    /// Writes whole lines. On an error none of them counts as written.
    fn run(&mut self, job: &Job) -> io::Result<()>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// `-`: stderr.
    pub path: PathBuf,
    /// A file that would exceed this is renamed to `PATH.1`, and a new one begins.
    pub max_bytes: u64,
    pub keep: u32,
}

/// The file. Opened by the first job.
pub struct LogFile {
    config: FileConfig,
    open: Option<Open>,
}

struct Open {
    file: File,
    device: u64,
    inode: u64,
    length: u64,
}

impl LogFile {
    pub fn new(config: FileConfig) -> Self {
        Self { config, open: None }
    }

    fn current(&mut self) -> io::Result<&mut Open> {
        let path = &self.config.path;
        let same = |open: &Open| {
            let there = std::fs::symlink_metadata(path);
            there.is_ok_and(|there| (there.dev(), there.ino()) == (open.device, open.inode))
        };
        if let Some(before) = self.open.take_if(|open| !same(open)) {
            // Renamed or removed: its content is synced first.
            before.file.sync_data()?;
        }
        if self.open.is_none() {
            self.open = Some(open(path)?);
        }
        Ok(self.open.as_mut().expect("opened above"))
    }

    /// Rotates: `PATH` becomes `PATH.1`, `PATH.1` becomes `PATH.2`, and the oldest is removed.
    fn rotate(&mut self) -> io::Result<()> {
        if let Some(open) = self.open.take() {
            open.file.sync_data()?;
        }
        let path = &self.config.path;
        for n in (1..self.config.keep).rev() {
            match std::fs::rename(numbered(path, n), numbered(path, n + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(path, numbered(path, 1))
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        let max_bytes = self.config.max_bytes;
        let open = self.current()?;
        if open.length > 0 && open.length.saturating_add(text.len() as u64) > max_bytes {
            self.rotate()?;
        }
        let open = self.current()?;
        // Another program may have truncated it.
        let before = open.file.metadata()?.len();
        if let Err(error) = open.file.write_all(text.as_bytes()) {
            // A full disk may leave half a line. If this fails as well, the next open ends that line.
            let _taken_back = open.file.set_len(before);
            return Err(error);
        }
        open.length = before + text.len() as u64;
        Ok(())
    }
}

impl Sink for LogFile {
    fn run(&mut self, job: &Job) -> io::Result<()> {
        if self.config.path == Path::new("-") {
            return io::stderr().lock().write_all(job.text.as_bytes());
        }
        let mut attempt = || {
            if job.reopen
                && let Some(open) = self.open.take()
            {
                open.file.sync_data()?;
            }
            if job.text.is_empty() {
                self.current()?;
            } else {
                self.append(&job.text)?;
            }
            if job.sync { self.current()?.file.sync_data() } else { Ok(()) }
        };
        let done = attempt();
        done.map_err(|error| {
            self.open = None;
            io::Error::new(error.kind(), format!("{}: {error}", self.config.path.display()))
        })
    }
}

fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

fn open(path: &Path) -> io::Result<Open> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        check_surroundings(folder).map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why.to_string()))?;
    }
    let mut file = append_to_own_file(path)?;
    let found = file.metadata()?;
    if found.len() > 0 && !ends_a_line(path, &found)? {
        file.write_all(b"\n")?;
    }
    Ok(Open { device: found.dev(), inode: found.ino(), length: file.metadata()?.len(), file })
}

/// A power cut may have left half a line.
fn ends_a_line(path: &Path, found: &Metadata) -> io::Result<bool> {
    let mut file = open_regular(path, Symlinks::Refused)?;
    let again = file.metadata()?;
    if (again.dev(), again.ino()) != (found.dev(), found.ino()) || again.len() == 0 {
        return Ok(true); // another file by now, which the next job opens
    }
    let mut last = [0u8];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn job(text: &str) -> Job {
        Job { text: text.to_owned(), sync: true, reopen: false }
    }
    fn log(path: &Path, max_bytes: u64) -> LogFile {
        LogFile::new(FileConfig { path: path.to_owned(), max_bytes, keep: 2 })
    }
    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn file_is_private_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("audit"), dir.path().join("link"));
        log(&path, 1000).run(&job("a\n")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(log(&link, 1000).run(&job("b\n")).unwrap_err().to_string().contains("symbolic link"));
        assert_eq!(read(&path), "a\n");
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(log(&open.join("audit"), 1000).run(&job("c\n")).is_err(), "others could replace it");
    }

    #[test]
    fn renamed_or_removed_file_is_noticed_with_the_next_line() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("audit"), dir.path().join("old"));
        let mut log = log(&path, 1000);
        log.run(&job("a\n")).unwrap();
        std::fs::rename(&path, &old).unwrap();
        log.run(&job("b\n")).unwrap();
        assert_eq!((read(&old).as_str(), read(&path).as_str()), ("a\n", "b\n"));
        std::fs::remove_file(&path).unwrap();
        log.run(&job("c\n")).unwrap();
        assert_eq!(read(&path), "c\n");
        log.run(&Job { reopen: true, ..Job::default() }).unwrap();
        log.run(&job("d\n")).unwrap();
        assert_eq!(read(&path), "c\nd\n");
    }

    #[test]
    fn file_that_would_grow_too_large_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut log = log(&path, 4);
        for line in ["a\n", "b\n", "c\n", "d\n", "a long one\n", "f\n", "g\n"] {
            log.run(&job(line)).unwrap();
        }
        let kept = [path.clone(), numbered(&path, 1), numbered(&path, 2), numbered(&path, 3)].map(|path| read(&path));
        assert_eq!(kept, ["f\ng\n", "a long one\n", "c\nd\n", ""]);
    }

    #[test]
    fn half_a_line_of_a_crash_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        std::fs::write(&path, "{\"half").unwrap();
        log(&path, 1000).run(&job("b\n")).unwrap();
        assert_eq!(read(&path), "{\"half\nb\n");
    }

    #[test]
    fn file_without_a_folder_fails_and_works_once_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later/audit");
        let mut log = log(&path, 1000);
        assert!(log.run(&job("a\n")).is_err());
        std::fs::create_dir(dir.path().join("later")).unwrap();
        log.run(&job("a\n")).unwrap();
        assert_eq!(read(&path), "a\n");
    }
}
