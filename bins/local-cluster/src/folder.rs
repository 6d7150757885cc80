//! Folders of temporary clusters.

use std::path::{Path, PathBuf};

use muster_client::{Failure, Outcome};
use tempfile::TempDir;

/// Memory as a file system, on most Linux systems.
const MEMORY: &str = "/dev/shm";

/// A folder for small files of many nodes that should not wait for the disk of others, in memory where the system allows that. Named and
/// removed like [`temporary_folder`]'s.
pub fn memory_folder(purpose: &str) -> Outcome<TempDir> {
    made(purpose, Path::new(MEMORY)).or_else(|_| temporary_folder(purpose))
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
