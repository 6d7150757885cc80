//! What the log keeps on record of a reconciler's runs, from [`DEFINITIONS_LEVEL`](super::DEFINITIONS_LEVEL) on: the steps of its
//! chain that have run, and its last runs.

use std::sync::Arc;

use imbl::{OrdMap, Vector};
use serde::{Deserialize, Serialize};

use super::{Action, Definition, FencingToken, Hold, NodeId, Release, Revision, WallTime};

/// Runs that are kept of each reconciler: the last ones.
pub const MAX_RUNS: usize = 32;
/// Bytes of the runs that are kept of all reconcilers together; beyond, the oldest are deleted.
pub const MAX_RUN_BYTES: u64 = 4 << 20;
/// Bytes of the beginning, and of the end, of what a run wrote.
pub const MAX_RUN_TEXT_BYTES: usize = 1024;

/// Records by reconciler, deleted with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReconcilerRecords {
    pub chains: OrdMap<String, Arc<ChainRecord>>,
    pub runs: OrdMap<String, Arc<RunRecords>>,
}

/// The steps of a chain that have run, in that order. They are a prefix of the chain of every definition that is applied, or the
/// whole of it and more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainRecord {
    pub steps: Vec<StepRecord>,
}

/// A step that has run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    pub name: String,
    pub digest: String,
    /// Of the definition by which it ran.
    pub release: Release,
    /// `None`: a program without a node reported it.
    pub node: Option<NodeId>,
    pub term: FencingToken,
    pub at: WallTime,
    pub revision: Revision,
}

/// The last runs of a reconciler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecords {
    /// The number of the newest one; grows even when older ones are deleted.
    pub last: u64,
    /// Oldest first.
    pub runs: Vector<Arc<RunRecord>>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// Its end is not on record. Its term may be over.
    Running,
    Done,
    /// It asked to be tried again later.
    Later,
    Failed,
    /// Not retried until an operator runs `retry`.
    Permanent,
    TimedOut,
    /// Another definition, or an operator, took its place.
    Cancelled,
    /// Its term ended.
    TermEnded,
}

/// How the process of a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunExit {
    pub status: Option<u8>,
    pub signal: Option<u8>,
    /// In words; also why it could not be started.
    pub text: String,
}

/// One run of a reconciler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    pub reconciler: String,
    /// Set when it is recorded first: grows by one with each run.
    pub number: u64,
    /// The runner's term, and the run's number in it, as the runner counts: together they identify it.
    pub term: FencingToken,
    pub of_term: u64,
    pub attempt: u32,
    pub node: NodeId,
    /// Of the definition.
    pub release: Release,
    /// Of a chain.
    pub step: Option<String>,
    pub began: WallTime,
    /// By the runner's clock. `None`: it is running.
    pub ran_for_ms: Option<u64>,
    /// Only of a command that has ended.
    pub exit: Option<RunExit>,
    pub outcome: RunOutcome,
    /// The beginning and the end of what it wrote, at most [`MAX_RUN_TEXT_BYTES`] each.
    pub head: String,
    pub tail: String,
    /// Its log index.
    pub revision: Revision,
}

/// Bytes of a record besides its texts.
const RECORD_BYTES: usize = 160;

impl RunRecord {
    /// What it counts for in [`MAX_RUN_BYTES`].
    pub fn bytes(&self) -> u64 {
        let exit = self.exit.as_ref().map_or(0, |exit| exit.text.len());
        let step = self.step.as_ref().map_or(0, String::len);
        (RECORD_BYTES + self.reconciler.len() + exit + step + self.head.len() + self.tail.len()) as u64
    }
    /// The same, with each text cut to what is kept.
    #[must_use]
    pub fn truncated(mut self) -> Self {
        self.head.truncate(self.head.floor_char_boundary(MAX_RUN_TEXT_BYTES));
        let from = self.tail.len().saturating_sub(MAX_RUN_TEXT_BYTES);
        self.tail.drain(..self.tail.ceil_char_boundary(from));
        if let Some(exit) = &mut self.exit {
            exit.text.truncate(exit.text.floor_char_boundary(MAX_RUN_TEXT_BYTES));
        }
        self
    }
}

impl ReconcilerRecords {
    /// Refuses a chain in which a step that has run is another one.
    pub fn check_chain(&self, definition: &Definition) -> Result<(), Hold> {
        let (Action::Chain(steps), Some(ran)) = (&definition.action, self.chains.get(&definition.reconciler)) else {
            return Ok(());
        };
        let other =
            ran.steps.iter().zip(steps).find(|(ran, step)| (&ran.name, &ran.digest) != (&step.name, &step.digest));
        let Some((ran, step)) = other else { return Ok(()) };
        let instead = (ran.name != step.name).then(|| step.name.clone());
        let (release, step) = (definition.release.clone(), ran.name.clone());
        Err(Hold::StepChanged { step, ran: Box::new(ran.release.clone()), release: Box::new(release), instead })
    }
    /// What counts for [`MAX_RUN_BYTES`].
    pub fn run_bytes(&self) -> u64 {
        self.runs.values().flat_map(|runs| &runs.runs).map(|run| run.bytes()).sum()
    }
    /// How many steps of a chain have run.
    pub fn steps_done(&self, reconciler: &str) -> usize {
        self.chains.get(reconciler).map_or(0, |chain| chain.steps.len())
    }
}
