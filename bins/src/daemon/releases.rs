//! What the applications on this machine can run: a file for each scope in one directory, which is looked at twice a second.
//!
//! ```text
//! # shop.toml
//! scope = "shop"
//! release = "1.2.0"      # or "none": nothing of the scope can be run on this machine
//! ```
//!
//! Owns        the files as they were read last.
//! Outputs     the declared releases, for the node's reconcilers; faults, in its view and in the log.
//! Invariants  DECLARE-1  a file that cannot be used changes nothing: what it declared before stays until it can be used, or is gone.
//!             DECLARE-2  nothing is run as the node's own release while a declaration for its scope may be there and was never read.
//! Why it is looked at and not watched: a directory may be on any file system, or be made later; a change counts within a second.

use std::path::PathBuf;
use std::time::Duration;

use muster_kernel::{Address, Cx, Fault, Shell, Slot, Spec};
use muster_messages::protocol::Named;
use muster_reconciler::{Declared, Releases};
use serde_json::{Value, json};

use self::files::{Files, Found, declared, look};

mod files;

/// A deployment waits for at most twice this.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Messages of the actor, all sent by itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Look,
    Looked(Result<Files, String>),
}

/// See the module.
pub struct ReleasesShell {
    directory: PathBuf,
    /// The node's own, for scopes without a declaration.
    release: String,
    releases: Releases,
    /// Outlive a crash: a successor without them would take a file with a fault for one that never declared anything.
    files: Slot<Files>,
    found: Found,
    /// Looks that ended, of this incarnation. Who has changed a file knows by them that it was seen.
    looks: u64,
}

/// The actor, and what is declared at the start: reconcilers do not begin as another release.
pub fn spec(directory: PathBuf, release: String) -> (Spec, Releases) {
    let (releases, files) = (Releases::default(), Slot::new());
    // Others are told where it is.
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    match look(&directory, &Files::new()) {
        Ok(first) => {
            releases.declare_all(declared(&first).declared);
            files.set(first);
        }
        Err(_) => releases.declare_all(Declared { incomplete: true, ..Declared::default() }),
    }
    let shared = releases.clone();
    let make = move || {
        let (directory, release, releases) = (directory.clone(), release.clone(), shared.clone());
        let (files, found) = (files.clone(), Found::default());
        Ok(ReleasesShell { directory, release, releases, files, found, looks: 0 })
    };
    (Spec::actor("releases", Address::new(8), make).contained(), releases)
}

impl ReleasesShell {
    fn look(&self, cx: &Cx<Msg>) {
        let (directory, known) = (self.directory.clone(), self.files.get().unwrap_or_default());
        cx.report(async move {
            let looked = tokio::task::spawn_blocking(move || look(&directory, &known)).await;
            Msg::Looked(looked.unwrap_or_else(|error| Err(error.to_string())))
        });
    }

    fn take(&mut self, looked: Result<Files, String>) {
        self.looks += 1;
        let found = match looked {
            Ok(files) => {
                let found = declared(&files);
                self.files.set(files);
                if *self.releases.declared() != found.declared {
                    tracing::info!(declared = ?found.declared.scopes, "the declared releases changed");
                }
                self.releases.declare_all(found.declared.clone());
                found
            }
            // What is declared stays. Every scope may be concerned.
            Err(why) => {
                let declared = Declared { incomplete: true, ..Declared::clone(&self.releases.declared()) };
                Found { declared, faults: vec![why], ..Found::default() }
            }
        };
        if found.faults != self.found.faults {
            for fault in &found.faults {
                tracing::warn!(%fault, "a declaration of a release cannot be used");
            }
        }
        self.found = found;
    }
}

impl Shell for ReleasesShell {
    type Msg = Msg;
    const KIND: &'static str = "Releases";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.look(cx);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Look => self.look(cx),
            Msg::Looked(looked) => {
                self.take(looked);
                cx.after(CHECK_INTERVAL, Msg::Look);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let declared = &*self.releases.declared();
        json!({
            "directory": self.directory,
            "release": self.release,
            "declared": declared.scopes,
            "incomplete": declared.incomplete || self.found.declared.incomplete,
            "faults": self.found.faults,
            "faulty": self.found.faulty,
            "looks": self.looks,
        })
    }
}
