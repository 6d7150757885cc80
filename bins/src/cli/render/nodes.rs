//! Nodes, and the overview of the cluster.

use std::collections::BTreeMap;

use muster_messages::{Name, NodeId, StatusView};
use serde_json::Value;

use super::{items, stale_notice, when};
use crate::cli::output::{Table, cell, short, without_fraction};

pub fn nodes(document: &Value) -> String {
    let mut table =
        Table::new(&["ID", "NAME", "ROLE", "STATE", "RAFT", "CERTIFICATE", "ADDRESS", "RELEASE", "PENDING"]);
    for node in items(document) {
        table.row([
            cell(&node["id"]),
            cell(&node["name"]),
            role(node),
            state(node),
            membership(node),
            certificate(node),
            cell(&node["addr"]),
            cell(&node["release"]),
            pending(node),
        ]);
    }
    stale_notice(document) + &table.render()
}

/// `worker`, or `worker -> manager` until the desired role is granted.
fn role(node: &Value) -> String {
    let (granted, desired) = (&node["role"], &node["desired_role"]);
    if granted == desired { cell(granted) } else { format!("{} -> {}", cell(granted), cell(desired)) }
}

fn state(node: &Value) -> String {
    let stale = node["stale"].as_bool() == Some(true);
    let conditions = node["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let qualifier = if conditions.iter().any(|c| c["reason"] == "no_contact") {
        " (no contact)"
    } else if stale {
        " (stale)"
    } else {
        ""
    };
    cell(&node["state"]) + qualifier
}

fn membership(node: &Value) -> String {
    let manager = &node["manager"];
    match (node["membership"].as_str(), manager["leader"].as_bool()) {
        (None | Some("none"), _) => "-".to_owned(),
        (Some(_), Some(true)) => "leader".to_owned(),
        (Some(kind), _) if manager["reachable"].as_bool() == Some(false) => format!("{kind}, unreachable"),
        (Some(kind), _) => kind.to_owned(),
    }
}

fn certificate(node: &Value) -> String {
    let certificate = &node["certificate"];
    match certificate["state"].as_str() {
        Some("issued") => cell(&certificate["role"]),
        Some(other) => format!("{} ({other})", cell(&certificate["role"])),
        None => "-".to_owned(),
    }
}

fn pending(node: &Value) -> String {
    let conditions = node["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let pending = conditions.iter().filter(|c| c["reason"] != "no_contact");
    pending.map(|c| cell(&c["reason"])).collect::<Vec<_>>().join(",")
}

pub fn node(node: &Value) -> String {
    let mut table = Table::bare();
    let mut row = |key: &str, value: String| table.row([key.to_owned(), value]);
    row("id", cell(&node["id"]));
    row("name", cell(&node["name"]));
    row("address", cell(&node["addr"]));
    row("release", cell(&node["release"]));
    row("role", role(node));
    row("state", format!("{} since {}", state(node), when(&node["state_since"])));
    row(
        "raft",
        match node["manager"]["raft_id"].as_u64() {
            Some(id) => format!("{}, raft id {id}", membership(node)),
            None => membership(node),
        },
    );
    row("certificate", format!("{}, until {}", certificate(node), when(&node["certificate"]["not_after"])));
    row("serial", cell(&node["certificate"]["serial"]));
    let labels = node["labels"].as_object().into_iter().flatten();
    row("labels", labels.map(|(k, v)| format!("{k}={}", cell(v))).collect::<Vec<_>>().join(" "));
    if let Some(more) = node["labels_left_out"].as_u64() {
        row("more labels", more.to_string());
    }
    row("generation", cell(&node["generation"]));
    row("revision", cell(&node["revision"]));
    for condition in node["conditions"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let retry = match &condition["retry_at"] {
            Value::Null => String::new(),
            at => format!(", next try {}", when(at)),
        };
        let since = when(&condition["since"]);
        let kind = match condition["type"].as_str() {
            Some("duplicate_identity") => "duplicate",
            Some(kind @ ("contact" | "name")) => kind,
            _ => "pending",
        };
        row(kind, format!("{}: {} (since {since}{retry})", cell(&condition["reason"]), cell(&condition["message"])));
    }
    table.render()
}

pub fn status(status: &StatusView, names: &BTreeMap<NodeId, Name>) -> String {
    let name = |id: &NodeId| names.get(id).map_or_else(|| short(id.as_str()), Name::to_string);
    let mut table = Table::bare();
    let mut row = |key: &str, value: String| table.row([key.to_owned(), value]);
    let cluster = &status.cluster;
    let (id, incarnation, level) = (&cluster.id, cluster.incarnation, cluster.feature_level);
    row("cluster", format!("{} ({id}), incarnation {incarnation}, feature level {level}", cluster.name));
    let trouble = status.this.trouble.as_ref().map(|t| format!(", {t}")).unwrap_or_default();
    row("this node", format!("{} ({}), {}{trouble}", status.this.name, status.this.id, status.this.role));
    let raft = &status.raft;
    let leader = raft.leader.as_ref().map_or_else(|| "none".to_owned(), name);
    row("leader", format!("{leader}, term {}, commit {}, applied {}", raft.term, raft.commit, raft.applied));
    row("voters", raft.voters.iter().map(name).collect::<Vec<_>>().join(", "));
    if !raft.learners.is_empty() {
        row("learners", raft.learners.iter().map(name).collect::<Vec<_>>().join(", "));
    }
    let quorum = &status.quorum;
    let missing = match quorum.missing.as_slice() {
        [] => String::new(),
        names => format!("; missing: {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    };
    let held = if quorum.reachable >= quorum.needed { "held" } else { "LOST" };
    let are = if quorum.reachable == 1 { "voter is" } else { "voters are" };
    row("quorum", format!("{held}: {} {are} reachable, {} needed{missing}", quorum.reachable, quorum.needed));
    if raft.voters.len() == 2 {
        row("note", "two voters tolerate no failure: run one manager, or three".to_owned());
    }
    let n = &status.nodes;
    row(
        "nodes",
        format!("{}: {} managers, {} workers; {} ready, {} down", n.total, n.managers, n.workers, n.ready, n.down),
    );
    for p in &status.pending {
        let text = serde_json::to_value(p).unwrap_or_default();
        let since = without_fraction(&p.since.to_string());
        row(
            "pending",
            format!(
                "{} wants {}: {}: {} (since {since})",
                p.name,
                cell(&text["wants"]),
                cell(&text["reason"]),
                p.message
            ),
        );
    }
    for d in &status.duplicates {
        let processes = d.processes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let since = without_fraction(&d.since.to_string());
        row("duplicate", format!("{} runs twice: {processes} (since {since})", d.name));
    }
    let stale = status.as_of.map(|at| without_fraction(&at.to_string()));
    let note = match (status.stale, stale) {
        (false, _) => String::new(),
        (true, Some(at)) => format!("no quorum: showing the local replica as of {at}\n"),
        (true, None) => "no quorum: showing the local replica\n".to_owned(),
    };
    note + &table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn status_names_the_leader_and_missing_managers() {
        let view: StatusView = serde_json::from_value(json!({
            "cluster": {"id": "c", "name": "default", "incarnation": 1, "feature_level": 1}, "stale": false,
            "self": {"id": "0000000000000000000000001", "name": "n1", "role": "manager"},
            "raft": {"term": 4, "leader": "0000000000000000000000001", "commit": 120, "applied": 120,
                "voters": ["0000000000000000000000001", "0000000000000000000000002"], "learners": []},
            "quorum": {"needed": 2, "reachable": 1, "missing": ["n2"]},
            "nodes": {"total": 2, "managers": 2, "workers": 0, "ready": 1, "down": 1},
            "pending": [{"node": "0000000000000000000000002", "name": "n2", "wants": "manager", "reason": "waiting_for_node",
                "message": "not heard of", "since": "2024-01-01T00:00:00Z", "retry_at": null}]
        }))
        .unwrap();
        let text = status(&view, &BTreeMap::new());
        assert!(text.contains("LOST: 1 voter is reachable, 2 needed; missing: n2"), "{text}");
        assert!(text.contains("two voters tolerate no failure"), "{text}");
        assert!(text.contains("n2 wants manager: waiting_for_node: not heard of"), "{text}");
    }

    #[test]
    fn node_without_contact_is_marked_before_it_is_down() {
        let document = json!({"items": [{"id": "x", "name": "n4", "role": "worker", "desired_role": "worker", "state": "ready",
            "stale": false, "membership": "none", "manager": null, "certificate": {"role": "worker", "state": "issued"},
            "addr": "h:1", "release": "0.1.0", "conditions": [{"type": "contact", "reason": "no_contact"}]}]});
        let text = nodes(&document);
        assert!(text.contains("ready (no contact)") && !text.contains("no_contact"), "{text}");
    }

    #[test]
    fn pending_role_change_shows_both_roles() {
        let document = json!({"items": [{"id": "x", "name": "n4", "role": "worker", "desired_role": "manager", "state": "ready",
            "stale": false, "membership": "none", "manager": null, "certificate": {"role": "worker", "state": "pending"},
            "addr": "h:1", "release": "0.1.0", "conditions": [{"reason": "waiting_for_certificate"}]}]});
        let text = nodes(&document);
        assert!(text.contains("worker -> manager") && text.contains("waiting_for_certificate"), "{text}");
    }
}
