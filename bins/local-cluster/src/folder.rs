//! Folders of clusters that do not last.

use std::path::PathBuf;

use muster_client::{Failure, Outcome};
use tempfile::TempDir;

/// A folder for a cluster that goes away with it. Its path is short: a socket's path holds 107 bytes. Its name holds
/// our pid: what a killed process leaves is recognised.
pub fn temporary_folder(purpose: &str) -> Outcome<TempDir> {
    let preferred = std::env::temp_dir();
    let base = if preferred.as_os_str().len() > 60 { PathBuf::from("/tmp") } else { preferred };
    let made = tempfile::Builder::new().prefix(&format!("muster-{purpose}-{}-", std::process::id())).tempdir_in(base);
    made.map_err(|e| Failure::io("cannot make a temporary folder", &e))
}
