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
        7200.. if secs.is_multiple_of(3600) => format!("{} h", secs / 3600),
        120.. if secs.is_multiple_of(60) => format!("{} min", secs / 60),
        _ => format!("{secs} s"),
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

/// `muster autopilot explain NODE`, from a view that lists only this node.
pub fn autopilot_explained_of(view: &AutopilotView, names: &Names, node: &str) -> String {
    let text = match (view.managers.is_empty(), view.candidates.is_empty()) {
        (false, _) => managers(view),
        (true, false) => format!("{}\n", workers(view)),
        (true, true) if view.policy.is_none() => format!("{} is not a manager\n\n", printable(node)),
        (true, true) => format!("a role change of {} is in progress\n\n", printable(node)),
    };
    text + &format!("next  {}\n", next(&view.next, names))
}

/// `muster autopilot explain NODE -q`.
pub fn autopilot_brief_of(view: &AutopilotView) -> String {
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
        true => {
            "; a manager is demoted once another node has replaced it, or at once if there are more managers than declared"
        }
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

/// After `muster cluster set`: which nodes may get the root key.
pub fn autopilot_warning(view: &AutopilotChangedView) -> &'static str {
    match &view.policy {
        Some(policy) if policy.eligible.is_empty() && view.changed => {
            "every worker may be promoted, and each manager has the cluster's root key; `eligible=` limits which workers\n"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn declared_times_are_shown_exactly() {
        for (ms, expected) in [
            (1_500, "1500 ms"),
            (60_000, "60 s"),
            (150_000, "150 s"),
            (600_000, "10 min"),
            (5_400_000, "90 min"),
            (7_200_000, "2 h"),
            (9_000_000, "150 min"),
        ] {
            assert_eq!(span(ms), expected);
        }
    }

    #[test]
    fn one_node_is_explained_whatever_its_role() {
        let id = "0000000000000000000000001";
        let manager = |answers: bool| {
            let of =
                json!({"node": id, "name": "n1", "zone": null, "answers": answers, "down_since": null, "drain": null});
            json!({"managers": [of]})
        };
        let worker = |rank: Value, excluded: Value| {
            let of = json!({"node": id, "name": "n1", "zone": null, "preference": "never", "rank": rank, "excluded": excluded});
            json!({"candidates": [of]})
        };
        let policy = json!({"managers": 3, "eligible": {}, "zone_label": null, "replace_after_ms": 600_000,
            "stabilize_ms": 30_000, "shrink": false, "paused": null, "generation": 1});
        for (nodes, policy, brief, text) in [
            (manager(true), &Value::Null, "manager", "MANAGER"),
            (manager(false), &policy, "silent", "MANAGER"),
            (worker(1.into(), Value::Null), &policy, "1", "RANK"),
            (worker(Value::Null, "never".into()), &policy, "never", "NOT PROMOTED BECAUSE"),
            (json!({}), &Value::Null, "-", "n1 is not a manager"),
            (json!({}), &policy, "-", "a role change of n1 is in progress"),
        ] {
            let mut state = json!({"policy": policy, "healthy": false, "tolerance": 0, "optimistic_tolerance": 0, "voters": 3,
                "answering": 3, "zones": {}, "managers": [], "candidates": [], "history": [],
                "next": {"action": null, "reason": "off", "node": null, "not_before": null, "message": "m"}});
            let Value::Object(nodes) = nodes else { panic!() };
            state.as_object_mut().unwrap().extend(nodes);
            let view: AutopilotView = serde_json::from_value(state).unwrap();
            assert_eq!(autopilot_brief_of(&view), brief);
            let shown = autopilot_explained_of(&view, &Names::new(), "n1");
            assert!(shown.contains(text) && shown.contains("next  off: m"), "{shown}");
        }
    }
}
