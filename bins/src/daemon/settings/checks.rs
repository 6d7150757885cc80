//! Rejects impossible configurations. Each sentence names the key, what is wrong, and what would be right.

use std::time::Duration;

use muster_messages::RECONCILERS_LEVEL;
use muster_pki::MIN_NODE_LIFETIME;

use super::{Settings, Span};

/// Keys that may be zero.
const MAY_BE_ZERO: [&str; 3] = ["raft.keep_entries", "roots.publish", "roots.retire_after"];

/// Keys whose value is text. All other strings are durations.
const TEXT_KEYS: [&str; 3] = ["debug.disk_hangs_while", "audit.file", "reconcilers.releases"];

/// Longer than any useful wait, and far from where clocks overflow.
const MAX_DURATION: Duration = Duration::from_secs(36_500 * 24 * 3600);

/// Above any useful count or size.
const MAX_NUMBER: i64 = 1 << 40;

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("[{section}] {key}{text}")]
pub struct SettingFault {
    section: String,
    key: String,
    /// What follows the key in the sentence.
    text: String,
}

impl SettingFault {
    fn new(section: &str, key: &str, text: impl Into<String>) -> Self {
        Self { section: section.to_owned(), key: key.to_owned(), text: text.into() }
    }
    /// `section.key`
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }
}

impl Settings {
    /// Numbers that are zero or above their limit.
    pub(super) fn out_of_range(&self) -> Vec<SettingFault> {
        let sections = toml::Table::try_from(self).expect("settings are tables of values");
        let mut faults = Vec::new();
        for (section, keys) in &sections {
            for (key, value) in keys.as_table().into_iter().flatten() {
                let name = format!("{section}.{key}");
                let (too_small, too_large) = match value {
                    toml::Value::String(_) if TEXT_KEYS.contains(&name.as_str()) => continue,
                    toml::Value::Integer(n) => (*n <= 0, *n > MAX_NUMBER),
                    toml::Value::Float(x) => (*x <= 0.0, !x.is_finite() || *x > MAX_NUMBER as f64),
                    toml::Value::String(span) => match span.parse::<Span>() {
                        Ok(span) => (span.0.is_zero(), span.0 > MAX_DURATION),
                        Err(why) => {
                            faults.push(SettingFault::new(section, key, format!(" = {value}: {why}")));
                            continue;
                        }
                    },
                    _ => (false, false),
                };
                let zero = matches!(value, toml::Value::Float(x) if *x == 0.0) || !value.is_float();
                let excused = zero && MAY_BE_ZERO.contains(&name.as_str());
                if too_large {
                    faults.push(SettingFault::new(section, key, format!(" = {value}: too large")));
                } else if too_small && !excused {
                    faults.push(SettingFault::new(section, key, format!(" = {value}: must be more than zero")));
                }
            }
        }
        faults
    }

    /// Values that contradict each other.
    pub(super) fn inconsistent(&self) -> Vec<SettingFault> {
        let span = |ms: u64| Span(Duration::from_millis(ms));
        let mut faults = Vec::new();
        let mut unless = |holds: bool, section, key, text: &str| {
            if !holds {
                faults.push(SettingFault::new(section, key, text));
            }
        };
        unless(
            self.raft.heartbeat <= span(1_000),
            "raft",
            "heartbeat",
            ": at most 1s; a manager silent for 1500ms counts as unreachable",
        );
        unless(
            self.raft.election_timeout <= span(10_000),
            "raft",
            "election_timeout",
            ": at most 10s; calls between managers end after that",
        );
        let command = &self.authority.upstream_command;
        unless(
            command.first().is_none_or(|program| program.starts_with('/')),
            "authority",
            "upstream_command",
            ": its first word must be the path of a program",
        );
        unless(
            !self.authority.auto || !command.is_empty(),
            "authority",
            "auto",
            " = true: needs [authority] upstream_command",
        );
        unless(!self.audit.required || !self.audit.file.is_empty(), "audit", "required", " = true: needs [audit] file");
        unless(self.api.max_body <= 1 << 20, "api", "max_body", ": at most 1048576, a frame holds 1 MiB");
        let bounds = [
            at_least("certificates", "lifetime", self.certificates.lifetime, Span(MIN_NODE_LIFETIME), ""),
            at_least("certificates", "user_lifetime", self.certificates.user_lifetime, span(60_000), ""),
            at_least(
                "debug",
                "feature_level",
                self.debug.feature_level,
                RECONCILERS_LEVEL,
                "the first that gates can raise",
            ),
            at_least("agent", "heartbeat", self.agent.heartbeat, span(50), ""),
            at_least("raft", "heartbeat", self.raft.heartbeat, span(20), ""),
            at_least("audit", "max_bytes", Bytes(self.audit.max_bytes), Bytes(64 << 10), ""),
            at_least(
                "raft",
                "election_timeout",
                self.raft.election_timeout,
                Span(self.raft.heartbeat.0.saturating_mul(3)),
                "three times [raft] heartbeat",
            ),
            at_least(
                "mesh",
                "max_snapshot_bytes",
                Bytes(self.mesh.max_snapshot_bytes),
                Bytes(self.raft.snapshot_bytes),
                "[raft] snapshot_bytes",
            ),
            at_least(
                "supervision",
                "backoff_cap",
                self.supervision.backoff_cap,
                self.supervision.backoff_first,
                "backoff_first",
            ),
        ];
        faults.extend(bounds.into_iter().flatten());
        if let Some(grace) = self.dispatcher.grace {
            let sessions = self.sessions();
            let (down, digests) = (Span(sessions.down_after()), Span(sessions.digest_every * 2));
            let reasons =
                [(down, "the time after which a silent node is down"), (digests, "twice the time between two digests")];
            // The greater bound includes the other.
            let shortest = reasons.into_iter().max_by_key(|(least, _)| least.0);
            faults.extend(shortest.and_then(|(least, why)| at_least("dispatcher", "grace", grace, least, why)));
        }
        faults
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

fn at_least<T: PartialOrd + std::fmt::Display>(
    section: &str,
    key: &str,
    value: T,
    least: T,
    because: &str,
) -> Option<SettingFault> {
    let because = if because.is_empty() { String::new() } else { format!(", {because}") };
    (value < least).then(|| SettingFault::new(section, key, format!(" = {value}: at least {least}{because}")))
}
