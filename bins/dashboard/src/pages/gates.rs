//! Release gates: what runs, what is blocked, and by whom.

use std::time::Duration;

use maud::{Markup, html};
use muster_messages::{BlockerView, GateEntryView, ReconcilerPhase, ReconcilerView, RunView, word};

use super::{Seen, absent, none_of};
use crate::actions::Action;
use crate::document::{Part, Row, Table};
use crate::feed::{Answer, Topic};
use crate::html::{Grade, action, command, graded, link, node_link, or_dash, text, time};

/// Rows of one page.
const MAX_ROWS: usize = 200;

pub fn list(seen: &Seen) -> Vec<Part> {
    let all = seen.reconcilers();
    let mut shown: Vec<&ReconcilerView> = all.into_iter().flatten().collect();
    shown.sort_by_key(|gate| (std::cmp::Reverse(grade(gate)), &gate.name));
    let left_out = shown.len().saturating_sub(MAX_ROWS);
    let row = |gate: &&ReconcilerView| {
        Row::new(
            gate.name.clone(),
            vec![
                link("/gates", &[("name", &gate.name)], &gate.name),
                phase(gate),
                html! { (text(&gate.message)) },
                html! { (text(&gate.scope)) },
                reconciled(gate),
                html! { (gate.blockers_in_all) },
                html! { (gate.participants.serving) " serving, " (gate.participants.announced) " announced, " (gate.candidates) " candidates" },
                failures(gate),
            ],
        )
    };
    let table = Table {
        id: "gates",
        caption: "Release gates".to_owned(),
        headings: &["Name", "Phase", "Message", "Scope", "Reconciled", "Blockers", "Members", "Failures"],
        rows: shown.iter().take(MAX_ROWS).map(row).collect(),
        empty: none_of("release gates", all.is_some()),
    };
    let rest = html! { @if left_out > 0 { p.note { (left_out) " more" } } };
    vec![
        Part::Table(table),
        Part::Block("rest", rest),
        Part::Block("command", command(&["muster", "reconciler", "list"])),
    ]
}

fn grade(gate: &ReconcilerView) -> Grade {
    match gate.phase.known() {
        Some(ReconcilerPhase::Failed | ReconcilerPhase::Blocked) => Grade::Bad,
        _ if gate.consecutive_failures > 0 => Grade::Bad,
        _ if gate.blockers_in_all > 0 => Grade::Warn,
        Some(ReconcilerPhase::Idle) => Grade::Good,
        Some(ReconcilerPhase::ReadyToFinalize) => Grade::Warn,
        _ => Grade::Plain,
    }
}

fn phase(gate: &ReconcilerView) -> Markup {
    graded(grade(gate), &gate.phase.to_string())
}

fn failures(gate: &ReconcilerView) -> Markup {
    match &gate.last_error {
        Some(error) => html! { (gate.consecutive_failures) ": " (text(error)) },
        None => html! { (gate.consecutive_failures) },
    }
}

fn reconciled(gate: &ReconcilerView) -> Markup {
    match gate.gate.as_ref().map(|status| (status.entry(), status.state())) {
        None => html! { "-" },
        Some((Some(entry), _)) => {
            html! { (text(&entry.reconciled.to_string())) ", floor " (text(&entry.floor.to_string())) }
        }
        Some((None, state)) => html! { (text(&state)) },
    }
}

pub fn one(seen: &Seen, name: &str) -> Vec<Part> {
    let Some(Answer::Reconciler(status)) = seen.answer(&Topic::Reconciler(name.to_owned())) else {
        return vec![Part::Block("gate", absent(seen, &Topic::Reconciler(name.to_owned()), "this release gate"))];
    };
    let gate = &status.brief;
    let runner = gate.runner.as_ref();
    let facts = html! {
        dl.facts {
            dt { "Phase" } dd { (phase(gate)) " " (text(&gate.message)) }
            dt { "Scope" } dd { (text(&gate.scope)) }
            dt { "Reconciled" } dd { (reconciled(gate)) }
            dt { "Runner" } dd {
                @match runner {
                    Some(runner) => {
                        (or_dash(runner.node.as_ref().map(ToString::to_string).or_else(|| runner.member.clone())))
                        ", release " (or_dash(runner.release.as_ref())) ", token " (runner.term) " since " (time(runner.since))
                    }
                    None => "none"
                }
            }
            dt { "Attempt" } dd { (gate.attempt) ", failures " (failures(gate)) @if let Some(retry) = gate.next_retry_at { ", next try " (time(retry)) } }
            @if let Some(run) = &status.last_run { dt { "Last run" } dd { (last_run(run)) } }
            @if let Some((wave, waves)) = gate.wave { dt { "Wave" } dd { (wave) " of " (waves) } }
        }
    };
    let blocker = |view: &BlockerView| {
        let blocker = serde_json::to_value(&view.blocker).unwrap_or_default();
        let field = |key: &str| blocker[key].as_str().map_or_else(|| "-".to_owned(), text);
        let who = view.name.as_ref().map_or_else(|| html! { (field("member")) }, |name| node_link(name.as_str()));
        Row::new(field("member"), vec![who, html! { (field("release")) }, html! { (field("phase")) }])
    };
    let blockers = Table {
        id: "blockers",
        caption: format!("Blockers: {} serving members are incompatible with the next release", gate.blockers_in_all),
        headings: &["Member", "Release", "Phase"],
        rows: status.blockers.iter().map(blocker).collect(),
        empty: "none".to_owned(),
    };
    let entry = |entry: &GateEntryView| {
        Row::new(
            entry.epoch.to_string(),
            vec![
                html! { (entry.epoch) },
                time(entry.at),
                html! { (word(entry.state)) },
                html! { (text(&entry.reconciled.to_string())) },
                html! { (text(&entry.floor.to_string())) },
                html! { (text(&entry.why)) },
            ],
        )
    };
    let history = Table {
        id: "history",
        caption: "Epochs, newest first".to_owned(),
        headings: &["Epoch", "Time", "State", "Reconciled", "Floor", "Why"],
        rows: status.history.iter().rev().take(50).map(entry).collect(),
        empty: "nothing has been applied yet".to_owned(),
    };
    let output: Vec<String> = status.output.lines().map(text).collect();
    let output =
        html! { @if !output.is_empty() { h2 { "The end of its output" } pre tabindex="0" { (output.join("\n")) } } };
    let (retry, resume) =
        (Action::RetryReconciler { name: gate.name.clone() }, Action::ResumeReconciler { name: gate.name.clone() });
    let actions = html! {
        @if seen.actions && seen.is_current() {
            p {
                (action(&retry, "retry", &format!("A runner that gave up on {name} starts again."), None))
                @if gate.phase.known() == Some(ReconcilerPhase::Paused) {
                    (action(&resume, "resume", &format!("{name} is reconciled again."), None))
                }
            }
        }
    };
    vec![
        Part::Block("gate", facts),
        Part::Block("actions", actions),
        Part::Table(blockers),
        Part::Block("output", output),
        Part::Table(history),
        Part::Block("runs", command(&["muster", "reconciler", "runs", name])),
        Part::Block("command", command(&["muster", "reconciler", "status", name])),
    ]
}

fn last_run(run: &RunView) -> Markup {
    let node = run.node_name.as_ref().map_or_else(|| html! { (run.node) }, |name| node_link(name.as_str()));
    html! {
        (run.number) " on " (node) ", attempt " (run.attempt) ": " (text(&run.outcome.to_string()))
        @if let Some(status) = run.exit.status { ", exit status " (status) }
        @if let Some(signal) = run.exit.signal { ", signal " (signal) }
        @if let Some(ms) = run.ran_for_ms { " after " (format!("{:?}", Duration::from_millis(ms))) }
        ", begun " (time(run.began))
    }
}
