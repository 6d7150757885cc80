//! Events, a line each.

use std::borrow::Cow;

use muster_messages::{EventKind, EventView, ID_LEN, PrincipalKind};

use super::{Names, when};
use crate::cli::output::{Table, or_dash, short};

/// Hexadecimal digits of a certificate's serial number.
const SERIAL_DIGITS: usize = 32;

/// A line for each, no wider than `width`. Without a width, for a file or another program, lines end with the request's id.
pub fn events(events: &[EventView], names: &Names, width: Option<usize>) -> String {
    if events.is_empty() { "no events".to_owned() } else { event_lines(events, names, width) }
}

pub fn event_lines(events: &[EventView], names: &Names, width: Option<usize>) -> String {
    let mut table = Table::bare();
    for event in events {
        let change = match (&event.before, &event.after) {
            (None, None) => String::new(),
            (before, after) => format!("{} -> {}", or_dash(before.as_ref()), or_dash(after.as_ref())),
        };
        let by = match &event.by.id {
            Some(id) => format!("{} {}", event.by.kind, readable(id, names)),
            None if event.by.kind == PrincipalKind::Cluster => "the cluster".to_owned(),
            None => event.by.kind.to_string(),
        };
        let request = event.request.as_ref().filter(|_| width.is_none());
        let request = request.map(|id| format!(" request={id}")).unwrap_or_default();
        table.row([
            event.revision.to_string(),
            when(event.at),
            event.kind.to_string(),
            or_dash(event.node.map(|id| readable(id.as_str(), names))),
            readable(&change, names),
            format!("{} (by {by}){request}", reason(event)),
        ]);
    }
    let text = table.render();
    let Some(width) = width else { return text };
    text.lines().map(|line| line.chars().take(width).chain(['\n']).collect::<String>()).collect()
}

/// Members of Raft are recorded as `seat N`, by every build: the word is replaced here only.
fn reason(event: &EventView) -> Cow<'_, str> {
    match event.reason.strip_prefix("seat ") {
        Some(raft_id) if event.kind == EventKind::Membership => format!("Raft member {raft_id}").into(),
        _ => event.reason.as_str().into(),
    }
}

/// The text with nodes' names in place of their ids, and the first digits of serial numbers.
fn readable(text: &str, names: &Names) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric();
    let mut readable = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find(is_part) {
        let (before, from) = rest.split_at(begin);
        let (part, after) = from.split_at(from.find(|c| !is_part(c)).unwrap_or(from.len()));
        readable += before;
        readable += &match part.len() {
            ID_LEN => match part.parse().map(|id| names.get(&id)) {
                Ok(Some(name)) => name.to_string(),
                Ok(None) => short(part),
                Err(_) => part.to_owned(),
            },
            SERIAL_DIGITS if part.bytes().all(|b| b.is_ascii_hexdigit()) => part[..8].to_owned(),
            _ => part.to_owned(),
        };
        rest = after;
    }
    readable + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(document: Value) -> Vec<EventView> {
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn events_name_who_did_what() {
        let items = read(
            json!([{"revision": 7, "at": "2024-01-01T00:00:00Z", "kind": "role", "node": "0123456789abcdefghijklmno",
            "by": {"kind": "admin", "id": "alice-of-the-night-shift"}, "reason": "promote", "before": "worker", "after": "manager"}]),
        );
        assert_eq!(
            event_lines(&items, &Names::new(), None),
            "7  2024-01-01T00:00:00Z  role  01234567  worker -> manager  promote (by admin alice-of-the-night-shift)\n"
        );
        let member = read(json!([{"revision": 8, "at": "2024-01-01T00:00:00Z", "kind": "membership",
            "node": "0123456789abcdefghijklmno", "by": {"kind": "cluster"}, "reason": "seat 4", "before": "none",
            "after": "learner"}]));
        let text = event_lines(&member, &Names::new(), None);
        assert!(text.ends_with("  none -> learner  Raft member 4 (by the cluster)\n"), "{text}");
        let names = [("0123456789abcdefghijklmno".parse().unwrap(), "web-1".parse().unwrap())].into();
        let named = event_lines(&items, &names, None);
        assert!(named.contains("  role  web-1  worker -> manager"), "{named}");
        assert_eq!(event_lines(&items, &names, Some(9)), "7  2024-0\n");

        let mut of_request = items;
        of_request[0].request = Some("01932f1c7c00700080000000000000ff".to_owned());
        let [whole, fitting] = [None, Some(200)].map(|width| event_lines(&of_request, &names, width));
        assert!(
            whole.ends_with("(by admin alice-of-the-night-shift) request=01932f1c7c00700080000000000000ff\n"),
            "{whole}"
        );
        assert!(fitting.ends_with("(by admin alice-of-the-night-shift)\n"), "{fitting}");
    }

    #[test]
    fn ids_and_serials_inside_texts_are_readable() {
        let names = [("0123456789abcdefghijklmno".parse().unwrap(), "web-1".parse().unwrap())].into();
        for (text, expected) in [
            ("", ""),
            ("a/b.0123456789abcdefghijklmno.c held by 0123456789abcdefghijklmno", "a/b.web-1.c held by web-1"),
            ("manager 7f62f74fce41da61fbb49b52f57eceb5", "manager 7f62f74f"),
            ("zzzz456789abcdefghijklmno, gone", "zzzz4567, gone"),
            ("7f62f74fce41da61fbb49b52f57ecez5", "7f62f74fce41da61fbb49b52f57ecez5"),
            ("ü 0123456789abcdefghijklmno0", "ü 0123456789abcdefghijklmno0"),
        ] {
            assert_eq!(readable(text, &names), expected);
        }
    }

    #[test]
    fn own_leases_are_distinguished_from_others() {
        let lease = |kind: &str, before: Option<&str>, after: Option<&str>| {
            let by = json!({"kind": "cluster", "id": null});
            let event = json!({"revision": 7, "at": "2024-01-01T00:00:00Z", "kind": kind, "node": null, "by": by, "reason": "r",
                "before": before, "after": after});
            serde_json::from_value::<EventView>(event).unwrap().is_of_own_lease()
        };
        assert!(lease("lease", None, Some("muster-members/a held by b, token 1")));
        assert!(lease("lease", Some("muster-reconcilers/a held by b, token 1"), None));
        assert!(!lease("lease", None, Some("default/muster-members held by b, token 1")));
        assert!(!lease("gate", None, Some("muster-members/a")));
        assert!(!lease("lease", None, None));
    }
}
