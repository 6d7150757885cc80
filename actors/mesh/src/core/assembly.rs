//! Assembly of a snapshot that arrives in pieces.
//!
//! Owns        at most one transfer of one session; a new first piece replaces it.
//! Inputs      pieces, in order.
//! Outputs     incomplete, complete (with the data), or why the transfer ended.
//! Invariants  MESH-9   memory is bounded by what has arrived, and that by the limit, whatever a head declares.
//!             MESH-10  data is passed on only when its length and SHA-256 are those of its head.

use muster_messages::RaftId;
use muster_messages::wire::{PacketKind, RaftPacket, SnapshotHead};
use sha2::{Digest, Sha256};

#[derive(Clone, Debug)]
pub struct Piece {
    pub head: SnapshotHead,
    pub from: RaftId,
    pub offset: u64,
    pub data: Vec<u8>,
    pub last: Option<Box<RaftPacket>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssemblyError {
    #[error("snapshot of {bytes} bytes exceeds this manager's [mesh] max_snapshot_bytes of {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("snapshot piece out of order")]
    OutOfOrder,
    #[error("snapshot length differs from its head")]
    Length,
    #[error("snapshot digest differs from its head")]
    Digest,
    #[error("the last piece carries no packet for the snapshot")]
    Packet,
}

#[derive(Debug)]
struct Transfer {
    head: SnapshotHead,
    from: RaftId,
    data: Vec<u8>,
    digest: Sha256,
}

/// A complete snapshot, and its Raft message.
pub type Whole = (Box<RaftPacket>, Vec<u8>);

#[derive(Debug, Default)]
pub struct Assembly {
    transfer: Option<Transfer>,
}

impl Assembly {
    /// Adds a piece. `limit`: the most bytes of a snapshot. `Some`: the complete snapshot with its packet.
    pub fn take(&mut self, limit: u64, piece: Piece) -> Result<Option<Whole>, AssemblyError> {
        let mut transfer = self.transfer_of(limit, &piece)?;
        let have = transfer.data.len() as u64;
        if piece.offset != have {
            return Err(AssemblyError::OutOfOrder);
        }
        if have + piece.data.len() as u64 > transfer.head.bytes {
            return Err(AssemblyError::Length);
        }
        transfer.digest.update(&piece.data);
        transfer.data.extend_from_slice(&piece.data);
        let Some(packet) = piece.last else {
            self.transfer = Some(transfer);
            return Ok(None);
        };
        whole(transfer, packet).map(Some)
    }

    pub fn held(&self) -> usize {
        self.transfer.as_ref().map_or(0, |t| t.data.len())
    }

    /// Takes out the transfer that a piece belongs to: it ends unless it is put back.
    fn transfer_of(&mut self, limit: u64, piece: &Piece) -> Result<Transfer, AssemblyError> {
        let running = self.transfer.take();
        if piece.head.bytes > limit {
            return Err(AssemblyError::TooLarge { bytes: piece.head.bytes, limit });
        }
        if piece.offset == 0 {
            let (head, from) = (piece.head.clone(), piece.from);
            return Ok(Transfer { head, from, data: Vec::new(), digest: Sha256::new() });
        }
        let running = running.ok_or(AssemblyError::OutOfOrder)?;
        if running.head != piece.head || running.from != piece.from {
            return Err(AssemblyError::OutOfOrder);
        }
        Ok(running)
    }
}

fn whole(transfer: Transfer, packet: Box<RaftPacket>) -> Result<Whole, AssemblyError> {
    let Transfer { head, from, data, digest } = transfer;
    if data.len() as u64 != head.bytes {
        return Err(AssemblyError::Length);
    }
    if digest.finalize().as_slice() != head.digest {
        return Err(AssemblyError::Digest);
    }
    if packet.kind != PacketKind::Snapshot || packet.snapshot.as_ref() != Some(&head) || packet.from != from {
        return Err(AssemblyError::Packet);
    }
    Ok((packet, data))
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 10_000;

    fn head(data: &[u8]) -> SnapshotHead {
        SnapshotHead {
            index: 7,
            term: 2,
            voters: vec![1],
            learners: vec![],
            bytes: data.len() as u64,
            digest: Sha256::digest(data).into(),
        }
    }
    pub fn packet(head: Option<SnapshotHead>, kind: PacketKind, from: u64) -> RaftPacket {
        RaftPacket {
            kind,
            from: RaftId(from),
            to: RaftId(1),
            term: 2,
            log_term: 0,
            index: 0,
            commit: 0,
            commit_term: 0,
            entries: vec![],
            snapshot: head,
            request_snapshot: 0,
            reject: false,
            reject_hint: 0,
            context: vec![],
            priority: 0,
        }
    }
    fn pieces(data: &[u8], size: usize) -> Vec<Piece> {
        let head = head(data);
        let chunks: Vec<&[u8]> = if data.is_empty() { vec![&[]] } else { data.chunks(size).collect() };
        let last = chunks.len() - 1;
        let piece = |(n, chunk): (usize, &&[u8])| Piece {
            head: head.clone(),
            from: RaftId(2),
            offset: (n * size) as u64,
            data: chunk.to_vec(),
            last: (n == last).then(|| Box::new(packet(Some(head.clone()), PacketKind::Snapshot, 2))),
        };
        chunks.iter().enumerate().map(piece).collect()
    }
    fn run(pieces: Vec<Piece>) -> Result<Option<Vec<u8>>, AssemblyError> {
        let (mut assembly, mut got) = (Assembly::default(), None);
        for piece in pieces {
            got = assembly.take(LIMIT, piece)?.map(|(_, data)| data);
        }
        Ok(got)
    }

    #[test]
    fn snapshot_with_wrong_digest_is_rejected() {
        let mut spoiled = pieces(&[7; 1000], 300);
        spoiled[1].data[5] ^= 1;
        assert_eq!(run(spoiled), Err(AssemblyError::Digest));
    }

    #[test]
    fn snapshot_over_limit_is_rejected_at_first_piece() {
        let mut first = pieces(&[7; 1000], 300).remove(0);
        first.head.bytes = LIMIT + 1;
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(LIMIT, first), Err(AssemblyError::TooLarge { bytes: LIMIT + 1, limit: LIMIT }));
        assert_eq!(assembly.held(), 0);
    }

    #[test]
    fn order_length_and_packet_are_checked() {
        let data = [3u8; 1000];
        let mut missing = pieces(&data, 300);
        missing.remove(1);
        assert_eq!(run(missing), Err(AssemblyError::OutOfOrder));
        let mut twice = pieces(&data, 300);
        twice.insert(1, twice[1].clone());
        assert_eq!(run(twice), Err(AssemblyError::OutOfOrder));
        let mut long = pieces(&data, 300);
        long[3].data.push(1);
        assert_eq!(run(long), Err(AssemblyError::Length));
        let mut short = pieces(&data, 300);
        short[3].data.pop();
        assert_eq!(run(short), Err(AssemblyError::Length));
        let mut other = pieces(&data, 300);
        other[3].last = Some(Box::new(packet(Some(head(&data)), PacketKind::Append, 2)));
        assert_eq!(run(other), Err(AssemblyError::Packet));
    }

    #[test]
    fn a_new_first_piece_replaces_the_running_transfer() {
        let mut both = pieces(&[1; 900], 300);
        both.truncate(2);
        both.extend(pieces(&[2; 600], 300));
        assert_eq!(run(both), Ok(Some(vec![2; 600])));
    }

    proptest! {
        #[test]
        fn assembled_snapshot_equals_the_original(data in proptest::collection::vec(any::<u8>(), 0..2000), size in 1usize..700) {
            prop_assert_eq!(run(pieces(&data, size)), Ok(Some(data)));
        }
    }
}
