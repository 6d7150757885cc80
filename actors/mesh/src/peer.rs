//! Peer: everything that this manager sends to one other manager.
//!
//! Owns        the backlog of Raft messages, the windows of unanswered calls, the snapshot being sent.
//! Inputs      what to send; the current session; how each call ended.
//! Outputs     calls to the peer's RPC endpoint; `Unreachable`, `SnapshotSent`; answers to callers.
//! Invariants  MESH-21  every outgoing message is a call with a deadline, inside a small window: a peer that answers nothing
//!                      costs bounded memory, and is detected.
//! Why separate windows: a snapshot must not delay heartbeats, nor a slow API call the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{Named, RaftMemberMsg, Reply, SnapshotOutcome};
use muster_messages::wire::{
    self, CHUNK, IdentityBinding, PeerCall, PeerEnvelope, PeerMessage, PeerReply, RaftPacket, SnapshotHead,
};
use muster_messages::{ErrorBody, ErrorCode, ErrorMark, Moment, NodeId, RaftId};
use ractor::ActorRef;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::core::backlog::Backlog;
use crate::core::filter::MAX_CALL_MS;
use crate::core::links::SessionNumber;
use crate::core::pace::Pace;
use crate::endpoint::EndpointMsg;
use crate::session::{EndReason, MAX_QUEUED_BYTES, Session};

/// Unanswered calls with Raft messages: 8 batches keep a round trip busy (0.8 M items/s measured).
pub const RAFT_WINDOW: usize = 8;
/// Their answers mean only "in the mailbox", which takes a running process milliseconds.
const RAFT_DEADLINE: Duration = Duration::from_secs(5);
/// Unanswered calls to services; up to [`MAX_WAITING_CALLS`] more wait here.
const CALL_WINDOW: usize = 64;
const MAX_WAITING_CALLS: usize = 256;
const PIECE_DEADLINE: Duration = Duration::from_secs(10);
/// How often progress is reported to the raft member, which abandons a snapshot after a minute without.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The current session, and the peer's RPC endpoint behind it.
#[derive(Clone)]
pub struct Link {
    pub session: Arc<Session>,
    pub endpoint: ActorRef<EndpointMsg>,
}

/// A peer actor has just started and has no link yet.
pub struct PeerStarted(pub NodeId);

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum PeerMsg {
    /// Raft messages. Without a session: dropped, `Unreachable`.
    Send(Vec<RaftPacket>),
    /// A snapshot. One `SnapshotSent` follows, unless it is stopped. It replaces another one in transfer; the same one continues
    /// from the pieces that have arrived.
    Snapshot {
        head: SnapshotHead,
        data: Arc<Vec<u8>>,
        packet: Box<RaftPacket>,
    },
    /// The snapshot at this index is no longer needed. Repeated or late: no effect.
    StopSnapshot {
        index: u64,
    },
    Call {
        deadline: Duration,
        call: Box<PeerCall>,
        reply: Reply<Result<Vec<u8>, ErrorBody>>,
    },
    /// All identity bindings of this manager. Lost: the session ends.
    IdentityBindings(Vec<IdentityBinding>),
    Link(Option<Box<Link>>),
    /// A call that went through session `number` ended.
    Done {
        number: SessionNumber,
        what: CallContent,
        end: End,
    },
    /// A waiting call may be overdue.
    Overdue,
}

pub enum CallContent {
    Raft(Vec<RaftId>),
    Membership,
    IdentityBindings,
    /// Its transfer, and when it was sent.
    Piece(u64, Moment),
    Call(Reply<Result<Vec<u8>, ErrorBody>>),
}

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
    complete: bool,
    unanswered: usize,
    progress_reported: Moment,
}

pub struct PeerShell {
    node: NodeId,
    raft: Recipient<RaftMemberMsg>,
    started: Recipient<PeerStarted>,
    link: Option<Link>,
    /// The member id to which the peer attributes our messages.
    announced: Option<RaftId>,
    backlog: Backlog,
    outgoing: Option<Outgoing>,
    transfers: u64,
    pace: Pace,
    waiting: VecDeque<Waiting>,
    /// Unanswered calls of the current session.
    sent: usize,
    pieces: usize,
    open_calls: usize,
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
            announced: None,
            backlog: Backlog::default(),
            outgoing: None,
            transfers: 0,
            pace: Pace::default(),
            waiting: VecDeque::new(),
            sent: 0,
            pieces: 0,
            open_calls: 0,
            answered_at: Moment(0),
            unanswered: 0,
            refused: 0,
            unreachable: 0,
        }
    }

    fn unreachable(&mut self, member_ids: Vec<RaftId>) {
        for to in member_ids {
            self.unreachable += 1;
            // Lost when the raft member's mailbox is full: the next one is reported again.
            let _full = self.raft.tell(RaftMemberMsg::Unreachable { to });
        }
    }

    fn snapshot_ended(&mut self, outcome: SnapshotOutcome) {
        if let Some(outgoing) = self.outgoing.take() {
            // Lost when its mailbox is full: it abandons the snapshot by its own timeout.
            let (to, index) = (outgoing.packet.to, outgoing.head.index);
            let _full = self.raft.tell(RaftMemberMsg::SnapshotSent { to, index, outcome });
        }
    }

    fn begin_snapshot(&mut self, now: Moment, head: SnapshotHead, data: Arc<Vec<u8>>, packet: Box<RaftPacket>) {
        if self.link.is_none() {
            let outcome = SnapshotOutcome::Lost("no session with the node".to_owned());
            let _full = self.raft.tell(RaftMemberMsg::SnapshotSent { to: packet.to, index: head.index, outcome });
            return;
        }
        if let Some(outgoing) = self.outgoing.as_mut().filter(|o| o.head == head && !o.complete) {
            outgoing.packet = packet;
            return;
        }
        if self.outgoing.as_ref().is_some_and(|o| o.head.index != head.index) {
            self.snapshot_ended(SnapshotOutcome::Lost("a newer snapshot replaced it".to_owned()));
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
            progress_reported: now,
        });
    }

    fn piece_done(&mut self, now: Moment, (number, sent): (u64, Moment), end: &End) {
        let Some(outgoing) = self.outgoing.as_mut().filter(|o| o.number == number) else { return };
        outgoing.unanswered -= 1;
        match end {
            End::Answered(PeerReply::Taken) => {
                self.pace.answered(now.since(sent));
                if outgoing.complete && outgoing.unanswered == 0 {
                    self.snapshot_ended(SnapshotOutcome::Delivered);
                } else if now.since(outgoing.progress_reported) >= PROGRESS_INTERVAL {
                    outgoing.progress_reported = now;
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
            // The same session again: its calls still count.
            self.link = link;
            return;
        }
        // Open calls belong to the old session; the session number tells their ends from those of the new one.
        (self.sent, self.pieces, self.open_calls) = (0, 0, 0);
        self.answered_at = cx.now();
        self.pace = Pace::default();
        self.snapshot_ended(SnapshotOutcome::Lost("the session ended".to_owned()));
        self.announced = link.as_ref().and_then(|l| l.session.own_member);
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
        while self.sent < RAFT_WINDOW && !self.backlog.is_empty() && link.session.meter.queued() < MAX_QUEUED_BYTES / 2
        {
            let batch = self.backlog.batch();
            let mut member_ids: Vec<RaftId> = batch.iter().map(|p| p.to).collect();
            member_ids.dedup();
            self.announce_member_id(cx, &link, batch.last().map(|p| p.from));
            match send(cx, &link, PeerMessage::Raft(batch), RAFT_DEADLINE, CallContent::Raft(member_ids)) {
                Ok(()) => self.sent += 1,
                Err(CallContent::Raft(member_ids)) => self.unreachable(member_ids),
                Err(_) => {}
            }
        }
        self.pump_pieces(cx, &link);
        while self.open_calls < CALL_WINDOW
            && link.session.meter.queued() < MAX_QUEUED_BYTES / 2
            && let Some(next) = self.waiting.pop_front()
        {
            let left = next.until.since(cx.now());
            match send(cx, &link, PeerMessage::Call(*next.call), left, CallContent::Call(next.reply)) {
                Ok(()) => self.open_calls += 1,
                Err(CallContent::Call(reply)) => {
                    let text = "the call exceeds the size limit between managers, or the session just ended";
                    let _gone = reply.send(Err(ErrorBody::new(ErrorCode::Unreachable, text)));
                }
                Err(_) => {}
            }
        }
    }

    /// The first message from a new member id is preceded by its announcement: a session that is older than the member id
    /// need not be reopened.
    fn announce_member_id(&mut self, cx: &Cx<PeerMsg>, link: &Link, member_id: Option<RaftId>) {
        if let Some(member_id) = member_id.filter(|s| self.announced != Some(*s)) {
            self.announced = Some(member_id);
            if send(cx, link, PeerMessage::Membership(member_id), RAFT_DEADLINE, CallContent::Membership).is_err() {
                link.session.end(EndReason::Closed);
            }
        }
    }

    fn pump_pieces(&mut self, cx: &Cx<PeerMsg>, link: &Link) {
        while self.pieces < self.pace.window()
            && link.session.meter.queued() < MAX_QUEUED_BYTES / 2
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
            self.announce_member_id(cx, link, Some(from));
            match send(cx, link, piece, PIECE_DEADLINE, CallContent::Piece(number, cx.now())) {
                Ok(()) => self.pieces += 1,
                Err(_) => self.snapshot_ended(SnapshotOutcome::Lost("the session ended".to_owned())),
            }
        }
    }

    fn done(&mut self, cx: &Cx<PeerMsg>, number: SessionNumber, what: CallContent, end: End) {
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
            CallContent::Raft(member_ids) => {
                self.sent -= usize::from(current);
                if !taken {
                    self.unreachable(member_ids);
                }
            }
            // Rejected or lost: all further messages would be dropped.
            CallContent::Membership if current && !taken => {
                if let Some(link) = &self.link {
                    link.session.end(EndReason::MemberIdRejected);
                }
            }
            // The peer may accept a process that this manager does not: the next session begins with the bindings.
            CallContent::IdentityBindings if current && !taken => {
                if let Some(link) = &self.link {
                    link.session.end(EndReason::Unanswered);
                }
            }
            CallContent::Membership | CallContent::IdentityBindings => {}
            CallContent::Piece(transfer, sent) => {
                self.pieces -= usize::from(current);
                if current {
                    self.piece_done(cx.now(), (transfer, sent), &end);
                }
            }
            CallContent::Call(reply) => {
                self.open_calls -= usize::from(current);
                let _gone = reply.send(result_of(self.node, end));
            }
        }
    }

    /// If the peer answered nothing until the deadline of a Raft call or a piece, it is stuck. (A call to a service may
    /// legitimately take long.)
    fn overdue(&mut self, cx: &Cx<PeerMsg>, what: &CallContent) {
        let limit = match what {
            CallContent::Raft(_) | CallContent::Membership | CallContent::IdentityBindings => RAFT_DEADLINE,
            CallContent::Piece(..) => PIECE_DEADLINE,
            CallContent::Call(_) => return,
        };
        self.unanswered += 1;
        if cx.now().since(self.answered_at) >= limit
            && let Some(link) = &self.link
        {
            link.session.end(EndReason::Unanswered);
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
        } else if self.waiting.len() >= MAX_WAITING_CALLS {
            let text = "too many calls to this manager are waiting; retry later";
            Some(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_millis(200)))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let _gone = reply.send(Err(refusal));
            return;
        }
        let deadline = deadline.min(Duration::from_millis(MAX_CALL_MS));
        self.waiting.push_back(Waiting { until: cx.now() + deadline, call, reply });
        self.pump(cx);
        // It waits behind others, or for room in the session's queue.
        if !self.waiting.is_empty() {
            cx.after(deadline, PeerMsg::Overdue);
        }
    }

    fn drop_overdue(&mut self, now: Moment) {
        let (late, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|w| w.until <= now);
        self.waiting = waiting;
        let late: VecDeque<Waiting> = late;
        for waiting in late {
            let text = "the call timed out behind other calls to this manager";
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
                let mut member_ids: Vec<RaftId> = packets.iter().map(|p| p.to).collect();
                member_ids.dedup();
                self.unreachable(member_ids);
            }
            PeerMsg::Send(packets) => {
                let lost = self.backlog.push(packets);
                self.unreachable(lost);
            }
            PeerMsg::Snapshot { head, data, packet } => self.begin_snapshot(cx.now(), head, data, packet),
            PeerMsg::StopSnapshot { index } => {
                self.outgoing.take_if(|o| o.head.index == index);
            }
            PeerMsg::IdentityBindings(bindings) => {
                if let Some(link) = &self.link
                    && send(
                        cx,
                        link,
                        PeerMessage::IdentityBindings(bindings),
                        RAFT_DEADLINE,
                        CallContent::IdentityBindings,
                    )
                    .is_err()
                {
                    link.session.end(EndReason::Closed);
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
                "calls": [self.open_calls, CALL_WINDOW],
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

/// Sends one call. It is sent before this returns, so calls keep their order; its end is reported as `Done`.
fn send(
    cx: &Cx<PeerMsg>,
    link: &Link,
    message: PeerMessage,
    deadline: Duration,
    what: CallContent,
) -> Result<(), CallContent> {
    let session = &link.session;
    let Ok(bytes) = wire::encode(&PeerEnvelope { tag: session.peer_tag, message }) else {
        return Err(what);
    };
    let (tx, answer) = oneshot::channel();
    session.meter.call_leaves(bytes.len());
    if link.endpoint.cast(EndpointMsg::Call(bytes, (tx, deadline).into())).is_err() {
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
            Err(ErrorBody::new(ErrorCode::Internal, format!("manager {node} acknowledged the call without an answer")))
        }
        End::TimedOut => Err(ErrorBody::new(ErrorCode::TimedOut, format!("manager {node} did not answer in time"))),
        // It was sent: unlike a call without a session, it may have been executed.
        End::Failed => {
            let text = format!("the session with manager {node} ended before it answered");
            Err(ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(200)))
        }
    }
}

/// The answer without a session with a node.
pub fn no_session(node: NodeId) -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, format!("no session with manager {node}"))
        .marked(ErrorMark::NotSent)
        .retry_after(Duration::from_millis(200))
}
