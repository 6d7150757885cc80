//! What the log remembers of a reconciler beyond its gate and its current runner, from [`RUNS_LEVEL`](super::RUNS_LEVEL) on.

use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::{FencingToken, Gate, NodeId, Progress, Release, WallTime};

/// Failures and deleted gates, by reconciler. One row each at most, deleted with the reconciler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReconcilerRuns {
    /// The last failure, until a run succeeds. A runner's progress ends with its term; this does not.
    pub failures: OrdMap<String, Arc<LastFailure>>,
    /// The gate that an operator deleted, until another one is written: its history can still be read, and repaired from.
    pub deleted_gates: OrdMap<String, Arc<Gate>>,
}

/// Bytes of output that a failure keeps.
pub const MAX_FAILURE_OUTPUT_BYTES: usize = 4096;
/// Characters of the output's last line in a sentence about the failure.
const MAX_LINE_CHARS: usize = 160;

/// The last failure of a reconciler's runs, and how many there were since one succeeded, in whichever term and on whichever node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// Where it failed, as which release, in which term.
    pub node: NodeId,
    pub release: Release,
    pub term: FencingToken,
    /// Since the last success.
    pub failures: u32,
    /// Of them, those in `term`.
    pub of_term: u32,
    /// When the first of them was reported, and the last.
    pub since: WallTime,
    pub at: WallTime,
    pub error: String,
    /// The end of what the action wrote.
    pub output: String,
    /// Nothing retries it, except an operator.
    pub permanent: bool,
}

impl LastFailure {
    /// The failure that a runner reports, after `earlier` ones. `None`: it reports none.
    pub fn reported(progress: &Progress, earlier: Option<&Self>, at: WallTime) -> Option<Self> {
        let error = progress.last_error.clone().filter(|_| progress.consecutive_failures > 0)?;
        let of_term = progress.consecutive_failures;
        let before = earlier.map_or(0, |earlier| {
            let counted = if earlier.term == progress.term { earlier.of_term } else { 0 };
            earlier.failures.saturating_sub(counted)
        });
        let is_new = earlier.is_none_or(|earlier| earlier.term != progress.term || earlier.of_term != of_term);
        Some(Self {
            node: progress.node,
            release: progress.release.clone(),
            term: progress.term,
            failures: before.saturating_add(of_term),
            of_term,
            since: earlier.map_or(at, |earlier| earlier.since),
            at: earlier.filter(|_| !is_new).map_or(at, |earlier| earlier.at),
            error,
            output: end_of(&progress.output).to_owned(),
            permanent: progress.phase == super::ReconcilerPhase::Failed,
        })
    }
    /// The last line of the output that says something.
    pub fn last_line(&self) -> Option<String> {
        let line = self.output.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().take(MAX_LINE_CHARS).collect())
    }
}

fn end_of(output: &str) -> &str {
    let from = output.len().saturating_sub(MAX_FAILURE_OUTPUT_BYTES);
    &output[output.ceil_char_boundary(from)..]
}
