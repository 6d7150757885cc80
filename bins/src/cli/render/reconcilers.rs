//! Tables of reconcilers, members and objects.

use serde_json::Value;

use super::{items, list, when};
use crate::cli::output::{Table, cell, printable, printable_lines};

fn release(gate: &Value) -> String {
    if gate.is_null() { "-".to_owned() } else { cell(&gate["reconciled"]) }
}

pub fn reconcilers(document: &Value) -> String {
    list(
        document,
        &["NAME", "SCOPE", "APPLIED", "FLOOR", "PHASE", "WHY"],
        &[
            |r| cell(&r["name"]),
            |r| cell(&r["scope"]),
            |r| release(&r["gate"]),
            |r| cell(&r["gate"]["floor"]),
            |r| cell(&r["phase"]),
            |r| cell(&r["message"]),
        ],
        "no reconcilers; `muster reconciler apply -f FILE` adds one",
    )
}

/// The status in one line, for `--watch`.
pub fn reconciler_line(r: &Value) -> String {
    let gate = &r["gate"];
    let state = if gate.is_null() { "no gate".to_owned() } else { cell(&gate["state"]) };
    let why = match r["message"].as_str() {
        Some("") | None => String::new(),
        Some(message) => format!(": {message}"),
    };
    format!("{} {state} {} floor {}  {}{why}", cell(&r["name"]), release(gate), cell(&gate["floor"]), cell(&r["phase"]))
}

pub fn reconciler(r: &Value) -> String {
    let (gate, runner, participants) = (&r["gate"], &r["runner"], &r["participants"]);
    let mut table = Table::bare();
    let applied = match gate["state"].as_str() {
        None => "nothing yet".to_owned(),
        Some("working") => format!(
            "{}, changing to {}, floor {}",
            cell(&gate["reconciled"]),
            cell(&gate["target"]["release"]),
            cell(&gate["floor"])
        ),
        Some("unreadable") => "unknown: the gate is unreadable".to_owned(),
        Some(_) => format!("{}, floor {}", cell(&gate["reconciled"]), cell(&gate["floor"])),
    };
    let runs = if runner.is_null() {
        "none".to_owned()
    } else {
        let who = if runner["node"].is_string() { &runner["node"] } else { &runner["member"] };
        format!("{} since {}, term {}", cell(who), when(&runner["since"]), cell(&runner["term"]))
    };
    let scope = format!(
        "{}: {} serving, {} announced, {} draining",
        cell(&r["scope"]),
        cell(&participants["serving"]),
        cell(&participants["announced"]),
        cell(&participants["draining"])
    );
    let rows = [
        ("reconciler", cell(&r["name"])),
        ("scope", scope),
        ("applied", applied),
        ("phase", cell(&r["phase"])),
        ("why", cell(&r["message"])),
        ("runner", runs),
        ("failures", cell(&r["consecutive_failures"])),
        ("last error", cell(&r["last_error"])),
    ];
    for (name, value) in rows {
        if !value.is_empty() {
            table.row([name.to_owned(), value]);
        }
    }
    let mut text = table.render();
    text += &output_tail(r["output"].as_str().unwrap_or_default());
    let blocked = r["blockers"].as_array().is_some_and(|blockers| !blockers.is_empty());
    if blocked {
        text += &format!("\n{}", blockers(&r["blockers"]));
    }
    text
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
fn named(member: &Value) -> String {
    let id = cell(&member["member"]);
    member["name"].as_str().map_or(id.clone(), |name| format!("{id} ({name})"))
}

pub fn blockers(blockers: &Value) -> String {
    let document = serde_json::json!({"items": blockers});
    list(
        &document,
        &["MEMBER", "RELEASE", "PHASE", "SINCE", "WHY"],
        &[named, |b| cell(&b["release"]), |b| cell(&b["phase"]), |b| when(&b["since"]), |b| cell(&b["why"])],
        "no blocking members",
    )
}

pub fn applied(document: &Value) -> String {
    let line = |d: &Value| {
        let changed = if d["changed"] == true { "submitted" } else { "already exists" };
        format!("{} {} {changed}\n", cell(&d["name"]), cell(&d["release"]))
    };
    document["definitions"].as_array().into_iter().flatten().map(line).collect()
}

pub fn plan(plan: &Value) -> String {
    let mut text = format!("{} {}\n", cell(&plan["name"]), cell(&plan["release"]));
    match plan["path"].as_str() {
        Some("first") => text += "it would be applied for the first time\n",
        Some("reached") => text += "already applied; differences would be repaired\n",
        Some("open") => text += "it would start at once: all admitted members are compatible\n",
        Some(_) => text += "it would first stop admitting incompatible members\n",
        None => text += &format!("it would not start: {}\n", cell(&plan["hold"]["message"])),
    }
    for object in plan["objects"].as_array().into_iter().flatten() {
        let key = format!("{} {}/{}", cell(&object["kind"]), cell(&object["namespace"]), cell(&object["name"]));
        text += &format!("  {:<6} {key}\n", cell(&object["op"]));
        text += &diff(&object["before"], &object["after"]);
    }
    if let Some(argv) = plan["command"].as_array() {
        text += &format!("  run    {}\n", argv.iter().map(cell).collect::<Vec<_>>().join(" "));
    }
    if plan["blockers"].as_array().is_some_and(|blockers| !blockers.is_empty()) {
        text += "blocking members:\n";
        text += &blockers(&plan["blockers"]);
    }
    let gate = &plan["gate"];
    text + &format!("gate afterwards: {}, floor {}\n", cell(&gate["reconciled"]), cell(&gate["floor"]))
}

/// The current and the planned object, as a unified diff of their JSON.
fn diff(before: &Value, after: &Value) -> String {
    let text = |side: &Value| match side {
        Value::Null => String::new(),
        side => serde_json::to_string_pretty(side).unwrap_or_default() + "\n",
    };
    let (before, after) = (text(before), text(after));
    let diff = similar::TextDiff::from_lines(&before, &after);
    diff.unified_diff()
        .context_radius(1)
        .to_string()
        .lines()
        .fold(String::new(), |all, line| all + "         " + &printable(line) + "\n")
}

pub fn gate_history(document: &Value) -> String {
    let document = serde_json::json!({"items": document["history"]});
    list(
        &document,
        &["EPOCH", "STATE", "APPLIED", "FLOOR", "TARGET", "TERM", "AT", "WHY"],
        &[
            |g| cell(&g["epoch"]),
            |g| cell(&g["state"]),
            |g| cell(&g["reconciled"]),
            |g| cell(&g["floor"]),
            |g| cell(&g["target"]["release"]),
            |g| cell(&g["term"]),
            |g| when(&g["at"]),
            |g| cell(&g["why"]),
        ],
        "no history",
    )
}

pub fn forced_floor(document: &Value) -> String {
    let excluded = document["excluded"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names: Vec<String> = excluded.iter().map(cell).collect();
    let affected = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    if document["changed"] == true {
        format!("the floor is {}; members asked to stop: {affected}", cell(&document["floor"]))
    } else {
        format!(
            "a floor of {} would stop these members: {affected}; confirm with --yes-i-know",
            cell(&document["floor"])
        )
    }
}

pub fn members(document: &Value) -> String {
    list(
        document,
        &["SCOPE", "MEMBER", "RELEASE", "PHASE", "SINCE", "LEASED"],
        &[
            |m| cell(&m["scope"]),
            named,
            |m| cell(&m["release"]),
            |m| cell(&m["phase"]),
            |m| when(&m["since"]),
            |m| if m["external"] == true { "external".to_owned() } else { "yes".to_owned() },
        ],
        "no members; `muster wait-ready SCOPE` announces one",
    )
}

pub fn objects(document: &Value) -> String {
    let mut table = Table::new(&["KIND", "NAMESPACE", "NAME", "OF", "REVISION"]);
    if items(document).is_empty() {
        return "no objects".to_owned();
    }
    for object in items(document) {
        let meta = &object["metadata"];
        table.row([
            cell(&object["kind"]),
            cell(&meta["namespace"]),
            cell(&meta["name"]),
            cell(&meta["labels"]["muster.dev/reconciler"]),
            cell(&meta["revision"]),
        ]);
    }
    table.render()
}

pub fn object(object: &Value) -> String {
    printable_lines(&serde_json::to_string_pretty(object).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plan_is_rendered_as_a_diff() {
        let plan = json!({
            "name": "schema", "release": "2.0.0", "path": "restrict", "blockers": [],
            "objects": [
                {"op": "update", "kind": "table", "namespace": "default", "name": "users",
                 "before": {"labels": {}, "body": {"columns": 1}}, "after": {"labels": {}, "body": {"columns": 2}}},
                {"op": "delete", "kind": "table", "namespace": "default", "name": "old", "before": null, "after": null},
            ],
            "gate": {"reconciled": "2.0.0", "floor": "2.0.0"},
        });
        let text = super::plan(&plan);
        assert!(text.contains("-    \"columns\": 1\n") && text.contains("+    \"columns\": 2\n"), "{text}");
        assert!(text.ends_with("gate afterwards: 2.0.0, floor 2.0.0\n"), "{text}");
    }

    #[test]
    fn control_characters_in_command_output_are_replaced() {
        let shown = output_tail(&format!("{}\x1b[2Jlast\n", "line\n".repeat(30)));
        assert_eq!(shown.trim_start().lines().count(), 1 + LAST_LINES);
        assert!(shown.ends_with("\u{fffd}[2Jlast") && shown.starts_with("\noutput, last lines"), "{shown:?}");
        assert_eq!(output_tail(""), "");
    }
}
