//! Nodes: four cells that agree, or a reason why not yet.

use maud::{Markup, html};
use muster_messages::{CertificateState, Liveness, Membership, NodeView, Role, WaitReason, word};

use super::{Seen, absent, none_of};
use crate::actions::Action;
use crate::document::{Part, Row, Table};
use crate::feed::{Answer, Topic};
use crate::html::{Grade, action, command, filter, graded, id, link, or_dash, text, time};

/// Rows of one page. The rest is counted, and found with the filter.
const MAX_ROWS: usize = 100;
/// A longer list is asked so seldom that the page says when.
const ASKED_OFTEN: usize = 1_000;

pub fn list(seen: &Seen, wanted: &str) -> Vec<Part> {
    let all: &[NodeView] = seen.nodes().map_or(&[], |nodes| &nodes.items);
    let mut chosen: Vec<&NodeView> = all.iter().filter(|node| matches(node, wanted)).collect();
    chosen.sort_by_cached_key(|node| (std::cmp::Reverse(grade(node)), node.manager.is_none(), node.name.to_string()));
    let left_out = chosen.len().saturating_sub(MAX_ROWS);
    let count = |is: &dyn Fn(&NodeView) -> bool| all.iter().filter(|node| is(node)).count();
    let counts = html! {
        @if seen.nodes().is_some() { p {
            (all.len()) " nodes, " (count(&|node| node.manager.is_some())) " of them managers; "
            (count(&|node| node.state == Liveness::Ready)) " ready, " (count(&|node| node.state == Liveness::Down)) " down, "
            (count(&|node| grade(node) == Grade::Warn)) " not settled"
            @if all.len() > ASKED_OFTEN { ", as of " (time(seen.samples.get(&Topic::Nodes).and_then(|sample| sample.at))) }
        } }
    };
    let rest = html! {
        @if left_out > 0 { p.note { (left_out) " more nodes match; those in trouble come first. The filter finds the others." } }
    };
    let table = Table {
        id: "nodes",
        caption: "Nodes".to_owned(),
        headings: &["Name", "State", "Wanted role", "Role", "Certificate", "Raft", "Release", "Waits for", "Id"],
        rows: chosen.iter().take(MAX_ROWS).map(|node| row(seen, node)).collect(),
        empty: none_of("nodes", seen.nodes().is_some()),
    };
    vec![
        Part::Block("filter", filter("filter", "Name, id, label or release", wanted)),
        Part::Block("counts", counts),
        Part::Table(table),
        Part::Block("rest", rest),
        Part::Block("command", command(&["muster", "node", "ls"])),
    ]
}

fn matches(node: &NodeView, wanted: &str) -> bool {
    let label = || node.labels.iter().any(|(key, value)| format!("{key}={value}").contains(wanted));
    node.name.as_str().contains(wanted)
        || node.id.as_str().starts_with(wanted)
        || node.release.starts_with(wanted)
        || label()
}

/// How much attention it needs.
fn grade(node: &NodeView) -> Grade {
    let failed = node.certificate.state == CertificateState::Failed;
    match node.state {
        Liveness::Down => Grade::Bad,
        _ if failed => Grade::Bad,
        Liveness::Ready if node.conditions.is_empty() && node.role == node.desired_role => Grade::Good,
        _ => Grade::Warn,
    }
}

fn state(seen: &Seen, node: &NodeView) -> Markup {
    let shown = match node.state {
        Liveness::Ready => seen.good(&word(node.state)),
        Liveness::Down => graded(Grade::Bad, &word(node.state)),
        Liveness::Unknown => graded(Grade::Warn, &word(node.state)),
    };
    html! { (shown) " since " (time(node.state_since)) @if node.stale { " (stale)" } }
}

fn raft(node: &NodeView) -> Markup {
    match (node.membership, &node.manager) {
        (Membership::None, _) => html! { "-" },
        (_, Some(manager)) if manager.leader => html! { strong { "leader" } },
        (kind, Some(manager)) if !manager.reachable => graded(Grade::Bad, &format!("{}, unreachable", word(kind))),
        (kind, _) => html! { (word(kind)) },
    }
}

fn certificate(node: &NodeView) -> Markup {
    let role = or_dash(node.certificate.role);
    match node.certificate.state {
        CertificateState::Issued => html! { (role) },
        CertificateState::Failed => graded(Grade::Bad, &format!("{role} (failed)")),
        other => graded(Grade::Warn, &format!("{role} ({})", word(other))),
    }
}

fn row(seen: &Seen, node: &NodeView) -> Row {
    let waits = node.conditions.iter().map(|condition| word(condition.reason)).collect::<Vec<_>>().join(", ");
    let role = word(node.role);
    Row::new(
        node.id.as_str(),
        vec![
            crate::html::node_link(node.name.as_str()),
            state(seen, node),
            html! { (word(node.desired_role)) },
            if node.role == node.desired_role {
                html! { (role) }
            } else {
                graded(Grade::Warn, &role)
            },
            certificate(node),
            raft(node),
            html! { (text(&node.release)) },
            if waits.is_empty() {
                html! { "-" }
            } else {
                graded(Grade::Warn, &waits)
            },
            id(node.id.as_str()),
        ],
    )
}

pub fn one(seen: &Seen, asked: &str) -> Vec<Part> {
    let answer = seen.answer(&Topic::Node(asked.to_owned()));
    let Some(Answer::Node(node)) = answer else {
        return vec![Part::Block("node", absent(seen, &Topic::Node(asked.to_owned()), "this node"))];
    };
    let facts = html! {
        dl.facts {
            dt { "Id" } dd { code { (text(node.id.as_str())) } }
            dt { "Address" } dd { (text(&node.addr)) }
            dt { "Release" } dd { (text(&node.release)) }
            dt { "State" } dd { (state(seen, node)) }
            dt { "Wanted role" } dd { (word(node.desired_role)) }
            dt { "Role" } dd { (word(node.role)) }
            dt { "Raft" } dd { (raft(node)) @if let Some(manager) = &node.manager { ", Raft id " (manager.raft_id.0) } }
            dt { "Certificate" } dd {
                (certificate(node)) ", until " (time(node.certificate.not_after)) ", serial "
                code { (or_dash(node.certificate.serial.as_ref())) }
            }
            dt { "Labels" } dd {
                @for (key, value) in &node.labels { code { (text(key)) "=" (text(value)) } " " }
                @if node.labels_left_out > 0 { (node.labels_left_out) " more" }
                @if node.labels.is_empty() && node.labels_left_out == 0 { "-" }
            }
            dt { "Generation" } dd { (node.generation.0) ", revision " (node.revision.0) }
        }
        p {
            (link("/actors", &[("node", node.name.as_str())], "its actors")) " · "
            (link("/events", &[("node", node.name.as_str())], "its events"))
        }
    };
    let condition = |condition: &muster_messages::Condition| {
        let reason = word(condition.reason);
        let grade = if condition.reason == WaitReason::NoContact { Grade::Plain } else { Grade::Warn };
        Row::new(
            format!("{}/{reason}", condition.kind),
            vec![
                graded(grade, &reason),
                html! { (text(&condition.message)) },
                time(condition.since),
                time(condition.retry_at),
            ],
        )
    };
    let conditions = Table {
        id: "conditions",
        caption: "Conditions".to_owned(),
        headings: &["Reason", "Message", "Since", "Next try"],
        rows: node.conditions.iter().map(condition).collect(),
        empty: "none: what is wanted is so".to_owned(),
    };
    let is_its = |event: &muster_messages::EventView| event.node == Some(node.id);
    vec![
        Part::Block("node", facts),
        Part::Block("actions", actions(seen, node)),
        Part::Table(conditions),
        Part::Table(super::events::table(seen, "Its last events", 20, &is_its)),
        Part::Block("command", command(&["muster", "node", "inspect", node.name.as_str()])),
    ]
}

/// What can be done to a node, explained by what is on the screen.
fn actions(seen: &Seen, node: &NodeView) -> Markup {
    let Some(status) = seen.status().filter(|_| seen.actions && seen.is_current()) else { return html! {} };
    let (name, voters) = (node.name.to_string(), status.raft.voters.len());
    let of = || name.clone();
    let quorum = |voters: usize| format!("{voters} voters, of which {} are needed", voters / 2 + 1);
    let promote = format!("{name} becomes a manager. There are {}; then {}.", quorum(voters), quorum(voters + 1));
    let leads = node.manager.as_ref().is_some_and(|manager| manager.leader);
    let leads = if leads { " It leads: leadership is handed over first." } else { "" };
    let demote = format!(
        "{name} becomes a worker. There are {}; then {}.{leads}",
        quorum(voters),
        quorum(voters.saturating_sub(1))
    );
    let remove = format!(
        "{name} leaves the cluster for good: its identity is blocked, and it joins again only as another node."
    );
    let force = format!("{remove} By force: also while it is up, or a manager that is down.");
    html! {
        h2 { "Actions" }
        p {
            @if node.desired_role == Role::Worker {
                (action(&Action::Promote { node: of() }, "promote", &promote, None))
            } @else {
                (action(&Action::Demote { node: of() }, "demote", &demote, (!leads.is_empty()).then_some(&name)))
            }
            (action(&Action::RotateCertificate { node: of() }, "rotate its certificate", &format!("{name} is asked to renew its certificate now."), None))
            (action(&Action::Remove { node: of(), force: false }, "remove", &remove, Some(&name)))
            (action(&Action::Remove { node: of(), force: true }, "remove by force", &force, Some(&name)))
        }
    }
}
