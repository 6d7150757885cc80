//! Backlog: Raft messages waiting for room in a peer's window.
//!
//! Owns        the packets, in order of arrival, and how many were dropped.
//! Invariants  MESH-11  a peer that reads nothing costs bounded memory: the oldest messages are dropped, and Raft is informed.
//! Why drop the oldest: Raft sends again by itself, and only its latest messages still matter.

use std::collections::VecDeque;

use muster_messages::RaftId;
use muster_messages::wire::RaftPacket;

/// The bytes that may wait (4 MiB): a few full appends; more would only arrive later.
pub const MAX_BACKLOG_BYTES: usize = 4 << 20;
/// The bytes of one call (512 KiB): well below a frame, whatever the last packet adds.
pub const MAX_BATCH_BYTES: usize = 512 << 10;

/// The members that these packets are for, in their order.
pub fn member_ids(packets: &[RaftPacket]) -> Vec<RaftId> {
    let mut member_ids: Vec<RaftId> = packets.iter().map(|p| p.to).collect();
    member_ids.dedup();
    member_ids
}

/// Packets in order of arrival.
#[derive(Debug, Default)]
pub struct Backlog {
    packets: VecDeque<(RaftPacket, usize)>,
    bytes: usize,
    dropped: u64,
}

impl Backlog {
    /// Adds packets. Returns the members whose older packets were dropped.
    pub fn push(&mut self, packets: Vec<RaftPacket>) -> Vec<RaftId> {
        let mut lost: Vec<RaftId> = Vec::new();
        for packet in packets {
            let size = size(&packet);
            self.bytes += size;
            self.packets.push_back((packet, size));
        }
        while self.bytes > MAX_BACKLOG_BYTES {
            let Some((oldest, size)) = self.packets.pop_front() else { break };
            self.bytes -= size;
            self.dropped += 1;
            if !lost.contains(&oldest.to) {
                lost.push(oldest.to);
            }
        }
        lost
    }
    /// The packets of the next call: at least one, at most [`MAX_BATCH_BYTES`] bytes unless one alone is larger.
    pub fn batch(&mut self) -> Vec<RaftPacket> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((_, size)) = self.packets.front() {
            if !batch.is_empty() && bytes + size > MAX_BATCH_BYTES {
                break;
            }
            bytes += size;
            self.bytes -= size;
            batch.extend(self.packets.pop_front().map(|(p, _)| p));
        }
        batch
    }
    /// Drops all packets. Returns the members that they were for.
    pub fn clear(&mut self) -> Vec<RaftId> {
        let mut lost: Vec<RaftId> = self.packets.drain(..).map(|(p, _)| p.to).collect();
        lost.sort();
        lost.dedup();
        self.bytes = 0;
        lost
    }
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// Packets dropped because the peer read none.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// The approximate size of a packet, in memory and on the wire, with numbers at their widest.
fn size(packet: &RaftPacket) -> usize {
    let entries: usize = packet.entries.iter().map(|e| 40 + e.data.len() + e.context.len()).sum();
    let snapshot = packet.snapshot.as_ref().map_or(0, |s| 80 + 9 * (s.voters.len() + s.learners.len()));
    128 + entries + snapshot + packet.context.len()
}

#[cfg(test)]
mod tests {
    use muster_messages::wire::{self, EntryKind, PacketKind, PeerEnvelope, PeerMessage, RaftEntry};

    use super::super::assembly::tests::packet;
    use super::*;

    fn append(index: u64, bytes: usize) -> RaftPacket {
        let entry = RaftEntry {
            kind: EntryKind::Normal,
            term: u64::MAX,
            index: u64::MAX,
            data: vec![7; bytes],
            context: vec![],
        };
        let mut packet = packet(None, PacketKind::Append, 1);
        packet.entries = vec![entry];
        packet.index = index;
        packet
    }

    #[test]
    fn backlog_is_bounded_and_keeps_newest_messages() {
        let mut backlog = Backlog::default();
        let mut reported = 0;
        for n in 0..100 {
            reported += backlog.push(vec![append(n, 100_000)]).len();
            assert!(backlog.bytes() <= MAX_BACKLOG_BYTES);
        }
        assert!(reported > 0 && backlog.dropped() >= 50);
        let mut last = 0;
        while !backlog.is_empty() {
            last = backlog.batch().last().unwrap().index;
        }
        assert_eq!((last, backlog.bytes()), (99, 0));
    }

    #[test]
    fn a_batch_always_fits_a_frame() {
        let mut backlog = Backlog::default();
        backlog.push((0..5000).map(|n| append(n, (n % 977) as usize)).collect());
        while !backlog.is_empty() {
            let message = PeerMessage::Raft(backlog.batch());
            assert!(wire::encode(&PeerEnvelope { tag: u128::MAX, message }).unwrap().len() <= MAX_BATCH_BYTES);
        }
    }
}
