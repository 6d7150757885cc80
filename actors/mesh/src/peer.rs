//! Peer: everything that this manager sends to one other manager.
//!
//! Owns        the link, the backlog of Raft messages, the windows of unanswered calls, the snapshot being sent, waiting calls.
//! Inputs      what to send; the current session; how each call ended.
//! Outputs     calls to the peer's RPC endpoint; `Unreachable`, `SnapshotSent`; answers to callers.
//! Invariants  MESH-21  every outgoing message is a call with a deadline: a peer that answers nothing is detected, and costs bounded
//!                      memory, because windows limit the calls. Announcements are outside of them: one without an answer ends the session.
//! Why separate windows: a snapshot must not delay heartbeats, nor a slow API call the log.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{RaftMemberMsg, Reply, SnapshotOutcome};
use muster_messages::wire::{PeerCall, PeerMessage, PeerReply, RaftPacket, SnapshotHead};
use muster_messages::{ErrorBody, ErrorCode, Moment, NodeId, RaftId};
use serde_json::{Value, json};

use crate::core::backlog::Backlog;
use crate::core::links::SessionNumber;
use crate::core::outgoing::{OutgoingSnapshot, Piece, Report, TransferNumber};
use crate::core::waiting::WaitingCalls;
use crate::core::windows::{CHECK_DEADLINE, Kind, PIECE_DEADLINE, RAFT_DEADLINE, Suspicion, Windows};
use crate::msg::{PeerMsg, PeerStarted};
use crate::peer_call::{CallContent, End, Link, check, no_session, result_of, send, too_many_waiting};
use crate::raft_reports::RaftReports;
use crate::session::{EndReason, MAX_QUEUED_BYTES};

/// A call to a service of the peer.
struct Call {
    call: Box<PeerCall>,
    reply: Reply<Result<Vec<u8>, ErrorBody>>,
}

pub struct PeerShell {
    node: NodeId,
    reports: RaftReports,
    started: Recipient<PeerStarted>,
    link: Option<Link>,
    /// The member id to which the peer attributes our messages.
    announced: Option<RaftId>,
    backlog: Backlog,
    windows: Windows,
    outgoing: OutgoingSnapshot,
    waiting: WaitingCalls<Call>,
    refused: u64,
}

impl PeerShell {
    pub fn new(node: NodeId, raft: Recipient<RaftMemberMsg>, started: Recipient<PeerStarted>) -> Self {
        Self {
            node,
            reports: RaftReports::new(raft),
            started,
            link: None,
            announced: None,
            backlog: Backlog::default(),
            windows: Windows::default(),
            outgoing: OutgoingSnapshot::default(),
            waiting: WaitingCalls::default(),
            refused: 0,
        }
    }

    fn snapshot_lost(&mut self, why: &str) {
        self.reports.snapshot(self.outgoing.lost(why));
    }

    fn begin_snapshot(&mut self, now: Moment, head: SnapshotHead, data: Arc<Vec<u8>>, packet: Box<RaftPacket>) {
        let report = if self.link.is_none() {
            let outcome = SnapshotOutcome::Lost("no session with the node".to_owned());
            Some(Report::Ended { to: packet.to, index: head.index, outcome })
        } else {
            self.outgoing.begin(now, head, data, packet)
        };
        self.reports.snapshot(report);
    }

    fn piece_done(&mut self, now: Moment, (number, sent): (TransferNumber, Moment), end: End) {
        if self.outgoing.is_current(number) && end.is_taken() {
            self.windows.piece_taken(now.since(sent));
        }
        self.reports.snapshot(self.outgoing.piece_ended(now, number, end.of_piece()));
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
            self.reports.unreachable(self.backlog.clear());
            for Call { reply, .. } in self.waiting.clear() {
                let _gone = reply.send(Err(no_session(self.node)));
            }
        }
    }

    /// Sends what the windows allow.
    fn pump(&mut self, cx: &Cx<PeerMsg>) {
        let Some(link) = self.link.clone() else { return };
        while self.may_send(&link, Kind::Raft) && !self.backlog.is_empty() {
            let batch = self.backlog.batch();
            let content = CallContent::Raft(member_ids(&batch));
            self.announce_member_id(cx, &link, batch.last().map(|p| p.from));
            self.send(cx, &link, PeerMessage::Raft(batch), RAFT_DEADLINE, content);
        }
        while self.may_send(&link, Kind::Piece)
            && let Some(Piece { transfer, from, message }) = self.outgoing.next_piece()
        {
            self.announce_member_id(cx, &link, Some(from));
            self.send(cx, &link, message, PIECE_DEADLINE, CallContent::Piece(transfer, cx.now()));
        }
        while self.may_send(&link, Kind::Call)
            && let Some((until, Call { call, reply })) = self.waiting.pop()
        {
            self.send(cx, &link, PeerMessage::Call(*call), until.since(cx.now()), CallContent::Call(reply));
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
            self.send(cx, link, PeerMessage::Membership(member_id), RAFT_DEADLINE, CallContent::Membership);
        }
    }

    /// Sends one call. It fails if the session just ended, or if a message exceeds the size limit.
    fn send(&mut self, cx: &Cx<PeerMsg>, link: &Link, message: PeerMessage, deadline: Duration, what: CallContent) {
        let kind = what.kind();
        match send(cx, link, message, deadline, what) {
            Ok(()) => self.windows.sent(kind),
            Err(CallContent::Raft(member_ids)) => self.reports.unreachable(member_ids),
            Err(CallContent::Piece(..)) => self.snapshot_lost("the session ended"),
            Err(CallContent::Call(reply)) => {
                let text = "the call exceeds the size limit between managers, or the session just ended";
                let _gone = reply.send(Err(ErrorBody::new(ErrorCode::Unreachable, text)));
            }
            Err(_) => link.session.end(EndReason::Closed),
        }
    }

    fn done(&mut self, cx: &Cx<PeerMsg>, number: SessionNumber, what: CallContent, end: End) {
        let current = self.link.as_ref().is_some_and(|l| l.session.number == number);
        if current {
            self.call_ended(cx, what.kind(), &end);
        }
        let refused = matches!(end, End::Answered(PeerReply::Refused { .. }));
        self.refused += u64::from(refused);
        let taken = end.is_taken();
        match what {
            CallContent::Raft(member_ids) => {
                if !taken {
                    self.reports.unreachable(member_ids);
                }
            }
            // Rejected or lost: all further messages would be dropped.
            CallContent::Membership if current && !taken => self.end_session(EndReason::MemberIdRejected),
            // The peer may accept a process that this manager does not: the next session begins with the bindings.
            CallContent::IdentityBindings if current && !taken => self.end_session(EndReason::Unanswered),
            CallContent::Check(_) | CallContent::Membership | CallContent::IdentityBindings => {}
            CallContent::Piece(transfer, sent) if current => self.piece_done(cx.now(), (transfer, sent), end),
            CallContent::Piece(..) => {}
            CallContent::Call(reply) => {
                let _gone = reply.send(result_of(self.node, end));
            }
        }
    }

    /// A call of the current session ended.
    fn call_ended(&mut self, cx: &Cx<PeerMsg>, kind: Kind, end: &End) {
        self.windows.ended(kind);
        let (Some(link), now) = (self.link.clone(), cx.now()) else { return };
        match end {
            End::Answered(_) => self.windows.answered(now),
            End::TimedOut => match self.windows.timed_out(now, kind) {
                Suspicion::None => {}
                Suspicion::Check => self.send(cx, &link, check(), CHECK_DEADLINE, CallContent::Check(now)),
                Suspicion::Stuck => self.end_session(EndReason::Unanswered),
            },
            // Without the end of its check a peer would never be checked again.
            End::Failed if matches!(kind, Kind::Check(_)) => self.end_session(EndReason::Closed),
            End::Failed => {}
        }
    }

    fn end_session(&self, why: EndReason) {
        if let Some(link) = &self.link {
            link.session.end(why);
        }
    }

    fn ask(
        &mut self,
        cx: &Cx<PeerMsg>,
        deadline: Duration,
        call: Box<PeerCall>,
        reply: Reply<Result<Vec<u8>, ErrorBody>>,
    ) {
        let call = Call { call, reply };
        if self.link.is_none() {
            let _gone = call.reply.send(Err(no_session(self.node)));
        } else if let Err(Call { reply, .. }) = self.waiting.push(cx.now(), deadline, call) {
            let _gone = reply.send(Err(too_many_waiting()));
        } else {
            self.pump(cx);
            // It waits behind others, or for room in the session's queue.
            if let Some(until) = self.waiting.newest() {
                cx.after(until.since(cx.now()), PeerMsg::Overdue);
            }
        }
    }

    fn drop_overdue(&mut self, now: Moment) {
        for Call { reply, .. } in self.waiting.overdue(now) {
            let text = "the call timed out behind other calls to this manager";
            let _gone = reply.send(Err(ErrorBody::new(ErrorCode::TimedOut, text)));
        }
    }
}

fn member_ids(packets: &[RaftPacket]) -> Vec<RaftId> {
    let mut member_ids: Vec<RaftId> = packets.iter().map(|p| p.to).collect();
    member_ids.dedup();
    member_ids
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
            PeerMsg::Send(packets) if self.link.is_none() => self.reports.unreachable(member_ids(&packets)),
            PeerMsg::Send(packets) => self.reports.unreachable(self.backlog.push(packets)),
            PeerMsg::Snapshot { head, data, packet } => self.begin_snapshot(cx.now(), head, data, packet),
            PeerMsg::StopSnapshot { index } => self.outgoing.stop(index),
            PeerMsg::IdentityBindings(bindings) => {
                if let Some(link) = self.link.clone() {
                    let message = PeerMessage::IdentityBindings(bindings);
                    self.send(cx, &link, message, RAFT_DEADLINE, CallContent::IdentityBindings);
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
                "raft": self.windows.of(Kind::Raft),
                "calls": self.windows.of(Kind::Call),
                "pieces": self.windows.of(Kind::Piece),
            },
            "calls_waiting": self.waiting.len(),
            "snapshot_bytes_sent": self.outgoing.bytes_sent(),
            "dropped": {
                "overflow": self.backlog.dropped(),
                "unanswered": self.windows.unanswered(),
                "refused": self.refused,
                "unreachable": self.reports.unreachable_count(),
            },
        })
    }
}
