//! One session with one peer, as everything in this crate sees it: who it is, what it has cost, and its end.
//!
//! Owns   the facts that the hello settled, the byte counts, the read gate, the reason of its end (the first one counts).
//! Keeps  MESH-15  what a peer has sent and we have not handled is bounded: reading pauses above [`GATE`].
//!        MESH-16  what we have queued for a peer is counted, and refused above [`QUEUE`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::task::AtomicWaker;
use muster_gateway::{ConnectionPermit, Kill};
use muster_messages::wire::StartId;
use muster_messages::{NodeId, RaftId, RefusalReason, WallTime};
use ractor::RpcReplyPort;
use tokio_util::sync::CancellationToken;

use crate::core::assembly::Assembly;
use crate::core::filter::{Side, Violation};
use crate::core::links::{Because, SessionNumber};

/// Bytes received and not handled above which reading pauses (8 MiB): more than the windows of a well-behaved peer hold.
pub const GATE: u64 = 8 << 20;
/// Bytes queued for a peer and not written above which nothing more is queued (8 MiB).
pub const QUEUE: u64 = 8 << 20;
/// What a call costs us beyond its bytes: a task, a timer and a reply port.
const CALL_COST: u64 = 1024;

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    #[error("the peer broke the protocol: {0}")]
    Violation(Violation),
    #[error("nothing heard within the idle limit")]
    Idle,
    #[error("the peer stopped reading")]
    Stalled,
    #[error("calls are not answered")]
    Unanswered,
    #[error("the peer does not believe this manager's seat")]
    Unseated,
    #[error("not ready in time")]
    NotReady,
    #[error("a newer session took over")]
    Superseded,
    #[error("another process of this node is heard")]
    Duplicate,
    #[error("the peer is no member")]
    NotWanted,
    #[error("this manager's hello changed")]
    Renewed,
    #[error("the peer's certificate expired")]
    Expired,
    #[error("cut: {0}")]
    Cut(String),
    #[error("the connection closed")]
    Closed,
}

impl From<Because> for Ending {
    fn from(because: Because) -> Self {
        match because {
            Because::Superseded => Ending::Superseded,
            Because::NotWanted => Ending::NotWanted,
            Because::Renewed => Ending::Renewed,
        }
    }
}

impl Ending {
    /// The word under which it is counted.
    pub fn word(&self) -> &'static str {
        match self {
            Ending::Violation(v) => v.word(),
            Ending::Idle => "idle",
            Ending::Stalled => "stalled",
            Ending::Unanswered => "unanswered",
            Ending::Unseated => "unseated",
            Ending::NotReady => "not_ready",
            Ending::Superseded => "superseded",
            Ending::Duplicate => "duplicate",
            Ending::NotWanted => "not_wanted",
            Ending::Renewed => "renewed",
            Ending::Expired => "expired",
            Ending::Cut(_) => "cut",
            Ending::Closed => "closed",
        }
    }
}

/// What a session has carried and holds.
#[derive(Debug, Default)]
pub struct Meter {
    read: AtomicU64,
    written: AtomicU64,
    unhandled: AtomicU64,
    queued: AtomicU64,
    calls_sent: AtomicU64,
    gated: AtomicBool,
    gate: AtomicWaker,
}

impl Meter {
    pub fn count_read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    pub fn count_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
    /// A call of this many bytes was passed on.
    pub fn passed_on(&self, bytes: usize) {
        self.unhandled.fetch_add(bytes as u64 + CALL_COST, Ordering::AcqRel);
    }
    /// A call of this many bytes was handled: the gate may open.
    pub fn handled(&self, bytes: usize) {
        take(&self.unhandled, bytes as u64 + CALL_COST);
        if self.gated.load(Ordering::Acquire) {
            self.gate.wake();
        }
    }
    pub fn unhandled(&self) -> u64 {
        self.unhandled.load(Ordering::Acquire)
    }
    /// Whether reading must pause; then `waker` is woken when something was handled.
    pub fn is_gated(&self, waker: &std::task::Waker) -> bool {
        if self.unhandled() <= GATE {
            self.gated.store(false, Ordering::Release);
            return false;
        }
        self.gate.register(waker);
        self.gated.store(true, Ordering::Release);
        // Whatever was handled since the first look may have found the gate open.
        self.unhandled() > GATE
    }
    /// Whether reading pauses now.
    pub fn gated(&self) -> bool {
        self.gated.load(Ordering::Relaxed)
    }
    /// A call leaves: counted before it can be answered.
    pub fn call_leaves(&self, bytes: usize) {
        self.calls_sent.fetch_add(1, Ordering::AcqRel);
        self.queued.fetch_add(bytes as u64, Ordering::AcqRel);
    }
    pub fn calls_sent(&self) -> u64 {
        self.calls_sent.load(Ordering::Acquire)
    }
    /// An answer leaves.
    pub fn answer_leaves(&self, bytes: usize) {
        self.queued.fetch_add(bytes as u64, Ordering::AcqRel);
    }
    /// Frames with this many payload bytes have been written. Frames are a little larger than what was counted on
    /// the way in, so this errs to the low side and never locks up.
    pub fn departed(&self, bytes: u64) {
        take(&self.queued, bytes);
    }
    pub fn queued(&self) -> u64 {
        self.queued.load(Ordering::Acquire)
    }
}

fn take(from: &AtomicU64, amount: u64) {
    let _old = from.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| Some(n.saturating_sub(amount)));
}

/// What the hello settled, and the session's life.
#[derive(Debug)]
pub struct Session {
    pub number: SessionNumber,
    pub node: NodeId,
    /// The process at the other end.
    pub start: StartId,
    /// The seat that the peer may speak for; 0: none.
    seat: AtomicU64,
    /// The seat that our hello named.
    pub own_seat: Option<RaftId>,
    pub side: Side,
    pub remote: String,
    pub since: WallTime,
    /// What the peer's messages carry.
    pub own_tag: u128,
    /// What ours carry.
    pub peer_tag: u128,
    pub peer_door: u64,
    pub own_door: u64,
    pub meter: Meter,
    /// The snapshot that arrives through it. Freed with the session.
    pub assembly: Mutex<Assembly>,
    /// Calls of the peer that wait for an answer.
    pub asked: AtomicU64,
    /// Their bytes.
    pub asked_bytes: AtomicU64,
    /// Raft messages that were taken and are not acknowledged yet.
    pub unacknowledged: Mutex<Vec<RpcReplyPort<Vec<u8>>>>,
    ended: CancellationToken,
    why: OnceLock<Ending>,
    /// The gateway's switch and slot, for an accepted connection.
    kill: Option<Kill>,
    _permit: Option<ConnectionPermit>,
}

/// What a session is made of.
pub struct Facts {
    pub number: SessionNumber,
    pub node: NodeId,
    pub start: StartId,
    pub seat: Option<RaftId>,
    pub own_seat: Option<RaftId>,
    pub side: Side,
    pub remote: String,
    pub since: WallTime,
    pub own_tag: u128,
    pub peer_tag: u128,
    pub peer_door: u64,
    pub own_door: u64,
    pub kill: Option<Kill>,
    pub permit: Option<ConnectionPermit>,
}

impl Session {
    pub fn new(facts: Facts) -> Arc<Self> {
        Arc::new(Self {
            number: facts.number,
            node: facts.node,
            start: facts.start,
            seat: AtomicU64::new(facts.seat.map_or(0, |s| s.0)),
            own_seat: facts.own_seat,
            side: facts.side,
            remote: facts.remote,
            since: facts.since,
            own_tag: facts.own_tag,
            peer_tag: facts.peer_tag,
            peer_door: facts.peer_door,
            own_door: facts.own_door,
            meter: Meter::default(),
            assembly: Mutex::default(),
            asked: AtomicU64::new(0),
            asked_bytes: AtomicU64::new(0),
            unacknowledged: Mutex::default(),
            ended: CancellationToken::new(),
            why: OnceLock::new(),
            kill: facts.kill,
            _permit: facts.permit,
        })
    }
    /// The seat that the peer may speak for.
    pub fn seat(&self) -> Option<RaftId> {
        Some(RaftId(self.seat.load(Ordering::Acquire))).filter(|s| s.0 != 0)
    }
    /// It speaks for another one now.
    pub fn reseat(&self, seat: Option<RaftId>) {
        self.seat.store(seat.map_or(0, |s| s.0), Ordering::Release);
    }
    /// Ends it. The first reason stays.
    pub fn end(&self, why: Ending) {
        let _first = self.why.set(why);
        self.ended.cancel();
    }
    /// Cancelled when it ends.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
    /// Why it ended. When the stream simply closed, the gateway's switch may know more.
    pub fn ending(&self) -> Ending {
        let cut = |reason: RefusalReason| Ending::Cut(reason.to_string());
        match self.why.get() {
            Some(why) => why.clone(),
            None => self.kill.as_ref().and_then(Kill::cut_reason).map_or(Ending::Closed, cut),
        }
    }
}

/// The sessions of this process that have not ended, by number and by our tag.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    by_number: BTreeMap<SessionNumber, Arc<Session>>,
    by_tag: BTreeMap<u128, SessionNumber>,
}

impl Sessions {
    pub fn add(&self, session: &Arc<Session>) {
        let mut table = self.lock();
        table.by_tag.insert(session.own_tag, session.number);
        table.by_number.insert(session.number, Arc::clone(session));
    }
    pub fn remove(&self, number: SessionNumber) -> Option<Arc<Session>> {
        let mut table = self.lock();
        let session = table.by_number.remove(&number)?;
        table.by_tag.remove(&session.own_tag);
        Some(session)
    }
    pub fn get(&self, number: SessionNumber) -> Option<Arc<Session>> {
        self.lock().by_number.get(&number).cloned()
    }
    /// The session whose messages carry this tag: the authenticated peer behind a message.
    pub fn speaking(&self, tag: u128) -> Option<Arc<Session>> {
        let table = self.lock();
        table.by_tag.get(&tag).and_then(|n| table.by_number.get(n)).cloned()
    }
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().by_number.values().cloned().collect()
    }
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
