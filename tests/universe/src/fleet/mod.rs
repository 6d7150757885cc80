//! A fleet: processes that take part in a scope and stand for running its reconciler. What they decide is decided by the
//! real cores of the reconciler; what surrounds those is done here in short.
//!
//! A process has three leases: of the member that wants to serve, of its candidate's record, of the runner. It trusts one
//! until a margin before its time, counted from before it last asked, is over by its own clock. Everything that it wants
//! goes to some manager as a packet: lost, repeated, late, to one that leads no more, by a process that is gone.
//!
//! - `process`: what a process does.   `managers`: how it is answered.
//! - `operator`: definitions, and who meddles.   `judge`: what must hold.   `story`: told instead of random.

mod judge;
mod managers;
mod operator;
mod process;
mod run;
mod story;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{AdmissionView, ReconcilerRequest, RunnerView};
use muster_messages::{
    Definition, ErrorBody, FencingToken, Moment, NodeId, ObjectKey, Participant, Release, RequestId, SessionId,
};
use muster_reconciler::core::admission::Admission;
use muster_reconciler::core::eligibility::Eligibility;
use muster_reconciler::core::run::{Run, Stepped, Waved};

pub use self::judge::step as check_step;
pub use self::run::run_gates;
pub use self::story::Said;
use crate::machine::Place;

/// The one reconciler, and the scope of its members.
pub const RECONCILER: &str = "schema";
pub const SCOPE: &str = "db";
pub const RELEASES: [&str; 3] = ["1.0.0", "2.0.0", "3.0.0"];

/// How long leases live and are trusted.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    lease: Duration,
    /// Without a confirmed renewal it stops after this: a third before the lease can be another's.
    stop_after: Duration,
    renew: Duration,
}

impl Timing {
    fn of(lease: Duration) -> Self {
        Self { lease, stop_after: lease * 2 / 3, renew: lease / 5 }
    }
}

impl Default for Timing {
    /// Short, as everything in a universe's minute.
    fn default() -> Self {
        Self::of(Duration::from_secs(2))
    }
}

/// A lease that somebody keeps.
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

/// A member of a scope and its lease. Candidates are members too.
struct Member {
    keeper: Keeper,
    core: Admission,
    participant: Participant,
}

/// What a process is that stands for running the reconciler.
struct Candidacy {
    record: Member,
    eligibility: Eligibility,
    runner: Option<Keeper>,
    run: Option<Run>,
    view: Option<Arc<RunnerView>>,
    look_at: Moment,
    /// The term and number of the action at work, and when it ends.
    acting: Option<(FencingToken, u64, Moment)>,
}

/// One process on one host; another `life` is another process.
pub struct Process {
    name: String,
    node: NodeId,
    release: Release,
    life: u32,
    up: bool,
    /// Another start follows its end.
    returns: bool,
    /// As which release, and whether it needs what that applies; if that is certain.
    next: Option<(Release, bool)>,
    frozen: Option<Moment>,
    /// The manager it is connected to.
    at: Option<Place>,
    serving: Option<Member>,
    candidacy: Option<Candidacy>,
}

/// Which of its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Serving,
    Record,
    Runner,
}

/// Who in a process asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    Member(Part, u64),
    Run(FencingToken, u64),
    Candidate,
    /// Nobody waits for the answer.
    Nobody,
}

/// What is asked of a manager.
#[derive(Clone, Debug)]
pub enum Question {
    Acquire { part: Part, key: ObjectKey, session: SessionId },
    Renew { part: Part, key: ObjectKey, session: SessionId, token: FencingToken },
    Release { key: ObjectKey, session: SessionId, token: FencingToken },
    Of(Within, ReconcilerRequest),
}

/// A question on its way.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The process and its life. `None`: an operator.
    by: Option<(usize, u32)>,
    sent: Moment,
    request: RequestId,
    question: Question,
    /// It waits at its manager for news.
    waited: bool,
}

/// What it is answered.
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
}

pub type Told = Result<Answer, ErrorBody>;

/// A wave whose objects a manager writes.
struct Wave {
    asked: Asked,
    open: usize,
    came_to: Result<Waved, ErrorBody>,
}

/// All of it.
#[derive(Default)]
pub struct Fleet {
    processes: Vec<Process>,
    timing: Timing,
    /// As operators want them.
    definitions: Vec<Definition>,
    /// Operators move gates.
    wild: bool,
    /// Set with the end of all disturbances: whoever starts from now on is of this release.
    target: Option<Release>,
    waves: BTreeMap<u64, Wave>,
    held_back: Vec<Said>,
    parked: Vec<Asked>,
}
