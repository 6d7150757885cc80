//! The history of runs, as operators see it.

use muster_messages::{ListView, RunExitView, RunOutcome, RunRecord, RunState, RunView, Tables, runner_lease};

/// `muster reconciler runs`, oldest first. `None`: no reconciler of this name exists.
pub fn runs(tables: &Tables, name: &str) -> Option<ListView<RunView>> {
    let all = &tables.reconcilers;
    let there = all.definitions_of(name).next().is_some() || all.gates.contains_key(name);
    let of = tables.records.runs.get(name);
    if !there && of.is_none() {
        return None;
    }
    let items = of.iter().flat_map(|of| &of.runs).map(|run| run_view(tables, run));
    Some(ListView::at(tables.revision, items))
}

/// The run with this number; `None`: the newest one.
pub fn run<'a>(tables: &'a Tables, name: &str, number: Option<u64>) -> Option<&'a RunRecord> {
    let runs = &tables.records.runs.get(name)?.runs;
    let found = match number {
        Some(number) => runs.iter().find(|run| run.number == number),
        None => runs.last(),
    };
    found.map(AsRef::as_ref)
}

/// A run as operators see it.
pub fn run_view(tables: &Tables, run: &RunRecord) -> RunView {
    let exit = run.exit.clone().unwrap_or_default();
    RunView {
        number: run.number,
        attempt: run.attempt,
        node: run.node,
        node_name: tables.nodes.get(&run.node).map(|node| node.name.clone()),
        release: run.release.clone(),
        step: run.step.clone(),
        term: run.term,
        of_term: run.of_term,
        began: run.began,
        ran_for_ms: run.ran_for_ms,
        outcome: state(tables, run).into(),
        exit: RunExitView { status: exit.status, signal: exit.signal },
        message: exit.text,
        head: run.head.clone(),
        tail: run.tail.clone(),
    }
}

fn state(tables: &Tables, run: &RunRecord) -> RunState {
    match run.outcome {
        RunOutcome::Running if is_over(tables, run) => RunState::Unknown,
        RunOutcome::Running => RunState::Running,
        RunOutcome::Done => RunState::Done,
        RunOutcome::Later => RunState::Later,
        RunOutcome::Failed => RunState::Failed,
        RunOutcome::Permanent => RunState::Permanent,
        RunOutcome::TimedOut => RunState::TimedOut,
        RunOutcome::Cancelled => RunState::Cancelled,
        RunOutcome::TermEnded => RunState::TermEnded,
    }
}

/// Whether its end can no longer be written: its term has ended, or its runner has begun another run.
fn is_over(tables: &Tables, run: &RunRecord) -> bool {
    let lease = tables.objects.get(&runner_lease(&run.reconciler)).and_then(|object| object.lease());
    let in_force = lease.is_some_and(|lease| lease.is_live() && lease.holding.token == run.term);
    let newest = tables.records.runs.get(&run.reconciler).and_then(|of| of.runs.last());
    !in_force || newest.is_some_and(|newest| (newest.term, newest.of_term) > (run.term, run.of_term))
}
