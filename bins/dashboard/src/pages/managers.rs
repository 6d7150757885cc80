//! The declared number of managers: what the autopilot sees, what it does next, and why.

use std::time::Duration;

use maud::{Markup, html};
use muster_messages::{
    AutopilotCandidateView, AutopilotChangeView, AutopilotManagerView, AutopilotNextView, AutopilotOutcome,
    AutopilotPolicyView, AutopilotReason, AutopilotView, ManagerPreference, NodeId, word,
};

use super::{Seen, absent, name_of, none_of};
use crate::document::{Part, Row, Table};
use crate::feed::Topic;
use crate::html::{Grade, command, graded, node_link, or_dash, text, time};

/// Workers that are listed: the candidates come first.
const MAX_ROWS: usize = 100;

pub fn page(seen: &Seen) -> Vec<Part> {
    let may_pause =
        seen.autopilot().and_then(|view| view.policy.as_ref()).is_some_and(|policy| policy.paused.is_none());
    let commands = html! {
        (command(&["muster", "autopilot", "state"]))
        (command(&["muster", "autopilot", "explain"]))
        @if may_pause { (command(&["muster", "autopilot", "pause", "--why", "maintenance"])) }
    };
    let Some(view) = seen.autopilot() else {
        return vec![
            Part::Block("declared", absent(seen, &Topic::Autopilot, "the declared number of managers")),
            Part::Block("command", commands),
        ];
    };
    let mut parts = vec![Part::Block("declared", declared(seen, view)), Part::Table(managers(seen, view))];
    // Without a declaration no worker is ranked: an empty table would look like a cluster without workers.
    if view.policy.is_some() {
        parts.extend([Part::Table(workers(seen, view)), Part::Block("rest", left_out(view))]);
    }
    if view.policy.is_some() || !view.history.is_empty() {
        parts.push(Part::Table(history(seen, view)));
    }
    parts.push(Part::Block("command", commands));
    parts
}

fn declared(seen: &Seen, view: &AutopilotView) -> Markup {
    let Some(policy) = &view.policy else {
        return html! {
            p { "No number of managers is declared: roles are changed by operators only." }
            (command(&["muster", "cluster", "set", "managers=3"]))
        };
    };
    let answering = muster_messages::answering(view.answering, view.voters);
    html! {
        dl.facts {
            dt { "Declared" } dd { (policy_of(policy)) }
            dt { "Now" } dd {
                @if view.healthy { (seen.good(&answering)) } @else { (graded(Grade::Warn, &answering)) }
                ", " (view.tolerance) " may fail; " (view.optimistic_tolerance) " one after the other, if each is replaced in time"
            }
            @if !view.zones.is_empty() {
                dt { "Zones" } dd {
                    @for (zone, count) in &view.zones { code { (text(zone)) } " " (count) " " }
                }
            }
            @if let Some(pause) = &policy.paused {
                dt { "Paused" } dd {
                    (graded(if pause.gave_up { Grade::Bad } else { Grade::Warn }, "paused"))
                    " since " (time(pause.at)) " by " (text(&pause.by)) ": " (text(&pause.why))
                }
            }
            dt { "Next" } dd { (next(seen, &view.next)) }
        }
        @if policy.paused.is_some() { (command(&["muster", "autopilot", "resume"])) }
    }
}

fn policy_of(policy: &AutopilotPolicyView) -> Markup {
    let replaced_after = Duration::from_millis(policy.replace_after_ms);
    html! {
        (policy.managers) " managers; one is replaced after " (format!("{replaced_after:?}"))
        @if let Some(label) = &policy.zone_label { ", spread by the label " code { (text(label)) } }
        @if !policy.eligible.is_empty() {
            ", of nodes with"
            @for (key, value) in &policy.eligible { " " code { (text(key)) "=" (text(value)) } }
        }
        @if policy.shrink { "; surplus ones are demoted" }
    }
}

fn next(seen: &Seen, next: &AutopilotNextView) -> Markup {
    let reason = next.reason.as_ref();
    let grade = match reason.and_then(|reason| reason.known()) {
        Some(AutopilotReason::Content) => Grade::Good,
        Some(AutopilotReason::Off | AutopilotReason::MoreThanDeclared | AutopilotReason::Settling) => Grade::Plain,
        Some(AutopilotReason::NoQuorum | AutopilotReason::TooManyDown) => Grade::Bad,
        _ => Grade::Warn,
    };
    let what = next.action.map_or_else(|| or_dash(reason), word);
    html! {
        @if grade == Grade::Good { (seen.good(&what)) } @else { (graded(grade, &what)) }
        @if let Some(node) = next.node { " " (of(seen, node)) }
        ": " (text(&next.message))
        @if let Some(at) = next.not_before { " (not before " (time(at)) ")" }
    }
}

fn of(seen: &Seen, node: NodeId) -> Markup {
    node_link(&name_of(node, seen.names()))
}

fn managers(seen: &Seen, view: &AutopilotView) -> Table {
    let row = |manager: &AutopilotManagerView| {
        let drained = match &manager.drain {
            None => html! { "-" },
            Some(drain) => html! {
                (graded(Grade::Warn, if drain.replace { "to be replaced" } else { "drained" })) " by " (text(&drain.by))
                @if let Some(until) = drain.until { ", until " (time(until)) }
            },
        };
        let answers = if manager.answers { seen.good("answers") } else { graded(Grade::Bad, "silent") };
        Row::new(
            manager.node.as_str(),
            vec![
                node_link(manager.name.as_str()),
                html! { (or_dash(manager.zone.as_ref())) },
                answers,
                time(manager.down_since),
                drained,
            ],
        )
    };
    Table {
        id: "managers",
        caption: "Managers".to_owned(),
        headings: &["Manager", "Zone", "Raft", "Down since", "Maintenance"],
        rows: view.managers.iter().map(row).collect(),
        empty: none_of("managers", true),
    }
}

fn workers(seen: &Seen, view: &AutopilotView) -> Table {
    let row = |worker: &AutopilotCandidateView| {
        let preference = match worker.preference {
            ManagerPreference::Allow => html! { "-" },
            other => html! { (word(other)) },
        };
        let excluded = worker.excluded.as_ref();
        Row::new(
            worker.node.as_str(),
            vec![
                node_link(worker.name.as_str()),
                html! { (or_dash(worker.zone.as_ref())) },
                preference,
                worker.rank.map_or_else(|| html! { "-" }, |rank| seen.good(&rank.to_string())),
                excluded.map_or_else(|| html! { "-" }, |why| graded(Grade::Plain, &why.to_string())),
            ],
        )
    };
    Table {
        id: "workers",
        caption: "Workers, the next manager first".to_owned(),
        headings: &["Worker", "Zone", "Preference", "Rank", "Not promoted because"],
        rows: view.candidates.iter().take(MAX_ROWS).map(row).collect(),
        empty: none_of("workers", true),
    }
}

fn left_out(view: &AutopilotView) -> Markup {
    let more = view.candidates.len().saturating_sub(MAX_ROWS);
    html! {
        @if more > 0 { p.note { (more) " more workers: " code { "muster autopilot explain" } " lists them." } }
    }
}

/// Newest first.
fn history(seen: &Seen, view: &AutopilotView) -> Table {
    let row = |change: &AutopilotChangeView| {
        let grade = match change.outcome {
            AutopilotOutcome::Settled => Grade::Good,
            AutopilotOutcome::Begun | AutopilotOutcome::Dropped => Grade::Plain,
            _ => Grade::Warn,
        };
        Row::new(
            format!("{} {}", change.at, change.node),
            vec![
                time(change.at),
                html! { (word(change.action)) },
                of(seen, change.node),
                change.replaces.map_or_else(|| html! { "-" }, |node| of(seen, node)),
                graded(grade, &word(change.outcome)),
                html! { (text(&change.why)) },
            ],
        )
    };
    Table {
        id: "changes",
        caption: "Its last changes, the newest first".to_owned(),
        headings: &["At", "Change", "Node", "For", "Outcome", "Why"],
        rows: view.history.iter().rev().map(row).collect(),
        empty: none_of("changes", true),
    }
}
