//! What a member hears from its peers, and of their sessions.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_messages::protocol::SnapshotOutcome;
use muster_messages::wire::{PacketKind, RaftPacket, SnapshotHead};
use muster_messages::{Moment, NodeId, RaftId, Revision};
use muster_store::snapshot::SnapshotFault;
use raft::{SnapshotStatus, StateRole};

use super::{Durable, Heard, Incoming, Notice, Outgrown, RaftCore, Recovered, Settling, mend_progress, packets};

impl RaftCore {
    /// A packet from an authenticated node.
    pub(super) fn hear(
        &mut self,
        now: Moment,
        node: NodeId,
        peer_seat: Option<RaftId>,
        packet: RaftPacket,
        data: Option<Vec<u8>>,
    ) {
        if let Err(why) = self.hear_checked(now, node, peer_seat, packet, data) {
            *self.counters.entry(why).or_default() += 1;
        }
    }

    fn hear_checked(
        &mut self,
        now: Moment,
        node: NodeId,
        peer_seat: Option<RaftId>,
        packet: RaftPacket,
        data: Option<Vec<u8>>,
    ) -> Result<(), packets::Dropped> {
        packets::well_formed(&packet)?;
        if peer_seat != Some(packet.from) || node == self.me {
            return Err("not_its_seat");
        }
        self.may_speak(node, packet.from)?;
        self.take_seat(now, &packet)?;
        self.notice_loss(&packet);
        let settling = self.settling();
        packets::acceptable(&packet, &self.seat.as_ref().expect("take_seat leaves a seat").raw, settling)?;
        let received = match (packet.kind, data) {
            (PacketKind::Snapshot, data) => Some(self.open_snapshot(packet.snapshot.clone(), data)?),
            _ => None,
        };
        self.note_heard(packet.from, Heard { node, at: now });
        if packet.kind == PacketKind::StateDigest {
            return self.hear_digest(now, &packet);
        }
        let seat = self.seat.as_mut().expect("take_seat leaves a seat");
        let (from, kind, index, log_term) = (packet.from.0, packet.kind, packet.index, packet.log_term);
        let acknowledges = packet.term == seat.raw.raft.term
            && matches!(kind, PacketKind::AppendResponse | PacketKind::HeartbeatResponse);
        if acknowledges {
            self.reachability.acknowledge(packet.from, seat.id, self.nonce, &packet.context);
        }
        // What is acknowledged stays acknowledged. Such an answer is an old one, or its sender has lost a part of its log: that
        // one notices by the next heartbeat, and must not be given that part again as if nothing had happened.
        if kind == PacketKind::AppendResponse && packet.reject && self.rejects_acknowledged(&packet) {
            return Err("rejected_below_matched");
        }
        let seat = self.seat.as_mut().expect("take_seat leaves a seat");
        let vote_refused = kind == PacketKind::RequestVoteResponse && packet.reject;
        if self.config.sabotaged().vote_again && kind == PacketKind::RequestVote {
            seat.raw.raft.vote = raft::INVALID_ID;
        }
        // An unknown sender's answer is an error to raft and nothing to us: it was removed meanwhile.
        let _stranger = packets::incoming(packet).map(|message| seat.raw.step(message));
        if acknowledges && seat.raw.raft.state == StateRole::Leader {
            seat.acked.insert(from, now);
            mend_progress(seat, from, &mut self.counters);
        }
        // Raft keeps the one that it wants, which may be an earlier one that has not left for the disk yet.
        let wanted = seat.raw.raft.snap().map(|s| s.get_metadata().index);
        seat.incoming = received.into_iter().chain(seat.incoming.take()).find(|(head, ..)| Some(head.index) == wanted);
        self.settle(now);
        if vote_refused {
            self.vote_refused(now);
        }
        if matches!(kind, PacketKind::RequestVote | PacketKind::RequestPreVote) {
            self.vote_asked(now, index, log_term);
        }
        if kind == PacketKind::TimeoutNow {
            self.told_to_lead(now);
        }
        Ok(())
    }

    fn rejects_acknowledged(&self, packet: &RaftPacket) -> bool {
        let Some(seat) = self.seat.as_ref().filter(|s| s.raw.raft.state == StateRole::Leader) else { return false };
        let matched = seat.raw.raft.prs().get(packet.from.0).map_or(0, |pr| pr.matched);
        packet.term == seat.raw.raft.term && packet.reject_hint < matched
    }

    /// A leader tells each member of no more commits than that member has acknowledged in its term. One that is beyond the
    /// log says that this disk has lost something: to vote, or to acknowledge on, would be to lie.
    fn notice_loss(&mut self, packet: &RaftPacket) {
        let Some(seat) = self.seat.as_ref().filter(|_| packet.kind == PacketKind::Heartbeat) else { return };
        let raft = &seat.raw.raft;
        let (leads, last) = (packet.term == raft.term && packet.from.0 == raft.leader_id, raft.raft_log.last_index());
        // An empty copy has lost nothing: a late packet may have given it a seat that its node held before.
        if leads && last > 0 && packet.commit > last {
            self.out.lost =
                Some(format!("the log ends with entry {last}, but entry {} was acknowledged", packet.commit));
        }
    }

    fn note_heard(&mut self, seat: RaftId, by: Heard) {
        if self.heard.get(&seat).is_none_or(|before| before.node != by.node) {
            self.heard.retain(|_, other| other.node != by.node);
        }
        self.heard.insert(seat, by);
    }

    fn open_snapshot(
        &mut self,
        head: Option<SnapshotHead>,
        data: Option<Vec<u8>>,
    ) -> Result<Incoming, packets::Dropped> {
        let (Some(head), Some(data)) = (head, data) else { return Err("ill_formed") };
        let why = match muster_store::snapshot::decode(&data) {
            Ok(tables) if tables.revision == Revision(head.index) => return Ok((head, tables, Arc::new(data))),
            Ok(tables) => format!("it says that it is of revision {}", tables.revision),
            Err(fault) => {
                if let SnapshotFault::Newer { version } = fault {
                    self.out.outgrown = Some(Outgrown::Snapshot(version));
                }
                fault.to_string()
            }
        };
        self.out.notices.push(Notice::SnapshotUnreadable { index: head.index, why });
        Err("snapshot_unreadable")
    }

    /// Seats grow and are never reused. A node that speaks for a newer seat than our copy knows has been given one
    /// that we have not heard of yet: refusing it would cut an old copy off from what it misses.
    fn may_speak(&self, node: NodeId, from: RaftId) -> Result<(), packets::Dropped> {
        let others = self.tables.members.get(&from).is_some_and(|m| m.node != node);
        let outdated = self.tables.seat_of(node).is_some_and(|m| from < m.raft_id);
        let removed = self.tables.removed_raft_ids.contains(&from);
        if others || outdated || removed { Err("not_its_seat") } else { Ok(()) }
    }

    /// A leader's packet gives an empty copy its seat; one for a newer seat than ours means that ours is gone:
    /// a node is given a seat only while it has none.
    fn take_seat(&mut self, now: Moment, packet: &RaftPacket) -> Result<(), packets::Dropped> {
        match self.seat.as_ref().map(|s| s.id) {
            Some(id) if id == packet.to => return Ok(()),
            Some(id) if packet.to < id => return Err("not_our_seat"),
            None if self.lost.is_some_and(|lost| packet.to <= lost) => return Err("lost_seat"),
            _ if !packets::is_leaders(packet.kind) => return Err("not_our_seat"),
            _ => {}
        }
        self.proposals.forget(&mut self.out.answers);
        self.reads.retry_all();
        self.held.clear();
        for flight in &mut self.in_flight {
            flight.ready = 0;
            flight.settling = Settling::Nothing;
        }
        self.taking_snapshot = false;
        self.sit_down(now, packet.to, Recovered::default()).map_err(|_| "no_seat")?;
        let write = Durable { sync: true, start_over: Some(packet.to), ..self.new_write() };
        self.write(now, write, 0, Settling::Nothing);
        self.out.notices.push(Notice::Seated { raft_id: packet.to });
        Ok(())
    }

    pub(super) fn session(&mut self, now: Moment, node: NodeId, up: bool) {
        if up {
            self.sessions.insert(node);
        } else {
            self.sessions.remove(&node);
        }
        let Some(id) = self.tables.seat_of(node).map(|m| m.raft_id.0) else { return };
        let Some(seat) = self.seat.as_mut().filter(|s| s.raw.raft.state == StateRole::Leader && s.id.0 != id) else {
            return;
        };
        let Some(progress) = seat.raw.raft.mut_prs().get_mut(id) else { return };
        if up {
            // It need not wait for the next heartbeat.
            seat.transfers.session_began(now, id);
            progress.resume();
            self.pause_snapshots(now);
            if let Some(seat) = self.seat.as_mut() {
                seat.raw.raft.send_append(id);
            }
        } else {
            seat.raw.report_unreachable(id);
            self.transfer_ended(now, id, &SnapshotOutcome::Lost("the session ended".to_owned()));
        }
    }

    pub(super) fn snapshot_sent(&mut self, now: Moment, to: RaftId, index: u64, outcome: &SnapshotOutcome) {
        if self.seat.as_ref().is_some_and(|s| s.transfers.is_on_its_way(to.0, index)) {
            self.transfer_ended(now, to.0, outcome);
        }
    }

    /// Tells raft. It may ask for another snapshot at once: a pause comes first.
    pub(super) fn transfer_ended(&mut self, now: Moment, to: u64, outcome: &SnapshotOutcome) {
        let Some(seat) = self.seat.as_mut().filter(|s| s.transfers.on_its_way(to)) else { return };
        if let Some(why) = seat.transfers.ended(now, to, outcome) {
            self.out.notices.push(Notice::SnapshotNotTaken { to: RaftId(to), why });
        }
        self.pause_snapshots(now);
        let delivered = *outcome == SnapshotOutcome::Delivered;
        if let Some(seat) = self.seat.as_mut() {
            seat.raw.report_snapshot(to, if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure });
        }
    }

    /// SNAP-2. Raft is given no snapshot for those that must wait.
    pub(super) fn pause_snapshots(&mut self, now: Moment) {
        let without = self.config.sabotaged().snapshots_without_pause;
        let Some(seat) = self.seat.as_mut() else { return };
        let paused = if without { BTreeSet::new() } else { seat.transfers.paused(now) };
        seat.raw.mut_store().pause_snapshots(paused);
    }
}
