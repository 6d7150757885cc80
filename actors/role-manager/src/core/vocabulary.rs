//! The values that the core and its shell speak in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{ManagerReport, SeatReply, SeatRequest};
use muster_messages::{
    Command, CommandRefusal, ErrorBody, Moment, NodeId, RaftId, Replica, Revision, SeatChange, SettleTimes, Term,
    WallTime, Wants,
};
use serde::{Deserialize, Serialize};

use super::{Notes, Outbox, Queues, Wished};

/// Both clocks at one point.
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

/// An ask whose reply port the shell has parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskId(pub u64);

/// A step that was started and ends exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepId(pub u64);
impl std::fmt::Display for StepId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What the core is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// Somebody wants a node to hold a role, or to be removed.
    Wished(Wished),
    /// A manager half asks for a seat.
    Knocked { ask: AskId, node: NodeId, request: SeatRequest },
    /// A node reports whether its manager runtime can run.
    Reported { ask: AskId, node: NodeId, report: ManagerReport },
    /// The newest level of the replicated state and of Raft.
    Seen(Arc<Replica>),
    /// A proposed command or seat change ended.
    Committed { step: StepId, outcome: StepOutcome },
    /// A dial-back ended.
    Probed { step: StepId, result: Result<(), ErrorBody> },
    /// A reachability check ended. `None`: the raft member did not run it.
    ReachabilityChecked { step: StepId, reachable: Option<BTreeSet<RaftId>> },
    /// An offer of leadership ended: another leads, or it failed.
    Transferred { step: StepId, taken: bool },
    /// The moment asked for with [`Effect::WakeAt`] has come. Early or repeated: harmless.
    Woke,
}

/// How a proposal ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    Applied(Revision),
    /// Applied as nothing.
    Refused(CommandRefusal),
    /// Not proposed: another membership change is in flight.
    MembershipBusy,
    /// Not proposed: too many proposals.
    Crowded,
    NotLeader,
    NoQuorum {
        missing: Vec<NodeId>,
    },
    /// Nobody knows yet: it may still be applied.
    TimedOut,
    /// Leadership was lost, or the raft member went away, while it was in flight.
    Unknown,
}

/// What the shell is to do. All of it may be repeated.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Propose {
        step: StepId,
        command: Box<Command>,
    },
    ProposeSeat {
        step: StepId,
        change: SeatChange,
    },
    /// Dial `addr` and see whether `node` answers.
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

/// What an ask is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A role was wished. `Ok(false)`: it was so already.
    Role(Result<bool, ErrorBody>),
    /// A removal was wished, and is done.
    Removed(Result<(), ErrorBody>),
    Seat(Result<SeatReply, ErrorBody>),
    /// The report was taken in.
    Reported(Result<(), ErrorBody>),
}

/// What survives a crash of the role manager. The next incarnation starts from this and from a fresh look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The term it was written in. In a later term every step of it is applied or lost, and only the facts count.
    pub term: Term,
    /// The last step's number.
    pub steps: u64,
    pub queues: Queues,
    pub outbox: Outbox,
    pub notes: Notes,
    /// Whose turn it is to change the membership.
    pub lane: VecDeque<NodeId>,
    /// Heirs that did not take leadership.
    pub tried: BTreeSet<NodeId>,
    /// How long what it has brought to an end was pending.
    pub settled: BTreeMap<Wants, SettleTimes>,
}
