//! The file of `--config`: every fault of it in one reading, each with its key and line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    pub file: Option<PathBuf>,
    pub line: Option<usize>,
    pub message: String,
}

fn place(file: Option<&Path>, line: Option<usize>) -> String {
    match (file, line) {
        (Some(file), Some(line)) => format!("{}, line {line}: ", file.display()),
        _ => String::new(),
    }
}

/// An unusable configuration: exit 2.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct BadConfig(pub Vec<ConfigFault>);

/// The faults found so far, and where the file has which key.
#[derive(Default)]
pub(super) struct Faults {
    found: Vec<ConfigFault>,
    file: Option<PathBuf>,
    lines: BTreeMap<String, usize>,
}

impl Faults {
    /// Adds a fault of a value, whose place is known if it is from the file.
    pub fn add(&mut self, key: &str, from_file: bool, message: impl Into<String>) {
        let line = if from_file { self.lines.get(key).copied() } else { None };
        let file = self.file.clone().filter(|_| line.is_some());
        self.found.push(ConfigFault { key: Some(key.to_owned()), file, line, message: message.into() });
    }

    pub fn check(&mut self, key: &str, from_file: bool, checked: Result<(), String>) {
        if let Err(message) = checked {
            self.add(key, from_file, message);
        }
    }

    /// Whether the whole file was read.
    pub fn is_complete(&self) -> bool {
        self.found.iter().all(|fault| fault.key.is_some())
    }

    pub fn into_result<T>(self, config: T) -> Result<T, BadConfig> {
        if self.found.is_empty() { Ok(config) } else { Err(BadConfig(self.found)) }
    }

    /// Reads a file. What is faulty is left out.
    pub fn read(&mut self, path: &Path) -> File {
        self.file = Some(path.to_owned());
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                let message = format!("cannot read {}: {error}", path.display());
                self.found.push(ConfigFault { key: None, file: None, line: None, message });
                return File::default();
            }
        };
        let line_at = |at: usize| text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        let (table, unreadable) = DeTable::parse_recoverable(&text);
        for error in &unreadable {
            // Names the line and the error, but not the line's text, which may hold a token.
            let line = Some(line_at(error.span().map_or(0, |span| span.start)));
            self.found.push(ConfigFault { key: None, file: self.file.clone(), line, message: error.message().into() });
        }
        for (key, value) in table.get_ref() {
            self.lines.insert(key.get_ref().to_string(), line_at(key.span().start));
            for (inner, _) in value.get_ref().as_table().into_iter().flatten() {
                self.lines.insert(format!("{}.{}", key.get_ref(), inner.get_ref()), line_at(inner.span().start));
            }
        }
        match toml::from_str::<Table>(&text) {
            Ok(table) if unreadable.is_empty() => self.take(table),
            // Its faults are known.
            _ => File::default(),
        }
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
        // Nothing else depends on another key.
        read(legal).unwrap_or_default()
    }

    fn reads(&mut self, key: &str, name: &str, value: Value) -> bool {
        match read::<File>(Table::from_iter([(name.to_owned(), value)])) {
            Ok(_) => true,
            Err(error) => {
                self.add(key, true, error.message());
                false
            }
        }
    }
}

fn read<T: DeserializeOwned>(table: Table) -> Result<T, toml::de::Error> {
    T::deserialize(table)
}
