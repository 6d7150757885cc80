//! Peer: everything that this manager sends to one other manager.
//!
//! Owns        the link, the backlog of Raft messages, the windows of unanswered calls, the snapshot being sent, waiting calls (`service_calls`).
//! Inputs      what to send; the current session; how each call ended.
//! Outputs     calls to the peer's RPC endpoint; `Unreachable`, `SnapshotSent`; answers to callers.
//! Invariants  MESH-21  every outgoing message is a call with a deadline: a peer that answers nothing is detected, and costs bounded
//!                      memory, because windows limit the calls. Announcements are outside of them: one without an answer ends the session.
//! Why separate windows: a snapshot must not delay heartbeats, nor a slow API call the log.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Recipient, Shell};
use muster_messages::protocol::RaftMemberMsg;
use muster_messages::wire::{PeerMessage, RaftPacket, SnapshotHead};
use muster_messages::{Moment, NodeId, RaftId};
use serde_json::{Value, json};

use crate::core::backlog::{Backlog, member_ids};
use crate::core::call_end::{Consequence, End, Notice, consequence};
use crate::core::links::SessionNumber;
use crate::core::outgoing::{OutgoingSnapshot, Piece, Report, TransferNumber};
use crate::core::peer_session::{Announced, Relink, relink};
use crate::core::windows::{CHECK_DEADLINE, CallClass, Kind, PIECE_DEADLINE, RAFT_DEADLINE, Windows};
use crate::msg::{PeerMsg, PeerStarted};
use crate::peer_call::{CallContent, Link, check, not_sent, send};
use crate::raft_reports::RaftReports;
use crate::service_calls::{Call, ServiceCalls};
use crate::session::{EndReason, MAX_QUEUED_BYTES};

pub struct PeerShell {
    node: NodeId,
    reports: RaftReports,
    started: Recipient<PeerStarted>,
    link: Option<Link>,
    announced: Announced,
    backlog: Backlog,
    windows: Windows,
    outgoing: OutgoingSnapshot,
    calls: ServiceCalls,
    refused: u64,
}

impl PeerShell {
    pub fn new(node: NodeId, raft: Recipient<RaftMemberMsg>, started: Recipient<PeerStarted>) -> Self {
        Self {
            node,
            reports: RaftReports::new(raft),
            started,
            link: None,
            announced: Announced::default(),
            backlog: Backlog::default(),
            windows: Windows::default(),
            outgoing: OutgoingSnapshot::default(),
            calls: ServiceCalls::new(node),
            refused: 0,
        }
    }

    fn snapshot_lost(&mut self, why: &str) {
        self.reports.snapshot(self.outgoing.lost(why));
    }

    fn begin_snapshot(&mut self, now: Moment, head: SnapshotHead, data: Arc<Vec<u8>>, packet: Box<RaftPacket>) {
        let report = match self.link {
            Some(_) => self.outgoing.begin(now, head, data, packet),
            None => Some(Report::without_session(&head, &packet)),
        };
        self.reports.snapshot(report);
    }

    fn piece_done(&mut self, now: Moment, (number, sent): (TransferNumber, Moment), end: End) {
        if self.outgoing.is_current(number) && end.is_taken() {
            self.windows.piece_taken(now.since(sent));
        }
        self.reports.snapshot(self.outgoing.piece_ended(now, number, end.of_piece()));
    }

    fn relink(&mut self, now: Moment, link: Option<Link>) {
        let number = |link: &Option<Link>| link.as_ref().map(|l| l.session.number);
        let change = relink(number(&self.link), number(&link));
        let own_member = link.as_ref().and_then(|l| l.session.own_member);
        self.link = link;
        match change {
            Relink::Same => {}
            Relink::Other => self.change_session(now, own_member),
            Relink::Gone => {
                self.change_session(now, None);
                self.reports.unreachable(self.backlog.clear());
                self.calls.session_lost();
            }
        }
    }

    /// What belongs to the old session ends. The session number tells the ends of its calls from those of the new one's.
    fn change_session(&mut self, now: Moment, own_member: Option<RaftId>) {
        self.windows.reset(now);
        self.snapshot_lost("the session ended");
        self.announced = Announced::by_hello(own_member);
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
        for class in CallClass::ALL {
            while self.may_send(&link, Kind::Call(class))
                && let Some((until, Call { call, reply })) = self.calls.pop(class)
            {
                self.send(cx, &link, PeerMessage::Call(*call), until.since(cx.now()), CallContent::Call(class, reply));
            }
        }
    }

    /// Whether the window has room, and the session's queue, of which calls fill half.
    fn may_send(&self, link: &Link, kind: Kind) -> bool {
        self.windows.has_room(kind) && link.session.meter.queued() < MAX_QUEUED_BYTES / 2
    }

    /// Before a message from this member id.
    fn announce_member_id(&mut self, cx: &Cx<PeerMsg>, link: &Link, sender: Option<RaftId>) {
        if let Some(member_id) = self.announced.due(sender) {
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
            Err(CallContent::Call(_, reply)) => {
                let _gone = reply.send(Err(not_sent()));
            }
            Err(_) => link.session.end(EndReason::Closed),
        }
    }

    fn done(&mut self, cx: &Cx<PeerMsg>, number: SessionNumber, what: CallContent, end: End) {
        let (kind, now) = (what.kind(), cx.now());
        let link = self.link.clone().filter(|link| link.session.number == number);
        let suspicion = link.as_ref().map(|_| self.windows.call_ended(now, kind, &end));
        let Consequence { checks, session_ends, notice } = consequence(kind, &end, suspicion);
        if let Some(link) = link {
            if checks {
                self.send(cx, &link, check(), CHECK_DEADLINE, CallContent::Check(now));
            }
            if let Some(session_end) = session_ends {
                link.session.end(session_end.into());
            }
        }
        self.refused += u64::from(end.is_refused());
        match (notice, what) {
            (Notice::Unreachable, CallContent::Raft(member_ids)) => self.reports.unreachable(member_ids),
            (Notice::PieceEnded, CallContent::Piece(transfer, sent)) => self.piece_done(now, (transfer, sent), end),
            (Notice::Result, CallContent::Call(_, reply)) => {
                let _gone = reply.send(end.result_of(self.node));
            }
            _ => {}
        }
    }

    fn ask(&mut self, cx: &Cx<PeerMsg>, deadline: Duration, call: Call) {
        let class = CallClass::of(&call.call);
        if self.calls.take(cx.now(), self.link.is_some(), deadline, (class, call)) {
            self.pump(cx);
            // It waits behind others, or for room in the session's queue.
            if let Some(until) = self.calls.newest(class) {
                cx.after(until.since(cx.now()), PeerMsg::Overdue);
            }
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
            PeerMsg::Call { deadline, call, reply } => self.ask(cx, deadline, Call { call, reply }),
            PeerMsg::Link(link) => self.relink(cx.now(), link.map(|l| *l)),
            PeerMsg::Done { number, what, end } => self.done(cx, number, what, end),
            PeerMsg::Overdue => self.calls.drop_overdue(cx.now()),
        }
        self.pump(cx);
        Ok(())
    }

    fn view(&self) -> Value {
        json!({
            "node": self.node,
            "session": self.link.as_ref().map(|l| l.session.number),
            "backlog_bytes": self.backlog.bytes(),
            "window": self.windows.view(),
            "calls_waiting": self.calls.len(),
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
