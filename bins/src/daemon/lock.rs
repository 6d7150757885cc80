//! One daemon per data directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Why the directory is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockFault {
    #[error("another musterd (pid {pid}) runs on {dir}; stop it first, or use another --data-dir")]
    Held { pid: String, dir: PathBuf },
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

/// The lock, held as long as the process lives. The kernel lets go of it when the process dies, however it dies.
#[derive(Debug)]
pub struct DirLock(#[expect(dead_code, reason = "held, not read")] File);

impl DirLock {
    /// Takes the directory, making it if need be, readable by this user alone.
    pub fn take(dir: &Path) -> Result<Self, LockFault> {
        let path = dir.join("lock");
        let fault = |source| LockFault::Io { path: path.clone(), source };
        if !dir.exists() {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fault)?;
        }
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(fault)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _best_effort = file.read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() };
                return Err(LockFault::Held { pid, dir: dir.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(fault(source)),
        }
        // For the sentence above alone: a full disk makes it say less, and keeps nobody from starting.
        let _unsaid =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self(file))
    }
}
