//! Peer: everything this manager says to one other manager.
//!
//! Owns   the backlog of Raft messages, the windows of unanswered calls, the snapshot on its way.
//! Hears  what to send; which session is up; how each call ended.     Says  calls to the peer's door; `Unreachable`,
//!        `SnapshotSent`; answers to whoever called.
//! Keeps  MESH-21  everything leaves as a call with a deadline, inside a small window: a peer that answers nothing
//!                 costs bounded memory, and is noticed.
//! Why windows apart: a snapshot must not hold up heartbeats, nor a slow API call the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{Named, RaftMemberMsg, Reply, SnapshotOutcome};
use muster_messages::wire::{
    self, CHUNK, Claim, PeerCall, PeerEnvelope, PeerMessage, PeerReply, RaftPacket, SnapshotHead,
};
use muster_messages::{ErrorBody, ErrorCode, ErrorMark, Moment, NodeId, RaftId};
use ractor::ActorRef;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::core::backlog::Backlog;
use crate::core::filter::MAX_CALL_MS;
use crate::core::links::SessionNumber;
use crate::core::pace::Pace;
use crate::door::DoorMsg;
use crate::session::{Ending, QUEUE, Session};

/// Unanswered calls that carry Raft messages: with 8, batches keep a round trip busy (0.8 M items/s measured).
pub const RAFT_WINDOW: usize = 8;
/// An answer to those says only "in the mailbox". A process that runs gives it in milliseconds.
const RAFT_DEADLINE: Duration = Duration::from_secs(5);
/// Unanswered calls to services; more wait here, up to [`WAITING`].
const CALL_WINDOW: usize = 64;
const WAITING: usize = 256;
const PIECE_DEADLINE: Duration = Duration::from_secs(10);
/// The raft member is told of progress this often. It gives a snapshot up after a minute without.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The session that is up, and the peer's door behind it.
#[derive(Clone)]
pub struct Link {
    pub session: Arc<Session>,
    pub door: ActorRef<DoorMsg>,
}

/// News of a peer actor that has just started: it has no link yet.
pub struct PeerStarted(pub NodeId);

/// What a peer actor hears.
pub enum PeerMsg {
    /// Raft messages. Without a session: dropped, `Unreachable`.
    Send(Vec<RaftPacket>),
    /// A snapshot. One `SnapshotSent` follows, unless it is stopped. One on its way is replaced; of the same snapshot, what has
    /// arrived counts.
    Snapshot {
        head: SnapshotHead,
        data: Arc<Vec<u8>>,
        packet: Box<RaftPacket>,
    },
    /// The snapshot at this index is not needed any more. Repeated or late: nothing happens.
    StopSnapshot {
        index: u64,
    },
    Call {
        deadline: Duration,
        call: Box<PeerCall>,
        reply: Reply<Result<Vec<u8>, ErrorBody>>,
    },
    /// The processes that this manager takes for its peers, all of them. Lost: the session ends.
    Claims(Vec<Claim>),
    /// Another session is up, or none.
    Link(Option<Box<Link>>),
    /// A call that went through session `number` ended.
    Done {
        number: SessionNumber,
        what: What,
        end: End,
    },
    /// A call that waits may be overdue.
    Overdue,
}

impl Named for PeerMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::Send(_) => "send",
            Self::Snapshot { .. } => "snapshot",
            Self::StopSnapshot { .. } => "stop_snapshot",
            Self::Call { .. } => "call",
            Self::Claims(_) => "claims",
            Self::Link(_) => "link",
            Self::Done { .. } => "done",
            Self::Overdue => "overdue",
        }
    }
}

/// What a call carried.
pub enum What {
    Raft(Vec<RaftId>),
    Seat,
    Claims,
    /// Of which transfer, and when it left.
    Piece(u64, Moment),
    Call(Reply<Result<Vec<u8>, ErrorBody>>),
}

/// How a call ended.
#[derive(Debug)]
pub enum End {
    Answered(PeerReply),
    TimedOut,
    /// The session ended, or the answer was unreadable.
    Failed,
}

struct Waiting {
    until: Moment,
    call: Box<PeerCall>,
    reply: Reply<Result<Vec<u8>, ErrorBody>>,
}

struct Outgoing {
    number: u64,
    head: SnapshotHead,
    data: Arc<Vec<u8>>,
    packet: Box<RaftPacket>,
    offset: usize,
    /// The last piece has left.
    complete: bool,
    /// Pieces without an answer.
    unanswered: usize,
    told_progress: Moment,
}

/// The actor.
pub struct PeerShell {
    node: NodeId,
    raft: Recipient<RaftMemberMsg>,
    started: Recipient<PeerStarted>,
    link: Option<Link>,
    /// The seat that the peer takes our messages to come from.
    said: Option<RaftId>,
    backlog: Backlog,
    outgoing: Option<Outgoing>,
    transfers: u64,
    pace: Pace,
    waiting: VecDeque<Waiting>,
    /// Unanswered calls of the session that is up.
    sent: usize,
    pieces: usize,
    asked: usize,
    answered_at: Moment,
    unanswered: u64,
    refused: u64,
    unreachable: u64,
}

impl PeerShell {
    pub fn new(node: NodeId, raft: Recipient<RaftMemberMsg>, started: Recipient<PeerStarted>) -> Self {
        Self {
            node,
            raft,
            started,
            link: None,
            said: None,
            backlog: Backlog::default(),
            outgoing: None,
            transfers: 0,
            pace: Pace::default(),
            waiting: VecDeque::new(),
            sent: 0,
            pieces: 0,
            asked: 0,
            answered_at: Moment(0),
            unanswered: 0,
            refused: 0,
            unreachable: 0,
        }
    }

    fn unreachable(&mut self, seats: Vec<RaftId>) {
        for to in seats {
            self.unreachable += 1;
            // Lost when the raft member's mailbox is full: it will hear of the next one.
            let _full = self.raft.tell(RaftMemberMsg::Unreachable { to });
        }
    }

    fn snapshot_ended(&mut self, outcome: SnapshotOutcome) {
        if let Some(outgoing) = self.outgoing.take() {
            // Lost when its mailbox is full: it gives the snapshot up by itself.
            let (to, index) = (outgoing.packet.to, outgoing.head.index);
            let _full = self.raft.tell(RaftMemberMsg::SnapshotSent { to, index, outcome });
        }
    }

    fn begin_snapshot(&mut self, now: Moment, head: SnapshotHead, data: Arc<Vec<u8>>, packet: Box<RaftPacket>) {
        if self.link.is_none() {
            let outcome = SnapshotOutcome::Lost("there is no session with the node".to_owned());
            let _full = self.raft.tell(RaftMemberMsg::SnapshotSent { to: packet.to, index: head.index, outcome });
            return;
        }
        if let Some(outgoing) = self.outgoing.as_mut().filter(|o| o.head == head && !o.complete) {
            outgoing.packet = packet;
            return;
        }
        if self.outgoing.as_ref().is_some_and(|o| o.head.index != head.index) {
            self.snapshot_ended(SnapshotOutcome::Lost("a newer snapshot took its place".to_owned()));
        }
        self.transfers += 1;
        self.outgoing = Some(Outgoing {
            number: self.transfers,
            head,
            data,
            packet,
            offset: 0,
            complete: false,
            unanswered: 0,
            told_progress: now,
        });
    }

    /// A piece was answered, or was not.
    fn piece_done(&mut self, now: Moment, (number, sent): (u64, Moment), end: &End) {
        let Some(outgoing) = self.outgoing.as_mut().filter(|o| o.number == number) else { return };
        outgoing.unanswered -= 1;
        match end {
            End::Answered(PeerReply::Taken) => {
                self.pace.answered(now.since(sent));
                if outgoing.complete && outgoing.unanswered == 0 {
                    self.snapshot_ended(SnapshotOutcome::Delivered);
                } else if now.since(outgoing.told_progress) >= PROGRESS_EVERY {
                    outgoing.told_progress = now;
                    let (to, index) = (outgoing.packet.to, outgoing.head.index);
                    let _full = self.raft.tell(RaftMemberMsg::SnapshotProgress { to, index });
                }
            }
            End::Answered(PeerReply::Refused { reason }) => {
                self.snapshot_ended(SnapshotOutcome::Refused(reason.clone()));
            }
            End::Answered(PeerReply::Answer(_)) | End::Failed => {
                self.snapshot_ended(SnapshotOutcome::Lost("the session ended".to_owned()));
            }
            End::TimedOut => {
                let why = format!("no answer in {} s", PIECE_DEADLINE.as_secs());
                self.snapshot_ended(SnapshotOutcome::Lost(why));
            }
        }
    }

    fn relink(&mut self, cx: &Cx<PeerMsg>, link: Option<Link>) {
        let number = |link: &Option<Link>| link.as_ref().map(|l| l.session.number);
        if link.is_some() && number(&link) == number(&self.link) {
            // Told again of the session it has: what is on its way in it still counts.
            self.link = link;
            return;
        }
        // Calls on their way belong to the old session; their ends are told from the new one's by the number.
        (self.sent, self.pieces, self.asked) = (0, 0, 0);
        self.answered_at = cx.now();
        self.pace = Pace::default();
        self.snapshot_ended(SnapshotOutcome::Lost("the session ended".to_owned()));
        self.said = link.as_ref().and_then(|l| l.session.own_seat);
        self.link = link;
        if self.link.is_none() {
            let lost = self.backlog.clear();
            self.unreachable(lost);
            for waiting in std::mem::take(&mut self.waiting) {
                let _gone = waiting.reply.send(Err(no_session(self.node)));
            }
        }
    }

    /// Sends what the windows allow.
    fn pump(&mut self, cx: &Cx<PeerMsg>) {
        let Some(link) = self.link.clone() else { return };
        while self.sent < RAFT_WINDOW && !self.backlog.is_empty() && link.session.meter.queued() < QUEUE / 2 {
            let batch = self.backlog.batch();
            let mut seats: Vec<RaftId> = batch.iter().map(|p| p.to).collect();
            seats.dedup();
            self.say_seat(cx, &link, batch.last().map(|p| p.from));
            match send(cx, &link, PeerMessage::Raft(batch), RAFT_DEADLINE, What::Raft(seats)) {
                Ok(()) => self.sent += 1,
                Err(What::Raft(seats)) => self.unreachable(seats),
                Err(_) => {}
            }
        }
        self.pump_pieces(cx, &link);
        while self.asked < CALL_WINDOW
            && link.session.meter.queued() < QUEUE / 2
            && let Some(next) = self.waiting.pop_front()
        {
            let left = next.until.since(cx.now());
            match send(cx, &link, PeerMessage::Call(*next.call), left, What::Call(next.reply)) {
                Ok(()) => self.asked += 1,
                Err(What::Call(reply)) => {
                    let text = "the call is larger than a message between managers may be, or the session just ended";
                    let _gone = reply.send(Err(ErrorBody::new(ErrorCode::Unreachable, text)));
                }
                Err(_) => {}
            }
        }
    }

    /// The first message from a new seat is preceded by the news of it: a session that began before this manager had
    /// that seat need not be opened anew.
    fn say_seat(&mut self, cx: &Cx<PeerMsg>, link: &Link, seat: Option<RaftId>) {
        if let Some(seat) = seat.filter(|s| self.said != Some(*s)) {
            self.said = Some(seat);
            if send(cx, link, PeerMessage::Seat(seat), RAFT_DEADLINE, What::Seat).is_err() {
                link.session.end(Ending::Closed);
            }
        }
    }

    fn pump_pieces(&mut self, cx: &Cx<PeerMsg>, link: &Link) {
        while self.pieces < self.pace.window()
            && link.session.meter.queued() < QUEUE / 2
            && let Some(outgoing) = self.outgoing.as_mut().filter(|o| !o.complete)
        {
            let end = outgoing.data.len().min(outgoing.offset + CHUNK);
            outgoing.complete = end == outgoing.data.len();
            let piece = PeerMessage::SnapshotChunk {
                head: outgoing.head.clone(),
                from: outgoing.packet.from,
                offset: outgoing.offset as u64,
                data: outgoing.data[outgoing.offset..end].to_vec(),
                last: outgoing.complete.then(|| outgoing.packet.clone()),
            };
            outgoing.offset = end;
            outgoing.unanswered += 1;
            let (from, number) = (outgoing.packet.from, outgoing.number);
            self.say_seat(cx, link, Some(from));
            match send(cx, link, piece, PIECE_DEADLINE, What::Piece(number, cx.now())) {
                Ok(()) => self.pieces += 1,
                Err(_) => self.snapshot_ended(SnapshotOutcome::Lost("the session ended".to_owned())),
            }
        }
    }

    fn done(&mut self, cx: &Cx<PeerMsg>, number: SessionNumber, what: What, end: End) {
        let current = self.link.as_ref().is_some_and(|l| l.session.number == number);
        match &end {
            End::Answered(_) if current => self.answered_at = cx.now(),
            End::TimedOut if current => self.overdue(cx, &what),
            _ => {}
        }
        let refused = matches!(end, End::Answered(PeerReply::Refused { .. }));
        self.refused += u64::from(refused);
        let taken = matches!(end, End::Answered(PeerReply::Taken));
        match what {
            What::Raft(seats) => {
                self.sent -= usize::from(current);
                if !taken {
                    self.unreachable(seats);
                }
            }
            // Not believed, or lost: everything that follows would be dropped.
            What::Seat if current && !taken => {
                if let Some(link) = &self.link {
                    link.session.end(Ending::Unseated);
                }
            }
            // The peer might hear a process that this manager does not: the next session begins with the claims.
            What::Claims if current && !taken => {
                if let Some(link) = &self.link {
                    link.session.end(Ending::Unanswered);
                }
            }
            What::Seat | What::Claims => {}
            What::Piece(transfer, sent) => {
                self.pieces -= usize::from(current);
                if current {
                    self.piece_done(cx.now(), (transfer, sent), &end);
                }
            }
            What::Call(reply) => {
                self.asked -= usize::from(current);
                let _gone = reply.send(result_of(self.node, end));
            }
        }
    }

    /// Nothing was answered while a Raft call or a piece waited out its deadline: the peer takes nothing more. (A call
    /// to a service may rightly take long.)
    fn overdue(&mut self, cx: &Cx<PeerMsg>, what: &What) {
        let limit = match what {
            What::Raft(_) | What::Seat | What::Claims => RAFT_DEADLINE,
            What::Piece(..) => PIECE_DEADLINE,
            What::Call(_) => return,
        };
        self.unanswered += 1;
        if cx.now().since(self.answered_at) >= limit
            && let Some(link) = &self.link
        {
            link.session.end(Ending::Unanswered);
        }
    }

    fn ask(
        &mut self,
        cx: &Cx<PeerMsg>,
        deadline: Duration,
        call: Box<PeerCall>,
        reply: Reply<Result<Vec<u8>, ErrorBody>>,
    ) {
        let refusal = if self.link.is_none() {
            Some(no_session(self.node))
        } else if self.waiting.len() >= WAITING {
            let text = "too many calls to this manager are waiting; retry";
            Some(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_millis(200)))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let _gone = reply.send(Err(refusal));
            return;
        }
        let deadline = deadline.min(Duration::from_millis(MAX_CALL_MS));
        if self.asked >= CALL_WINDOW {
            cx.after(deadline, PeerMsg::Overdue);
        }
        self.waiting.push_back(Waiting { until: cx.now() + deadline, call, reply });
    }

    fn drop_overdue(&mut self, now: Moment) {
        let (late, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|w| w.until <= now);
        self.waiting = waiting;
        let late: VecDeque<Waiting> = late;
        for waiting in late {
            let text = "too many calls to this manager were waiting before this one";
            let _gone = waiting.reply.send(Err(ErrorBody::new(ErrorCode::TimedOut, text)));
        }
    }
}

impl Shell for PeerShell {
    type Msg = PeerMsg;
    const KIND: &'static str = "Peer";

    async fn started(&mut self, _cx: &Cx<PeerMsg>) -> Result<(), Fault> {
        let _stopping = self.started.tell(PeerStarted(self.node));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<PeerMsg>, msg: PeerMsg) -> Result<(), Fault> {
        match msg {
            PeerMsg::Send(packets) if self.link.is_none() => {
                let mut seats: Vec<RaftId> = packets.iter().map(|p| p.to).collect();
                seats.dedup();
                self.unreachable(seats);
            }
            PeerMsg::Send(packets) => {
                let lost = self.backlog.push(packets);
                self.unreachable(lost);
            }
            PeerMsg::Snapshot { head, data, packet } => self.begin_snapshot(cx.now(), head, data, packet),
            PeerMsg::StopSnapshot { index } => {
                self.outgoing.take_if(|o| o.head.index == index);
            }
            PeerMsg::Claims(claims) => {
                if let Some(link) = &self.link
                    && send(cx, link, PeerMessage::Claims(claims), RAFT_DEADLINE, What::Claims).is_err()
                {
                    link.session.end(Ending::Closed);
                }
            }
            PeerMsg::Call { deadline, call, reply } => self.ask(cx, deadline, call, reply),
            PeerMsg::Link(link) => self.relink(cx, link.map(|l| *l)),
            PeerMsg::Done { number, what, end } => self.done(cx, number, what, end),
            PeerMsg::Overdue => self.drop_overdue(cx.now()),
        }
        self.pump(cx);
        Ok(())
    }

    fn view(&self) -> Value {
        let session = self.link.as_ref().map(|l| l.session.number);
        json!({
            "node": self.node,
            "session": session,
            "backlog_bytes": self.backlog.bytes(),
            "window": {
                "raft": [self.sent, RAFT_WINDOW],
                "calls": [self.asked, CALL_WINDOW],
                "pieces": [self.pieces, self.pace.window()],
            },
            "calls_waiting": self.waiting.len(),
            "snapshot_bytes_sent": self.outgoing.as_ref().map(|o| o.offset),
            "dropped": {
                "overflow": self.backlog.dropped(),
                "unanswered": self.unanswered,
                "refused": self.refused,
                "unreachable": self.unreachable,
            },
        })
    }
}

/// Sends one call. It leaves before this returns, so calls keep their order; its end comes as `Done`.
fn send(cx: &Cx<PeerMsg>, link: &Link, message: PeerMessage, deadline: Duration, what: What) -> Result<(), What> {
    let session = &link.session;
    let Ok(bytes) = wire::encode(&PeerEnvelope { tag: session.peer_tag, message }) else {
        return Err(what);
    };
    let (tx, answer) = oneshot::channel();
    session.meter.call_leaves(bytes.len());
    if link.door.cast(DoorMsg::Call(bytes, (tx, deadline).into())).is_err() {
        return Err(what);
    }
    let (me, number) = (cx.me().clone(), session.number);
    cx.spawn(async move {
        let end = match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(bytes)) => wire::decode(&bytes).map_or(End::Failed, End::Answered),
            Ok(Err(_)) => End::Failed,
            Err(_) => End::TimedOut,
        };
        let _gone = me.tell(PeerMsg::Done { number, what, end });
    });
    Ok(())
}

fn result_of(node: NodeId, end: End) -> Result<Vec<u8>, ErrorBody> {
    match end {
        End::Answered(PeerReply::Answer(result)) => result,
        End::Answered(PeerReply::Refused { reason }) => {
            let text = format!("manager {node} refused the call: {reason}");
            Err(ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(200)))
        }
        End::Answered(PeerReply::Taken) => {
            Err(ErrorBody::new(ErrorCode::Internal, format!("manager {node} took the call without an answer")))
        }
        End::TimedOut => Err(ErrorBody::new(ErrorCode::TimedOut, format!("no answer from manager {node} in time"))),
        // It was on its way: unlike a call without a session, it may have been carried out.
        End::Failed => {
            let text = format!("the session with manager {node} ended before it answered");
            Err(ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(200)))
        }
    }
}

/// The answer when there is no session with a node.
pub fn no_session(node: NodeId) -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, format!("no session with manager {node}"))
        .marked(ErrorMark::NotSent)
        .retry_after(Duration::from_millis(200))
}
