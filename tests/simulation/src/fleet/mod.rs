//! A fleet: processes that take part in a scope and compete to run its reconciler. The real cores of the reconciler decide; their
//! environment is simplified here.
//!
//! A process has three leases: for its serving member, for its candidate record, for the runner. It trusts a lease
//! until a margin before its time, counted from before its last request, by its own clock. Each of its requests
//! travels to some manager as a packet: lost, repeated, late, to a deposed leader, or from a process that has ended.
//!
//! - `process`: a process.   `levels`: managers as processes of their own scope.   `managers`: a manager's answers.
//! - `operator`: definitions, and interference.   `checks`: invariants.   `scenario`: scripted scenarios.

mod checks;
mod levels;
mod managers;
mod operator;
mod process;
mod run;
mod scenario;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{AdmissionView, ReconcilerRequest, RunnerView};
use muster_messages::{
    Definition, ErrorBody, ErrorCode, FencingToken, LEVEL_RECONCILER, MANAGERS_SCOPE, Moment, NodeId, ObjectKey,
    Participant, Release, RequestId, SessionId,
};
use muster_reconciler::core::admission::Admission;
use muster_reconciler::core::eligibility::Eligibility;
use muster_reconciler::core::run::{Recorded, Run, Stepped, Waved};

pub use self::checks::step as check_step;
use self::operator::ActionKind;
pub use self::run::simulate;
pub use self::scenario::HoldPoint;
use crate::machine::MachineIdx;

/// The only reconciler, and the scope of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    pub reconciler: &'static str,
    pub scope: &'static str,
}

/// Programs with a schema migration.
pub const SCHEMA: Subject = Subject { reconciler: "schema", scope: "db" };
/// The managers themselves, and the raise of the cluster's feature level.
pub const LEVELS: Subject = Subject { reconciler: LEVEL_RECONCILER, scope: MANAGERS_SCOPE };

impl Default for Subject {
    fn default() -> Self {
        SCHEMA
    }
}

/// The releases with a definition of their own.
pub const RELEASES: [&str; 3] = ["1.0.0", "2.0.0", "3.0.0"];
/// What processes of some fleets run besides: releases which only an earlier definition can apply to.
pub const LATER_RELEASES: [&str; 2] = ["1.0.1", "2.0.1"];

/// Lifetime of leases, and how long they are trusted.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    lease: Duration,
    /// Without a confirmed renewal a holder stops after this: a third before the lease can pass on.
    stop_after: Duration,
    renew: Duration,
}

impl Timing {
    fn of(lease: Duration) -> Self {
        Self { lease, stop_after: lease * 2 / 3, renew: lease / 5 }
    }
}

impl Default for Timing {
    /// Short, as every interval of a simulated minute.
    fn default() -> Self {
        Self::of(Duration::from_secs(2))
    }
}

/// A lease with its renewals.
#[derive(Clone, Debug)]
struct Keeper {
    key: ObjectKey,
    session: SessionId,
    /// The token, and when the last confirmed renewal was sent.
    held: Option<(FencingToken, Moment)>,
    ask_at: Moment,
}

impl Keeper {
    fn new(key: ObjectKey, session: SessionId) -> Self {
        Self { key, session, held: None, ask_at: Moment(0) }
    }
    fn is_good(&self, now: Moment, timing: Timing) -> bool {
        self.held.is_some_and(|(_, sent)| now < sent + timing.stop_after)
    }
}

/// A member of a scope with its lease. Candidates are members too.
struct Member {
    keeper: Keeper,
    core: Admission,
    participant: Participant,
}

/// A process's candidacy to run the reconciler.
struct Candidacy {
    record: Member,
    eligibility: Eligibility,
    runner: Option<Keeper>,
    run: Option<Run>,
    view: Option<Arc<RunnerView>>,
    view_at: Moment,
    /// Term and number of the current action, and when it ends.
    acting: Option<(FencingToken, u64, Moment)>,
}

/// One process on one host; another `life` is another process.
pub struct Process {
    name: String,
    node: NodeId,
    release: Release,
    /// A manager runtime's part in the fleet: it lives and dies with that, and its release is the feature level of the build.
    runtime_of: Option<MachineIdx>,
    life: u32,
    up: bool,
    /// It is restarted after it ends.
    returns: bool,
    /// The release of its next start, and whether it needs that release's result; if determined.
    next: Option<(Release, bool)>,
    frozen: Option<Moment>,
    /// The manager that it is connected to.
    at: Option<MachineIdx>,
    serving: Option<Member>,
    candidacy: Option<Candidacy>,
}

/// One of its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    Serving,
    Record,
    Runner,
}

/// The requester within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    Member(LeaseKind, u64),
    Run(FencingToken, u64),
    Candidate,
    /// The answer is ignored.
    Discarded,
}

/// A request to a manager.
#[derive(Clone, Debug)]
pub enum Question {
    Acquire {
        lease_kind: LeaseKind,
        key: ObjectKey,
        session: SessionId,
    },
    Renew {
        lease_kind: LeaseKind,
        key: ObjectKey,
        session: SessionId,
        token: FencingToken,
    },
    Release {
        key: ObjectKey,
        session: SessionId,
        token: FencingToken,
    },
    /// The runner's action `number`: raises the cluster's feature level.
    Raise {
        level: u32,
        term: FencingToken,
        number: u64,
    },
    Reconciler(Requester, ReconcilerRequest),
}

/// A request in flight.
#[derive(Clone, Debug)]
pub struct PendingRequest {
    /// The process and its life. `None`: an operator.
    by: Option<(usize, u32)>,
    sent: Moment,
    request: RequestId,
    question: Question,
    /// It waits at its manager for a change.
    waited: bool,
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Answer {
    Done,
    Granted(FencingToken),
    Renewed,
    Lost,
    Admission(AdmissionView),
    View(Arc<RunnerView>),
    Stepped(Stepped),
    Waved(Waved),
    Recorded(Recorded),
}

impl Answer {
    fn stepped(self) -> Result<Stepped, ErrorBody> {
        if let Answer::Stepped(stepped) = self { Ok(stepped) } else { unexpected(self) }
    }
    fn waved(self) -> Result<Waved, ErrorBody> {
        if let Answer::Waved(waved) = self { Ok(waved) } else { unexpected(self) }
    }
    fn recorded(self) -> Result<Recorded, ErrorBody> {
        if let Answer::Recorded(recorded) = self { Ok(recorded) } else { unexpected(self) }
    }
}

fn unexpected<T>(answer: Answer) -> Result<T, ErrorBody> {
    Err(ErrorBody::new(ErrorCode::Internal, format!("an answer of another kind: {answer:?}")))
}

pub type Reply = Result<Answer, ErrorBody>;

/// A wave whose objects a manager writes.
struct Wave {
    pending: PendingRequest,
    open: usize,
    result: Result<Waved, ErrorBody>,
}

/// The fleet.
#[derive(Default)]
pub struct Fleet {
    subject: Subject,
    processes: Vec<Process>,
    timing: Timing,
    action_kind: ActionKind,
    /// Some definitions apply to later releases, too, and some processes run those.
    has_later: bool,
    /// As operators define them.
    definitions: Vec<Definition>,
    /// Operators move gates.
    wild: bool,
    /// Set when all faults end: every later start is of this release.
    target: Option<Release>,
    waves: BTreeMap<u64, Wave>,
    held_back: Vec<HoldPoint>,
    parked: Vec<PendingRequest>,
}
