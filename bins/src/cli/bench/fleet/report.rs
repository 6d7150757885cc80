//! The benchmark's numbers as people read them.

use std::time::Duration;

use serde_json::Value;

use crate::cli::output::Table;

pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

pub fn seconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64())
}

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
    for (step, lost) in [("kill a manager", &document["kill_manager"]), ("kill the leader", &document["kill_leader"])] {
        table.row([
            format!("{step}, {}", word(&lost["node"])),
            format!("{}; writes back after {} ms", moved(lost), lost["writes_back_ms"]),
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
    table.row(["nodes ever shown down".to_owned(), document["shown_down"].to_string()]);
    table.render()
}

fn moved(lost: &Value) -> String {
    format!(
        "{} of {} sessions moved, all back after {} ms (a gap {} ms p50, {} ms at most), {} shown down",
        lost["lost"], lost["sessions"], lost["all_ms"], lost["gap_p50_ms"], lost["gap_max_ms"], lost["shown_down"],
    )
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}
