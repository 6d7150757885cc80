//! The files in which applications declare their releases: what is in the directory, and what that declares.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use muster_messages::{DNS_LABEL, MANAGERS_SCOPE, Release, is_dns_label};
use muster_pki::private::{Symlinks, open_regular, read_text};
use muster_reconciler::{Declared, NOT_INSTALLED};
use serde::{Deserialize, Deserializer};

/// Files that are read; a machine has fewer applications.
const MAX_FILES: usize = 256;
const MAX_FILE_BYTES: u64 = 4096;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    scope: String,
    /// `None`: nothing of the scope can be run here.
    #[serde(deserialize_with = "release_or_none")]
    release: Option<Release>,
}

fn release_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Release>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == NOT_INSTALLED { Ok(None) } else { text.parse().map(Some).map_err(serde::de::Error::custom) }
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
    /// `None`: it could not be inspected.
    stamp: Option<Stamp>,
    /// The last one that could be used.
    declaration: Option<Declaration>,
    fault: Option<String>,
}

pub type Files = BTreeMap<String, File>;

/// What is in the directory now. Without a directory, nothing is declared.
pub fn look(directory: &Path, known: &Files) -> Result<Files, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", directory.display());
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Files::new()),
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

/// `None`: it is gone by now. Nothing else counts as that: what a file declared must not end because a disk or a right is missing.
fn read(path: &Path, before: Option<&File>) -> Option<File> {
    let faulty = |stamp, why| {
        let declaration = before.and_then(|before| before.declaration.clone());
        Some(File { stamp, declaration, fault: Some(why) })
    };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => return faulty(None, error.to_string()),
    };
    let stamp = Stamp {
        inode: metadata.ino(),
        bytes: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    };
    // One that could not be read may be readable now without another stamp.
    if let Some(before) = before.filter(|before| before.fault.is_none() && before.stamp.as_ref() == Some(&stamp)) {
        return Some(before.clone());
    }
    match parse(path) {
        Ok(declaration) => Some(File { stamp: Some(stamp), declaration: Some(declaration), fault: None }),
        Err(why) => faulty(Some(stamp), why),
    }
}

fn parse(path: &Path) -> Result<Declaration, String> {
    let file = open_regular(path, Symlinks::Followed);
    let text = file.and_then(|file| read_text(file, MAX_FILE_BYTES)).map_err(|error| error.to_string())?;
    let declaration: Declaration = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
    let scope = &declaration.scope;
    if !is_dns_label(scope) {
        return Err(format!("scope {scope:?}: a scope is {DNS_LABEL}"));
    }
    if scope == MANAGERS_SCOPE {
        return Err(format!("the release of scope {MANAGERS_SCOPE} is that of the managers themselves"));
    }
    Ok(declaration)
}

/// What the files declare.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub declared: Declared,
    /// What is wrong, one sentence each.
    pub faults: Vec<String>,
    /// Scopes whose declaration has a fault.
    pub faulty: BTreeSet<String>,
}

/// The releases that the files declare. Of two files for one scope the first by name counts.
pub fn declared(files: &Files) -> Found {
    let (mut found, mut by) = (Found::default(), BTreeMap::new());
    for (name, file) in files {
        let named = name.strip_suffix(".toml").filter(|stem| is_dns_label(stem));
        if let Some(why) = &file.fault {
            let instead = match (&file.declaration, named) {
                (Some(Declaration { scope, release: Some(release) }), _) => format!("; {scope} stays at {release}"),
                (Some(Declaration { scope, release: None }), _) => format!("; {scope} stays at {NOT_INSTALLED}"),
                (None, Some(scope)) => format!("; nothing of scope {scope} is run here until it can be used"),
                (None, None) => String::new(),
            };
            found.faults.push(format!("{name}: {why}{instead}"));
            let scope = file.declaration.as_ref().map_or(named, |declaration| Some(&declaration.scope));
            found.faulty.extend(scope.map(str::to_owned));
        }
        let (scope, release) = match (&file.declaration, named) {
            (Some(Declaration { scope, release }), _) => (scope.as_str(), release.clone()),
            // It is named like the file of this scope, whose release is not known.
            (None, Some(scope)) => (scope, None),
            (None, None) => continue,
        };
        match by.get(scope) {
            Some(first) => found.faults.push(format!("{name}: {first} declares scope {scope}, too, and counts")),
            None => {
                by.insert(scope.to_owned(), name.clone());
                found.declared.scopes.insert(scope.to_owned(), release);
            }
        }
    }
    found
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
