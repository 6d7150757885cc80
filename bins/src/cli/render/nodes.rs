//! Nodes, and the overview of the cluster.

use std::collections::BTreeMap;

use muster_messages::{
    AuthorityOrigin, CertificateState, Condition, ConditionKind, Liveness, Membership, Name, NodeId, NodeListView,
    NodeMayStopView, NodeView, Role, StatusView, WaitReason, counted, word,
};

use super::{stale_notice, when};
use crate::cli::output::{Table, or_dash, printable, short, without_fraction};

pub fn nodes(nodes: &NodeListView) -> String {
    let mut table =
        Table::new(&["ID", "NAME", "ROLE", "STATE", "RAFT", "CERTIFICATE", "ADDRESS", "RELEASE", "PENDING"]);
    for node in &nodes.items {
        table.row([
            node.id.to_string(),
            node.name.to_string(),
            role(node),
            state(node),
            membership(node),
            certificate(node),
            node.addr.clone(),
            node.release.clone(),
            pending(node),
        ]);
    }
    stale_notice(nodes.stale, nodes.as_of) + &table.render()
}

/// For a screen: the most important columns. Managers and nodes in trouble come first.
pub fn nodes_at_a_glance(nodes: &NodeListView) -> String {
    let mut items: Vec<&NodeView> = nodes.items.iter().collect();
    let is_calm = |node: &NodeView| node.state == Liveness::Ready && node.conditions.is_empty();
    items.sort_by_key(|node| (node.manager.is_none(), is_calm(node)));
    let mut table = Table::new(&["NAME", "ROLE", "STATE", "RAFT", "PENDING", "RELEASE", "ID"]);
    for node in items {
        table.row([
            node.name.to_string(),
            role(node),
            state(node),
            membership(node),
            pending(node),
            node.release.clone(),
            short(node.id.as_str()),
        ]);
    }
    stale_notice(nodes.stale, nodes.as_of) + &table.render()
}

/// `worker`, or `worker -> manager` until the desired role is granted.
fn role(node: &NodeView) -> String {
    let (granted, desired) = (node.role, node.desired_role);
    if granted == desired { granted.to_string() } else { format!("{granted} -> {desired}") }
}

fn is_contact_lost(condition: &Condition) -> bool {
    condition.reason == WaitReason::NoContact
}

fn state(node: &NodeView) -> String {
    let qualifier = if node.conditions.iter().any(is_contact_lost) {
        " (no contact)"
    } else if node.stale {
        " (stale)"
    } else if node.conditions.iter().any(|condition| condition.reason == WaitReason::Drained) {
        " (drained)"
    } else {
        ""
    };
    word(node.state) + qualifier
}

fn membership(node: &NodeView) -> String {
    match (node.membership, &node.manager) {
        (Membership::None, _) => "-".to_owned(),
        (_, Some(manager)) if manager.leader => "leader".to_owned(),
        (kind, Some(manager)) if !manager.reachable => format!("{}, unreachable", word(kind)),
        (kind, _) => word(kind),
    }
}

fn certificate(node: &NodeView) -> String {
    let role = or_dash(node.certificate.role);
    match node.certificate.state {
        CertificateState::Issued => role,
        other => format!("{role} ({})", word(other)),
    }
}

fn pending(node: &NodeView) -> String {
    let pending = node.conditions.iter().filter(|condition| !is_contact_lost(condition));
    pending.map(|condition| word(condition.reason)).collect::<Vec<_>>().join(",")
}

pub fn node(node: &NodeView) -> String {
    let mut table = Table::bare();
    let mut row = |key: &str, value: String| table.row([key.to_owned(), value]);
    row("id", node.id.to_string());
    row("name", node.name.to_string());
    row("address", node.addr.clone());
    row("release", node.release.clone());
    row("role", role(node));
    row("state", format!("{} since {}", state(node), when(node.state_since)));
    row(
        "raft",
        match &node.manager {
            Some(manager) => format!("{}, raft id {}", membership(node), manager.raft_id),
            None => membership(node),
        },
    );
    row("certificate", format!("{}, until {}", certificate(node), when(node.certificate.not_after)));
    row("serial", or_dash(node.certificate.serial.as_ref()));
    row("labels", node.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" "));
    if node.labels_left_out > 0 {
        row("more labels", node.labels_left_out.to_string());
    }
    row("generation", node.generation.to_string());
    row("revision", node.revision.to_string());
    for condition in &node.conditions {
        let retry = condition.retry_at.map_or_else(String::new, |at| format!(", next try {}", when(at)));
        let kind = match condition.kind.known() {
            Some(ConditionKind::DuplicateIdentity) => "duplicate",
            Some(ConditionKind::Contact) => "contact",
            Some(ConditionKind::Name) => "name",
            _ => "pending",
        };
        let (reason, since) = (word(condition.reason), when(condition.since));
        row(kind, format!("{reason}: {} (since {since}{retry})", condition.message));
    }
    table.render()
}

pub fn may_stop(view: &NodeMayStopView) -> String {
    let NodeMayStopView { name, role, leader, answering, needed, .. } = view;
    match (role, leader) {
        (Role::Worker, _) => format!("{name} may be stopped: it is a worker"),
        (Role::Manager, true) => format!(
            "{name} may be stopped: leadership is handed over, and {answering} other managers answer, {needed} needed"
        ),
        (Role::Manager, false) => {
            format!("{name} may be stopped: {answering} other managers answer, {needed} needed")
        }
    }
}

/// `3 of 3, may lose 1`: how many voters are reachable, and how many of them the quorum does not need.
fn margin(reachable: usize, voters: usize, needed: usize) -> String {
    match reachable.checked_sub(needed) {
        None => format!("LOST: {reachable} of {voters}, {needed} needed"),
        Some(0) => format!("held: {reachable} of {voters}, may lose none"),
        Some(spare) => format!("held: {reachable} of {voters}, may lose {spare}"),
    }
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
    let sorted = |ids: &[NodeId]| {
        let mut names: Vec<String> = ids.iter().map(name).collect();
        names.sort();
        names.join(", ")
    };
    row("voters", sorted(&raft.voters));
    if !raft.learners.is_empty() {
        row("learners", sorted(&raft.learners));
    }
    let quorum = &status.quorum;
    let missing = match quorum.missing.as_slice() {
        [] => String::new(),
        names => format!("; missing: {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    };
    row("quorum", margin(quorum.reachable, raft.voters.len(), quorum.needed) + &missing);
    if raft.voters.len() == 2 {
        row("note", "two voters tolerate no failure: run one manager, or three".to_owned());
    }
    let n = &status.nodes;
    let of_then = if status.stale { ", when last known" } else { "" };
    let roles = format!("{}: {}, {}", n.total, counted(n.managers, "manager"), counted(n.workers, "worker"));
    row("nodes", format!("{roles}; {} ready, {} down{of_then}", n.ready, n.down));
    if let Some(declared) = &status.declared {
        let paused = declared.paused.as_ref().map_or_else(String::new, |pause| {
            format!("; paused since {}: {}; `muster autopilot resume`", when(pause.at), printable(&pause.why))
        });
        row("declared", counted(usize::from(declared.managers), "manager") + &paused);
    }
    for p in &status.pending {
        let (wants, reason, since) = (word(p.wants), word(p.reason), when(p.since));
        row("pending", format!("{} wants {wants}: {reason}: {} (since {since})", p.name, p.message));
    }
    for d in &status.duplicates {
        let processes = d.processes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        row("duplicate", format!("{} runs twice: {processes} (since {})", d.name, when(d.since)));
    }
    if let Some(expiring) = &status.root_expires {
        let next = match expiring.origin {
            AuthorityOrigin::Upstream => "`muster ca rotate --csr` requests another one from the authority above",
            _ => "`muster ca rotate` makes another one",
        };
        row("root", format!("{} expires {}: {next}", expiring.root, when(expiring.not_after)));
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
    use serde_json::{Value, json};

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
        assert!(text.contains("LOST: 1 of 2, 2 needed; missing: n2"), "{text}");
        assert_eq!([margin(3, 3, 2), margin(2, 3, 2)], ["held: 3 of 3, may lose 1", "held: 2 of 3, may lose none"]);
        assert!(text.contains("two voters tolerate no failure"), "{text}");
        assert!(text.contains("n2 wants manager: waiting_for_node: not heard of"), "{text}");
        assert!(!text.contains("expires") && text.contains("1 ready, 1 down\n"), "{text}");
        let text = status(&StatusView { stale: true, ..view.clone() }, &BTreeMap::new());
        assert!(text.contains("1 ready, 1 down, when last known\n"), "{text}");
        for (origin, next) in [("upstream", "`muster ca rotate --csr` requests"), ("made", "`muster ca rotate` makes")]
        {
            let expiry = json!({"root": "4be3c1d20f6a9587", "origin": origin, "not_after": "2024-02-01T00:00:00Z"});
            let view = StatusView { root_expires: serde_json::from_value(expiry).unwrap(), ..view.clone() };
            let text = status(&view, &BTreeMap::new());
            assert!(text.contains("4be3c1d20f6a9587 expires 2024-02-01T00:00:00Z: "), "{text}");
            assert!(text.contains(next), "{text}");
        }
    }

    fn listed(fields: Value) -> NodeListView {
        let mut node = json!({"id": "0000000000000000000000004", "name": "n4", "role": "worker", "desired_role": "worker",
            "state": "ready", "state_since": "2024-01-01T00:00:00Z", "stale": false, "membership": "none", "manager": null,
            "certificate": {"role": "worker", "state": "issued", "serial": "a1", "not_after": "2024-02-01T00:00:00Z"},
            "addr": "h:1", "release": "0.1.0", "labels": {}, "generation": 1, "revision": 9});
        node.as_object_mut().unwrap().append(&mut fields.as_object().unwrap().clone());
        serde_json::from_value(json!({"revision": 9, "stale": false, "items": [node]})).unwrap()
    }

    #[test]
    fn node_without_contact_is_marked_before_it_is_down() {
        let condition = json!({"type": "contact", "reason": "no_contact", "message": "its connection is lost",
            "since": "2024-01-01T00:00:00Z", "retry_at": null});
        let text = nodes(&listed(json!({"conditions": [condition]})));
        assert!(text.contains("ready (no contact)") && !text.contains("no_contact"), "{text}");
    }

    #[test]
    fn pending_role_change_shows_both_roles() {
        let condition = json!({"type": "role_change", "reason": "waiting_for_certificate", "message": "it is signed",
            "since": "2024-01-01T00:00:00Z", "retry_at": null});
        let certificate = json!({"role": "worker", "state": "pending", "serial": null, "not_after": null});
        let fields = json!({"desired_role": "manager", "certificate": certificate, "conditions": [condition]});
        let text = nodes(&listed(fields));
        assert!(text.contains("worker -> manager") && text.contains("waiting_for_certificate"), "{text}");
    }

    #[test]
    fn reason_of_a_newer_release_does_not_hide_the_list() {
        let condition = json!({"type": "role_change", "reason": "not_invented_yet", "message": "later",
            "since": "2024-01-01T00:00:00Z", "retry_at": null});
        let text = nodes(&listed(json!({"conditions": [condition]})));
        assert!(text.contains(" n4 ") && text.contains(" other"), "{text}");
    }
}
