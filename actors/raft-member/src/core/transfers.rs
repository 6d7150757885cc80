//! Snapshots for followers: which are on their way, what the log keeps for them, and when the next attempt may begin.
//!
//! Owns        one transfer per member, from the first snapshot until the member has caught up; the snapshot they share.
//! Inputs      snapshots that raft wants sent, progress and outcomes of transfers, acknowledgements, lost sessions.
//! Outputs     the index that the log must reach back to, members that get no snapshot yet, transfers to stop, problems.
//! Invariants  SNAP-1  while a snapshot is on its way, and until its receiver has caught up, the log behind it is kept, up to
//!                     a bound: a receiver needs one snapshot, however much is written meanwhile.
//!             SNAP-2  between two attempts for one member there is a pause, which doubles up to `MAX_PAUSE`.
//!             SNAP-3  a transfer ends by its outcome, by a lost session, by a receiver that needs it no more, or by
//!                     a time without progress. How long it takes in all does not matter.
//! Why the snapshot is shared: encoding it takes a core for as long as it is large. A second attempt, or a second member,
//! can use it as long as the log reaches back to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::protocol::SnapshotOutcome;
use muster_messages::{Moment, NodeId, PeerProblem, PeerProblemKind, WallTime};

use super::SnapshotJob;

/// After the first attempt that failed. A receiver that was restarted is back by then.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// An operator who has mended something waits this long at most.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Transfers that are lost on the way happen when a process is restarted. From this many in a row on it is a problem.
const LOST_IN_A_ROW: u32 = 3;
/// One refusal may come from a full mailbox.
const REFUSED_IN_A_ROW: u32 = 2;

/// All transfers of one leader, in one term.
#[derive(Default)]
pub(crate) struct Transfers {
    to: BTreeMap<u64, Transfer>,
    job: Option<SnapshotJob>,
}

struct Transfer {
    node: NodeId,
    /// What the snapshot stands for.
    index: u64,
    /// Since when nothing more has arrived; `None`: it is not on its way.
    moved: Option<Moment>,
    /// No other snapshot before this.
    not_before: Moment,
    /// Attempts in a row that did not bring the member further.
    failures: u32,
    refused: bool,
    installed: bool,
    problem: Option<(String, Moment)>,
}

/// A transfer that must not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedTransfer {
    pub node: NodeId,
    pub index: u64,
}

impl Transfers {
    /// A snapshot at `index` leaves for a member. The problem that an operator should hear of now, if the last one was not installed.
    pub fn begin(&mut self, now: Moment, to: u64, node: NodeId, index: u64) -> Option<String> {
        let earlier = self.to.remove(&to);
        // Raft asks for another one although the last one arrived whole.
        let not_installed = earlier.as_ref().is_some_and(|t| t.moved.is_none() && t.problem.is_none() && !t.installed);
        let mut transfer = earlier.unwrap_or(Transfer {
            node,
            index,
            moved: None,
            not_before: now,
            failures: 0,
            refused: false,
            installed: false,
            problem: None,
        });
        transfer.installed = false;
        let news = if not_installed && transfer.failures >= LOST_IN_A_ROW {
            transfer.fail(now, "it arrived whole and was not installed; see the log of that node".to_owned(), true)
        } else {
            None
        };
        (transfer.index, transfer.moved, transfer.node) = (index, Some(now), node);
        self.to.insert(to, transfer);
        news
    }

    /// Whether this snapshot is on its way to this member.
    pub fn is_on_its_way(&self, to: u64, index: u64) -> bool {
        self.to.get(&to).is_some_and(|t| t.moved.is_some() && t.index == index)
    }

    pub fn on_its_way(&self, to: u64) -> bool {
        self.to.get(&to).is_some_and(|t| t.moved.is_some())
    }

    pub fn progressed(&mut self, now: Moment, to: u64, index: u64) {
        if let Some(transfer) = self.to.get_mut(&to).filter(|t| t.index == index && t.moved.is_some()) {
            transfer.moved = Some(now);
        }
    }

    /// The transfer ended. The problem that an operator should hear of now.
    pub fn ended(&mut self, now: Moment, to: u64, outcome: &SnapshotOutcome) -> Option<String> {
        let transfer = self.to.get_mut(&to)?;
        transfer.moved = None;
        transfer.failures += 1;
        transfer.not_before = now + pause(transfer.failures);
        match outcome {
            // Raft probes now: if the receiver installs it, there is no other attempt.
            SnapshotOutcome::Delivered => {
                (transfer.problem, transfer.refused) = (None, false);
                None
            }
            SnapshotOutcome::Lost(why) => {
                let is_problem = transfer.failures >= LOST_IN_A_ROW;
                transfer.fail(now, why.clone(), is_problem)
            }
            SnapshotOutcome::Refused(why) => {
                transfer.refused = true;
                let is_problem = transfer.failures >= REFUSED_IN_A_ROW;
                transfer.fail(now, why.clone(), is_problem)
            }
        }
    }

    /// A member that begins a session may be a new process: there is no reason to make it wait, unless it refused.
    pub fn session_began(&mut self, now: Moment, to: u64) {
        if let Some(transfer) = self.to.get_mut(&to).filter(|t| !t.refused) {
            transfer.not_before = now;
        }
    }

    /// Forgets members that have caught up, or are no members. `matched` says what each has. Those that were still being sent a
    /// snapshot are returned.
    pub fn settle(&mut self, matched: impl Fn(u64) -> Option<Matched>) -> Vec<StoppedTransfer> {
        let mut stopped = Vec::new();
        self.to.retain(|id, transfer| {
            let has = matched(*id);
            let passed = has.is_none_or(|m| m.index >= transfer.index);
            if passed && transfer.moved.take().is_some() {
                stopped.push(StoppedTransfer { node: transfer.node, index: transfer.index });
            }
            if passed {
                (transfer.problem, transfer.failures, transfer.installed) = (None, 0, true);
            }
            !has.is_none_or(|m| passed && m.caught_up)
        });
        if self.to.is_empty() {
            self.job = None;
        }
        stopped
    }

    /// Transfers without progress since before `limit`.
    pub fn stalled(&self, now: Moment, limit: Duration) -> Vec<u64> {
        let stalled = |t: &Transfer| t.moved.is_some_and(|at| now.since(at) >= limit);
        self.to.iter().filter(|(_, t)| stalled(t)).map(|(id, _)| *id).collect()
    }

    /// SNAP-1. The log must reach back to here.
    pub fn floor(&self, matched: impl Fn(u64) -> Option<Matched>) -> Option<u64> {
        self.to.iter().map(|(id, t)| matched(*id).map_or(t.index, |m| m.index.max(t.index))).min()
    }

    /// SNAP-2.
    pub fn paused(&self, now: Moment) -> BTreeSet<u64> {
        self.to.iter().filter(|(_, t)| t.moved.is_none() && now < t.not_before).map(|(id, _)| *id).collect()
    }

    /// The last attempt failed, so that the member does not get on.
    pub fn problem(&self, wall: impl Fn(Moment) -> WallTime, to: u64) -> Option<PeerProblem> {
        let (why, since) = self.to.get(&to)?.problem.as_ref()?;
        Some(PeerProblem {
            kind: PeerProblemKind::SnapshotNotTaken,
            message: format!("it needs a snapshot of the state and did not take the last one: {why}"),
            since: wall(*since),
        })
    }
    pub fn has_problem(&self, to: u64) -> bool {
        self.to.get(&to).is_some_and(|t| t.problem.is_some())
    }

    /// The snapshot that several transfers share.
    pub fn job(&self) -> Option<&SnapshotJob> {
        self.job.as_ref()
    }
    pub fn share(&mut self, job: SnapshotJob) {
        self.job = Some(job);
    }
    /// Stops everything: this member leads no more.
    pub fn clear(&mut self) -> Vec<StoppedTransfer> {
        self.job = None;
        let all = std::mem::take(&mut self.to).into_values().filter(|t| t.moved.is_some());
        all.map(|t| StoppedTransfer { node: t.node, index: t.index }).collect()
    }
    pub fn is_empty(&self) -> bool {
        self.to.is_empty()
    }
}

/// What a member has.
#[derive(Clone, Copy)]
pub(crate) struct Matched {
    pub index: u64,
    /// The ordinary tail of the log is enough for it from now on.
    pub caught_up: bool,
}

impl Transfer {
    /// `Some` once per problem.
    fn fail(&mut self, now: Moment, why: String, is_problem: bool) -> Option<String> {
        if !is_problem {
            return None;
        }
        let known = self.problem.replace((why.clone(), now));
        if let (Some((before, since)), Some(problem)) = (&known, self.problem.as_mut()) {
            problem.1 = *since;
            if *before == why {
                return None;
            }
        }
        Some(why)
    }
}

fn pause(failures: u32) -> Duration {
    MAX_PAUSE.min(FIRST_PAUSE * 2u32.saturating_pow(failures.clamp(1, 10) - 1))
}
