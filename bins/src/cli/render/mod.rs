//! Renders JSON documents as tables. Fields that a newer daemon adds are ignored, missing ones are shown as `-`.

mod actors;
mod live;
mod nodes;
mod reconcilers;

pub use self::actors::{actor, actor_paths, actors, name_nodes};
pub use self::live::{Baseline, live};
pub use self::nodes::{node, nodes, status};
pub use self::reconcilers::*;

use serde_json::Value;

use super::output::{Table, cell, printable, printable_lines, short, without_fraction};

/// A time, to the second.
pub fn when(value: &Value) -> String {
    value.as_str().map_or_else(|| cell(value), |time| printable(&without_fraction(time)))
}

fn items(document: &Value) -> &[Value] {
    document["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A table of `items`, one column per heading.
fn list(document: &Value, headings: &[&str], columns: &[fn(&Value) -> String], empty: &str) -> String {
    if items(document).is_empty() {
        return empty.to_owned();
    }
    let mut table = Table::new(headings);
    for item in items(document) {
        table.row(columns.iter().map(|column| column(item)));
    }
    stale_notice(document) + &table.render()
}

/// The notice above a stale table.
fn stale_notice(document: &Value) -> String {
    match document["stale"].as_bool() {
        Some(true) => format!("no quorum: showing the local replica as of {}\n", when(&document["as_of"])),
        _ => String::new(),
    }
}

fn never(value: &Value, word: &str) -> String {
    if value.is_null() { word.to_owned() } else { when(value) }
}

pub fn tokens(document: &Value) -> String {
    let mut text = list(
        document,
        &["ID", "ROLE", "EXPIRES", "USES LEFT", "DEFAULT"],
        &[
            |t| cell(&t["id"]),
            |t| cell(&t["role"]),
            |t| never(&t["expires_at"], "never"),
            |t| never(&t["uses_left"], "unlimited"),
            |t| cell(&t["default"]),
        ],
        "no tokens",
    );
    let endless = |t: &Value| t["default"] == true && t["expires_at"].is_null();
    if document["items"].as_array().is_some_and(|items| items.iter().any(endless)) {
        text += "default tokens never expire; `muster token rotate ROLE` replaces one\n";
    }
    text
}

pub fn token(document: &Value) -> String {
    let mut table = Table::bare();
    table.row(["token".to_owned(), cell(&document["token"])]);
    table.row(["id".to_owned(), cell(&document["id"])]);
    table.row(["role".to_owned(), cell(&document["role"])]);
    table.row(["expires".to_owned(), never(&document["expires_at"], "never")]);
    table.row(["uses left".to_owned(), never(&document["uses_left"], "unlimited")]);
    table.render()
}

pub fn certs(document: &Value) -> String {
    list(
        document,
        &["NODE", "ROLE", "STATE", "NOT AFTER", "GRANTED", "SERIAL"],
        &[
            |c| if c["name"].is_string() { cell(&c["name"]) } else { cell(&c["node"]) },
            |c| cell(&c["role"]),
            |c| cell(&c["state"]),
            |c| when(&c["not_after"]),
            |c| cell(&c["granted"]),
            |c| cell(&c["serial"]),
        ],
        "no certificates",
    )
}

pub fn ca(document: &Value) -> String {
    let mut table = Table::bare();
    table.row(["digest".to_owned(), cell(&document["digest"])]);
    table.row(["not after".to_owned(), when(&document["not_after"])]);
    table.render() + &printable_lines(document["pem"].as_str().unwrap_or_default())
}

pub fn users(document: &Value) -> String {
    list(
        document,
        &["NAME", "RIGHTS", "NAMESPACES", "NOT AFTER"],
        &[|u| cell(&u["name"]), |u| rights(u).to_owned(), |u| cell(&u["namespaces"]), |u| when(&u["not_after"])],
        "no users",
    )
}

fn rights(user: &Value) -> &'static str {
    match (user["admin"].as_bool(), user["read_only"].as_bool()) {
        (Some(true), _) => "operator",
        (_, Some(true)) => "read-only",
        _ => "user",
    }
}

pub fn leases(document: &Value) -> String {
    list(
        document,
        &["NAMESPACE", "NAME", "HOLDER", "STATE", "EXPIRES IN", "TOKEN"],
        &[
            |l| cell(&l["namespace"]),
            |l| cell(&l["name"]),
            |l| cell(&l["holder"]),
            |l| lease_state(l).to_owned(),
            |l| expires_in(l),
            |l| cell(&l["fencing_token"]),
        ],
        "no leases",
    )
}

pub fn lease(lease: &Value) -> String {
    let mut table = Table::bare();
    let rows = [
        ("lease", format!("{}/{}", cell(&lease["namespace"]), cell(&lease["name"]))),
        ("holder", cell(&lease["holder"])),
        ("state", lease_state(lease).to_owned()),
        ("expires in", expires_in(lease)),
        ("duration", lease["lease_duration_ms"].as_u64().map_or_else(|| "-".to_owned(), seconds)),
        ("fencing token", cell(&lease["fencing_token"])),
        ("transitions", cell(&lease["transitions"])),
        ("acquired", when(&lease["acquired_at"])),
        ("renewed", when(&lease["renewed_at"])),
        ("strategy", cell(&lease["strategy"])),
        ("preferred holder", cell(&lease["preferred_holder"])),
        ("revision", cell(&lease["revision"])),
    ];
    for (key, value) in rows {
        table.row([key.to_owned(), value]);
    }
    table.render().trim_end().to_owned()
}

fn lease_state(lease: &Value) -> &'static str {
    match (lease["holder"].is_string(), lease["expired"].as_bool()) {
        (false, _) => "free",
        (true, Some(true)) => "expired",
        _ => "held",
    }
}

fn expires_in(lease: &Value) -> String {
    lease["expires_in_ms"].as_u64().map_or_else(|| "-".to_owned(), seconds)
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

pub fn guards(document: &Value) -> String {
    list(
        document,
        &["NAMESPACE", "LEASE", "MODE"],
        &[
            |g| cell(&g["namespace"]),
            |g| if g["lease"].is_null() { "(all)".to_owned() } else { cell(&g["lease"]) },
            |g| cell(&g["mode"]),
        ],
        "no guards set: `blind` everywhere",
    )
}

pub fn blocklist(document: &Value) -> String {
    list(
        document,
        &["NODE", "BLOCKED", "UNTIL"],
        &[|b| cell(&b["node_id"]), |b| when(&b["blocked_at"]), |b| when(&b["expires_at"])],
        "no blocked nodes",
    )
}

/// Node names, by id.
pub type Names = std::collections::BTreeMap<String, String>;

/// Replaces node ids by names, in a document for tables.
pub fn with_names(document: &mut Value, names: &Names) {
    match document {
        Value::Array(items) => items.iter_mut().for_each(|item| with_names(item, names)),
        Value::Object(fields) => fields.iter_mut().for_each(|(key, value)| match value {
            Value::String(id) if matches!(key.as_str(), "node" | "leader" | "id") => {
                if let Some(name) = names.get(id) {
                    name.clone_into(id);
                }
            }
            value => with_names(value, names),
        }),
        _ => {}
    }
}

pub fn raft(document: &Value) -> String {
    let leader = document["leader"].as_str().unwrap_or("");
    let mut out = stale_notice(document);
    out += &format!(
        "term {}, commit {}, applied {}\n",
        cell(&document["term"]),
        cell(&document["commit"]),
        cell(&document["applied"])
    );
    let mut table = Table::new(&["RAFT ID", "NODE", "ADDRESS", "ROLE", "MATCH", "REACHABLE"]);
    for member in document["members"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let leads = !leader.is_empty() && member["node"] == leader;
        let role = cell(&member["role"]) + if leads { ", leader" } else { "" };
        let columns = ["raft_id", "node", "addr"].map(|key| cell(&member[key]));
        table.row(columns.into_iter().chain([role, cell(&member["match"]), cell(&member["reachable"])]));
    }
    out + &table.render()
}

pub fn events(items: &Value) -> String {
    match items.as_array() {
        Some(events) if !events.is_empty() => event_lines(items),
        _ => "no events".to_owned(),
    }
}

pub fn event_lines(items: &Value) -> String {
    let mut table = Table::bare();
    for event in items.as_array().map(Vec::as_slice).unwrap_or_default() {
        let change = match (&event["before"], &event["after"]) {
            (Value::Null, Value::Null) => String::new(),
            (before, after) => format!("{} -> {}", cell(before), cell(after)),
        };
        let node = event["node"].as_str().map_or_else(|| "-".to_owned(), short);
        let by = match event["by"]["id"].as_str() {
            Some(id) => format!("{} {}", cell(&event["by"]["kind"]), short(id)),
            None => cell(&event["by"]["kind"]),
        };
        table.row([
            cell(&event["revision"]),
            when(&event["at"]),
            cell(&event["kind"]),
            node,
            change,
            format!("{} (by {by})", cell(&event["reason"])),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_are_tables_and_empty_lists_are_sentences() {
        let tokens_seen =
            json!({"items": [{"id": "a1", "role": "worker", "expires_at": null, "uses_left": 3, "default": true}]});
        assert_eq!(
            tokens(&tokens_seen),
            "ID  ROLE    EXPIRES  USES LEFT  DEFAULT\na1  worker  never    3          yes\n\
             default tokens never expire; `muster token rotate ROLE` replaces one\n"
        );
        assert_eq!(blocklist(&json!({"items": []})), "no blocked nodes");
        let users_seen = json!({"items": [
            {"name": "ann", "admin": true, "read_only": false, "namespaces": [], "not_after": null},
            {"name": "eye", "admin": false, "read_only": true, "namespaces": [], "not_after": null},
            {"name": "job", "admin": false, "read_only": false, "namespaces": ["shop"], "not_after": null}]});
        let rights = users(&users_seen);
        for (line, kind) in rights.lines().zip(["RIGHTS", "operator", "read-only", "user"]) {
            assert!(line.contains(kind), "{rights}");
        }
    }

    #[test]
    fn stale_table_starts_with_a_notice() {
        let document = json!({"stale": true, "as_of": "2024-01-01T00:00:00.5Z", "term": 4, "leader": null, "commit": 9,
            "applied": 9, "members": [{"node": "abc", "raft_id": 1, "addr": "h:1", "role": "voter", "match": 9, "reachable": true}]});
        assert!(raft(&document).starts_with("no quorum: showing the local replica as of 2024-01-01T00:00:00Z\nterm 4"));
    }

    #[test]
    fn events_name_who_did_what() {
        let items = json!([{"revision": 7, "at": "2024-01-01T00:00:00Z", "kind": "role", "node": "0123456789abcdefghijklmno",
            "by": {"kind": "admin", "id": "alice-of-the-night-shift"}, "reason": "promote", "before": "worker", "after": "manager"}]);
        assert_eq!(
            event_lines(&items),
            "7  2024-01-01T00:00:00Z  role  01234567  worker -> manager  promote (by admin alice-of-the-night-shift)\n"
        );
        let mut named = items;
        with_names(&mut named, &[("0123456789abcdefghijklmno".to_owned(), "web-1".to_owned())].into());
        assert!(event_lines(&named).contains("  role  web-1  worker -> manager"), "{}", event_lines(&named));
    }
}
