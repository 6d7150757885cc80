//! Folders of temporary clusters.

use std::path::PathBuf;

use muster_client::{Failure, Outcome};
use tempfile::TempDir;

/// A folder for a cluster, removed when dropped. Its path is short: a socket path has at most 107 bytes. Its name contains the
/// pid, which identifies folders left by a killed process.
pub fn temporary_folder(purpose: &str) -> Outcome<TempDir> {
    let preferred = std::env::temp_dir();
    let base = if preferred.as_os_str().len() > 60 { PathBuf::from("/tmp") } else { preferred };
    let made = tempfile::Builder::new().prefix(&format!("muster-{purpose}-{}-", std::process::id())).tempdir_in(base);
    made.map_err(|e| Failure::io("cannot create a temporary folder", &e))
}
