//! Tables of reconcilers, members and objects.

use muster_messages::{
    AppliedView, BlockerView, ForcedFloorView, GateHistoryView, GatePath, GateState, GateStatusView, LastFailureView,
    ListView, Name, ObjectChangesView, ObjectView, ParticipantView, PlanView, PlannedSideView, PlannedWaitView,
    RECONCILER_LABEL, ReconcilerStatusView, ReconcilerView, Release, StepView, Word, word,
};
use serde::Serialize;

use super::runs::last_run;
use super::{list, when};
use crate::cli::output::{Table, or_dash, printable, printable_lines};

/// The applied release.
fn release(gate: Option<&GateStatusView>) -> String {
    or_dash(gate.and_then(GateStatusView::entry).map(|entry| &entry.reconciled))
}

fn floor(gate: Option<&GateStatusView>) -> String {
    or_dash(gate.and_then(GateStatusView::entry).map(|entry| entry.floor))
}

pub fn reconcilers(reconcilers: &ListView<ReconcilerView>) -> String {
    list(
        &reconcilers.items,
        &["NAME", "SCOPE", "APPLIED", "FLOOR", "PHASE", "WHY"],
        &[
            |r| r.name.clone(),
            |r| r.scope.clone(),
            |r| release(r.gate.as_ref()),
            |r| floor(r.gate.as_ref()),
            |r| r.phase.to_string(),
            |r| r.message.clone(),
        ],
        "no reconcilers; `muster reconciler apply -f FILE` adds one",
    )
}

/// The status in one line, for `--watch`.
pub fn reconciler_line(r: &ReconcilerView) -> String {
    let gate = r.gate.as_ref();
    let state = gate.map_or_else(|| "no gate".to_owned(), GateStatusView::state);
    let why = if r.message.is_empty() { String::new() } else { format!(": {}", r.message) };
    let line = format!("{} {state} {} floor {}  {}{why}", r.name, release(gate), floor(gate), r.phase);
    printable(&line)
}

pub fn reconciler(status: &ReconcilerStatusView) -> String {
    let r = &status.brief;
    let mut table = Table::bare();
    let applied = match &r.gate {
        None => "nothing yet".to_owned(),
        Some(GateStatusView::Unreadable { .. }) => "unknown: the gate is unreadable".to_owned(),
        Some(GateStatusView::Readable(gate)) if gate.state == GateState::Working => {
            let target = or_dash(gate.target.as_ref().map(|target| &target.release));
            format!("{}, changing to {target}, floor {}", gate.reconciled, gate.floor)
        }
        Some(GateStatusView::Readable(gate)) => format!("{}, floor {}", gate.reconciled, gate.floor),
    };
    let runs = match &r.runner {
        None => "none".to_owned(),
        Some(runner) => {
            let who = runner.node.as_ref().map(Name::as_str).or(runner.member.as_deref());
            format!("{} since {}, term {}", or_dash(who), when(runner.since), runner.term)
        }
    };
    let counts = &r.participants;
    let scope = format!(
        "{}: {} serving, {} announced, {} draining",
        r.scope, counts.serving, counts.announced, counts.draining
    );
    let finalized = status.finalized.as_ref().map(|release| {
        format!("{release} may pass the point of no return; withdrawn if an incompatible member is admitted before")
    });
    let finalized = finalized.unwrap_or_default();
    let rows = [
        ("reconciler", r.name.clone()),
        ("scope", scope),
        ("applied", applied),
        ("phase", r.phase.to_string()),
        ("why", r.message.clone()),
        ("runner", runs),
        ("last run", status.last_run.as_ref().map(|run| last_run(&r.name, run)).unwrap_or_default()),
        ("failures", r.consecutive_failures.to_string()),
        ("last error", or_dash(r.last_error.as_ref())),
        ("last failure", r.last_failure.as_ref().map(last_failure).unwrap_or_default()),
        ("finalized", finalized),
    ];
    for (name, value) in rows {
        if !value.is_empty() {
            table.row([name.to_owned(), value]);
        }
    }
    let mut text = table.render();
    if !status.steps.is_empty() {
        text += &format!("\n{}", steps(&status.steps));
    }
    text += &output_tail(&status.output);
    if !status.blockers.is_empty() {
        text += &format!("\n{}", blockers(&status.blockers));
    }
    text
}

fn steps(steps: &[StepView]) -> String {
    list(
        steps,
        &["STEP", "RELEASE", "NODE", "SINCE"],
        &[
            |s| s.name.clone(),
            |s| s.release.as_ref().map_or_else(|| "has not run".to_owned(), Release::to_string),
            |s| or_dash(s.node.as_ref()),
            |s| when(s.at),
        ],
        "no steps",
    )
}

fn last_failure(failure: &LastFailureView) -> String {
    let LastFailureView { node, name, release, term, since, at, permanent, .. } = failure;
    let whence = name.as_ref().map_or_else(|| node.to_string(), Name::to_string);
    let until = if *permanent { "; only `retry` starts it again" } else { "" };
    format!("{} on {whence}, release {release}, term {term}; failing since {}{until}", when(*at), when(*since))
}

/// Shown lines of a command's output; the JSON has all retained lines.
const LAST_LINES: usize = 10;

fn output_tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let shown = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
    if shown.is_empty() {
        return String::new();
    }
    let shown: String = shown.iter().map(|line| format!("\n  {}", printable(line))).collect();
    format!("\noutput{}{shown}", if lines.len() > LAST_LINES { ", last lines" } else { "" })
}

/// A member, with the node's name if its name is a node id.
fn named(member: &str, name: Option<&Name>) -> String {
    name.map_or_else(|| member.to_owned(), |name| format!("{member} ({name})"))
}

pub fn blockers(blockers: &[BlockerView]) -> String {
    list(
        blockers,
        &["MEMBER", "RELEASE", "PHASE", "SINCE", "WHY"],
        &[
            |b| named(&b.blocker.member, b.name.as_ref()),
            |b| b.blocker.release.to_string(),
            |b| word(b.blocker.phase),
            |b| when(b.blocker.since),
            |b| b.blocker.why.clone(),
        ],
        "no blocking members",
    )
}

pub fn applied(applied: &AppliedView) -> String {
    let lines = applied.definitions.iter().map(|applied| {
        let changed = if applied.changed { "submitted" } else { "already exists" };
        format!("{} {} {changed}\n", printable(&applied.definition.name), applied.definition.release)
    });
    lines.collect()
}

/// The word of a plan for an object that exists and has another owner, or none.
const TAKEN: &str = "taken";

pub fn plan(plan: &PlanView) -> String {
    let mut text = format!("{} {}\n", printable(&plan.name), plan.release);
    match &plan.path {
        Some(Word::Known(GatePath::First)) if plan.blockers.is_empty() => {
            text += "it would be applied for the first time\n";
        }
        Some(Word::Known(GatePath::First)) => {
            text += "it would be applied for the first time, once the blocking members have ended\n";
        }
        Some(Word::Known(GatePath::Reached)) => text += "already applied; differences would be repaired\n",
        Some(Word::Known(GatePath::Open)) => {
            text += "it would wait for no member: all that are admitted are compatible\n"
        }
        Some(Word::Known(GatePath::Restrict) | Word::Other(_)) if plan.blockers.is_empty() => {
            text += "it would first stop admitting incompatible members\n";
        }
        Some(Word::Known(GatePath::Restrict) | Word::Other(_)) => {
            text += "it would wait until the blocking members have ended, then stop admitting incompatible ones, then run\n";
        }
        None => {
            let why = or_dash(plan.hold.as_ref().map(|hold| &hold.message));
            text += &format!("it would not start: {why}\n");
        }
    }
    if plan.path.is_some() && plan.candidates == Some(0) {
        text += "no live node can run it now: it begins once one can\n";
    }
    for object in &plan.objects {
        let line = format!("  {:<6} {} {}/{}", object.op, object.kind, object.namespace, object.name);
        if object.op == TAKEN {
            text +=
                &(printable(&format!("{line}: does not belong to {}; delete it, or rename yours", plan.name)) + "\n");
            continue;
        }
        text += &(printable(&line) + "\n");
        text += &diff(object.before.as_ref(), object.after.as_ref());
    }
    for wait in &plan.waits {
        let state =
            wait.message.as_ref().map_or_else(|| "it is so now".to_owned(), |message| format!("now: {message}"));
        let PlannedWaitView { wave, kind, namespace, name, path, equals, .. } = wait;
        let line = format!("  wait   after wave {wave} until {path} of {kind} {namespace}/{name} is {equals}; {state}");
        text += &(printable(&line) + "\n");
    }
    if let Some(argv) = &plan.command {
        let step = plan.step.as_ref().map(|step| format!("step {step}: ")).unwrap_or_default();
        text += &format!("  run    {}\n", printable(&(step + &argv.join(" "))));
    }
    if !plan.blockers.is_empty() {
        text += "blocking members:\n";
        text += &blockers(&plan.blockers);
    }
    if plan.objects.iter().any(|object| object.op == TAKEN) {
        return text + "the run would fail because some objects have another owner; the gate would not change\n";
    }
    text + &format!("gate afterwards: {}, floor {}\n", plan.gate.reconciled, plan.gate.floor)
}

/// As indented JSON.
fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// The current and the planned object, as a unified diff of their JSON.
fn diff(before: Option<&PlannedSideView>, after: Option<&PlannedSideView>) -> String {
    let text = |side: Option<&PlannedSideView>| side.map_or_else(String::new, |side| pretty(side) + "\n");
    let (before, after) = (text(before), text(after));
    let diff = similar::TextDiff::from_lines(&before, &after);
    diff.unified_diff()
        .context_radius(1)
        .to_string()
        .lines()
        .fold(String::new(), |all, line| all + "         " + &printable(line) + "\n")
}

pub fn gate_history(gate: &GateHistoryView) -> String {
    let deleted = if gate.deleted {
        format!(
            "\nthe gate is deleted, and admits no member; `muster reconciler repair {} --from-history EPOCH` restores it",
            printable(&gate.name)
        )
    } else {
        String::new()
    };
    let entries = list(
        &gate.history,
        &["EPOCH", "STATE", "APPLIED", "FLOOR", "TARGET", "TERM", "AT", "WHY"],
        &[
            |g| g.epoch.to_string(),
            |g| word(g.state),
            |g| g.reconciled.to_string(),
            |g| g.floor.to_string(),
            |g| or_dash(g.target.as_ref().map(|target| &target.release)),
            |g| g.term.to_string(),
            |g| when(g.at),
            |g| g.why.clone(),
        ],
        "no history",
    );
    entries + &deleted
}

pub fn forced_floor(forced: &ForcedFloorView) -> String {
    let affected = if forced.excluded.is_empty() { "none".to_owned() } else { printable(&forced.excluded.join(", ")) };
    if forced.changed {
        format!("the floor is {}; members asked to stop: {affected}", forced.floor)
    } else {
        format!("a floor of {} would stop these members: {affected}; confirm with --yes-i-know", forced.floor)
    }
}

pub fn members(members: &ListView<ParticipantView>) -> String {
    list(
        &members.items,
        &["SCOPE", "MEMBER", "RELEASE", "PHASE", "SINCE", "LEASED"],
        &[
            |m| m.scope.clone(),
            |m| named(&m.member, m.name.as_ref()),
            |m| m.release.to_string(),
            |m| word(m.phase),
            |m| when(m.since),
            |m| if m.external { "external" } else { "yes" }.to_owned(),
        ],
        "no members; `muster wait-ready SCOPE` announces one",
    )
}

/// An external member that was announced.
pub fn announced(member: &ParticipantView) -> String {
    let (scope, name) = (printable(&member.scope), printable(&member.member));
    format!(
        "{scope}/{name} counts as serving {}, on your word; when it has ended: `muster member forget {scope}/{name}`",
        member.release
    )
}

/// A line for each change. `None`: there is none.
pub fn object_changes(changes: &ObjectChangesView) -> Option<String> {
    let written = changes.items.iter().map(|object| {
        let metadata = &object.metadata;
        (metadata.revision, "written", &object.kind, &metadata.namespace, &metadata.name)
    });
    let deleted = changes
        .deleted
        .iter()
        .map(|object| (object.revision, "deleted", &object.kind, &object.namespace, &object.name));
    let mut all: Vec<_> = written.chain(deleted).collect();
    all.sort();
    let lines = all.into_iter().map(|(revision, what, kind, namespace, name)| {
        printable(&format!("{revision} {what} {kind} {namespace}/{name}"))
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

pub fn objects(objects: &ListView<ObjectView>) -> String {
    list(
        &objects.items,
        &["KIND", "NAMESPACE", "NAME", "OF", "REVISION"],
        &[
            |o| o.kind.clone(),
            |o| o.metadata.namespace.clone(),
            |o| o.metadata.name.clone(),
            |o| or_dash(o.metadata.labels.get(RECONCILER_LABEL)),
            |o| o.metadata.revision.to_string(),
        ],
        "no objects",
    )
}

/// An object as JSON, with its keys in order.
pub fn object(object: &impl Serialize) -> String {
    printable_lines(&pretty(&serde_json::to_value(object).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn object_of_another_owner_is_no_deletion_in_a_plan() {
        let plan = json!({
            "name": "schema", "release": "2.0.0", "path": "open", "blockers": [],
            "objects": [{"op": "taken", "kind": "table", "namespace": "default", "name": "mine",
                         "before": {"labels": {}, "body": {"columns": 1}}, "after": null}],
            "gate": {"state": "done", "reconciled": "2.0.0", "floor": "2.0.0", "digest": "ab"},
        });
        let text = super::plan(&serde_json::from_value(plan).unwrap());
        assert!(
            text.contains("taken  table default/mine: does not belong to schema; delete it, or rename yours"),
            "{text}"
        );
        assert!(!text.contains("columns") && !text.contains("gate afterwards"), "{text}");
    }

    #[test]
    fn last_failure_is_named_with_its_node() {
        let failure = json!({"node": "5w480eevgbaa2lokqcxne9lse", "name": "n3", "release": "2.0.0", "term": 7,
            "since": "2026-11-22T00:28:47Z", "at": "2026-11-22T00:29:47Z", "error": "no", "permanent": true});
        let failure: LastFailureView = serde_json::from_value(failure).unwrap();
        let text = last_failure(&failure);
        for part in ["on n3, release 2.0.0, term 7", "failing since", "only `retry` starts it again"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn plan_is_rendered_as_a_diff() {
        let plan = json!({
            "name": "schema", "release": "2.0.0", "path": "restrict", "blockers": [],
            "objects": [
                {"op": "update", "kind": "table", "namespace": "default", "name": "users",
                 "before": {"labels": {}, "body": {"columns": 1}}, "after": {"labels": {}, "body": {"columns": 2}}},
                {"op": "delete", "kind": "table", "namespace": "default", "name": "old", "before": null, "after": null},
            ],
            "gate": {"state": "done", "reconciled": "2.0.0", "floor": "2.0.0", "digest": "ab"},
        });
        let text = super::plan(&serde_json::from_value(plan).unwrap());
        assert!(text.contains("-    \"columns\": 1\n") && text.contains("+    \"columns\": 2\n"), "{text}");
        assert!(text.ends_with("gate afterwards: 2.0.0, floor 2.0.0\n"), "{text}");
    }

    #[test]
    fn plan_names_the_step_and_what_it_waits_for() {
        let plan = |change: serde_json::Value| {
            let mut plan = json!({
                "name": "schema", "release": "2.0.0", "path": "restrict", "blockers": [], "objects": [],
                "command": ["./migrate", "up"], "step": "orders", "candidates": 1,
                "gate": {"state": "done", "reconciled": "2.0.0", "floor": "2.0.0", "digest": "ab"},
            });
            for (key, value) in change.as_object().unwrap() {
                plan[key] = value.clone();
            }
            super::plan(&serde_json::from_value(plan).unwrap())
        };
        let text = plan(json!({}));
        assert!(text.contains("it would first stop admitting incompatible members\n"), "{text}");
        assert!(text.contains("  run    step orders: ./migrate up\n") && !text.contains("no live node"), "{text}");
        let text = plan(json!({"candidates": 0}));
        assert!(text.contains("no live node can run it now: it begins once one can\n"), "{text}");
        let blocker = json!({"member": "m1", "release": "1.0.0", "phase": "serving", "since": "2026-11-22T00:28:47Z",
            "external": false, "why": "release 1.0.0 is below 2.0.0"});
        for (path, says) in
            [("first", "first time, once the blocking"), ("restrict", "wait until the blocking members")]
        {
            let text = plan(json!({"path": path, "blockers": [blocker.clone()]}));
            assert!(text.contains(says) && text.contains("m1"), "{text}");
        }
    }

    #[test]
    fn control_characters_in_command_output_are_replaced() {
        let shown = output_tail(&format!("{}\x1b[2Jlast\n", "line\n".repeat(30)));
        assert_eq!(shown.trim_start().lines().count(), 1 + LAST_LINES);
        assert!(shown.ends_with("\u{fffd}[2Jlast") && shown.starts_with("\noutput, last lines"), "{shown:?}");
        assert_eq!(output_tail(""), "");
    }
}
