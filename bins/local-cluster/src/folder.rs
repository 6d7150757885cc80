//! Folders of temporary clusters.

use std::path::{Path, PathBuf};

use muster_client::{Failure, Outcome};
use muster_messages::ErrorCode;
use rustix::fs::statvfs;
use tempfile::TempDir;

/// Memory as a file system, on most Linux systems.
const MEMORY: &str = "/dev/shm";

/// A folder for small files of many nodes that should not wait for the disk of others, in memory where the system allows that. Named and
/// removed like [`temporary_folder`]'s. Refused if the memory has no room for so many bytes: a full one would fail in the middle of the work,
/// and affect other programs.
pub fn memory_folder(purpose: &str, bytes: u64) -> Outcome<TempDir> {
    let memory = Path::new(MEMORY);
    if !memory.is_dir() {
        return temporary_folder(purpose);
    }
    check_room(memory, bytes)?;
    made(purpose, memory).or_else(|_| temporary_folder(purpose))
}

fn check_room(base: &Path, bytes: u64) -> Outcome {
    let failed =
        |e: rustix::io::Errno| Failure::io(format!("cannot read the free space of {}", base.display()), &e.into());
    let system = statvfs(base).map_err(failed)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    // Memory without a limit is shown with a size of zero.
    if system.f_blocks == 0 || free >= bytes {
        return Ok(());
    }
    let text = format!(
        "{} has {} MiB free, and the files need {} MiB; run fewer nodes, delete files there, or make it larger (`mount -o remount,size=…`, or \
         `--shm-size` of a container)",
        base.display(),
        free >> 20,
        bytes.div_ceil(1 << 20)
    );
    Err(Failure::new(ErrorCode::Invalid, text))
}

/// A folder for a cluster, removed when dropped. Its path is short: a socket path has at most 107 bytes. Its name contains the
/// pid, which identifies folders left by a killed process.
pub fn temporary_folder(purpose: &str) -> Outcome<TempDir> {
    let preferred = std::env::temp_dir();
    let base = if preferred.as_os_str().len() > 60 { PathBuf::from("/tmp") } else { preferred };
    made(purpose, &base)
}

fn made(purpose: &str, base: &Path) -> Outcome<TempDir> {
    let made = tempfile::Builder::new().prefix(&format!("muster-{purpose}-{}-", std::process::id())).tempdir_in(base);
    made.map_err(|e| Failure::io("cannot create a temporary folder", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_do_not_fit_are_refused_with_the_remedy() {
        let base = tempfile::tempdir().unwrap();
        assert_eq!(check_room(base.path(), 1), Ok(()));
        let refused = check_room(base.path(), u64::MAX).unwrap_err();
        assert!(refused.is(ErrorCode::Invalid), "{refused}");
        for part in [base.path().to_str().unwrap(), "MiB free", "run fewer nodes", "remount,size="] {
            assert!(refused.message.contains(part), "no {part:?} in {refused}");
        }
    }
}
