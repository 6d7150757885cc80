//! SIGHUP: reads the configuration again, from the same flags, environment and file.
//!
//! All or nothing: a configuration that cannot be used changes nothing. What can be changed in a running daemon is applied; what cannot is
//! named in the log, each time until the daemon is restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinHandle;
use toml::Value;
use tracing_subscriber::EnvFilter;

use super::config::{self, Args, Config};
use super::logging::{self, LogFilter};
use super::node::Node;
use super::settings::Reconcilers;

/// The keys that are applied: each is applied in [`take_over`].
const APPLIED: [&str; 4] = ["log", "reconcilers.commands", "reconcilers.env_files", "reconcilers.users"];

/// How long reading may take. A file system that hangs must not keep a daemon from being stopped.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// What was read: sound as a whole.
type Read = (Config, EnvFilter);

/// What a reload needs.
pub struct Reload {
    args: Args,
    /// As of the start, with what was applied since.
    in_force: Config,
    log: LogFilter,
    /// A reading that has not ended in time.
    reading: Option<JoinHandle<Result<Read, String>>>,
}

impl Reload {
    pub fn new(args: Args, in_force: Config, log: LogFilter) -> Self {
        Self { args: args.again(), in_force, log, reading: None }
    }

    /// Whether a signal finds something to do. Otherwise it keeps its meaning: closing a terminal ends the processes in it.
    pub fn is_useful(&self) -> bool {
        self.args.has_file() || !matches!(self.in_force.settings.audit.file.as_str(), "" | "-")
    }

    /// Logs one line about the outcome.
    pub async fn reload(&mut self, node: &Node) {
        node.reopen_audit_log();
        match self.read().await {
            Ok(read) => self.apply(node, read),
            Err(why) => tracing::error!(why, "the configuration was not reloaded: nothing has changed"),
        }
    }

    async fn read(&mut self) -> Result<Read, String> {
        if self.reading.as_ref().is_some_and(|reading| !reading.is_finished()) {
            return Err("an earlier reading has not ended: the file system hangs".to_owned());
        }
        let args = self.args.clone();
        let reading = self.reading.insert(tokio::task::spawn_blocking(move || {
            let config = config::load(args).map_err(|bad| bad.to_string())?;
            let log = logging::parse(&config.log)?;
            Ok((config, log))
        }));
        match tokio::time::timeout(READ_TIMEOUT, &mut *reading).await {
            Ok(read) => {
                self.reading = None;
                read.map_err(|error| error.to_string())?
            }
            Err(_) => Err(format!("reading it took more than {READ_TIMEOUT:?}")),
        }
    }

    fn apply(&mut self, node: &Node, (new, log): Read) {
        let changed = changed_keys(&self.in_force, &new);
        let (applied, needs_restart): (Vec<&str>, Vec<&str>) =
            changed.iter().map(String::as_str).partition(|key| APPLIED.contains(key));
        take_over(&mut self.in_force, new);
        if let Err(why) = self.log.set(log) {
            tracing::error!(why, "the log filter was not replaced");
        }
        node.allow(self.in_force.settings.reconcilers.clone());
        let (applied, needs_restart) = (applied.join(", "), needs_restart.join(", "));
        if needs_restart.is_empty() {
            tracing::info!(applied, "reloaded the configuration");
        } else {
            tracing::warn!(applied, needs_restart, "reloaded the configuration; some changes need a restart");
        }
    }
}

/// What is in force from now on.
fn take_over(in_force: &mut Config, new: Config) {
    let Reconcilers { commands, users, env_files, releases: _ } = new.settings.reconcilers;
    in_force.log = new.log;
    // The directory of releases is watched from the start of the daemon on.
    let releases = std::mem::take(&mut in_force.settings.reconcilers.releases);
    in_force.settings.reconcilers = Reconcilers { commands, users, env_files, releases };
}

/// The keys whose values differ, as `key` or `section.key`. Tokens are no values of a running daemon.
fn changed_keys(old: &Config, new: &Config) -> BTreeSet<String> {
    let (old, new) = (flat(old), flat(new));
    let keys = old.keys().chain(new.keys());
    keys.filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

fn flat(config: &Config) -> BTreeMap<String, Value> {
    let table = toml::Table::try_from(config).expect("a configuration is a table of values, whose paths are UTF-8");
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
    use super::*;

    fn config(text: &str) -> Config {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("data_dir = \"/d\"\n{text}")).unwrap();
        let args = Args::of(["musterd", "--config", file.path().to_str().unwrap()]).unwrap();
        config::load(args).unwrap()
    }

    #[test]
    fn changed_keys_are_named_with_their_sections() {
        let old = config("log = \"info\"\n[agent]\nheartbeat = \"5s\"\n");
        assert_eq!(changed_keys(&old, &old), BTreeSet::new());
        let new = config(
            "log = \"debug\"\nlabels = { zone = \"a\" }\n[agent]\nheartbeat = \"6s\"\n[reconcilers]\ncommands = [\"/bin/true\"]\n\
             users = [\"migrate\"]\nenv_files = [\"/etc/shop/env\"]\n",
        );
        let expected =
            ["agent.heartbeat", "labels", "log", "reconcilers.commands", "reconcilers.env_files", "reconcilers.users"]
                .map(str::to_owned);
        // The dispatcher's grace follows the heartbeat unless it is set.
        let changed: Vec<_> = changed_keys(&old, &new).into_iter().filter(|key| key != "dispatcher.grace").collect();
        assert_eq!(changed, expected);
        for key in APPLIED {
            assert!(changed.iter().any(|changed| changed == key), "{key} is not a key");
        }
    }

    #[test]
    fn exactly_the_keys_named_as_applied_are_in_force() {
        let mut in_force = config("log = \"info\"\n[reconcilers]\nusers = [\"migrate\", \"root\"]\nreleases = \"a\"\n");
        let new = || {
            config(
                "log = \"debug\"\n[agent]\nheartbeat = \"6s\"\n[reconcilers]\ncommands = [\"/bin/true\"]\nusers = [\"migrate\"]\n\
                 env_files = [\"/etc/shop/env\"]\nreleases = \"b\"\n",
            )
        };
        let mut needs_restart = changed_keys(&in_force, &new());
        needs_restart.retain(|key| !APPLIED.contains(&key.as_str()));
        take_over(&mut in_force, new());
        assert_eq!(changed_keys(&in_force, &new()), needs_restart);
        let Reconcilers { users, env_files, releases, .. } = in_force.settings.reconcilers;
        assert_eq!((users, env_files), (vec!["migrate".to_owned()], vec!["/etc/shop/env".to_owned()]));
        assert_eq!(releases, "a");
    }
}
