//! How the actor of the declared releases is made, and its messages.

use std::path::PathBuf;

use muster_kernel::{Address, Slot, Spec};
use muster_messages::protocol::Named;
use muster_reconciler::{Declared, Releases};

use super::ReleasesShell;
use super::files::Files;

/// Messages of the actor to itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Look,
    /// This look has taken too long, unless it has ended.
    Overdue(u64),
    Looked(Result<Files, String>),
}

/// The actor, and what it declares: until its first look has ended, nothing is known of any scope.
pub fn spec(directory: PathBuf, release: String) -> (Spec, Releases) {
    let (releases, files) = (Releases::default(), Slot::new());
    releases.declare_all(Declared { incomplete: true, ..Declared::default() });
    // Absolute, because the command line shows and uses it.
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    let shared = releases.clone();
    let make = move || Ok(ReleasesShell::new(directory.clone(), release.clone(), shared.clone(), files.clone()));
    (Spec::actor("releases", Address::new(8), make).contained(), releases)
}
