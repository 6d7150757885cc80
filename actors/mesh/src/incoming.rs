//! Incoming: what the RPC endpoint does with a peer's messages.
//!
//! Owns        the counts of what was accepted and dropped.
//! Inputs      bytes, in calls.
//! Outputs     `FromPeer`, `SnapshotReceived`; incoming calls to the node's router; the peers' bindings and member ids; replies.
//! Invariants  MESH-18  a message is attributed to the peer whose session carries its tag, and to no other Raft member.
//!             MESH-19  the RPC endpoint never waits: slow work runs in tasks, bounded per peer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_kernel::{Clock, Recipient};
use muster_messages::protocol::{IncomingCall, RaftMemberMsg};
use muster_messages::wire::{self, IdentityBinding, PeerCall, PeerEnvelope, PeerMessage, PeerReply, RaftPacket};
use muster_messages::{EndpointCounts, ErrorBody, ErrorCode, RaftId, Replica};
use ractor::RpcReplyPort;
use tokio::sync::{mpsc, oneshot, watch};

use crate::core::assembly::Piece;
use crate::core::filter::MAX_CALL_MS;
use crate::core::hello::{accepted_member_id, may_belong_to};
use crate::core::windows::{CallClass, RAFT_WINDOW};
use crate::endpoint::EndpointEvent;
use crate::offences::Offences;
use crate::session::{MAX_QUEUED_BYTES, MAX_UNHANDLED_BYTES, Session, Sessions};
use crate::wiring::MeshWiring;

/// Unanswered calls of one peer: more than both of its windows.
const MAX_OPEN_CALLS: u64 = 128;
/// And their bytes: half of what closes the read gate. Raft's answers use the same session, and a forwarded write waits for
/// them: calls alone must never stop reading.
const MAX_OPEN_CALL_BYTES: u64 = MAX_UNHANDLED_BYTES / 2;
/// A client's call is refused from here on: the rest is for the peer's own calls.
const MAX_OPEN_CLIENT_BYTES: u64 = MAX_OPEN_CALL_BYTES / 2;

/// Raft messages acknowledged together: half of a peer's window, so that the window never runs empty.
const ACK_BATCH: usize = RAFT_WINDOW / 2;
/// The latest time of an acknowledgement. Only the window waits for it.
const ACK_DELAY: Duration = Duration::from_millis(10);

/// The RPC endpoint's dependencies. Shared by its incarnations.
pub struct EndpointContext {
    pub sessions: Sessions,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub raft: Recipient<RaftMemberMsg>,
    pub calls: mpsc::Sender<IncomingCall>,
    pub snapshot_limit: u64,
    pub counts: Mutex<EndpointCounts>,
    pub offences: Arc<Offences>,
    /// Receives the peers' bindings and member ids.
    pub news: Recipient<EndpointEvent>,
}

impl EndpointContext {
    pub fn new(wiring: &MeshWiring, snapshot_limit: u64, sessions: Sessions, news: Recipient<EndpointEvent>) -> Self {
        Self {
            sessions,
            replica: wiring.replica.clone(),
            raft: wiring.raft.clone(),
            calls: wiring.calls.clone(),
            snapshot_limit,
            counts: Mutex::default(),
            offences: Arc::new(Offences::default()),
            news,
        }
    }
    pub fn counts(&self) -> EndpointCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn count(&self, count: impl FnOnce(&mut EndpointCounts)) {
        count(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Handles one message. Never waits.
    pub fn take(self: &Arc<Self>, bytes: Vec<u8>, reply: RpcReplyPort<Vec<u8>>) {
        let session = tag_of(&bytes).and_then(|tag| self.sessions.find_by_tag(tag));
        let Some(session) = session else {
            self.count(|c| c.dropped.unknown_tag += 1);
            return refuse_unknown(reply);
        };
        let answer = match wire::decode::<PeerEnvelope>(&bytes) {
            Ok(PeerEnvelope { message: PeerMessage::Call(call), .. }) => {
                return self.call(session, call, bytes.len(), reply);
            }
            Ok(PeerEnvelope { message: PeerMessage::Raft(packets), .. }) => match self.raft(&session, packets) {
                PeerReply::Taken => {
                    session.meter.handled(bytes.len());
                    return self.acknowledge(session, reply);
                }
                refused => refused,
            },
            Ok(PeerEnvelope { message: PeerMessage::Membership(claimed), .. }) => self.member_id(&session, claimed),
            Ok(PeerEnvelope { message: PeerMessage::IdentityBindings(bindings), .. }) => {
                self.bindings(&session, bindings)
            }
            Ok(PeerEnvelope { message: PeerMessage::SnapshotChunk { head, from, offset, data, last }, .. }) => {
                self.piece(&session, Piece { head, from, offset, data, last })
            }
            Err(_) => {
                self.count(|c| c.dropped.malformed += 1);
                self.offence(&session, "malformed");
                refused("malformed")
            }
        };
        session.meter.handled(bytes.len());
        self.answer(&session, &answer, reply);
    }

    /// A message that is not a call.
    pub fn unreadable(&self) {
        self.count(|c| c.dropped.malformed += 1);
    }

    fn raft(&self, session: &Session, mut packets: Vec<RaftPacket>) -> PeerReply {
        let member_id = session.member_id();
        if packets.iter().any(|p| Some(p.from) != member_id) {
            let foreign =
                packets.iter().filter(|p| Some(p.from) != member_id && self.is_foreign(session, p.from)).count();
            let came = packets.len();
            packets.retain(|p| Some(p.from) == member_id);
            self.count_dropped(session, foreign, came - packets.len() - foreign);
        }
        if packets.is_empty() {
            return PeerReply::Taken;
        }
        self.count(|c| c.packets += packets.len() as u64);
        self.forward_to_raft(RaftMemberMsg::FromPeer { node: session.node, peer_member: member_id, packets })
    }

    /// Whether no honest peer uses this member id. A peer whose member id changed may use the old or the new one until it, or this
    /// replica, has applied the change: its messages are dropped, but that is not an offence.
    fn is_foreign(&self, session: &Session, member_id: RaftId) -> bool {
        let replica = self.replica.borrow();
        !may_belong_to(session.node, member_id, replica.raft.raft_id, &replica.tables)
    }

    fn count_dropped(&self, session: &Session, foreign: usize, unknown: usize) {
        if unknown > 0 {
            self.count(|c| c.dropped.unknown_member_id += unknown as u64);
        }
        if foreign > 0 {
            self.count(|c| c.dropped.foreign_member_id += foreign as u64);
            self.offence(session, "foreign_member_id");
        }
    }

    fn member_id(&self, session: &Session, claimed: RaftId) -> PeerReply {
        let replica = self.replica.borrow().clone();
        match accepted_member_id(claimed, session.node, replica.raft.raft_id, &replica.tables) {
            // The mesh is informed before any message from that member id is accepted (MESH-23).
            Ok(Some(member_id)) => {
                let news = EndpointEvent::MemberIdAnnounced { node: session.node, start: session.start, member_id };
                self.forward_event(news, || session.set_member_id(Some(member_id)))
            }
            Ok(None) => {
                session.set_member_id(None);
                PeerReply::Taken
            }
            Err(foreign) => {
                self.count_dropped(session, 1, 0);
                PeerReply::Refused { reason: foreign.to_string() }
            }
        }
    }

    fn bindings(&self, session: &Session, bindings: Vec<IdentityBinding>) -> PeerReply {
        self.forward_event(EndpointEvent::BindingsReported { by: session.node, bindings }, || ())
    }

    fn forward_event(&self, news: EndpointEvent, then: impl FnOnce()) -> PeerReply {
        match self.news.tell(news) {
            Ok(()) => {
                then();
                PeerReply::Taken
            }
            Err(why) => {
                self.count(|c| c.dropped.busy += 1);
                PeerReply::Refused { reason: why.to_string() }
            }
        }
    }

    fn piece(&self, session: &Session, piece: Piece) -> PeerReply {
        self.count(|c| c.chunks += 1);
        if piece.last.as_ref().is_some_and(|p| p.from != piece.from) {
            self.count_dropped(session, 1, 0);
            return refused("member id of another node");
        }
        if Some(piece.from) != session.member_id() {
            let foreign = self.is_foreign(session, piece.from);
            self.count_dropped(session, foreign.into(), (!foreign).into());
            return refused(if foreign {
                "member id of another node"
            } else {
                "member id that this session does not speak for"
            });
        }
        let mut assembly = session.assembly.lock().unwrap_or_else(PoisonError::into_inner);
        match assembly.take(self.snapshot_limit, piece) {
            Ok(None) => PeerReply::Taken,
            Ok(Some((packet, data))) => {
                self.count(|c| c.snapshots += 1);
                let (node, peer_member) = (session.node, session.member_id());
                self.forward_to_raft(RaftMemberMsg::SnapshotReceived { node, peer_member, packet, data })
            }
            Err(spoiled) => {
                self.count(|c| c.dropped.spoiled += 1);
                PeerReply::Refused { reason: spoiled.to_string() }
            }
        }
    }

    fn forward_to_raft(&self, msg: RaftMemberMsg) -> PeerReply {
        match self.raft.tell(msg) {
            Ok(()) => PeerReply::Taken,
            Err(why) => {
                self.count(|c| c.dropped.busy += 1);
                PeerReply::Refused { reason: why.to_string() }
            }
        }
    }

    fn call(self: &Arc<Self>, session: Arc<Session>, call: PeerCall, size: usize, reply: RpcReplyPort<Vec<u8>>) {
        self.count(|c| c.calls += 1);
        let (tx, answer) = oneshot::channel();
        let max_bytes = match CallClass::of(&call) {
            CallClass::Own => MAX_OPEN_CALL_BYTES,
            CallClass::Client => MAX_OPEN_CLIENT_BYTES,
        };
        let incoming = IncomingCall { forwarder: session.node, call, reply: tx.into() };
        let bytes = size as u64;
        let full = session.open_calls.fetch_add(1, Ordering::AcqRel) >= MAX_OPEN_CALLS;
        let full = session.open_call_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes > max_bytes || full;
        let done = move |session: &Session| {
            session.open_calls.fetch_sub(1, Ordering::AcqRel);
            session.open_call_bytes.fetch_sub(bytes, Ordering::AcqRel);
            session.meter.handled(size);
        };
        if full || self.calls.try_send(incoming).is_err() {
            done(&session);
            self.count(|c| c.dropped.busy += 1);
            return self.answer(&session, &refused("too many calls are waiting"), reply);
        }
        let context = Arc::clone(self);
        let limit = reply.get_timeout().unwrap_or(Duration::from_millis(MAX_CALL_MS));
        tokio::spawn(async move {
            let answered = tokio::select! {
                () = session.ended().cancelled() => None,
                answered = tokio::time::timeout(limit, answer) => answered.ok(),
            };
            done(&session);
            let Some(answered) = answered else { return };
            let restarted = |_| Err(ErrorBody::unknown_outcome("the service restarted during the call"));
            let result = answered.unwrap_or_else(restarted);
            context.answer(&session, &PeerReply::Answer(result), reply);
        });
    }

    /// A single acknowledgement costs both sides as much as the message: several are sent in one write.
    fn acknowledge(self: &Arc<Self>, session: Arc<Session>, reply: RpcReplyPort<Vec<u8>>) {
        let mut waiting = session.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(reply);
        if waiting.len() >= ACK_BATCH {
            let replies = std::mem::take(&mut *waiting);
            drop(waiting);
            self.taken(&session, replies);
        } else if waiting.len() == 1 {
            drop(waiting);
            let context = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(ACK_DELAY).await;
                let replies =
                    std::mem::take(&mut *session.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner));
                context.taken(&session, replies);
            });
        }
    }

    fn taken(&self, session: &Session, replies: Vec<RpcReplyPort<Vec<u8>>>) {
        for reply in replies {
            self.answer(session, &PeerReply::Taken, reply);
        }
    }

    fn answer(&self, session: &Session, answer: &PeerReply, reply: RpcReplyPort<Vec<u8>>) {
        let bytes = wire::encode(answer).or_else(|_| {
            let text = "the answer exceeds the size limit between managers";
            wire::encode(&PeerReply::Answer(Err(ErrorBody::new(ErrorCode::TooLarge, text))))
        });
        let Ok(bytes) = bytes else { return };
        if session.meter.queued() > MAX_QUEUED_BYTES {
            self.count(|c| c.dropped.unread += 1);
            return;
        }
        let size = bytes.len();
        session.meter.answer_leaves(size);
        if reply.send(bytes).is_err() {
            // Its deadline passed a moment ago: it is not written, and must not fill the queue until the session ends.
            session.meter.departed(size as u64);
        }
    }

    fn offence(&self, session: &Session, what: &'static str) {
        self.offences.report(Clock.now(), session.node, what);
    }
}

fn refused(reason: &str) -> PeerReply {
    PeerReply::Refused { reason: reason.to_owned() }
}

fn refuse_unknown(reply: RpcReplyPort<Vec<u8>>) {
    if let Ok(bytes) = wire::encode(&refused("no such session")) {
        let _gone = reply.send(bytes);
    }
}

/// The tag at the start of an envelope: a number of variable length, after the version.
fn tag_of(bytes: &[u8]) -> Option<u128> {
    let length = match bytes.get(1)? {
        0..=250 => 2,
        251 => 4,
        252 => 6,
        253 => 10,
        _ => 18,
    };
    wire::decode(bytes.get(..length)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Facts;

    #[tokio::test]
    async fn answer_after_the_deadline_leaves_the_queue_empty() {
        let session = Session::new(Facts::of_tests());
        let context = EndpointContext {
            sessions: Sessions::default(),
            replica: watch::channel(Arc::default()).1,
            raft: Recipient::new(|_| Ok(())),
            calls: mpsc::channel(1).0,
            snapshot_limit: 0,
            counts: Mutex::default(),
            offences: Arc::default(),
            news: Recipient::new(|_| Ok(())),
        };
        let answer = PeerReply::Answer(Ok(vec![0; 100_000]));
        let (reply, gone) = oneshot::channel();
        drop(gone);
        context.answer(&session, &answer, (reply, Duration::from_secs(1)).into());
        assert_eq!(session.meter.queued(), 0);
        let (reply, _waiting) = oneshot::channel();
        context.answer(&session, &answer, (reply, Duration::from_secs(1)).into());
        assert!(session.meter.queued() >= 100_000, "until it is written");
    }
}
