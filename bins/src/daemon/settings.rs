//! The timings and bounds of the configuration file, section by section. What is not there keeps its default, which
//! lives with the actor that uses it.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration as people write it: `150ms`, `5s`, `10m`, `2h`, `90d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl std::str::FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no duration: write 150ms, 5s, 10m, 2h or 90d");
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
        let millis = match &text[digits..] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        Ok(Self(Duration::from_millis(number.checked_mul(millis).ok_or_else(wrong)?)))
    }
}
impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{}ms", self.0.as_millis()))
    }
}

/// The sections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub debug: Debug,
    pub agent: Agent,
    pub raft: Raft,
    pub gateway: Gateway,
    pub certificates: Certificates,
}

/// Switches for tests and development clusters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Debug {
    /// Allows `muster actors crash`.
    pub crash: bool,
}

/// Agent sessions, both ends.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agent {
    /// Between heartbeats; three missed make a node down.
    pub heartbeat: Option<Span>,
    /// Registrations a manager takes per second.
    pub registrations_per_second: Option<u32>,
}

/// Raft's timing and sizes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Raft {
    pub heartbeat: Option<Span>,
    pub election_timeout: Option<Span>,
    /// Applied entries between two snapshots.
    pub snapshot_entries: Option<u64>,
}

/// The one port.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gateway {
    pub max_connections: Option<usize>,
    pub handshake_deadline: Option<Span>,
    /// Join connections per second and client address.
    pub joins_per_second: Option<u32>,
}

/// Node certificates.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Certificates {
    /// At least 1 h.
    pub lifetime: Option<Span>,
}

impl Settings {
    /// Refuses values that cannot work.
    pub fn checked(self) -> Result<Self, String> {
        let hour = Duration::from_secs(3600);
        if self.certificates.lifetime.is_some_and(|l| l.0 < hour) {
            return Err("[certificates] lifetime: at least 1h".to_owned());
        }
        if self.agent.heartbeat.is_some_and(|h| h.0 < Duration::from_millis(50)) {
            return Err("[agent] heartbeat: at least 50ms".to_owned());
        }
        let beat = self.raft.heartbeat.map_or(Duration::from_millis(100), |s| s.0);
        if self.raft.election_timeout.is_some_and(|e| e.0 < 3 * beat) {
            return Err("[raft] election_timeout: at least three heartbeats".to_owned());
        }
        Ok(self)
    }
}
