//! Rejects impossible configurations. Each sentence names the key, what is wrong, and what would be right.

use std::time::Duration;

use muster_messages::RECONCILERS_LEVEL;
use muster_pki::MIN_NODE_LIFETIME;

use super::{Settings, Span};

/// Keys that may be zero.
const MAY_BE_ZERO: [&str; 3] = ["raft.keep_entries", "roots.publish", "roots.retire_after"];

/// Keys whose value is text. All other strings are durations.
const TEXT_KEYS: [&str; 2] = ["debug.disk_hangs_while", "audit.file"];

/// Longer than any useful wait, and far from where clocks overflow.
const MAX_DURATION: Duration = Duration::from_secs(36_500 * 24 * 3600);

/// Above any useful count or size.
const MAX_NUMBER: i64 = 1 << 40;

impl Settings {
    /// Every number is above zero and below its limit.
    pub(super) fn within_range(&self) -> Result<(), String> {
        let sections = toml::Table::try_from(self).map_err(|e| e.to_string())?;
        for (section, keys) in &sections {
            for (key, value) in keys.as_table().into_iter().flatten() {
                let name = format!("{section}.{key}");
                let (too_small, too_large) = match value {
                    toml::Value::String(_) if TEXT_KEYS.contains(&name.as_str()) => continue,
                    toml::Value::Integer(n) => (*n <= 0, *n > MAX_NUMBER),
                    toml::Value::Float(x) => (*x <= 0.0, !x.is_finite() || *x > MAX_NUMBER as f64),
                    toml::Value::String(span) => {
                        let span: Span = span.parse()?;
                        (span.0.is_zero(), span.0 > MAX_DURATION)
                    }
                    _ => (false, false),
                };
                let zero = matches!(value, toml::Value::Float(x) if *x == 0.0) || !value.is_float();
                let excused = zero && MAY_BE_ZERO.contains(&name.as_str());
                if too_large {
                    return Err(format!("[{section}] {key} = {value}: too large"));
                }
                if too_small && !excused {
                    return Err(format!("[{section}] {key} = {value}: must be more than zero"));
                }
            }
        }
        Ok(())
    }

    /// Values that depend on each other are consistent.
    pub(super) fn consistent(&self) -> Result<(), String> {
        let span = |ms: u64| Span(Duration::from_millis(ms));
        at_least("[certificates] lifetime", self.certificates.lifetime, Span(MIN_NODE_LIFETIME), "")?;
        at_least("[certificates] user_lifetime", self.certificates.user_lifetime, span(60_000), "")?;
        at_least(
            "[debug] feature_level",
            self.debug.feature_level,
            RECONCILERS_LEVEL,
            "the first that gates can raise",
        )?;
        at_least("[agent] heartbeat", self.agent.heartbeat, span(50), "")?;
        at_least("[raft] heartbeat", self.raft.heartbeat, span(20), "")?;
        if self.raft.heartbeat > span(1_000) {
            return Err("[raft] heartbeat: at most 1s; a manager silent for 1500ms counts as unreachable".to_owned());
        }
        if self.raft.election_timeout > span(10_000) {
            return Err("[raft] election_timeout: at most 10s; calls between managers end after that".to_owned());
        }
        let command = &self.authority.upstream_command;
        if command.first().is_some_and(|program| !program.starts_with('/')) {
            return Err("[authority] upstream_command: its first word must be the path of a program".to_owned());
        }
        if self.authority.auto && command.is_empty() {
            return Err("[authority] auto = true: needs [authority] upstream_command".to_owned());
        }
        if self.audit.required && self.audit.file.is_empty() {
            return Err("[audit] required = true: needs [audit] file".to_owned());
        }
        at_least("[audit] max_bytes", Bytes(self.audit.max_bytes), Bytes(64 << 10), "")?;
        let three_beats = Span(self.raft.heartbeat.0 * 3);
        at_least("[raft] election_timeout", self.raft.election_timeout, three_beats, "three times [raft] heartbeat")?;
        let (whole, piece) = (Bytes(self.mesh.max_snapshot_bytes), Bytes(self.raft.snapshot_bytes));
        at_least("[mesh] max_snapshot_bytes", whole, piece, "[raft] snapshot_bytes")?;
        let supervision = &self.supervision;
        at_least("[supervision] backoff_cap", supervision.backoff_cap, supervision.backoff_first, "backoff_first")?;
        if let Some(grace) = self.dispatcher.grace {
            let sessions = self.sessions();
            at_least(
                "[dispatcher] grace",
                grace,
                Span(sessions.down_after()),
                "the time after which a silent node is down",
            )?;
            at_least(
                "[dispatcher] grace",
                grace,
                Span(sessions.digest_every * 2),
                "twice the time between two digests",
            )?;
        }
        if self.api.max_body > 1 << 20 {
            return Err("[api] max_body: at most 1048576, a frame holds 1 MiB".to_owned());
        }
        Ok(())
    }
}

/// A number of bytes, for sentences.
#[derive(PartialEq, PartialOrd)]
struct Bytes(u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn at_least<T: PartialOrd + std::fmt::Display>(key: &str, value: T, least: T, because: &str) -> Result<(), String> {
    if value >= least {
        return Ok(());
    }
    let because = if because.is_empty() { String::new() } else { format!(", {because}") };
    Err(format!("{key} = {value}: at least {least}{because}"))
}
