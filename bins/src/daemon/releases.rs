//! What the applications on this machine can run: a file for each scope in one directory, which is looked at every second.
//!
//! ```text
//! # shop.toml
//! scope = "shop"
//! release = "1.2.0"
//! ```
//!
//! Owns        the files as they were read last.
//! Outputs     the declared releases, for the node's reconcilers; faults, in its view and in the log.
//! Invariants  DECLARE-1  a file that cannot be used changes nothing: what it declared before stays until it can be used, or is gone.
//! Why it is looked at and not watched: a directory may be on any file system, or be made later; a change counts within two seconds.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_kernel::{Address, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::{DNS_LABEL, MANAGERS_SCOPE, Release, is_dns_label};
use muster_reconciler::{Declared, Releases};
use serde::Deserialize;
use serde_json::{Value, json};

/// A deployment waits for at most twice this.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Files that are read; a machine has fewer applications.
const MAX_FILES: usize = 256;
const MAX_FILE_BYTES: u64 = 4096;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    scope: String,
    release: Release,
}

/// By which a changed file is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A file as it was read last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    stamp: Stamp,
    /// The last one that could be used.
    declaration: Option<Declaration>,
    fault: Option<String>,
}

pub type Files = BTreeMap<String, File>;

/// What is in the directory now. Without a directory, nothing is declared.
fn look(directory: &Path, known: &Files) -> Result<Files, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", directory.display());
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Files::new()),
        entries => entries.map_err(fault)?,
    };
    let mut files = Files::new();
    for entry in entries {
        let entry = entry.map_err(fault)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A file that is being written has another name until it is complete.
        if name.starts_with('.') || !name.ends_with(".toml") {
            continue;
        }
        if files.len() == MAX_FILES {
            return Err(format!("{}: more than {MAX_FILES} files", directory.display()));
        }
        if let Some(file) = read(&entry.path(), known.get(&name)) {
            files.insert(name, file);
        }
    }
    Ok(files)
}

/// `None`: it is gone by now.
fn read(path: &Path, before: Option<&File>) -> Option<File> {
    let metadata = std::fs::metadata(path).ok()?;
    let stamp = Stamp {
        inode: metadata.ino(),
        bytes: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    };
    if let Some(before) = before.filter(|before| before.stamp == stamp) {
        return Some(before.clone());
    }
    match parse(path, metadata.is_file()) {
        Ok(declaration) => Some(File { stamp, declaration: Some(declaration), fault: None }),
        Err(why) => {
            let declaration = before.and_then(|before| before.declaration.clone());
            Some(File { stamp, declaration, fault: Some(why) })
        }
    }
}

fn parse(path: &Path, is_file: bool) -> Result<Declaration, String> {
    // A pipe would never end.
    if !is_file {
        return Err("it is not a file".to_owned());
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it has more than {MAX_FILE_BYTES} bytes"));
    }
    let declaration: Declaration = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
    declaration.release.plain().map_err(|why| why.to_string())?;
    let scope = &declaration.scope;
    if !is_dns_label(scope) {
        return Err(format!("scope {scope:?}: a scope is {DNS_LABEL}"));
    }
    if scope == MANAGERS_SCOPE {
        return Err(format!("the release of scope {MANAGERS_SCOPE} is that of the managers themselves"));
    }
    Ok(declaration)
}

/// The releases that the files declare, and what is wrong with them. Of two files for one scope the first by name counts.
fn declared(files: &Files) -> (Declared, Vec<String>) {
    let (mut declared, mut by, mut faults) = (Declared::new(), BTreeMap::new(), Vec::new());
    for (name, file) in files {
        if let Some(why) = &file.fault {
            let instead = match &file.declaration {
                Some(Declaration { scope, release }) => format!("; {scope} stays at {release}"),
                None => String::new(),
            };
            faults.push(format!("{name}: {why}{instead}"));
        }
        let Some(Declaration { scope, release }) = &file.declaration else { continue };
        match by.get(scope) {
            Some(first) => faults.push(format!("{name}: {first} declares scope {scope}, too, and counts")),
            None => {
                by.insert(scope.clone(), name.clone());
                declared.insert(scope.clone(), release.clone());
            }
        }
    }
    (declared, faults)
}

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
    files: Files,
    faults: Vec<String>,
}

/// The actor, and what is declared at the start: reconcilers do not begin as another release.
pub fn spec(directory: PathBuf, release: String) -> (Spec, Releases) {
    let releases = Releases::default();
    // Others are told where it is.
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    let files = look(&directory, &Files::new()).unwrap_or_default();
    releases.declare_all(declared(&files).0);
    let shared = releases.clone();
    let make = move || {
        let (directory, release, releases) = (directory.clone(), release.clone(), shared.clone());
        Ok(ReleasesShell { directory, release, releases, files: files.clone(), faults: Vec::new() })
    };
    (Spec::actor("releases", Address::new(8), make).contained(), releases)
}

impl ReleasesShell {
    fn look(&self, cx: &Cx<Msg>) {
        let (directory, known) = (self.directory.clone(), self.files.clone());
        cx.report(async move {
            let looked = tokio::task::spawn_blocking(move || look(&directory, &known)).await;
            Msg::Looked(looked.unwrap_or_else(|error| Err(error.to_string())))
        });
    }

    fn take(&mut self, looked: Result<Files, String>) {
        let faults = match looked {
            Ok(files) => {
                self.files = files;
                let (declared, faults) = declared(&self.files);
                let before = self.releases.declared();
                if *before != declared {
                    tracing::info!(declared = ?declared, "the declared releases changed");
                }
                self.releases.declare_all(declared);
                faults
            }
            Err(why) => vec![why],
        };
        if faults != self.faults {
            for fault in &faults {
                tracing::warn!(%fault, "a declaration of a release cannot be used");
            }
            self.faults = faults;
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
            Msg::Looked(looked) => {
                self.take(looked);
                cx.after(CHECK_INTERVAL, Msg::Look);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let declared = &*self.releases.declared();
        json!({"directory": self.directory, "release": self.release, "declared": declared, "faults": self.faults})
    }
}

#[cfg(test)]
#[path = "releases_tests.rs"]
mod tests;
