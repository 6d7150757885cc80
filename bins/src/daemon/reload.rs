//! SIGHUP: reads the configuration again, from the same flags, environment and file.
//!
//! All or nothing: a configuration that cannot be used changes nothing. What can be changed in a running daemon is applied; what cannot is
//! named in the log, each time until the daemon is restarted.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use super::config::{self, Args, Config};
use super::logging::{self, LogFilter};
use super::node::Node;

/// The keys that are applied: each is applied in [`Reload::apply`].
const APPLIED: [&str; 2] = ["log", "reconcilers.commands"];

/// What a reload needs.
pub struct Reload {
    args: Args,
    /// As of the start, with what was applied since.
    in_force: Config,
    log: LogFilter,
}

impl Reload {
    pub fn new(args: Args, in_force: Config, log: LogFilter) -> Self {
        Self { args, in_force, log }
    }

    /// Whether a signal finds something to do. Otherwise it keeps its meaning: closing a terminal ends the processes in it.
    pub fn is_useful(&self) -> bool {
        self.args.has_file() || !matches!(self.in_force.settings.audit.file.as_str(), "" | "-")
    }

    /// Logs one line about the outcome.
    pub fn reload(&mut self, node: &Node) {
        node.reopen_audit_log();
        let read = config::load(self.args.clone()).map_err(|bad| bad.to_string()).and_then(|config| {
            logging::parse(&config.log)?;
            Ok(config)
        });
        match read {
            Ok(config) => self.apply(node, config),
            Err(why) => tracing::error!(why, "the configuration was not reloaded: nothing has changed"),
        }
    }

    fn apply(&mut self, node: &Node, new: Config) {
        let changed = changed_keys(&self.in_force, &new);
        let (applied, needs_restart): (Vec<&str>, Vec<&str>) =
            changed.iter().map(String::as_str).partition(|key| APPLIED.contains(key));
        let in_force = &mut self.in_force;
        in_force.log = new.log;
        in_force.settings.reconcilers = new.settings.reconcilers;
        if let Err(why) = self.log.set(&in_force.log) {
            tracing::error!(why, "the log filter was not replaced");
        }
        node.allow_programs(in_force.settings.reconcilers.commands.clone());
        let (applied, needs_restart) = (applied.join(", "), needs_restart.join(", "));
        if needs_restart.is_empty() {
            tracing::info!(applied, "reloaded the configuration");
        } else {
            tracing::warn!(applied, needs_restart, "reloaded the configuration; some changes need a restart");
        }
    }
}

/// The keys whose values differ, as `key` or `section.key`. Tokens are no values of a running daemon.
fn changed_keys(old: &Config, new: &Config) -> BTreeSet<String> {
    let (old, new) = (flat(old), flat(new));
    let keys = old.keys().chain(new.keys());
    keys.filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

fn flat(config: &Config) -> BTreeMap<String, Value> {
    let table = toml::Table::try_from(config).expect("a configuration is a table: --print-config prints it");
    let mut keys = BTreeMap::new();
    for (name, value) in table {
        match value {
            // Labels are one value.
            Value::Table(section) if name != "labels" => {
                keys.extend(section.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            value => drop(keys.insert(name, value)),
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config(text: &str) -> Config {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("data_dir = \"/d\"\n{text}")).unwrap();
        let args = Args::try_parse_from(["musterd", "--config", file.path().to_str().unwrap()]).unwrap();
        config::load(args).unwrap()
    }

    #[test]
    fn changed_keys_are_named_with_their_sections() {
        let old = config("log = \"info\"\n[agent]\nheartbeat = \"5s\"\n");
        assert_eq!(changed_keys(&old, &old), BTreeSet::new());
        let new = config(
            "log = \"debug\"\nlabels = { zone = \"a\" }\n[agent]\nheartbeat = \"6s\"\n[reconcilers]\ncommands = [\"/bin/true\"]\n",
        );
        let expected = ["agent.heartbeat", "labels", "log", "reconcilers.commands"].map(str::to_owned);
        // The dispatcher's grace follows the heartbeat unless it is set.
        let changed: Vec<_> = changed_keys(&old, &new).into_iter().filter(|key| key != "dispatcher.grace").collect();
        assert_eq!(changed, expected);
        for key in APPLIED {
            assert!(changed.iter().any(|changed| changed == key), "{key} is not a key");
        }
    }
}
