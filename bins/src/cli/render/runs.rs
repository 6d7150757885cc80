//! Tables of runs.

use std::time::Duration;

use muster_messages::{ListView, Name, RunState, RunView};

use super::{list, when};
use crate::cli::output::{or_dash, printable};

pub fn runs(runs: &ListView<RunView>) -> String {
    list(
        &runs.items,
        &["RUN", "ATTEMPT", "NODE", "RELEASE", "BEGAN", "TOOK", "EXIT", "OUTCOME"],
        &[
            |run| run.number.to_string(),
            |run| run.attempt.to_string(),
            node,
            |run| run.release.to_string(),
            |run| when(run.began),
            |run| or_dash(run.ran_for_ms.map(took)),
            exit,
            outcome,
        ],
        "no runs on record",
    )
}

fn node(run: &RunView) -> String {
    run.node_name.as_ref().map_or_else(|| run.node.to_string(), Name::to_string)
}

fn took(ms: u64) -> String {
    match Duration::from_millis(ms) {
        // Of longer ones the milliseconds are noise.
        long if long >= Duration::from_secs(60) => format!("{:?}", Duration::from_secs(long.as_secs())),
        short => format!("{short:?}"),
    }
}

fn exit(run: &RunView) -> String {
    match (run.exit.status, run.exit.signal) {
        (Some(status), _) => status.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "-".to_owned(),
    }
}

fn outcome(run: &RunView) -> String {
    match &run.step {
        Some(step) => format!("{} (step {step})", run.outcome),
        None => run.outcome.to_string(),
    }
}

/// A run in a row of `status`.
pub fn last_run(reconciler: &str, run: &RunView) -> String {
    let took = run.ran_for_ms.map(|ms| format!(" after {}", took(ms))).unwrap_or_default();
    let exit = match exit(run) {
        none if none == "-" => String::new(),
        exit => format!(" (exit {exit})"),
    };
    let follow = if run.outcome == RunState::Running { " --follow" } else { "" };
    // Only commands have logs, and one that has ended has an exit status, or has written something.
    let has_ended = run.outcome == RunState::Done || run.outcome == RunState::Failed;
    let logs = if has_ended && exit.is_empty() && run.head.is_empty() {
        String::new()
    } else {
        format!("; `muster reconciler logs {reconciler} --run {}{follow}`", run.number)
    };
    format!("{} on {}, attempt {}: {}{exit}{took}{logs}", run.number, node(run), run.attempt, outcome(run))
}

/// What is on record of a run's output.
pub fn run_on_record(run: &RunView) -> String {
    let indented = |text: &str| text.lines().map(|line| format!("  {}\n", printable(line))).collect::<String>();
    match (run.head.is_empty(), run.tail.is_empty() || run.tail == run.head) {
        (true, true) => format!("run {} has no output on record", run.number),
        (_, true) => format!("output on record:\n{}", indented(&run.head)),
        (_, false) => format!("first lines:\n{}last lines:\n{}", indented(&run.head), indented(&run.tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(change: serde_json::Value) -> RunView {
        let mut run = json!({"number": 7, "attempt": 2, "node": "5w480eevgbaa2lokqcxne9lse", "node_name": "n3", "release": "2.0.0",
            "term": 40, "of_term": 2, "began": "2026-11-22T00:28:47Z", "ran_for_ms": 1250, "outcome": "failed",
            "exit": {"status": 3, "signal": null}, "message": "the command exited with 3", "head": "a", "tail": "b"});
        for (key, value) in change.as_object().unwrap() {
            run[key] = value.clone();
        }
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn runs_are_rows_with_node_duration_and_exit() {
        let items = [
            run(json!({})),
            run(
                json!({"number": 8, "ran_for_ms": 61_200, "exit": {"status": null, "signal": 9}, "outcome": "timed-out"}),
            ),
            run(json!({"number": 9, "node_name": null, "ran_for_ms": null, "exit": {"status": null, "signal": null},
                "outcome": "x\u{1b}[2J", "step": "two"})),
        ];
        let text = runs(&ListView::of(items));
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(
            rows[0],
            "RUN  ATTEMPT  NODE                       RELEASE  BEGAN                 TOOK   EXIT      OUTCOME"
        );
        assert_eq!(
            rows[1],
            "7    2        n3                         2.0.0    2026-11-22T00:28:47Z  1.25s  3         failed"
        );
        assert_eq!(
            rows[2],
            "8    2        n3                         2.0.0    2026-11-22T00:28:47Z  61s    signal 9  timed-out"
        );
        assert!(
            rows[3].ends_with("-      -         x\u{fffd}[2J (step two)")
                && rows[3].contains("5w480eevgbaa2lokqcxne9lse"),
            "{text}"
        );
    }

    #[test]
    fn last_run_names_the_command_that_shows_its_output() {
        assert_eq!(
            last_run("people", &run(json!({}))),
            "7 on n3, attempt 2: failed (exit 3) after 1.25s; `muster reconciler logs people --run 7`"
        );
        let running = run(json!({"outcome": "running", "ran_for_ms": null, "exit": {"status": null, "signal": null}}));
        assert_eq!(
            last_run("people", &running),
            "7 on n3, attempt 2: running; `muster reconciler logs people --run 7 --follow`"
        );
        let objects = run(json!({"outcome": "done", "exit": {"status": null, "signal": null}, "head": "", "tail": ""}));
        assert_eq!(last_run("people", &objects), "7 on n3, attempt 2: done after 1.25s", "objects have no log");
    }

    #[test]
    fn recorded_output_is_shown_once_if_it_is_whole() {
        let shown = |head: &str, tail: &str| run_on_record(&run(json!({"head": head, "tail": tail})));
        assert_eq!(shown("a\x1b\nb\n", "a\x1b\nb\n"), "output on record:\n  a\u{fffd}\n  b\n");
        assert_eq!(shown("a", "b"), "first lines:\n  a\nlast lines:\n  b\n");
        assert_eq!(shown("", ""), "run 7 has no output on record");
    }
}
