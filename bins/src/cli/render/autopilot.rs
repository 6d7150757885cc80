//! The autopilot for people.

use std::time::Duration;

use muster_messages::{
    AutopilotCandidateView, AutopilotChangeView, AutopilotChangedView, AutopilotNextView, AutopilotPolicyView,
    AutopilotView, DrainedView, NodeId, word,
};

use super::{Names, list, when};
use crate::cli::duration::format_duration;
use crate::cli::output::{Table, or_dash, printable, yes_or_no};

fn name(names: &Names, node: NodeId) -> String {
    names.get(&node).map_or_else(|| node.to_string(), ToString::to_string)
}

fn span(ms: u64) -> String {
    let secs = ms / 1000;
    match secs {
        _ if !ms.is_multiple_of(1000) => format_duration(Duration::from_millis(ms)),
        0..120 => format!("{secs} s"),
        120..7200 => format!("{} min", secs / 60),
        _ => format!("{} h", secs / 3600),
    }
}

fn declared(policy: &AutopilotPolicyView) -> String {
    let plural = if policy.managers == 1 { "" } else { "s" };
    let mut text = format!("{} manager{plural}, replaced after {}", policy.managers, span(policy.replace_after_ms));
    if let Some(label) = &policy.zone_label {
        text += &format!(", spread by {}", printable(label));
    }
    if !policy.eligible.is_empty() {
        let labels: Vec<String> = policy.eligible.iter().map(|(key, value)| format!("{key}={value}")).collect();
        text += &format!(", of nodes with {}", printable(&labels.join(",")));
    }
    if policy.shrink {
        text += ", surplus ones are demoted";
    }
    text
}

/// `muster autopilot state`.
pub fn autopilot(view: &AutopilotView, names: &Names) -> String {
    let mut table = Table::bare();
    let none =
        "nothing: roles are changed by operators only; `muster cluster set managers=3` declares a number".to_owned();
    let with_generation =
        |policy: &AutopilotPolicyView| format!("{} (generation {})", declared(policy), policy.generation.0);
    table.row(["declared".to_owned(), view.policy.as_ref().map_or(none, with_generation)]);
    if let Some(pause) = view.policy.as_ref().and_then(|policy| policy.paused.as_ref()) {
        table
            .row(["paused".to_owned(), format!("since {} by {}: {}", when(pause.at), pause.by, printable(&pause.why))]);
    }
    let managers = format!("{} of {} answer, {}", view.answering, view.voters, may_lose(view.tolerance));
    table.row(["managers".to_owned(), managers]);
    if !view.zones.is_empty() {
        let zones: Vec<String> =
            view.zones.iter().map(|(zone, count)| format!("{} {count}", printable(zone))).collect();
        table.row(["zones".to_owned(), zones.join(", ")]);
    }
    table.row(["next".to_owned(), next(&view.next, names)]);
    let mut text = table.render();
    if !view.history.is_empty() {
        text += "\n";
        let mut table = Table::new(&["AT", "ACTION", "NODE", "FOR", "OUTCOME", "WHY"]);
        for AutopilotChangeView { at, action, node, replaces, outcome, why } in &view.history {
            table.row([
                when(*at),
                word(action),
                name(names, *node),
                or_dash(replaces.map(|node| name(names, node))),
                word(outcome),
                printable(why),
            ]);
        }
        text += &table.render();
    }
    text
}

fn may_lose(tolerance: usize) -> String {
    match tolerance {
        0 => "none of them may fail".to_owned(),
        1 => "one of them may fail".to_owned(),
        n => format!("{n} of them may fail"),
    }
}

fn next(next: &AutopilotNextView, names: &Names) -> String {
    let what = match (next.action, &next.reason) {
        (Some(action), _) => {
            let node = next.node.map(|node| format!(" {}", name(names, node))).unwrap_or_default();
            format!("{}{node}", word(action))
        }
        (None, Some(reason)) => reason.to_string(),
        (None, None) => "-".to_owned(),
    };
    let until = next.not_before.map(|at| format!(" (not before {})", when(at))).unwrap_or_default();
    format!("{what}: {}{until}", printable(&next.message))
}

/// `muster autopilot explain`.
pub fn autopilot_explained(view: &AutopilotView, names: &Names) -> String {
    let mut text = managers(view);
    if view.policy.is_some() {
        text += &workers(view);
        text += "\n";
    }
    text + &format!("next  {}\n", next(&view.next, names))
}

/// `muster autopilot explain NODE`: of a view with this node alone.
pub fn autopilot_explained_of(view: &AutopilotView, names: &Names, node: &str) -> String {
    let text = match (view.managers.is_empty(), view.candidates.is_empty()) {
        (false, _) => managers(view),
        (true, false) => format!("{}\n", workers(view)),
        (true, true) if view.policy.is_none() => format!("{} is no manager\n\n", printable(node)),
        (true, true) => format!("a change of the role of {} is under way\n\n", printable(node)),
    };
    text + &format!("next  {}\n", next(&view.next, names))
}

/// `muster autopilot explain NODE -q`.
pub fn standing(view: &AutopilotView) -> String {
    match (view.managers.first(), view.candidates.first()) {
        (Some(manager), _) if manager.answers => "manager".to_owned(),
        (Some(_), _) => "silent".to_owned(),
        (None, Some(AutopilotCandidateView { rank: Some(rank), .. })) => rank.to_string(),
        (None, Some(worker)) => or_dash(worker.excluded.as_ref()),
        (None, None) => "-".to_owned(),
    }
}

fn managers(view: &AutopilotView) -> String {
    let mut text = String::new();
    if !view.managers.is_empty() {
        text += &list(
            &view.managers,
            &["MANAGER", "ZONE", "ANSWERS", "DOWN SINCE", "DRAINED"],
            &[
                |m| m.name.to_string(),
                |m| or_dash(m.zone.clone()),
                |m| yes_or_no(m.answers),
                |m| when(m.down_since),
                |m| {
                    m.drain.as_ref().map_or_else(
                        || "-".to_owned(),
                        |drain| match (drain.replace, drain.until) {
                            (true, _) => "to be replaced".to_owned(),
                            (false, None) => "yes".to_owned(),
                            (false, Some(until)) => format!("until {}", when(until)),
                        },
                    )
                },
            ],
            "",
        );
        text += "\n";
    }
    text
}

fn workers(view: &AutopilotView) -> String {
    list(
        &view.candidates,
        &["WORKER", "ZONE", "MANAGER", "RANK", "NOT PROMOTED BECAUSE"],
        &[
            |c| c.name.to_string(),
            |c| or_dash(c.zone.clone()),
            |c| word(c.preference),
            |c| or_dash(c.rank),
            |c| or_dash(c.excluded.as_ref().map(ToString::to_string)),
        ],
        "no workers\n",
    )
}

/// `muster node drain` and `undrain`.
pub fn drained(node: &str, view: &DrainedView) -> String {
    let node = printable(node);
    let Some(drain) = &view.drain else { return format!("{node} is not drained\n") };
    let until =
        drain.until.map_or_else(|| "until `muster node undrain`".to_owned(), |until| format!("until {}", when(until)));
    let replaced = match drain.replace {
        true => "; as a manager it is demoted, once another node has its place or if there are more than declared",
        false => "",
    };
    format!("{node} is drained {until}{replaced}\n")
}

/// `muster cluster set --dry-run`.
pub fn autopilot_preview(view: &AutopilotView, names: &Names) -> String {
    let policy = view.policy.as_ref().map(declared).unwrap_or_default();
    format!("would declare {policy}\nnext  {}\n", next(&view.next, names))
}

/// `muster cluster set`, `muster autopilot pause` and `resume`.
pub fn autopilot_changed(view: &AutopilotChangedView, names: &Names) -> String {
    let mut text = match &view.policy {
        None => "nothing is declared: roles are changed by operators only\n".to_owned(),
        Some(policy) => {
            let paused = if policy.paused.is_some() { " (paused)" } else { "" };
            format!("declared{paused}: {}\n", declared(policy))
        }
    };
    if let Some(following) = &view.next {
        text += &format!("next  {}\n", next(following, names));
    }
    text
}

/// What a declaration means for the root key.
pub fn warning(view: &AutopilotChangedView) -> &'static str {
    match &view.policy {
        Some(policy) if policy.eligible.is_empty() && view.changed => {
            "every worker may become manager, and each manager has the cluster's root key: `eligible=` limits it\n"
        }
        _ => "",
    }
}
