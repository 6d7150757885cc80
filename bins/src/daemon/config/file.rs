//! The file of `--config`: every fault of it in one reading, each with its key and line.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::DeTable;
use toml::{Table, Value};

use super::File;

/// What is wrong with one key of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}{message}", place(.file.as_deref(), *.line))]
pub struct ConfigFault {
    /// `listen`, `raft.heartbeat`. `None`: the file as a whole.
    pub key: Option<String>,
    /// The file, if the value is from there.
    /// As text: a path need not be UTF-8, and JSON must be.
    pub file: Option<String>,
    pub line: Option<usize>,
    pub message: String,
}

fn place(file: Option<&str>, line: Option<usize>) -> String {
    match (file, line) {
        (Some(file), Some(line)) => format!("{file}, line {line}: "),
        _ => String::new(),
    }
}

/// An unusable configuration: exit 2.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct BadConfig(pub Vec<ConfigFault>);

/// The faults found so far, and where the file has which key.
#[derive(Default)]
pub struct Faults {
    found: Vec<ConfigFault>,
    file: Option<String>,
    lines: BTreeMap<String, usize>,
    /// Keys whose value is a flag's or the environment's.
    elsewhere: BTreeSet<&'static str>,
}

impl Faults {
    pub(super) fn set_elsewhere<const N: usize>(&mut self, keys: [(&'static str, bool); N]) {
        self.elsewhere = keys.into_iter().filter(|(_, elsewhere)| *elsewhere).map(|(key, _)| key).collect();
    }

    /// Adds a fault of a value, with its line if it is from the file.
    pub fn add(&mut self, key: &str, message: impl Into<String>) {
        let line = self.lines.get(key).copied().filter(|_| !self.elsewhere.contains(key));
        self.push(Some(key), line, message.into());
    }

    /// Adds a fault of a flag.
    pub(super) fn add_flag(&mut self, key: &str, message: impl Into<String>) {
        self.push(Some(key), None, message.into());
    }

    fn push(&mut self, key: Option<&str>, line: Option<usize>, message: String) {
        let file = self.file.clone().filter(|_| line.is_some());
        let (key, message) = (key.map(without_tokens), without_tokens(&message));
        self.found.push(ConfigFault { key, file, line, message });
    }

    pub fn check(&mut self, key: &str, checked: Result<(), String>) {
        if let Err(message) = checked {
            self.add(key, message);
        }
    }

    /// Whether a value without a fault was read for this key.
    pub fn is_sound(&self, key: &str) -> bool {
        self.found.iter().all(|fault| fault.key.as_deref() != Some(key))
    }

    /// Whether a missing value is a fault of its own: the whole file was read, and the key has no other one.
    pub(super) fn may_be_missing(&self, key: &str) -> bool {
        self.is_sound(key) && self.found.iter().all(|fault| fault.key.is_some())
    }

    pub fn into_found(self) -> Vec<ConfigFault> {
        self.found
    }

    pub(super) fn into_result<T>(self, config: T) -> Result<T, BadConfig> {
        if self.found.is_empty() { Ok(config) } else { Err(BadConfig(self.found)) }
    }

    /// Reads a file. What is faulty is left out. `again`: a running daemon reads it, which must not wait for the other end of a pipe.
    pub(super) fn read(&mut self, path: &Path, again: bool) -> File {
        self.file = Some(path.display().to_string());
        let text = match text_of(path, again) {
            Ok(text) => text,
            Err(error) => {
                self.push(None, None, format!("cannot read {}: {error}", path.display()));
                return File::default();
            }
        };
        let line_at = |at: usize| text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        let (table, unreadable) = DeTable::parse_recoverable(&text);
        for error in &unreadable {
            // Names the line and the error, but not the line's text, which may hold a token.
            let line = Some(line_at(error.span().map_or(0, |span| span.start)));
            self.push(None, line, error.message().to_owned());
        }
        for (key, value) in table.get_ref() {
            self.lines.insert(key.get_ref().to_string(), line_at(key.span().start));
            for (inner, _) in value.get_ref().as_table().into_iter().flatten() {
                self.lines.insert(format!("{}.{}", key.get_ref(), inner.get_ref()), line_at(inner.span().start));
            }
        }
        match toml::from_str::<Table>(&text) {
            Ok(table) if unreadable.is_empty() => return self.take(table),
            // A number that no type holds, which only reading it shows.
            Err(error) if unreadable.is_empty() => {
                self.push(None, error.span().map(|span| line_at(span.start)), error.message().to_owned());
            }
            _ => {}
        }
        debug_assert!(!self.found.is_empty(), "a file with a fault does not count as empty");
        File::default()
    }

    /// Reads each key for itself: one fault hides no other.
    fn take(&mut self, table: Table) -> File {
        let mut legal = Table::new();
        for (name, value) in table {
            match value {
                Value::Table(section) if self.reads(&name, &name, Value::Table(Table::new())) => {
                    let mut kept = Table::new();
                    for (key, value) in section {
                        let alone = Table::from_iter([(key.clone(), value.clone())]);
                        if self.reads(&format!("{name}.{key}"), &name, Value::Table(alone)) {
                            kept.insert(key, value);
                        }
                    }
                    legal.insert(name, Value::Table(kept));
                }
                Value::Table(_) => {}
                value => {
                    if self.reads(&name, &name, value.clone()) {
                        legal.insert(name, value);
                    }
                }
            }
        }
        // No key depends on another one; if one does, its fault is the whole file's.
        read(legal).unwrap_or_else(|error| {
            self.push(None, None, error.message().to_owned());
            File::default()
        })
    }

    fn reads(&mut self, key: &str, name: &str, value: Value) -> bool {
        match read::<File>(Table::from_iter([(name.to_owned(), value)])) {
            Ok(_) => true,
            Err(error) => {
                self.add(key, error.message());
                false
            }
        }
    }
}

/// Far above any configuration.
const MAX_FILE_BYTES: u64 = 1 << 20;

fn text_of(path: &Path, again: bool) -> io::Result<String> {
    if again && !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES { Err(io::Error::other("it has more than 1 MiB")) } else { Ok(text) }
}

/// A token that stands at the wrong place must not get into a log.
fn without_tokens(message: &str) -> String {
    let mut parts = message.split("MSTR-");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-');
        shown.push_str("MSTR-…");
        shown.push_str(rest);
    }
    shown
}

fn read<T: DeserializeOwned>(table: Table) -> Result<T, toml::de::Error> {
    T::deserialize(table)
}
