//! Cluster incompatible with this build: its feature level is too new.
//!
//! Invariants  LEVEL-2  nothing is applied behind the entry that raised the feature level above this build's: later entries may use an
//!                      encoding that it cannot read, or a meaning that it does not know. It also sends, writes and votes for nothing.
//! Such a member waits to be stopped. A newer build continues from the same data.

use muster_messages::Moment;
use muster_messages::protocol::ReadError;

use super::internals::Internals;
use super::{Answer, Input, RaftCore};

/// What this build does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// According to its own replica. Final: the level never falls.
    #[error("the cluster is at feature level {0}")]
    Level(u32),
    /// A peer sent such a snapshot. One peer's claim must not stop a member: the receiver of this value asks the leader.
    #[error("the cluster's snapshots are of version {0}")]
    Snapshot(u8),
}

impl RaftCore {
    /// The feature level of the replica, if it is above this build's.
    pub fn incompatible(&self) -> Option<u32> {
        let level = self.tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
        (level > self.config.feature_level && !self.config.injected_bugs().ignore_level).then_some(level)
    }

    /// Replaces [`RaftCore::step`]: requests get a refusal, other inputs are ignored.
    pub(super) fn decline(&mut self, now: Moment, input: Input) {
        let answer = match input {
            Input::Propose { ask, .. } | Input::ProposeMembership { ask, .. } => {
                Answer::Proposed(ask, Err(self.not_leader(now)))
            }
            Input::TransferLeadership { ask, .. } => Answer::Transferred(ask, Err(self.not_leader(now))),
            Input::Read { ask, .. } => Answer::Read(ask, Err(ReadError::NoLeader)),
            Input::CheckReachable { ask, .. } => Answer::Reachable(ask, Err(self.not_leader(now))),
            Input::Tick => return self.expire(now),
            _ => return,
        };
        self.out.answers.push(answer);
    }

    /// An incompatible leader steps down, so that the others elect a compatible one.
    pub(super) fn step_down_if_incompatible(&mut self, now: Moment) {
        let Some(member) = self.member.as_mut().filter(|member| member.raw.leads()) else {
            return;
        };
        member.raw.step_down();
        self.settle(now);
    }
}
