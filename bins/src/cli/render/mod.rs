//! Renders JSON documents as tables. Fields that a newer daemon adds are ignored, missing ones are shown as `-`.

mod actors;
mod autolock;
mod autopilot;
mod events;
mod live;
mod nodes;
mod reconcilers;
mod roots;
mod runs;
mod workloads;

pub use self::actors::{Trees, actor, actor_paths, actors};
pub use self::autolock::{autolock, locked, unlock_key};
pub use self::autopilot::{
    autopilot, autopilot_brief_of, autopilot_changed, autopilot_explained, autopilot_explained_of, autopilot_preview,
    autopilot_warning, drained,
};
pub use self::events::{event_lines, events};
pub use self::live::{Baseline, live};
pub use self::nodes::{may_stop, node, nodes, nodes_at_a_glance, status};
pub use self::reconcilers::*;
pub use self::roots::*;
pub use self::runs::{run_on_record, runs};
pub use self::workloads::{workload, workload_explained, workloads};

use std::collections::BTreeMap;

use muster_messages::{
    BlockedListView, BlockedView, GuardView, LeaseView, ListView, Name, NodeCertificateView, NodeId, RaftStatusView,
    TokenTextView, TokenView, UserView, WallTime, word,
};

use super::output::{Table, or_dash, without_fraction, yes_or_no};

/// A time, to the second; `-` if there is none.
pub fn when(at: impl Into<Option<WallTime>>) -> String {
    or_dash(at.into().map(|at| without_fraction(&at.to_string())))
}

/// A table of items, one column per heading.
fn list<T>(items: &[T], headings: &[&str], columns: &[fn(&T) -> String], empty: &str) -> String {
    if items.is_empty() {
        return empty.to_owned();
    }
    let mut table = Table::new(headings);
    for item in items {
        table.row(columns.iter().map(|column| column(item)));
    }
    table.render()
}

/// The notice above a stale table.
fn stale_notice(stale: bool, as_of: Option<WallTime>) -> String {
    match stale {
        true => format!("no quorum: showing the local replica as of {}\n", when(as_of)),
        false => String::new(),
    }
}

fn never(at: Option<WallTime>) -> String {
    at.map_or_else(|| "never".to_owned(), when)
}

fn uses(left: Option<u32>) -> String {
    left.map_or_else(|| "unlimited".to_owned(), |left| left.to_string())
}

pub fn tokens(tokens: &ListView<TokenView>) -> String {
    let mut text = list(
        &tokens.items,
        &["ID", "ROLE", "EXPIRES", "USES LEFT", "DEFAULT"],
        &[
            |t| t.id.clone(),
            |t| t.role.to_string(),
            |t| never(t.expires_at),
            |t| uses(t.uses_left),
            |t| yes_or_no(t.default),
        ],
        "no tokens",
    );
    if tokens.items.iter().any(|token| token.default && token.expires_at.is_none()) {
        text += "default tokens never expire; `muster token rotate ROLE` replaces one\n";
    }
    text
}

pub fn token(token: &TokenTextView) -> String {
    let mut table = Table::bare();
    table.row(["token".to_owned(), token.token.clone()]);
    table.row(["id".to_owned(), token.id.clone()]);
    table.row(["role".to_owned(), token.role.to_string()]);
    table.row(["expires".to_owned(), never(token.expires_at)]);
    table.row(["uses left".to_owned(), uses(token.uses_left)]);
    table.render()
}

pub fn certs(certificates: &ListView<NodeCertificateView>) -> String {
    list(
        &certificates.items,
        &["NODE", "ROLE", "STATE", "NOT AFTER", "GRANTED", "SERIAL", "ROOT"],
        &[
            |c| c.name.as_ref().map_or_else(|| c.node.to_string(), Name::to_string),
            |c| or_dash(c.role),
            |c| word(c.state),
            |c| when(c.not_after),
            |c| or_dash(c.granted),
            |c| or_dash(c.serial.as_ref()),
            |c| or_dash(c.issuer),
        ],
        "no certificates",
    )
}

pub fn users(users: &ListView<UserView>) -> String {
    list(
        &users.items,
        &["NAME", "RIGHTS", "NAMESPACES", "NOT AFTER", "ROOT"],
        &[
            |u| u.name.to_string(),
            |u| rights(u).to_owned(),
            |u| if u.namespaces.is_empty() { "-".to_owned() } else { u.namespaces.join(",") },
            |u| when(u.not_after),
            |u| or_dash(u.issuer) + if u.outdated { " (outdated)" } else { "" },
        ],
        "no users",
    )
}

fn rights(user: &UserView) -> &'static str {
    match (user.admin, user.read_only) {
        (true, _) => "operator",
        (false, true) => "read-only",
        (false, false) => "user",
    }
}

pub fn leases(leases: &ListView<LeaseView>) -> String {
    list(
        &leases.items,
        &["NAMESPACE", "NAME", "HOLDER", "STATE", "EXPIRES IN", "TOKEN"],
        &[
            |l| l.namespace.clone(),
            |l| l.name.clone(),
            |l| or_dash(l.holder.as_ref()),
            |l| lease_state(l).to_owned(),
            |l| seconds(l.expires_in_ms),
            |l| l.fencing_token.to_string(),
        ],
        "no leases",
    )
}

pub fn lease(lease: &LeaseView) -> String {
    let mut table = Table::bare();
    let rows = [
        ("lease", format!("{}/{}", lease.namespace, lease.name)),
        ("holder", or_dash(lease.holder.as_ref())),
        ("state", lease_state(lease).to_owned()),
        ("expires in", seconds(lease.expires_in_ms)),
        ("duration", seconds(lease.lease_duration_ms)),
        ("fencing token", lease.fencing_token.to_string()),
        ("transitions", lease.transitions.to_string()),
        ("acquired", when(lease.acquired_at)),
        ("renewed", when(lease.renewed_at)),
        ("strategy", or_dash(lease.strategy.as_ref())),
        ("preferred holder", or_dash(lease.preferred_holder.as_ref())),
        ("revision", lease.revision.to_string()),
    ];
    for (key, value) in rows {
        table.row([key.to_owned(), value]);
    }
    table.render().trim_end().to_owned()
}

fn lease_state(lease: &LeaseView) -> &'static str {
    match (&lease.holder, lease.expired) {
        (None, _) => "free",
        (Some(_), true) => "expired",
        (Some(_), false) => "held",
    }
}

fn seconds(ms: Option<u64>) -> String {
    or_dash(ms.map(|ms| format!("{}.{} s", ms / 1000, ms % 1000 / 100)))
}

pub fn guards(guards: &ListView<GuardView>) -> String {
    list(
        &guards.items,
        &["NAMESPACE", "LEASE", "MODE"],
        &[|g| g.namespace.clone(), |g| g.lease.clone().unwrap_or_else(|| "(all)".to_owned()), |g| word(g.mode)],
        "no guards set: `blind` everywhere",
    )
}

pub fn blocklist(blocked: &BlockedListView) -> String {
    let (headings, empty) = (["NODE", "BLOCKED", "UNTIL"], "no blocked nodes");
    let columns: &[fn(&BlockedView) -> String] =
        &[|b| b.node_id.to_string(), |b| when(b.blocked_at), |b| when(b.expires_at)];
    let notice = if blocked.items.is_empty() { String::new() } else { stale_notice(blocked.stale, blocked.as_of) };
    notice + &list(&blocked.items, &headings, columns, empty)
}

/// Node names, by id.
pub type Names = BTreeMap<NodeId, Name>;

/// A node's name; its id if the name is unknown.
pub fn node_name(id: NodeId, names: &Names) -> String {
    names.get(&id).map_or_else(|| id.to_string(), Name::to_string)
}

pub fn raft(status: &RaftStatusView, names: &Names) -> String {
    let mut out = stale_notice(status.stale, status.as_of);
    out += &format!("term {}, commit {}, applied {}\n", status.term, status.commit, status.applied);
    let mut table = Table::new(&["RAFT ID", "NODE", "ADDRESS", "ROLE", "MATCH", "REACHABLE"]);
    for member in &status.members {
        let leads = if status.leader == Some(member.node) { ", leader" } else { "" };
        table.row([
            member.raft_id.to_string(),
            node_name(member.node, names),
            member.addr.clone(),
            word(member.role) + leads,
            // Only a leader knows it of others.
            or_dash(Some(member.matched).filter(|index| *index > 0)),
            yes_or_no(member.reachable),
        ]);
    }
    out + &table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn read<T: DeserializeOwned>(document: Value) -> T {
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn lists_are_tables_and_empty_lists_are_sentences() {
        let tokens_seen =
            json!({"items": [{"id": "a1", "role": "worker", "expires_at": null, "uses_left": 3, "default": true}]});
        assert_eq!(
            tokens(&read(tokens_seen)),
            "ID  ROLE    EXPIRES  USES LEFT  DEFAULT\na1  worker  never    3          yes\n\
             default tokens never expire; `muster token rotate ROLE` replaces one\n"
        );
        assert_eq!(blocklist(&read(json!({"stale": false, "as_of": null, "items": []}))), "no blocked nodes");
        let user = |name: &str, admin: bool, read_only: bool, namespaces: &[&str]| {
            json!({"name": name, "admin": admin, "read_only": read_only, "namespaces": namespaces, "serial": "a1",
                "not_after": "2024-01-01T00:00:00Z"})
        };
        let users_seen = json!({"items": [user("ann", true, false, &[]), user("eye", false, true, &[]),
            user("job", false, false, &["shop"])]});
        let rights = users(&read(users_seen));
        for (line, kind) in rights.lines().zip(["RIGHTS", "operator", "read-only", "user"]) {
            assert!(line.contains(kind), "{rights}");
        }
    }

    #[test]
    fn stale_table_starts_with_a_notice() {
        let member = |id: u32, index: u32| {
            json!({"node": format!("{id:025}"), "raft_id": id, "addr": "h:1", "role": "voter", "match": index,
            "reachable": index > 0})
        };
        let document = json!({"stale": true, "as_of": "2024-01-01T00:00:00.5Z", "term": 4, "leader": null, "commit": 9,
            "applied": 9, "members": [member(1, 9), member(2, 0)], "removed_raft_ids": []});
        let text = raft(&read(document), &Names::new());
        assert!(text.starts_with("no quorum: showing the local replica as of 2024-01-01T00:00:00Z\nterm 4"), "{text}");
        let cells = |line: &str| line.split_whitespace().rev().take(2).map(str::to_owned).collect::<Vec<_>>();
        let last: Vec<_> = text.lines().skip(3).map(cells).collect();
        assert_eq!(last, [["yes", "9"], ["no", "-"]], "what is not known is not shown as nothing: {text}");
    }
}
