//! The benchmark's numbers as people read them.

use serde_json::Value;

use crate::cli::output::Table;

pub fn mb(bytes: u64) -> f64 {
    (bytes as f64 / 1e5).round() / 10.0
}

pub fn kb(bytes: u64) -> f64 {
    (bytes as f64 / 100.0).round() / 10.0
}

pub fn table(document: &Value) -> String {
    let mut table = Table::new(&["STEP", "MEASURED"]);
    let join = &document["join"];
    table.row([
        format!("join, {} agents", document["agents"]),
        format!(
            "{} s, in session {} s, shown ready {} s; an agent {} ms p50, {} ms p99; {} delayed",
            join["seconds"],
            join["in_session_seconds"],
            join["ready_seconds"],
            join["p50_ms"],
            join["p99_ms"],
            items(&join["delayed"]).filter_map(|delay| delay["agents"].as_u64()).sum::<u64>(),
        ),
    ]);
    let idle = &document["idle"];
    for manager in items(&idle["managers"]) {
        let leads = if manager["leader"] == true { ", leader" } else { "" };
        table.row([
            format!("idle, {}{leads}", word(&manager["node"])),
            format!("{} sessions, {} cores, {} MB", manager["sessions"], manager["cores"], manager["rss_mb"]),
        ]);
    }
    table.row([
        "idle, an agent".to_owned(),
        format!(
            "{} messages and {} bytes per s; {} KB here; all agents {} cores",
            idle["messages_per_agent_per_s"],
            idle["bytes_per_agent_per_s"],
            join["memory_per_agent_kb"],
            idle["agents_cores"],
        ),
    ]);
    for change in items(&document["view"]) {
        table.row([
            format!("view after a {}", word(&change["change"])),
            format!(
                "all agents after {} ms, {} ms after the first; in force after {} ms; {} bytes per agent",
                change["all_ms"], change["first_to_all_ms"], change["settled_ms"], change["bytes_per_agent"],
            ),
        ]);
    }
    let kills = [("kill a manager", &document["kill_manager"]), ("kill the leader", &document["kill_leader"])];
    for (step, killed) in kills {
        table.row([
            format!("{step}, {}", word(&killed["node"])),
            format!("{}; writes back after {} ms", moved(killed), killed["writes_back_ms"]),
        ]);
    }
    for stopped in items(&document["rolling_restart"]) {
        table.row([
            format!("restart {}", word(&stopped["node"])),
            format!("{}; votes again after {} ms", moved(stopped), stopped["restarted_ms"]),
        ]);
    }
    let roles = &document["roles"];
    table.row([
        format!("{} role changes", roles["changes"]),
        format!(
            "{} s; {} ms p50, {} ms p99, {} ms at most; {} ms of processor time each",
            roles["seconds"], roles["p50_ms"], roles["p99_ms"], roles["max_ms"], roles["managers_cpu_ms_per_change"],
        ),
    ]);
    let after = items(&document["managers_after"]);
    let after: Vec<String> =
        after.map(|manager| format!("{} {} MB", word(&manager["node"]), manager["rss_mb"])).collect();
    table.row(["managers at the end".to_owned(), after.join(", ")]);
    table.row(["nodes ever shown down".to_owned(), known(&document["shown_down"])]);
    table.render()
}

fn moved(step: &Value) -> String {
    format!(
        "{} sessions, all back after {} ms; {} gaps ({} ms p50, {} ms at most), {} shown down",
        step["sessions"],
        step["all_ms"],
        step["gaps"],
        step["gap_p50_ms"],
        step["gap_max_ms"],
        known(&step["shown_down"]),
    )
}

/// A number, if it is known: see `Managers::shown_down`.
fn known(value: &Value) -> String {
    if value.is_null() { "unknown".to_owned() } else { value.to_string() }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_number_of_nodes_is_not_shown_as_zero() {
        let step =
            json!({"sessions": 5, "all_ms": 200, "gaps": 4, "gap_p50_ms": 1.5, "gap_max_ms": 9.0, "shown_down": null});
        let expected = "5 sessions, all back after 200 ms; 4 gaps (1.5 ms p50, 9.0 ms at most), unknown shown down";
        assert_eq!(moved(&step), expected);
        assert_eq!((known(&json!(0)), known(&Value::Null)), ("0".to_owned(), "unknown".to_owned()));
    }
}
