//! Peer: everything that this manager sends to one other manager.
//!
//! Owns        the link, the backlog of Raft messages, the windows of unanswered calls, the snapshot being sent, waiting calls.
//! Inputs      what to send; the current session; how each call ended.
//! Outputs     calls to the peer's RPC endpoint; `Unreachable`, `SnapshotSent`; answers to callers.
//! Invariants  MESH-21  every outgoing message is a call with a deadline: a peer that answers nothing is detected, and costs bounded
//!                      memory, because windows limit the calls. Announcements are outside of them: one without an answer ends the session.
//! Why separate windows: a snapshot must not delay heartbeats, nor a slow API call the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{Named, RaftMemberMsg, Reply, SnapshotOutcome};
use muster_messages::wire::{IdentityBinding, PeerCall, PeerMessage, PeerReply, RaftPacket, SnapshotHead};
use muster_messages::{ErrorBody, ErrorCode, Moment, NodeId, RaftId};
use serde_json::{Value, json};

use crate::core::backlog::Backlog;
use crate::core::filter::MAX_CALL_MS;
use crate::core::links::SessionNumber;
use crate::core::outgoing::{OutgoingSnapshot, Piece, PieceEnd, Report, TransferNumber};
use crate::core::windows::{Kind, PIECE_DEADLINE, RAFT_DEADLINE, Windows};
use crate::peer_call::{CallContent, End, Link, no_session, result_of, send};
use crate::session::{EndReason, MAX_QUEUED_BYTES};

/// Calls to services that wait for room in their window.
const MAX_WAITING_CALLS: usize = 256;

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
    /// The snapshot at this index is not needed any more. Repeated or late: no effect.
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

struct Waiting {
    until: Moment,
    call: Box<PeerCall>,
    reply: Reply<Result<Vec<u8>, ErrorBody>>,
}

pub struct PeerShell {
    node: NodeId,
    raft: Recipient<RaftMemberMsg>,
    started: Recipient<PeerStarted>,
    link: Option<Link>,
    /// The member id to which the peer attributes our messages.
    announced: Option<RaftId>,
    backlog: Backlog,
    windows: Windows,
    outgoing: OutgoingSnapshot,
    waiting: VecDeque<Waiting>,
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
            windows: Windows::default(),
            outgoing: OutgoingSnapshot::default(),
            waiting: VecDeque::new(),
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

    /// The raft member has timeouts of its own for what is lost because its mailbox is full.
    fn report(&self, report: Option<Report>) {
        let msg = match report {
            Some(Report::Progress { to, index }) => RaftMemberMsg::SnapshotProgress { to, index },
            Some(Report::Ended { to, index, outcome }) => RaftMemberMsg::SnapshotSent { to, index, outcome },
            None => return,
        };
        let _full = self.raft.tell(msg);
    }

    fn snapshot_lost(&mut self, why: &str) {
        let report = self.outgoing.lost(why);
        self.report(report);
    }

    fn begin_snapshot(&mut self, now: Moment, head: SnapshotHead, data: Arc<Vec<u8>>, packet: Box<RaftPacket>) {
        let report = if self.link.is_none() {
            let outcome = SnapshotOutcome::Lost("no session with the node".to_owned());
            Some(Report::Ended { to: packet.to, index: head.index, outcome })
        } else {
            self.outgoing.begin(now, head, data, packet)
        };
        self.report(report);
    }

    fn piece_done(&mut self, now: Moment, (number, sent): (TransferNumber, Moment), end: End) {
        if self.outgoing.is_current(number) && matches!(end, End::Answered(PeerReply::Taken)) {
            self.windows.piece_taken(now.since(sent));
        }
        let end = match end {
            End::Answered(PeerReply::Taken) => PieceEnd::Taken,
            End::Answered(PeerReply::Refused { reason }) => PieceEnd::Refused(reason),
            End::Answered(PeerReply::Answer(_)) | End::Failed => PieceEnd::Lost("the session ended".to_owned()),
            End::TimedOut => PieceEnd::Lost(format!("no answer in {} s", PIECE_DEADLINE.as_secs())),
        };
        let report = self.outgoing.piece_ended(now, number, end);
        self.report(report);
    }

    fn relink(&mut self, cx: &Cx<PeerMsg>, link: Option<Link>) {
        let number = |link: &Option<Link>| link.as_ref().map(|l| l.session.number);
        if link.is_some() && number(&link) == number(&self.link) {
            // The same session again: its calls still count.
            self.link = link;
            return;
        }
        // Open calls belong to the old session; the session number tells their ends from those of the new one.
        self.windows.reset(cx.now());
        self.snapshot_lost("the session ended");
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
        while self.may_send(&link, Kind::Raft) && !self.backlog.is_empty() {
            let batch = self.backlog.batch();
            let mut member_ids: Vec<RaftId> = batch.iter().map(|p| p.to).collect();
            member_ids.dedup();
            self.announce_member_id(cx, &link, batch.last().map(|p| p.from));
            match send(cx, &link, PeerMessage::Raft(batch), RAFT_DEADLINE, CallContent::Raft(member_ids)) {
                Ok(()) => self.windows.sent(Kind::Raft),
                Err(CallContent::Raft(member_ids)) => self.unreachable(member_ids),
                Err(_) => {}
            }
        }
        self.pump_pieces(cx, &link);
        while self.may_send(&link, Kind::Call)
            && let Some(next) = self.waiting.pop_front()
        {
            let left = next.until.since(cx.now());
            match send(cx, &link, PeerMessage::Call(*next.call), left, CallContent::Call(next.reply)) {
                Ok(()) => self.windows.sent(Kind::Call),
                Err(CallContent::Call(reply)) => {
                    let text = "the call exceeds the size limit between managers, or the session just ended";
                    let _gone = reply.send(Err(ErrorBody::new(ErrorCode::Unreachable, text)));
                }
                Err(_) => {}
            }
        }
    }

    /// Whether the window has room, and the session's queue, of which calls fill half.
    fn may_send(&self, link: &Link, kind: Kind) -> bool {
        self.windows.has_room(kind) && link.session.meter.queued() < MAX_QUEUED_BYTES / 2
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
        while self.may_send(link, Kind::Piece)
            && let Some(Piece { transfer, from, message }) = self.outgoing.next_piece()
        {
            self.announce_member_id(cx, link, Some(from));
            match send(cx, link, message, PIECE_DEADLINE, CallContent::Piece(transfer, cx.now())) {
                Ok(()) => self.windows.sent(Kind::Piece),
                Err(_) => self.snapshot_lost("the session ended"),
            }
        }
    }

    fn done(&mut self, cx: &Cx<PeerMsg>, number: SessionNumber, what: CallContent, end: End) {
        let current = self.link.as_ref().is_some_and(|l| l.session.number == number);
        if current {
            self.call_ended(cx.now(), what.kind(), &end);
        }
        let refused = matches!(end, End::Answered(PeerReply::Refused { .. }));
        self.refused += u64::from(refused);
        let taken = matches!(end, End::Answered(PeerReply::Taken));
        match what {
            CallContent::Raft(member_ids) => {
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
            CallContent::Piece(transfer, sent) if current => self.piece_done(cx.now(), (transfer, sent), end),
            CallContent::Piece(..) => {}
            CallContent::Call(reply) => {
                let _gone = reply.send(result_of(self.node, end));
            }
        }
    }

    /// A call of the current session ended.
    fn call_ended(&mut self, now: Moment, kind: Kind, end: &End) {
        self.windows.ended(kind);
        let stuck = match end {
            End::Answered(_) => {
                self.windows.answered(now);
                false
            }
            End::TimedOut => self.windows.timed_out(now, kind),
            End::Failed => false,
        };
        if let Some(link) = self.link.as_ref().filter(|_| stuck) {
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
            PeerMsg::StopSnapshot { index } => self.outgoing.stop(index),
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
        let window = |kind| {
            let (open, window) = self.windows.of(kind);
            [open, window]
        };
        let session = self.link.as_ref().map(|l| l.session.number);
        json!({
            "node": self.node,
            "session": session,
            "backlog_bytes": self.backlog.bytes(),
            "window": {
                "raft": window(Kind::Raft),
                "calls": window(Kind::Call),
                "pieces": window(Kind::Piece),
            },
            "calls_waiting": self.waiting.len(),
            "snapshot_bytes_sent": self.outgoing.bytes_sent(),
            "dropped": {
                "overflow": self.backlog.dropped(),
                "unanswered": self.windows.unanswered(),
                "refused": self.refused,
                "unreachable": self.unreachable,
            },
        })
    }
}
