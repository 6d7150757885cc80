//! One daemon per data directory.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::recovery::{DAMAGED, FENCED};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockType, fcntl_getlk};

use muster_pki::private::{NotPrivate, check_folder, close_to_others, open_own_file};

/// Why this process cannot use the directory.
#[derive(Debug, thiserror::Error)]
pub enum LockFault {
    #[error("another musterd (pid {pid}) runs on {dir}; stop it first, or use another --data-dir")]
    Held { pid: String, dir: PathBuf },
    #[error("{0}; the data directory holds this node's key: choose one of your own with --data-dir")]
    NotPrivate(#[from] NotPrivate),
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

/// The lock, held as long as the process lives. The kernel releases it when the process ends in any way.
#[derive(Debug)]
pub struct DirLock(#[expect(dead_code, reason = "held, not read")] File);

impl DirLock {
    /// Locks the directory, creating it if necessary, readable by this user only. Rejects one that another user can write to. Raft
    /// data that earlier builds left readable to others is closed to them.
    pub fn take(dir: &Path) -> Result<Self, LockFault> {
        let path = dir.join("lock");
        let fault = |source| LockFault::Io { path: path.clone(), source };
        if !dir.exists() {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fault)?;
        }
        check_folder(dir)?;
        let mut file = open_own_file(&path).map_err(fault)?;
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
        for held in ["raft", FENCED, DAMAGED].map(|name| dir.join(name)) {
            // Some file systems have no permissions.
            if let Err(error) = close_to_others(&held) {
                tracing::warn!(folder = %held.display(), %error, "cannot restrict the permissions of the Raft data directory");
            }
        }
        // A lock that others can ask for without taking it, which they cannot of the one above. Only that one decides.
        if let Err(error) = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            tracing::debug!(%error, "--check-config will not see that this daemon runs");
        }
        // Used only in the sentence above: on a full disk the pid is missing there, and the daemon starts anyway.
        let _unsaid =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self(file))
    }
}

/// Whether a daemon runs on the directory. Only asks, and from another process than the daemon's (closing any descriptor of the file would
/// release its record lock, fcntl(2)): a lock taken for a moment would make a start in that moment fail.
pub fn is_held(dir: &Path) -> bool {
    let held = |file: File| fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).is_ok_and(|by| by.is_some());
    File::open(dir.join("lock")).is_ok_and(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn lock_symlink_leaves_its_target_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("precious");
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, dir.path().join("lock")).unwrap();
        assert!(matches!(DirLock::take(dir.path()), Err(LockFault::Io { .. })));
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
    }

    #[test]
    fn directory_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = DirLock::take(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("chmod go-w") && refused.contains("--data-dir"), "{refused}");
        assert!(!dir.path().join("lock").exists());
    }

    #[test]
    fn directories_are_created_for_this_user_alone() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("new/data");
        let _lock = DirLock::take(&dir).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        let modes = [dir.parent().unwrap(), &dir, &dir.join("lock")].map(mode);
        assert_eq!(modes, [0o700, 0o700, 0o600]);
    }

    #[test]
    fn raft_data_readable_by_others_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("raft/log/1.raftlog");
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        std::fs::write(&log, "").unwrap();
        std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o644)).unwrap();
        let _lock = DirLock::take(dir.path()).unwrap();
        assert_eq!(std::fs::metadata(&log).unwrap().mode() & 0o777, 0o600);
    }
}
