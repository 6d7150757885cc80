//! One session with one peer, as this crate shares it: identity, byte counts and end.
//!
//! Owns        the result of the hello, the byte counts, the read gate, the reason of its end (the first one counts).
//! Invariants  MESH-15  what a peer has sent and we have not handled is bounded: reading pauses above [`MAX_UNHANDLED_BYTES`].
//!             MESH-16  what we have queued for a peer is counted, and refused above [`MAX_QUEUED_BYTES`].

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
use crate::core::call_end::SessionEnd;
use crate::core::filter::{Side, Violation};
use crate::core::links::{Because, SessionNumber};

/// Bytes received and not handled above which reading pauses (8 MiB): more than the windows of a correct peer hold.
pub const MAX_UNHANDLED_BYTES: u64 = 8 << 20;
/// Bytes queued for a peer and not written above which no more are queued (8 MiB).
pub const MAX_QUEUED_BYTES: u64 = 8 << 20;
/// The cost of a call beyond its bytes: a task, a timer and a reply port.
const CALL_COST: u64 = 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    #[error("the peer broke the protocol: {0}")]
    Violation(Violation),
    #[error("no data from the peer within the idle limit")]
    Idle,
    #[error("the peer stopped reading")]
    Stalled,
    #[error("the peer does not answer calls")]
    Unanswered,
    #[error("the peer rejected this manager's member id")]
    MemberIdRejected,
    #[error("not ready within the deadline")]
    NotReady,
    #[error("replaced by a newer session")]
    Superseded,
    #[error("another process of the peer's node was accepted")]
    Duplicate,
    #[error("the peer is not a member")]
    NotWanted,
    #[error("this manager's hello changed")]
    Renewed,
    #[error("the peer's certificate expired")]
    Expired,
    #[error("disconnected: {0}")]
    Cut(String),
    #[error("the connection closed")]
    Closed,
}

impl From<Because> for EndReason {
    fn from(because: Because) -> Self {
        match because {
            Because::Superseded => EndReason::Superseded,
            Because::NotWanted => EndReason::NotWanted,
            Because::Renewed => EndReason::Renewed,
        }
    }
}

impl From<SessionEnd> for EndReason {
    fn from(session_end: SessionEnd) -> Self {
        match session_end {
            SessionEnd::Unanswered => EndReason::Unanswered,
            SessionEnd::MemberIdRejected => EndReason::MemberIdRejected,
            SessionEnd::Closed => EndReason::Closed,
        }
    }
}

impl EndReason {
    /// The key of its counter.
    pub fn counter_key(&self) -> &'static str {
        match self {
            EndReason::Violation(v) => v.counter_key(),
            EndReason::Idle => "idle",
            EndReason::Stalled => "stalled",
            EndReason::Unanswered => "unanswered",
            EndReason::MemberIdRejected => "member_id_rejected",
            EndReason::NotReady => "not_ready",
            EndReason::Superseded => "superseded",
            EndReason::Duplicate => "duplicate",
            EndReason::NotWanted => "not_wanted",
            EndReason::Renewed => "renewed",
            EndReason::Expired => "expired",
            EndReason::Cut(_) => "cut",
            EndReason::Closed => "closed",
        }
    }
}

/// A session's byte and call counts.
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
        if self.unhandled() <= MAX_UNHANDLED_BYTES {
            self.gated.store(false, Ordering::Release);
            return false;
        }
        self.gate.register(waker);
        self.gated.store(true, Ordering::Release);
        // Calls handled since the first check may have found the gate open.
        self.unhandled() > MAX_UNHANDLED_BYTES
    }
    pub fn gated(&self) -> bool {
        self.gated.load(Ordering::Relaxed)
    }
    /// A call is sent: counted before it can be answered.
    pub fn call_leaves(&self, bytes: usize) {
        self.calls_sent.fetch_add(1, Ordering::AcqRel);
        self.queued.fetch_add(bytes as u64, Ordering::AcqRel);
    }
    pub fn calls_sent(&self) -> u64 {
        self.calls_sent.load(Ordering::Acquire)
    }
    pub fn answer_leaves(&self, bytes: usize) {
        self.queued.fetch_add(bytes as u64, Ordering::AcqRel);
    }
    /// Frames with this many payload bytes have been written. Frames are slightly larger than the messages counted when
    /// queued, so the count errs low and never blocks permanently.
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

/// The result of the hello, and the session's state.
#[derive(Debug)]
pub struct Session {
    pub number: SessionNumber,
    pub node: NodeId,
    pub start: StartId,
    /// The member id that the peer may speak for; 0: none.
    member_id: AtomicU64,
    /// The member id that our hello named.
    pub own_member: Option<RaftId>,
    pub side: Side,
    pub remote: String,
    pub since: WallTime,
    /// The tag of the peer's messages.
    pub own_tag: u128,
    /// The tag of our messages.
    pub peer_tag: u128,
    pub peer_endpoint: u64,
    pub own_endpoint: u64,
    pub meter: Meter,
    /// The incoming snapshot. Freed with the session.
    pub assembly: Mutex<Assembly>,
    /// Unanswered calls of the peer.
    pub open_calls: AtomicU64,
    /// Their bytes.
    pub open_call_bytes: AtomicU64,
    /// Raft messages that were accepted and not yet acknowledged.
    pub unacknowledged: Mutex<Vec<RpcReplyPort<Vec<u8>>>>,
    ended: CancellationToken,
    why: OnceLock<EndReason>,
    /// The gateway's kill switch and permit, for an accepted connection.
    kill: Option<Kill>,
    _permit: Option<ConnectionPermit>,
}

pub struct Facts {
    pub number: SessionNumber,
    pub node: NodeId,
    pub start: StartId,
    pub member_id: Option<RaftId>,
    pub own_member: Option<RaftId>,
    pub side: Side,
    pub remote: String,
    pub since: WallTime,
    pub own_tag: u128,
    pub peer_tag: u128,
    pub peer_endpoint: u64,
    pub own_endpoint: u64,
    pub kill: Option<Kill>,
    pub permit: Option<ConnectionPermit>,
}

#[cfg(test)]
impl Facts {
    /// Of a session with node 2, which dialled.
    pub fn of_tests() -> Self {
        Self {
            number: 1,
            node: NodeId::from_entropy(2),
            start: StartId { number: 1, nonce: 1 },
            member_id: None,
            own_member: None,
            side: Side::Accepted,
            remote: String::new(),
            since: WallTime(0),
            own_tag: 1,
            peer_tag: 1,
            peer_endpoint: 3,
            own_endpoint: 7,
            kill: None,
            permit: None,
        }
    }
}

impl Session {
    pub fn new(facts: Facts) -> Arc<Self> {
        Arc::new(Self {
            number: facts.number,
            node: facts.node,
            start: facts.start,
            member_id: AtomicU64::new(facts.member_id.map_or(0, |s| s.0)),
            own_member: facts.own_member,
            side: facts.side,
            remote: facts.remote,
            since: facts.since,
            own_tag: facts.own_tag,
            peer_tag: facts.peer_tag,
            peer_endpoint: facts.peer_endpoint,
            own_endpoint: facts.own_endpoint,
            meter: Meter::default(),
            assembly: Mutex::default(),
            open_calls: AtomicU64::new(0),
            open_call_bytes: AtomicU64::new(0),
            unacknowledged: Mutex::default(),
            ended: CancellationToken::new(),
            why: OnceLock::new(),
            kill: facts.kill,
            _permit: facts.permit,
        })
    }
    /// The member id that the peer may speak for.
    pub fn member_id(&self) -> Option<RaftId> {
        Some(RaftId(self.member_id.load(Ordering::Acquire))).filter(|s| s.0 != 0)
    }
    pub fn set_member_id(&self, member_id: Option<RaftId>) {
        self.member_id.store(member_id.map_or(0, |s| s.0), Ordering::Release);
    }
    /// Ends the session. The first reason is kept.
    pub fn end(&self, why: EndReason) {
        let _first = self.why.set(why);
        self.ended.cancel();
    }
    /// Cancelled when the session ends.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
    /// Why it ended. If the stream just closed, the gateway's kill switch may have the reason.
    pub fn end_reason(&self) -> EndReason {
        let cut = |reason: RefusalReason| EndReason::Cut(reason.to_string());
        match self.why.get() {
            Some(why) => why.clone(),
            None => self.kill.as_ref().and_then(Kill::disconnect_reason).map_or(EndReason::Closed, cut),
        }
    }
}

/// The open sessions of this process, by number and by our tag.
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
    /// The session with this tag: the authenticated peer behind a message.
    pub fn find_by_tag(&self, tag: u128) -> Option<Arc<Session>> {
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
