//! The values that the core and its shell exchange.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use muster_messages::AskId;
use muster_messages::wire::{ManagerReport, MembershipReply, MembershipRequest};
use muster_messages::{
    Command, CommandRefusal, ErrorBody, MembershipChange, Moment, NodeId, RaftId, Replica, Revision, SettleTimes, Term,
    WallTime, Wants,
};
use serde::{Deserialize, Serialize};

use super::{MembershipSlot, Observations, Outbox, Queues, RoleRequest};

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    pub at: Moment,
    pub wall: WallTime,
}

impl Now {
    pub(super) fn plus(self, d: Duration) -> Self {
        Self { at: self.at + d, wall: self.wall.plus(d) }
    }
}

/// A step that was started and ends exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepId(pub u64);
impl std::fmt::Display for StepId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Debug)]
pub enum Input {
    /// A caller requests a role for a node, or its removal.
    RoleRequested(RoleRequest),
    /// A manager runtime asks for membership.
    MembershipRequested {
        ask: AskId,
        node: NodeId,
        request: MembershipRequest,
    },
    /// A node reports whether its manager runtime can run.
    Reported {
        ask: AskId,
        node: NodeId,
        report: ManagerReport,
    },
    /// The newest level of the replicated state and of Raft.
    Seen(Arc<Replica>),
    /// A proposed command or membership change ended.
    Committed {
        step: StepId,
        outcome: StepOutcome,
    },
    Probed {
        step: StepId,
        result: Result<(), ErrorBody>,
    },
    /// A reachability check ended. `None`: the raft member did not run it.
    ReachabilityChecked {
        step: StepId,
        reachable: Option<BTreeSet<RaftId>>,
    },
    /// An offer of leadership ended: another leads, or it failed.
    Transferred {
        step: StepId,
        taken: bool,
    },
    /// The time set with [`Effect::WakeAt`] is reached. Early or repeated: harmless.
    Woke,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    Applied(Revision),
    /// Refused without effect.
    Refused(CommandRefusal),
    /// Not proposed: another membership change is in flight.
    MembershipBusy,
    /// Not proposed: too many proposals.
    Crowded,
    NotLeader,
    NoQuorum {
        missing: Vec<NodeId>,
    },
    /// Outcome unknown: it may still be applied.
    TimedOut,
    /// Leadership or the raft member was lost while it was in flight.
    Unknown,
}

/// The effects. Each may be repeated.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Propose {
        step: StepId,
        command: Box<Command>,
    },
    ProposeMembership {
        step: StepId,
        change: MembershipChange,
    },
    /// Dial `addr` and check whether `node` answers.
    Probe {
        step: StepId,
        addr: String,
        node: NodeId,
    },
    /// Ask the raft member which of these members respond now. It ends when `needed` have, or after `within`; it always ends.
    CheckReachable {
        step: StepId,
        members: BTreeSet<RaftId>,
        needed: usize,
        within: Duration,
    },
    TransferLeadership {
        step: StepId,
        to: NodeId,
    },
    Answer(AskId, Answer),
    WakeAt(Moment),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A role was requested. `Ok(false)`: it was already so.
    Role(Result<bool, ErrorBody>),
    /// A removal was requested, and is complete.
    Removed(Result<(), ErrorBody>),
    Membership(Result<MembershipReply, ErrorBody>),
    /// The report was taken in.
    Reported(Result<(), ErrorBody>),
}

/// What survives a crash of the role manager. The next incarnation starts from this and a new view of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The term it was written in. In a later term each of its steps is applied or lost, and only the facts count.
    pub term: Term,
    /// The last step's number.
    pub steps: u64,
    pub queues: Queues,
    pub outbox: Outbox,
    pub observations: Observations,
    pub slot: MembershipSlot,
    /// How long completed changes were pending.
    pub settled: BTreeMap<Wants, SettleTimes>,
}
