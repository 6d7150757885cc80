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
    /// Monotonic time.
    pub at: Moment,
    /// Wall time, for people.
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

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A caller requests a role for a node, or its removal.
    RoleRequested(RoleRequest),
    /// A manager runtime asks for membership.
    MembershipRequested {
        /// Under this id it is answered.
        ask: AskId,
        /// The node.
        node: NodeId,
        /// What it offers and asks.
        request: MembershipRequest,
    },
    /// A node reports whether its manager runtime can run.
    Reported {
        /// Under this id it is answered.
        ask: AskId,
        /// The node.
        node: NodeId,
        /// What it reports.
        report: ManagerReport,
    },
    /// The newest level of the replicated state and of Raft.
    Seen(Arc<Replica>),
    /// A proposed command or membership change ended.
    Committed {
        /// The step.
        step: StepId,
        /// How it ended.
        outcome: StepOutcome,
    },
    /// A dial-back ended.
    Probed {
        /// The step.
        step: StepId,
        /// Whether the node answered.
        result: Result<(), ErrorBody>,
    },
    /// A reachability check ended. `None`: the raft member did not run it.
    ReachabilityChecked {
        /// The step.
        step: StepId,
        /// The members that responded.
        reachable: Option<BTreeSet<RaftId>>,
    },
    /// An offer of leadership ended: another leads, or it failed.
    Transferred {
        /// The step.
        step: StepId,
        /// Whether the node leads.
        taken: bool,
    },
    /// The time set with [`Effect::WakeAt`] is reached. Early or repeated: harmless.
    Woke,
}

/// How a proposal ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// Applied at this revision.
    Applied(Revision),
    /// Refused without effect.
    Refused(CommandRefusal),
    /// Not proposed: another membership change is in flight.
    MembershipBusy,
    /// Not proposed: too few of the voters that the change would result in respond.
    TooFewReachable {
        /// These voters.
        voters: BTreeSet<RaftId>,
        /// Those that responded.
        reachable: BTreeSet<RaftId>,
    },
    /// Not proposed: too many proposals.
    Crowded,
    /// Not proposed: another manager leads.
    NotLeader,
    /// Not proposed: no quorum.
    NoQuorum {
        /// The voters that do not answer.
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
    /// Propose a command.
    Propose {
        /// The step.
        step: StepId,
        /// The command, with its guards.
        command: Box<Command>,
    },
    /// Propose a membership change.
    ProposeMembership {
        /// The step.
        step: StepId,
        /// The change.
        change: MembershipChange,
        /// For how long the Raft member waits for a majority of the resulting voters to respond before it proposes a change of the
        /// voters. `None`, only with an injected bug: it proposes at once.
        confirm_within: Option<Duration>,
    },
    /// Dial `addr` and check whether `node` answers.
    Probe {
        /// The step.
        step: StepId,
        /// The address, `host:port`.
        addr: String,
        /// The node that should answer there.
        node: NodeId,
    },
    /// Ask the raft member which of these members respond now. It ends when `needed` have, or after `within`; it always ends.
    CheckReachable {
        /// The step.
        step: StepId,
        /// The members to ask.
        members: BTreeSet<RaftId>,
        /// How many answers are enough.
        needed: usize,
        /// How long to wait for them.
        within: Duration,
    },
    /// Offer leadership to another manager.
    TransferLeadership {
        /// The step.
        step: StepId,
        /// The node that should lead.
        to: NodeId,
    },
    /// Answer a caller.
    Answer(AskId, Answer),
    /// Step [`Input::Woke`] at this time.
    WakeAt(Moment),
}

/// An answer to a caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A role was requested. `Ok(false)`: it was already so.
    Role(Result<bool, ErrorBody>),
    /// A removal was requested, and is complete.
    Removed(Result<(), ErrorBody>),
    /// Membership was asked for.
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
    /// What is pending, and why.
    pub queues: Queues,
    /// The steps in flight.
    pub outbox: Outbox,
    /// Annotations beside the replicated state.
    pub observations: Observations,
    /// The order of membership changes.
    pub slot: MembershipSlot,
    /// How long completed changes were pending.
    pub settled: BTreeMap<Wants, SettleTimes>,
}
