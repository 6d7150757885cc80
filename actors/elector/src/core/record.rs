//! The record that candidates of a Kubernetes lease share, and its form in `spec`.

use std::time::Duration;

use muster_messages::{FencingToken, MicroTime};
use serde_json::{Map, Value, json};
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

/// The leader's own account. Times are for people: no decision depends on another's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Empty: no holder.
    pub holder: String,
    /// How long the lease lasts after a renewal.
    pub lease_duration: Duration,
    /// When the holder took it, by its own account.
    pub acquired: Option<MicroTime>,
    /// When the holder renewed it, by its own account.
    pub renewed: Option<MicroTime>,
    /// How often the holder changed.
    pub transitions: i32,
    /// The strategy by which a coordinator chooses the holder; `None` without a coordinator.
    pub strategy: Option<String>,
    /// The holder that the coordinator prefers.
    pub preferred_holder: Option<String>,
}

impl Record {
    /// Reads `spec`. An absent field is empty; an invalid one is an error, because an unreadable lease must not be taken.
    pub fn from_spec(spec: &Value) -> Result<Self, String> {
        let text = |key: &str| match &spec[key] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            other => Err(format!("{key} is {other}")),
        };
        let number = |key: &str| match &spec[key] {
            Value::Null => Ok(0),
            value => value.as_i64().and_then(|n| i32::try_from(n).ok()).ok_or_else(|| format!("{key} is {value}")),
        };
        let time = |key: &str| text(key)?.map(|text| parse_time(key, &text)).transpose();
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let seconds = number("leaseDurationSeconds")?;
        let seconds = u64::try_from(seconds).map_err(|_| format!("leaseDurationSeconds is {seconds}"))?;
        Ok(Self {
            holder: text("holderIdentity")?.unwrap_or_default(),
            lease_duration: Duration::from_secs(seconds),
            acquired: time("acquireTime")?,
            renewed: time("renewTime")?,
            transitions: number("leaseTransitions")?,
            strategy: given(text("strategy")?),
            preferred_holder: given(text("preferredHolder")?),
        })
    }

    /// Writes it into `spec`, keeping other fields: strategy and preferred holder only if set.
    pub fn write_to(&self, spec: &mut Map<String, Value>) {
        let mut put = |key: &str, value: Value| spec.insert(key.to_owned(), value);
        put("holderIdentity", json!(self.holder));
        put("leaseDurationSeconds", json!(self.lease_duration.as_secs()));
        put("acquireTime", json!(self.acquired.and_then(show_time)));
        put("renewTime", json!(self.renewed.and_then(show_time)));
        put("leaseTransitions", json!(self.transitions));
        for (key, value) in [("strategy", &self.strategy), ("preferredHolder", &self.preferred_holder)] {
            match value {
                Some(text) => drop(spec.insert(key.to_owned(), json!(text))),
                None => drop(spec.remove(key)),
            }
        }
    }
}

fn parse_time(key: &str, text: &str) -> Result<MicroTime, String> {
    read_time(text).ok_or_else(|| format!("{key} is {text:?}, which is not an RFC 3339 time"))
}

pub(crate) fn read_time(text: &str) -> Option<MicroTime> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos().div_euclid(1000)).ok().map(MicroTime)
}

/// Always six digits: candidates in Go read nothing else.
const MICROS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

pub(crate) fn show_time(at: MicroTime) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1000).ok()?;
    at.to_offset(UtcOffset::UTC).format(MICROS).ok()
}

/// The record with its version in the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// The content.
    pub record: Record,
    /// Its version, with which the next write proves that it has seen this one.
    pub resource_version: String,
    /// The holder's fencing token, if a Muster cluster reports one.
    pub token: Option<FencingToken>,
}

impl Versioned {
    /// The writer's fencing token. Outside of Muster it is the resource version of the write, which only grows within a
    /// cluster, if it is a number.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.token.or_else(|| self.resource_version.parse().ok().map(FencingToken))
    }
}

/// Why a lock's request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Create it.
    #[error("the lease does not exist")]
    NotFound,
    /// Another client wrote it since it was read, or created it first.
    #[error("another client wrote the lease")]
    Conflict,
    /// It is not a lease, or not one that this release understands.
    #[error("the lease cannot be read: {0}")]
    Unreadable(String),
    /// The API refused, or did not answer.
    #[error("{0}")]
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Value {
        json!({
            "holderIdentity": "baz", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-11-21T05:37:55.525623Z", "renewTime": "2026-11-21T05:38:01.000000Z",
            "strategy": "OldestEmulationVersion", "preferredHolder": "bing"
        })
    }
    fn written(record: &Record) -> Value {
        let mut spec = Map::new();
        record.write_to(&mut spec);
        Value::Object(spec)
    }

    /// Cases 11 and 34.
    #[test]
    fn all_seven_fields_go_to_a_record_and_back() {
        let record = Record::from_spec(&full()).unwrap();
        assert_eq!((record.holder.as_str(), record.transitions), ("baz", 3));
        assert_eq!(written(&record), full());
        assert_eq!(Record::from_spec(&written(&record)), Ok(record.clone()));
        // Without the two that are written only if set.
        let five = Record { strategy: None, preferred_holder: None, ..record };
        assert_eq!(Record::from_spec(&written(&five)), Ok(five.clone()));
        assert_eq!(written(&five).as_object().unwrap().len(), 5);
    }

    #[test]
    fn empty_spec_has_no_holder() {
        for empty in [json!({}), Value::Null, json!({"strategy": "", "holderIdentity": ""})] {
            assert_eq!(Record::from_spec(&empty), Ok(Record::default()));
        }
    }

    #[test]
    fn times_are_read_in_every_spelling_and_written_with_six_digits() {
        for spelling in ["2026-11-21T05:37:55.5Z", "2026-11-21T05:37:55.500000000Z", "2026-11-21T06:37:55.500+01:00"] {
            let record = Record::from_spec(&json!({"renewTime": spelling})).unwrap();
            assert_eq!(written(&record)["renewTime"], "2026-11-21T05:37:55.500000Z", "{spelling}");
        }
    }

    #[test]
    fn invalid_value_is_an_error_that_names_the_field() {
        for (spec, field) in [
            (json!({"renewTime": "yesterday"}), "renewTime"),
            (json!({"leaseDurationSeconds": -1}), "leaseDurationSeconds"),
            (json!({"leaseDurationSeconds": "15"}), "leaseDurationSeconds"),
            (json!({"holderIdentity": 7}), "holderIdentity"),
            (json!({"leaseTransitions": 1u64 << 40}), "leaseTransitions"),
        ] {
            assert!(Record::from_spec(&spec).unwrap_err().contains(field), "{spec}");
        }
    }

    #[test]
    fn fencing_token_is_the_clusters_or_the_write_version() {
        let version =
            |version: &str, token| Versioned { resource_version: version.into(), token, ..Versioned::default() };
        assert_eq!(version("12", Some(FencingToken(7))).fencing_token(), Some(FencingToken(7)));
        assert_eq!(version("12", None).fencing_token(), Some(FencingToken(12)));
        assert_eq!(version("a1", None).fencing_token(), None);
    }
}
