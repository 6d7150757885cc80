//! The door: the only actor of a manager that its peers can reach.
//!
//! Hears  bytes, in calls.     Says  `FromPeer`, `SnapshotReceived`; incoming calls to the node's router; replies.
//! Keeps  MESH-18  a message is believed to come from whoever's session carries its tag, and from no other seat.
//!        MESH-19  it never waits: what takes time runs in tasks, bounded per peer.
//!        MESH-20  no bytes make it panic.
//! Why bytes, and the message trait by hand: the derived decoder slices and panics on malformed input, and each panic
//! runs the panic hook. This one always succeeds; the bytes are decoded in `handle`, with a limit and a `Result`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use muster_kernel::{Clock, Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{IncomingCall, Named, RaftMemberMsg};
use muster_messages::wire::{self, Claim, PeerCall, PeerEnvelope, PeerMessage, PeerReply, RaftPacket, StartId};
use muster_messages::{ErrorBody, ErrorCode, NodeId, RaftId, Replica};
use ractor::message::{BoxedDowncastErr, SerializedMessage};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::core::assembly::Piece;
use crate::core::filter::MAX_CALL_MS;
use crate::core::hello::{believed, may_be_of};
use crate::offences::Offences;
use crate::peer::RAFT_WINDOW;
use crate::session::{GATE, QUEUE, Session, Sessions};

/// Calls of one peer that may wait for an answer: twice its window.
const ASKED: u64 = 128;
/// And their bytes: half of what closes the read gate. Raft's answers come through the same session, and a write that is
/// forwarded waits for them: calls alone must never stop the reading.
const ASKED_BYTES: u64 = GATE / 2;

/// Raft messages that are acknowledged together: half of what a peer's window holds, so that it never runs dry.
const TOGETHER: usize = RAFT_WINDOW / 2;
/// And no later than this. Nothing waits for an acknowledgement but the window.
const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(10);

/// What the door hears.
pub enum DoorMsg {
    /// An encoded [`PeerEnvelope`]; answered by an encoded [`PeerReply`].
    Call(Vec<u8>, RpcReplyPort<Vec<u8>>),
    /// Something that is no call.
    Unreadable,
}

impl ractor::Message for DoorMsg {
    fn serializable() -> bool {
        true
    }
    fn serialize(self) -> Result<SerializedMessage, BoxedDowncastErr> {
        match self {
            DoorMsg::Call(args, reply) => {
                Ok(SerializedMessage::Call { variant: "Call".to_owned(), args, reply, metadata: None })
            }
            DoorMsg::Unreadable => Err(BoxedDowncastErr),
        }
    }
    fn deserialize(message: SerializedMessage) -> Result<Self, BoxedDowncastErr> {
        Ok(match message {
            SerializedMessage::Call { args, reply, .. } => DoorMsg::Call(args, reply),
            _ => DoorMsg::Unreadable,
        })
    }
}

/// What came through the door, and what did not.
#[derive(Debug, Default)]
pub struct Counters {
    pub packets: AtomicU64,
    pub calls: AtomicU64,
    pub chunks: AtomicU64,
    pub snapshots: AtomicU64,
    pub malformed: AtomicU64,
    pub unknown_tag: AtomicU64,
    /// Raft messages in the name of a seat that is another node's.
    pub foreign_seat: AtomicU64,
    /// Raft messages of a seat that the session does not speak for, and that may have been the peer's, or may become it.
    pub unknown_seat: AtomicU64,
    /// The raft member or the router did not take it.
    pub busy: AtomicU64,
    pub spoiled: AtomicU64,
    /// Answers that a peer which does not read did not get.
    pub unread: AtomicU64,
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Counters {
    pub fn view(&self) -> Value {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        json!({
            "packets": n(&self.packets), "calls": n(&self.calls), "chunks": n(&self.chunks),
            "snapshots": n(&self.snapshots),
            "dropped": {
                "malformed": n(&self.malformed), "unknown_tag": n(&self.unknown_tag),
                "foreign_seat": n(&self.foreign_seat), "unknown_seat": n(&self.unknown_seat), "busy": n(&self.busy),
                "spoiled": n(&self.spoiled), "unread": n(&self.unread),
            },
        })
    }
}

/// What the door needs. Shared by its incarnations.
pub struct Hall {
    pub sessions: Sessions,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub raft: Recipient<RaftMemberMsg>,
    pub calls: mpsc::Sender<IncomingCall>,
    pub snapshot_limit: u64,
    pub counters: Counters,
    pub offences: Arc<Offences>,
    /// Hears what peers claim.
    pub news: Recipient<DoorNews>,
}

impl Hall {
    /// One message. Never waits.
    fn take(self: &Arc<Self>, bytes: Vec<u8>, reply: RpcReplyPort<Vec<u8>>) {
        let session = tag_of(&bytes).and_then(|tag| self.sessions.speaking(tag));
        let Some(session) = session else {
            add(&self.counters.unknown_tag, 1);
            return refuse_stranger(reply);
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
            Ok(PeerEnvelope { message: PeerMessage::Seat(claimed), .. }) => self.seat(&session, claimed),
            Ok(PeerEnvelope { message: PeerMessage::Claims(claims), .. }) => self.claims(&session, claims),
            Ok(PeerEnvelope { message: PeerMessage::SnapshotChunk { head, from, offset, data, last }, .. }) => {
                self.piece(&session, Piece { head, from, offset, data, last })
            }
            Err(_) => {
                add(&self.counters.malformed, 1);
                self.offence(&session, "malformed");
                refused("malformed")
            }
        };
        session.meter.handled(bytes.len());
        self.answer(&session, &answer, reply);
    }

    fn raft(&self, session: &Session, mut packets: Vec<RaftPacket>) -> PeerReply {
        let seat = session.seat();
        if packets.iter().any(|p| Some(p.from) != seat) {
            let foreign = packets.iter().filter(|p| Some(p.from) != seat && self.is_foreign(session, p.from)).count();
            let came = packets.len();
            packets.retain(|p| Some(p.from) == seat);
            self.dropped_for_their_seat(session, foreign, came - packets.len() - foreign);
        }
        if packets.is_empty() {
            return PeerReply::Taken;
        }
        add(&self.counters.packets, packets.len());
        self.hand_on(RaftMemberMsg::FromPeer { node: session.node, peer_seat: seat, packets })
    }

    /// Whether no honest peer speaks in the name of this seat. One that got another seat, or lost one, may do so for as long
    /// as it, or this copy, has not heard of it: what it says is dropped all the same, and it is accused of nothing.
    fn is_foreign(&self, session: &Session, seat: RaftId) -> bool {
        let replica = self.replica.borrow();
        !may_be_of(session.node, seat, replica.raft.raft_id, &replica.tables)
    }

    fn dropped_for_their_seat(&self, session: &Session, foreign: usize, unknown: usize) {
        add(&self.counters.unknown_seat, unknown);
        if foreign > 0 {
            add(&self.counters.foreign_seat, foreign);
            self.offence(session, "foreign_seat");
        }
    }

    fn seat(&self, session: &Session, claimed: RaftId) -> PeerReply {
        let replica = self.replica.borrow().clone();
        match believed(claimed, session.node, replica.raft.raft_id, &replica.tables) {
            // The mesh hears of it before a word for that seat is taken (MESH-23).
            Ok(Some(seat)) => {
                let news = DoorNews::Seated { node: session.node, start: session.start, seat };
                self.take_note(news, || session.reseat(Some(seat)))
            }
            Ok(None) => {
                session.reseat(None);
                PeerReply::Taken
            }
            Err(foreign) => {
                self.dropped_for_their_seat(session, 1, 0);
                PeerReply::Refused { reason: foreign.to_string() }
            }
        }
    }

    fn claims(&self, session: &Session, claims: Vec<Claim>) -> PeerReply {
        self.take_note(DoorNews::Claimed { by: session.node, claims }, || ())
    }

    fn take_note(&self, news: DoorNews, then: impl FnOnce()) -> PeerReply {
        match self.news.tell(news) {
            Ok(()) => {
                then();
                PeerReply::Taken
            }
            Err(why) => {
                add(&self.counters.busy, 1);
                PeerReply::Refused { reason: why.to_string() }
            }
        }
    }

    fn piece(&self, session: &Session, piece: Piece) -> PeerReply {
        add(&self.counters.chunks, 1);
        if piece.last.as_ref().is_some_and(|p| p.from != piece.from) {
            self.dropped_for_their_seat(session, 1, 0);
            return refused("another node's seat");
        }
        if Some(piece.from) != session.seat() {
            let foreign = self.is_foreign(session, piece.from);
            self.dropped_for_their_seat(session, foreign.into(), (!foreign).into());
            return refused(if foreign {
                "another node's seat"
            } else {
                "a seat that this session does not speak for"
            });
        }
        let mut assembly = session.assembly.lock().unwrap_or_else(PoisonError::into_inner);
        match assembly.take(self.snapshot_limit, piece) {
            Ok(None) => PeerReply::Taken,
            Ok(Some((packet, data))) => {
                add(&self.counters.snapshots, 1);
                let (node, peer_seat) = (session.node, session.seat());
                self.hand_on(RaftMemberMsg::SnapshotReceived { node, peer_seat, packet, data })
            }
            Err(spoiled) => {
                add(&self.counters.spoiled, 1);
                PeerReply::Refused { reason: spoiled.to_string() }
            }
        }
    }

    fn hand_on(&self, msg: RaftMemberMsg) -> PeerReply {
        match self.raft.tell(msg) {
            Ok(()) => PeerReply::Taken,
            Err(why) => {
                add(&self.counters.busy, 1);
                PeerReply::Refused { reason: why.to_string() }
            }
        }
    }

    fn call(self: &Arc<Self>, session: Arc<Session>, call: PeerCall, size: usize, reply: RpcReplyPort<Vec<u8>>) {
        add(&self.counters.calls, 1);
        let (tx, answer) = oneshot::channel();
        let incoming = IncomingCall { forwarder: session.node, call, reply: tx.into() };
        let bytes = size as u64;
        let full = session.asked.fetch_add(1, Ordering::AcqRel) >= ASKED;
        let full = session.asked_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes > ASKED_BYTES || full;
        let done = move |session: &Session| {
            session.asked.fetch_sub(1, Ordering::AcqRel);
            session.asked_bytes.fetch_sub(bytes, Ordering::AcqRel);
            session.meter.handled(size);
        };
        if full || self.calls.try_send(incoming).is_err() {
            done(&session);
            add(&self.counters.busy, 1);
            return self.answer(&session, &refused("too many calls are waiting"), reply);
        }
        let hall = Arc::clone(self);
        let limit = reply.get_timeout().unwrap_or(Duration::from_millis(MAX_CALL_MS));
        tokio::spawn(async move {
            let answered = tokio::select! {
                () = session.ended().cancelled() => None,
                answered = tokio::time::timeout(limit, answer) => answered.ok(),
            };
            done(&session);
            let Some(answered) = answered else { return };
            let result = answered.unwrap_or_else(|_| {
                let text = "the service restarted while it was asked; it may have been done: look before you repeat it";
                Err(ErrorBody::new(ErrorCode::UnknownOutcome, text))
            });
            hall.answer(&session, &PeerReply::Answer(result), reply);
        });
    }

    /// Each acknowledgement by itself would cost as much on both sides as the message: several leave in one write.
    fn acknowledge(self: &Arc<Self>, session: Arc<Session>, reply: RpcReplyPort<Vec<u8>>) {
        let mut waiting = session.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(reply);
        if waiting.len() >= TOGETHER {
            let replies = std::mem::take(&mut *waiting);
            drop(waiting);
            self.taken(&session, replies);
        } else if waiting.len() == 1 {
            drop(waiting);
            let hall = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(ACKNOWLEDGE_AFTER).await;
                let replies =
                    std::mem::take(&mut *session.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner));
                hall.taken(&session, replies);
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
            let text = "the answer is larger than a message between managers may be";
            wire::encode(&PeerReply::Answer(Err(ErrorBody::new(ErrorCode::TooLarge, text))))
        });
        let Ok(bytes) = bytes else { return };
        if session.meter.queued() > QUEUE {
            add(&self.counters.unread, 1);
            return;
        }
        session.meter.answer_leaves(bytes.len());
        let _gone = reply.send(bytes);
    }

    fn offence(&self, session: &Session, what: &'static str) {
        self.offences.note(Clock.now(), session.node, what);
    }
}

fn refused(reason: &str) -> PeerReply {
    PeerReply::Refused { reason: reason.to_owned() }
}

fn refuse_stranger(reply: RpcReplyPort<Vec<u8>>) {
    if let Ok(bytes) = wire::encode(&refused("no such session")) {
        let _gone = reply.send(bytes);
    }
}

/// The tag that an envelope begins with: after the version a number of variable length.
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

struct DoorActor;

impl Actor for DoorActor {
    type Msg = DoorMsg;
    type State = Arc<Hall>;
    type Arguments = Arc<Hall>;

    async fn pre_start(&self, _me: ActorRef<DoorMsg>, hall: Arc<Hall>) -> Result<Arc<Hall>, ActorProcessingErr> {
        Ok(hall)
    }
    async fn handle(
        &self,
        _me: ActorRef<DoorMsg>,
        msg: DoorMsg,
        hall: &mut Arc<Hall>,
    ) -> Result<(), ActorProcessingErr> {
        match msg {
            DoorMsg::Call(bytes, reply) => hall.take(bytes, reply),
            DoorMsg::Unreadable => add(&hall.counters.malformed, 1),
        }
        Ok(())
    }
}

/// News of a door.
pub enum DoorNews {
    /// A door is open, under this pid.
    Opened(u64),
    /// It is gone: what named it is void.
    Closed(u64),
    /// The processes that another manager takes for its peers, all of them.
    Claimed { by: NodeId, claims: Vec<Claim> },
    /// This process of a node speaks for a seat that its hello did not name.
    Seated { node: NodeId, start: StartId, seat: RaftId },
}

/// What the door's shell hears.
pub enum DoorShellMsg {
    /// The actor behind it ended.
    Ended,
}

impl Named for DoorShellMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::Ended => "ended",
        }
    }
}

/// Keeps the door actor in the supervision tree. Each incarnation is a new actor with a new pid, so the mesh opens new
/// sessions: a peer may announce only the door that its hello named.
pub struct DoorShell {
    hall: Arc<Hall>,
    news: Recipient<DoorNews>,
    running: Option<Running>,
}

/// Stops the actor when dropped, on every way out.
struct Running {
    actor: ActorRef<DoorMsg>,
    news: Recipient<DoorNews>,
}
impl Running {
    fn pid(&self) -> u64 {
        self.actor.get_id().pid()
    }
}
impl Drop for Running {
    fn drop(&mut self) {
        let _stopping = self.news.tell(DoorNews::Closed(self.pid()));
        self.actor.stop(None);
    }
}

impl DoorShell {
    pub fn new(hall: Arc<Hall>, news: Recipient<DoorNews>) -> Self {
        Self { hall, news, running: None }
    }
}

impl Shell for DoorShell {
    type Msg = DoorShellMsg;
    const KIND: &'static str = "Door";

    async fn started(&mut self, cx: &Cx<DoorShellMsg>) -> Result<(), Fault> {
        let (actor, joined) = Actor::spawn(None, DoorActor, Arc::clone(&self.hall)).await?;
        let me = cx.me().clone();
        cx.spawn(async move {
            let _how = joined.await;
            let _gone = me.tell(DoorShellMsg::Ended);
        });
        let running = Running { actor, news: self.news.clone() };
        self.news.tell(DoorNews::Opened(running.pid()))?;
        self.running = Some(running);
        Ok(())
    }
    async fn handle(&mut self, _cx: &Cx<DoorShellMsg>, msg: DoorShellMsg) -> Result<(), Fault> {
        match msg {
            DoorShellMsg::Ended => Err(Fault::new("the door actor ended")),
        }
    }
    fn view(&self) -> Value {
        let pid = self.running.as_ref().map(Running::pid);
        let mut view = self.hall.counters.view();
        view["pid"] = json!(pid);
        view
    }
}
