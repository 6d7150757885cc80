//! What the applications on this machine can run: a file for each scope in one directory, which is looked at twice a second.
//!
//! ```text
//! # shop.toml
//! scope = "shop"
//! release = "1.2.0"      # or "none": nothing of the scope can be run on this machine
//! ```
//!
//! Owns        the files as they were read last. [`core`] decides what follows from a look.
//! Outputs     the declared releases, for the node's reconcilers; faults, in its view and in the log.
//! Invariants  DECLARE-1  a file that cannot be used changes nothing: what it declared before stays until it can be used, or is gone.
//!             DECLARE-2  nothing is run as the node's own release while a declaration for its scope may be there and is not known: before
//!                    the first look has ended, and while the directory cannot be read or does not answer.
//! Why it is looked at and not watched: a directory may be on any file system, or be made later; a change counts within a second.

use std::path::PathBuf;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Shell, Slot};
use muster_reconciler::Releases;
use serde_json::{Value, json};

use self::core::{Looks, News};
use self::files::{Files, look};
pub use self::spec::{Msg, spec};

mod core;
mod files;
mod spec;

/// A deployment waits for at most twice this.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// A directory with a few small files takes milliseconds.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module.
pub struct ReleasesShell {
    directory: PathBuf,
    /// The node's own, for scopes without a declaration.
    release: String,
    releases: Releases,
    /// Outlive a crash: a successor without them would take a file with a fault for one that never declared anything.
    files: Slot<Files>,
    looks: Looks,
}

impl ReleasesShell {
    fn new(directory: PathBuf, release: String, releases: Releases, files: Slot<Files>) -> Self {
        Self { directory, release, releases, files, looks: Looks::default() }
    }

    /// One look at a time: a file system that hangs holds one thread.
    fn look(&mut self, cx: &Cx<Msg>) {
        cx.after(LOOK_TIMEOUT, Msg::Overdue(self.looks.begin()));
        let (directory, known) = (self.directory.clone(), self.files.get().unwrap_or_default());
        cx.report(async move {
            let looked = tokio::task::spawn_blocking(move || look(&directory, &known)).await;
            Msg::Looked(looked.unwrap_or_else(|error| Err(error.to_string())))
        });
    }

    fn take(&mut self, looked: Result<Files, String>) {
        let news = self.looks.ended(&self.releases.declared(), looked.as_ref().map_err(String::clone));
        if let Ok(files) = looked {
            self.files.set(files);
        }
        self.declare(news);
    }

    /// The look in progress has not ended in time.
    fn overdue(&mut self, look: u64) {
        let (directory, limit) = (self.directory.display(), LOOK_TIMEOUT.as_secs());
        let why = format!("{directory} was not read within {limit} s; its file system may hang");
        if let Some(news) = self.looks.overdue(look, &self.releases.declared(), why) {
            self.declare(news);
        }
    }

    fn declare(&self, News { declared, changed, faults }: News) {
        if changed {
            tracing::info!(%declared, "the declared releases changed");
        }
        self.releases.declare_all(declared);
        for fault in &faults {
            tracing::warn!(%fault, "a declaration of a release cannot be used");
        }
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
            Msg::Overdue(look) => self.overdue(look),
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
            "incomplete": declared.incomplete,
            "faults": self.looks.found().faults,
            "faulty": self.looks.found().faulty,
            "looks": self.looks.completed(),
        })
    }
}

#[cfg(test)]
#[path = "releases_tests.rs"]
mod tests;
