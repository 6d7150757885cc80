//! Reconcilers, members and objects for people.

use serde_json::Value;

use super::{items, list, when};
use crate::cli::output::{Table, cell};

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
        "no reconcilers; `muster reconciler apply -f FILE` brings one",
    )
}

/// In one line, as it goes on.
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
    let (gate, runner, people) = (&r["gate"], &r["runner"], &r["participants"]);
    let mut table = Table::bare();
    let applied = match gate["state"].as_str() {
        None => "nothing yet".to_owned(),
        Some("working") => format!(
            "{} on the way to {}, floor {}",
            cell(&gate["reconciled"]),
            cell(&gate["target"]["release"]),
            cell(&gate["floor"])
        ),
        Some("unreadable") => "the gate cannot be read".to_owned(),
        Some(_) => format!("{}, floor {}", cell(&gate["reconciled"]), cell(&gate["floor"])),
    };
    let runs = if runner.is_null() {
        "nobody".to_owned()
    } else {
        format!("{} since {}, term {}", cell(&runner["member"]), when(&runner["since"]), cell(&runner["term"]))
    };
    let scope = format!(
        "{}: {} serving, {} announced, {} draining",
        cell(&r["scope"]),
        cell(&people["serving"]),
        cell(&people["announced"]),
        cell(&people["draining"])
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
    let blocked = r["blockers"].as_array().is_some_and(|blockers| !blockers.is_empty());
    if blocked {
        text += &format!("\n{}", blockers(&r["blockers"]));
    }
    text
}

pub fn blockers(blockers: &Value) -> String {
    let document = serde_json::json!({"items": blockers});
    list(
        &document,
        &["MEMBER", "RELEASE", "PHASE", "SINCE", "WHY"],
        &[
            |b| cell(&b["member"]),
            |b| cell(&b["release"]),
            |b| cell(&b["phase"]),
            |b| when(&b["since"]),
            |b| cell(&b["why"]),
        ],
        "nobody is in the way",
    )
}

pub fn applied(document: &Value) -> String {
    let line = |d: &Value| {
        let changed = if d["changed"] == true { "is there" } else { "was there already" };
        format!("{} {} {changed}\n", cell(&d["name"]), cell(&d["release"]))
    };
    document["definitions"].as_array().into_iter().flatten().map(line).collect()
}

pub fn plan(plan: &Value) -> String {
    let mut text = format!("{} {}\n", cell(&plan["name"]), cell(&plan["release"]));
    match plan["path"].as_str() {
        Some("first") => text += "it would be applied for the first time\n",
        Some("reached") => text += "it has been applied; what differs would be repaired\n",
        Some("open") => text += "it would begin at once: whoever is admitted can live with it\n",
        Some(_) => text += "it would first keep out those that cannot live with it\n",
        None => text += &format!("it would not begin: {}\n", cell(&plan["hold"]["message"])),
    }
    for object in plan["objects"].as_array().into_iter().flatten() {
        let key = format!("{} {}/{}", cell(&object["kind"]), cell(&object["namespace"]), cell(&object["name"]));
        text += &format!("  {:<6} {key}\n", cell(&object["op"]));
    }
    if plan["blockers"].as_array().is_some_and(|blockers| !blockers.is_empty()) {
        text += "these are in the way:\n";
        text += &blockers(&plan["blockers"]);
    }
    let gate = &plan["gate"];
    text + &format!("then the gate says {}, floor {}\n", cell(&gate["reconciled"]), cell(&gate["floor"]))
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

pub fn forced(document: &Value) -> String {
    let excluded = document["excluded"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names: Vec<String> = excluded.iter().map(cell).collect();
    let whom = if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
    if document["changed"] == true {
        format!("the floor is {}; told to stop: {whom}", cell(&document["floor"]))
    } else {
        format!(
            "with a floor of {} these would be told to stop: {whom}; say so with --yes-i-know",
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
            |m| cell(&m["member"]),
            |m| cell(&m["release"]),
            |m| cell(&m["phase"]),
            |m| when(&m["since"]),
            |m| if m["external"] == true { "external".to_owned() } else { "yes".to_owned() },
        ],
        "nobody has announced itself; `muster wait-ready SCOPE` does",
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
    serde_json::to_string_pretty(object).unwrap_or_default()
}
