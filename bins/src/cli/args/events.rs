//! The arguments of `muster events`.

use clap::Args;
use muster_kernel::Clock;
use muster_messages::{EventKind, WallTime, Words};

use crate::cli::duration::parse_duration;

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only events after this revision
    #[arg(long, value_name = "REV", default_value_t = 0, value_parser = parse_revision)]
    pub since: u64,
    /// Only events of these kinds, such as role,membership
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = parse_event_kind)]
    pub kind: Vec<EventKind>,
    /// Only events of this node: id, at least 8 characters of it, or name
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Only events that this request caused: its id, or at least 8 digits of its beginning, as answers, logs and the audit log have it
    #[arg(long, value_name = "ID", value_parser = parse_request)]
    pub request: Option<String>,
    /// Only events after this time, such as 2027-01-31T12:00:00Z, or of the last 10m
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_past)]
    pub after: Option<WallTime>,
    /// Also the leases of Muster's own members and elections, which tables leave out
    #[arg(long)]
    pub all: bool,
    /// Only the newest N, and with --watch all that follow [default on a terminal, without --watch: as many as fit]
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// Keep printing new events
    #[arg(long)]
    pub watch: bool,
}

fn parse_revision(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a revision, a number; --after takes a time or a duration".to_owned())
}

/// The digits of a request's id, or its first ones. A UUID has hyphens.
fn parse_request(text: &str) -> Result<String, String> {
    let digits = text.replace('-', "").to_ascii_lowercase();
    let is_id = (8..=32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(digits).ok_or_else(|| "expected the id of a request, 8 to 32 hexadecimal digits of it".to_owned())
}

fn parse_event_kind(text: &str) -> Result<EventKind, String> {
    let all = || EventKind::ALL.iter().map(|kind| kind.text()).collect::<Vec<_>>().join(", ");
    EventKind::of(text).ok_or_else(|| format!("one of {}", all()))
}

/// A time, or how long ago it was.
fn parse_past(text: &str) -> Result<WallTime, String> {
    if let Ok(ago) = parse_duration(text) {
        return Ok(WallTime(Clock.wall().0.saturating_sub(i64::try_from(ago.as_millis()).unwrap_or(i64::MAX))));
    }
    serde_json::from_value(text.into())
        .map_err(|_| "expected a time, 2027-01-31T12:00:00Z, or a duration, 10m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_read_with_hyphens_and_as_prefixes() {
        let id = "01932f1c7c00700080000000000000ff";
        assert_eq!(parse_request(id).as_deref(), Ok(id));
        assert_eq!(parse_request("01932F1C-7C00-7000-8000-0000000000FF").as_deref(), Ok(id));
        assert_eq!(parse_request("01932f1c").as_deref(), Ok("01932f1c"));
        for other in ["", "01932f1", "request-1", "01932f1c7c00700080000000000000ff0"] {
            assert!(parse_request(other).is_err(), "{other}");
        }
    }
}
