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

use muster_kernel::{Address, Cx, Fault, Shell, Slot, Spec};
use muster_messages::protocol::Named;
use muster_reconciler::{Declared, Releases};
use serde_json::{Value, json};

use self::core::{Looks, News};
use self::files::{Files, look};

mod core;
mod files;

/// A deployment waits for at most twice this.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// A directory with a few small files takes milliseconds.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages of the actor to itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Look,
    /// This look has taken too long, unless it has ended.
    Overdue(u64),
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
    looks: Looks,
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
mod tests {
    use super::*;

    const OWN: &str = "9.0.0";

    fn shell(directory: &str, (releases, files): (&Releases, &Slot<Files>)) -> ReleasesShell {
        ReleasesShell::new(directory.into(), OWN.to_owned(), releases.clone(), files.clone())
    }

    fn of(releases: &Releases, scope: &str) -> String {
        let found = releases.declared().of_scope(scope, &OWN.parse().unwrap());
        found.map_or_else(|| "in doubt".to_owned(), |release| release.to_string())
    }

    /// DECLARE-2.
    #[test]
    fn every_scope_is_in_doubt_until_the_directory_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let (_spec, releases) = spec(folder.path().to_owned(), OWN.to_owned());
        assert_eq!(of(&releases, "shop"), "in doubt");
        let mut shell = shell("", (&releases, &Slot::new()));
        shell.take(look(&folder.path().join("missing"), &Files::new()));
        assert_eq!((of(&releases, "shop").as_str(), &shell.view()["incomplete"]), (OWN, &false.into()));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        shell.take(look(&file, &Files::new()));
        assert_eq!((of(&releases, "shop").as_str(), &shell.view()["incomplete"]), ("in doubt", &true.into()));
    }

    /// DECLARE-1 and DECLARE-2, also across a crash.
    #[test]
    fn unreadable_directory_leaves_what_it_declared() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("shop.toml"), "scope = \"shop\"\nrelease = \"1.2.0\"\n").unwrap();
        let shared = (&Releases::default(), &Slot::new());
        let mut first = shell("", shared);
        first.take(look(folder.path(), &Files::new()));
        let both = || (of(shared.0, "shop"), of(shared.0, "mail"));
        let known = |shop: &str, mail: &str| (shop.to_owned(), mail.to_owned());
        assert_eq!(both(), known("1.2.0", OWN));
        first.take(Err("stale file handle".to_owned()));
        assert_eq!(both(), known("1.2.0", "in doubt"));
        assert_eq!((&first.view()["incomplete"], &first.view()["looks"]), (&true.into(), &2.into()));
        drop(first);
        // A successor has the files: what one declared stays although it cannot be used now.
        std::fs::write(folder.path().join("shop.toml"), "scope = ").unwrap();
        let mut second = shell("", shared);
        let files = second.files.get().unwrap_or_default();
        second.take(look(folder.path(), &files));
        assert_eq!(both(), known("1.2.0", OWN));
        assert_eq!(second.view()["faulty"], json!(["shop"]));
    }

    /// DECLARE-2.
    #[test]
    fn look_that_does_not_end_leaves_every_scope_in_doubt() {
        let releases = Releases::default();
        let mut shell = shell("/etc/releases", (&releases, &Slot::new()));
        shell.looks.begin();
        shell.take(Ok(Files::new()));
        shell.overdue(1);
        assert_eq!((of(&releases, "shop").as_str(), &shell.view()["faults"]), (OWN, &json!([])), "it has ended");
        shell.looks.begin();
        shell.overdue(2);
        assert_eq!(of(&releases, "shop"), "in doubt");
        let faults = json!(["/etc/releases was not read within 10 s; its file system may hang"]);
        assert_eq!((&shell.view()["faults"], &shell.view()["looks"]), (&faults, &1.into()));
        shell.take(Ok(Files::new()));
        assert_eq!((of(&releases, "shop").as_str(), &shell.view()["faults"]), (OWN, &json!([])));
    }
}
