//! Packets from peers, snapshots, and the peers' sessions.

use std::sync::Arc;

use muster_messages::protocol::SnapshotOutcome;
use muster_messages::wire::{PacketKind, RaftPacket, SnapshotHead};
use muster_messages::{Moment, NodeId, RaftId, Revision};
use muster_store::snapshot::SnapshotFault;

use super::digests::StateDigest;
use super::installation::ReceivedSnapshot;
use super::internals::Internals;
use super::{Durable, Incompatible, Notice, Outbound, RaftCore, Recovered, Settling, packets};

impl RaftCore {
    /// A packet from an authenticated node.
    pub(super) fn handle_packet(
        &mut self,
        now: Moment,
        node: NodeId,
        peer_member: Option<RaftId>,
        packet: RaftPacket,
        data: Option<Vec<u8>>,
    ) {
        if let Err(why) = self.check_and_handle(now, node, peer_member, packet, data) {
            *self.counters.entry(why).or_default() += 1;
        }
    }

    fn check_and_handle(
        &mut self,
        now: Moment,
        node: NodeId,
        peer_member: Option<RaftId>,
        packet: RaftPacket,
        data: Option<Vec<u8>>,
    ) -> Result<(), packets::Dropped> {
        packets::well_formed(&packet)?;
        if peer_member != Some(packet.from) || node == self.me {
            return Err("foreign_member_id");
        }
        self.check_sender(node, packet.from)?;
        self.ensure_member(now, &packet)?;
        self.detect_loss(&packet);
        let settling = self.writes.settling();
        packets::acceptable(&packet, &self.member.as_ref().expect("ensure_member leaves a member").raw, settling)?;
        let received = match (packet.kind, data) {
            (PacketKind::Snapshot, data) => Some(self.open_snapshot(packet.snapshot.clone(), data)?),
            _ => None,
        };
        self.peers.received(now, packet.from, node);
        if packet.kind == PacketKind::StateDigest {
            return self.handle_digest(now, &packet);
        }
        let member = self.member.as_mut().expect("ensure_member leaves a member");
        let (from, kind, index, log_term) = (packet.from.0, packet.kind, packet.index, packet.log_term);
        let acknowledges = packet.term == member.raw.term()
            && matches!(kind, PacketKind::AppendResponse | PacketKind::HeartbeatResponse);
        if acknowledges {
            self.reachability.acknowledge(packet.from, member.id, self.nonce, &packet.context);
        }
        // An acknowledgement is final. Such a rejection is an old one, or its sender has lost a part of its log: the sender
        // notices that by the next heartbeat, and must not silently get that part again.
        if kind == PacketKind::AppendResponse && packet.reject && self.rejects_acknowledged(&packet) {
            return Err("rejected_below_matched");
        }
        let member = self.member.as_mut().expect("ensure_member leaves a member");
        let vote_refused = kind == PacketKind::RequestVoteResponse && packet.reject;
        if self.config.injected_bugs().vote_again && kind == PacketKind::RequestVote {
            member.raw.forget_vote();
        }
        // Raft reports the answer of an unknown sender as an error. It is harmless: the sender was removed meanwhile.
        let _unknown_sender = packets::incoming(packet).map(|message| member.raw.step(message));
        if acknowledges && member.raw.leads() {
            self.peers.acknowledged(now, from);
            if member.raw.repair_next_index(from) {
                *self.counters.entry("progress_mended").or_default() += 1;
            }
        }
        let wanted = member.raw.wanted_snapshot();
        member.installation.consider(received, wanted);
        self.settle(now);
        if vote_refused {
            self.vote_refused(now);
        }
        if matches!(kind, PacketKind::RequestVote | PacketKind::RequestPreVote) {
            self.vote_requested(now, index, log_term);
        }
        if kind == PacketKind::TimeoutNow {
            self.handle_timeout_now(now);
        }
        Ok(())
    }

    fn rejects_acknowledged(&self, packet: &RaftPacket) -> bool {
        let Some(member) = self.member.as_ref().filter(|s| s.raw.leads()) else { return false };
        let matched = member.raw.tracker().get(packet.from.0).map_or(0, |pr| pr.matched);
        packet.term == member.raw.term() && packet.reject_hint < matched
    }

    /// A leader announces to each member only commits that this member has acknowledged in its term. A commit index beyond the
    /// log proves that this disk has lost entries: the member must neither vote nor acknowledge any more.
    fn detect_loss(&mut self, packet: &RaftPacket) {
        let Some(member) = self.member.as_ref().filter(|_| packet.kind == PacketKind::Heartbeat) else { return };
        let raw = &member.raw;
        let (leads, last) = (packet.term == raw.term() && packet.from.0 == raw.leader_id(), raw.last_index());
        // An empty replica has lost nothing: a late packet may name a member id that its node held before.
        if leads && last > 0 && packet.commit > last {
            self.out.lost =
                Some(format!("the log ends with entry {last}, but entry {} was acknowledged", packet.commit));
        }
    }

    fn open_snapshot(
        &mut self,
        head: Option<SnapshotHead>,
        data: Option<Vec<u8>>,
    ) -> Result<ReceivedSnapshot, packets::Dropped> {
        let (Some(head), Some(data)) = (head, data) else { return Err("ill_formed") };
        let why = match muster_store::snapshot::decode(&data) {
            Ok(tables) if tables.revision == Revision(head.index) => return Ok((head, tables, Arc::new(data))),
            Ok(tables) => format!("its tables are at revision {}", tables.revision),
            Err(fault) => {
                if let SnapshotFault::Newer { version } = fault {
                    self.out.incompatible = Some(Incompatible::Snapshot(version));
                }
                fault.to_string()
            }
        };
        self.out.notices.push(Notice::SnapshotUnreadable { index: head.index, why });
        Err("snapshot_unreadable")
    }

    /// Member ids grow and are never reused. A node that uses a newer id than the replica knows was given one that has not been
    /// applied here yet: refusing it would cut an old replica off from the entries that it lacks.
    fn check_sender(&self, node: NodeId, from: RaftId) -> Result<(), packets::Dropped> {
        let tables = self.state.tables();
        let others = tables.members.get(&from).is_some_and(|m| m.node != node);
        let outdated = tables.member_of(node).is_some_and(|m| from < m.raft_id);
        let removed = self.state.is_removed(from);
        if others || outdated || removed { Err("foreign_member_id") } else { Ok(()) }
    }

    /// A leader's packet gives an empty replica its member id. One for a newer id means that the own id was removed: a node
    /// gets an id only while it has none.
    fn ensure_member(&mut self, now: Moment, packet: &RaftPacket) -> Result<(), packets::Dropped> {
        match self.member.as_ref().map(|s| s.id) {
            Some(id) if id == packet.to => return Ok(()),
            Some(id) if packet.to < id => return Err("not_addressed_to_us"),
            None if self.lost.is_some_and(|lost| packet.to <= lost) => return Err("lost_member_id"),
            _ if !packets::is_from_leader(packet.kind) => return Err("not_addressed_to_us"),
            _ => {}
        }
        self.proposals.forget(&mut self.out.answers);
        self.reads.retry_all();
        self.writes.start_over();
        self.init_member(now, packet.to, Recovered::default()).map_err(|_| "member_not_started")?;
        let write = Durable { sync: true, start_over: Some(packet.to), ..self.writes.next() };
        self.write(now, write, 0, Settling::Nothing);
        self.out.notices.push(Notice::BecameMember { raft_id: packet.to });
        Ok(())
    }

    pub(super) fn session(&mut self, now: Moment, node: NodeId, up: bool) {
        self.peers.session(node, up);
        let Some(id) = self.state.tables().member_of(node).map(|m| m.raft_id) else { return };
        if let Some(member) = self.member.as_mut().filter(|s| s.raw.leads() && s.id != id) {
            member.peer_session(now, id.0, up, &self.config, &mut self.out);
        }
    }

    pub(super) fn snapshot_sent(&mut self, now: Moment, to: RaftId, index: u64, outcome: &SnapshotOutcome) {
        if let Some(member) = self.member.as_mut().filter(|s| s.transfers.is_on_its_way(to.0, index)) {
            member.end_transfer(now, to.0, outcome, &self.config, &mut self.out);
        }
    }

    /// `None`: it could not be computed.
    pub(super) fn state_digested(&mut self, now: Moment, index: u64, digest: Option<StateDigest>) {
        let Some(digest) = self.digests.computed(index, digest) else { return };
        let Some(member) = self.member.as_ref() else { return };
        if member.raw.leads() {
            self.compare_states(now, index);
        } else if member.raw.leader_id() != raft::INVALID_ID {
            let leader = RaftId(member.raw.leader_id());
            self.send_digest(leader, index, digest, false);
        }
    }

    /// A member reports its digest to the leader, or the leader informs a member that its digest is wrong.
    fn handle_digest(&mut self, now: Moment, packet: &RaftPacket) -> Result<(), packets::Dropped> {
        debug_assert_eq!(packet.kind, PacketKind::StateDigest);
        let digest: StateDigest = packet.context.as_slice().try_into().map_err(|_| "ill_formed")?;
        let raw = &self.member.as_ref().expect("ensure_member leaves a member").raw;
        if packet.term != raw.term() {
            return Err("out_of_place");
        }
        if packet.reject {
            if packet.from.0 == raw.leader_id() && self.digests.contradicts(packet.index, digest) {
                self.out.lost = Some(diverged_here(packet.index));
            }
            return Ok(());
        }
        if !raw.leads() || raw.tracker().get(packet.from.0).is_none() {
            return Err("out_of_place");
        }
        self.digests.received(packet.index, packet.from.0, digest);
        self.compare_states(now, packet.index);
        Ok(())
    }

    fn compare_states(&mut self, now: Moment, index: u64) {
        let Some(member) = self.member.as_ref() else { return };
        let comparison = self.digests.compare(now, index, member.id, member.voters());
        if comparison.own_is_wrong {
            self.out.lost = Some(diverged_here(index));
        }
        for id in comparison.diverged.into_iter().map(RaftId) {
            *self.counters.entry("state_diverged").or_default() += 1;
            self.out.notices.push(Notice::StateDiverged { member: id, node: self.node_of(id), index });
        }
        if let Some((own, wrong)) = comparison.inform {
            wrong.into_iter().for_each(|id| self.send_digest(RaftId(id), index, own, true));
        }
    }

    fn send_digest(&mut self, to: RaftId, index: u64, digest: StateDigest, wrong: bool) {
        let Some(member) = self.member.as_ref() else { return };
        let packet = packets::state_digest(member.id, to, member.raw.term(), index, digest, wrong);
        if let Some((node, addr)) = self.peers.destination(self.state.tables(), to) {
            self.out.send.push(Outbound { node, addr, packet });
        }
    }
}

fn diverged_here(index: u64) -> String {
    format!("the state of this manager at revision {index} is not that of the majority")
}
