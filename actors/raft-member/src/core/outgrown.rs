//! A cluster that speaks more than this build.
//!
//! Keeps  LEVEL-2  nothing is applied behind the entry that raised the feature level above this build's: what follows may be
//!                 written as it cannot read, or mean what it does not know. Nor is anything said, voted for or written.
//! Such a member waits to be stopped. A newer build goes on from the same data.

use muster_messages::Moment;
use muster_messages::protocol::ReadError;
use raft::{INVALID_ID, StateRole};

use super::{Answer, Input, RaftCore};

/// What is not spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Outgrown {
    /// By its own copy. Final: the level never falls.
    #[error("the cluster is at feature level {0}")]
    Level(u32),
    /// A peer has sent one. A peer's word alone stops nobody: whoever hears this asks the leader.
    #[error("the cluster's snapshots are of version {0}")]
    Snapshot(u8),
}

impl RaftCore {
    /// The level of its copy, where that is above this build's.
    pub fn outgrown(&self) -> Option<u32> {
        let level = self.tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
        (level > self.config.feature_level).then_some(level)
    }

    /// In the place of [`RaftCore::step`]: whoever asks is answered, the rest is not for us any more.
    pub(super) fn decline(&mut self, now: Moment, input: Input) {
        let answer = match input {
            Input::Propose { ask, .. } | Input::ProposeSeat { ask, .. } => {
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

    /// A leader that is outgrown leads no longer: the others elect one that is not.
    pub(super) fn step_down_if_outgrown(&mut self, now: Moment) {
        let Some(seat) = self.seat.as_mut().filter(|seat| seat.raw.raft.state == StateRole::Leader) else { return };
        let term = seat.raw.raft.term;
        seat.raw.raft.become_follower(term, INVALID_ID);
        self.settle(now);
    }
}
