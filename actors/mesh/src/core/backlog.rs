//! Backlog: Raft messages that wait for a place in a peer's window.
//!
//! Keeps  MESH-11  a peer that takes nothing costs bounded memory: the oldest messages go, and Raft is told.
//! Why drop the oldest: Raft sends again by itself, and what it said last is what still matters.

use std::collections::VecDeque;

use muster_messages::RaftId;
use muster_messages::wire::RaftPacket;

/// The bytes that may wait (4 MiB): a few full appends; more would only be older when it arrives.
pub const LIMIT: usize = 4 << 20;
/// The bytes of one call (512 KiB): well under a frame, whatever the last packet adds.
pub const BATCH: usize = 512 << 10;

/// Packets in the order they came.
#[derive(Debug, Default)]
pub struct Backlog {
    packets: VecDeque<(RaftPacket, usize)>,
    bytes: usize,
    dropped: u64,
}

impl Backlog {
    /// Adds packets. The seats whose older packets had to go.
    pub fn push(&mut self, packets: Vec<RaftPacket>) -> Vec<RaftId> {
        let mut lost: Vec<RaftId> = Vec::new();
        for packet in packets {
            let size = size(&packet);
            self.bytes += size;
            self.packets.push_back((packet, size));
        }
        while self.bytes > LIMIT {
            let Some((oldest, size)) = self.packets.pop_front() else { break };
            self.bytes -= size;
            self.dropped += 1;
            if !lost.contains(&oldest.to) {
                lost.push(oldest.to);
            }
        }
        lost
    }
    /// The packets of the next call: at least one, at most [`BATCH`] bytes unless one alone is larger.
    pub fn batch(&mut self) -> Vec<RaftPacket> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((_, size)) = self.packets.front() {
            if !batch.is_empty() && bytes + size > BATCH {
                break;
            }
            bytes += size;
            self.bytes -= size;
            batch.extend(self.packets.pop_front().map(|(p, _)| p));
        }
        batch
    }
    /// Everything goes. The seats that it was meant for.
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
    /// Packets that went because the peer took none.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// What a packet takes, in memory and on the wire, near enough: numbers at their widest.
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
    fn a_peer_that_takes_nothing_costs_bounded_memory_and_the_newest_stay() {
        let mut backlog = Backlog::default();
        let mut told = 0;
        for n in 0..100 {
            told += backlog.push(vec![append(n, 100_000)]).len();
            assert!(backlog.bytes() <= LIMIT);
        }
        assert!(told > 0 && backlog.dropped() >= 50);
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
            assert!(wire::encode(&PeerEnvelope { tag: u128::MAX, message }).unwrap().len() <= BATCH);
        }
    }
}
