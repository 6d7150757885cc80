//! Snapshot transfers to followers: which are in progress, what the log keeps for them, and when the next attempt may begin.
//!
//! Owns        one transfer per member, from the first snapshot until the member has caught up; the snapshot they share.
//! Inputs      snapshots that raft wants to send, progress and outcomes of transfers, acknowledgements, lost sessions.
//! Outputs     the index that the log must reach back to, members that get no snapshot yet, transfers to stop, problems.
//! Invariants  SNAP-1  during a transfer, and until its receiver has caught up, the log behind the snapshot is kept, up to a bound:
//!                     a receiver needs one snapshot, however much is written meanwhile.
//!             SNAP-2  between two attempts for one member there is a pause, which doubles up to `MAX_PAUSE`.
//!             SNAP-3  a transfer ends by its outcome, a lost session, a receiver that no longer needs it, or a time without
//!                     progress. Its total duration is not limited.
//! Why the snapshot is shared: encoding a large one takes a core for a long time. A second attempt, or a second member, can use it as
//! long as the log reaches back to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::protocol::SnapshotOutcome;
use muster_messages::{Moment, NodeId, PeerProblem, PeerProblemKind, WallTime};

use super::SnapshotJob;

/// After the first failed attempt. A restarted receiver is back by then.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest wait for an operator who has fixed the cause.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A restarted process loses transfers. From this many in a row on it is a problem.
const PROBLEM_AFTER_LOST: u32 = 3;
/// One refusal may come from a full mailbox.
const PROBLEM_AFTER_REFUSED: u32 = 2;

/// All transfers of one leader, in one term.
#[derive(Default)]
pub(crate) struct Transfers {
    to: BTreeMap<u64, Transfer>,
    job: Option<SnapshotJob>,
}

struct Transfer {
    node: NodeId,
    /// The index of the snapshot.
    index: u64,
    /// When it last made progress; `None`: no transfer is in progress.
    moved: Option<Moment>,
    /// The earliest time for another snapshot.
    not_before: Moment,
    /// Attempts in a row that brought the member no progress.
    failures: u32,
    refused: bool,
    installed: bool,
    problem: Option<(String, Moment)>,
}

/// A transfer that must be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedTransfer {
    pub node: NodeId,
    pub index: u64,
}

impl Transfers {
    /// A snapshot at `index` is sent to a member. Returns the problem to report if the last one was not installed.
    pub fn begin(&mut self, now: Moment, to: u64, node: NodeId, index: u64) -> Option<String> {
        let earlier = self.to.remove(&to);
        // Raft asks for another snapshot although the last one arrived completely.
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
        let news = if not_installed && transfer.failures >= PROBLEM_AFTER_LOST {
            transfer.fail(now, "it arrived completely but was not installed; see the log of that node".to_owned(), true)
        } else {
            None
        };
        (transfer.index, transfer.moved, transfer.node) = (index, Some(now), node);
        self.to.insert(to, transfer);
        news
    }

    /// Whether this snapshot is being sent to this member.
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

    /// The transfer ended. Returns the problem to report.
    pub fn ended(&mut self, now: Moment, to: u64, outcome: &SnapshotOutcome) -> Option<String> {
        let transfer = self.to.get_mut(&to)?;
        transfer.moved = None;
        transfer.failures += 1;
        transfer.not_before = now + pause(transfer.failures);
        match outcome {
            // Raft now probes: if the receiver installs the snapshot, there is no other attempt.
            SnapshotOutcome::Delivered => {
                (transfer.problem, transfer.refused) = (None, false);
                None
            }
            SnapshotOutcome::Lost(why) => {
                let is_problem = transfer.failures >= PROBLEM_AFTER_LOST;
                transfer.fail(now, why.clone(), is_problem)
            }
            SnapshotOutcome::Refused(why) => {
                transfer.refused = true;
                let is_problem = transfer.failures >= PROBLEM_AFTER_REFUSED;
                transfer.fail(now, why.clone(), is_problem)
            }
        }
    }

    /// A member that begins a session may be a new process and need not wait, unless it refused.
    pub fn session_began(&mut self, now: Moment, to: u64) {
        if let Some(transfer) = self.to.get_mut(&to).filter(|t| !t.refused) {
            transfer.not_before = now;
        }
    }

    /// Forgets members that have caught up or were removed. `matched` returns what each has. Returns the transfers that are not
    /// needed any more.
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

    /// Transfers without progress for `limit`.
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

    /// Why the last attempt failed, while the member makes no progress.
    pub fn problem(&self, wall: impl Fn(Moment) -> WallTime, to: u64) -> Option<PeerProblem> {
        let (why, since) = self.to.get(&to)?.problem.as_ref()?;
        Some(PeerProblem {
            kind: PeerProblemKind::SnapshotNotTaken,
            message: format!("it needs a snapshot of the state and did not install the last one: {why}"),
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

/// The progress of a member.
#[derive(Clone, Copy)]
pub(crate) struct Matched {
    pub index: u64,
    /// The regular tail of the log suffices for it from now on.
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
