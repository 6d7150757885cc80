//! Outgoing: the snapshot that is being sent to a peer, in pieces.
//!
//! Owns        at most one transfer, with its unanswered pieces; the number of the next transfer.
//! Inputs      a snapshot to send; how each piece ended.
//! Outputs     the next piece; progress, and how the transfer ended.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::protocol::SnapshotOutcome;
use muster_messages::wire::{CHUNK, PeerMessage, RaftPacket, SnapshotHead};
use muster_messages::{Moment, RaftId};

/// How often progress is reported to the raft member, which abandons a snapshot after a minute without.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The number of a transfer; increasing.
pub type TransferNumber = u64;

/// What the raft member learns about the snapshot at `index` for the member `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    Progress { to: RaftId, index: u64 },
    Ended { to: RaftId, index: u64, outcome: SnapshotOutcome },
}

impl Report {
    /// Of a snapshot for a node that has no session.
    pub fn without_session(head: &SnapshotHead, packet: &RaftPacket) -> Self {
        let outcome = SnapshotOutcome::Lost("no session with the node".to_owned());
        Self::Ended { to: packet.to, index: head.index, outcome }
    }
}

/// How a piece ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceEnd {
    Taken,
    Refused(String),
    /// The peer did not answer it, and why.
    Lost(String),
}

pub struct Piece {
    pub transfer: TransferNumber,
    pub from: RaftId,
    pub message: PeerMessage,
}

#[derive(Debug)]
struct Transfer {
    number: TransferNumber,
    head: SnapshotHead,
    data: Arc<Vec<u8>>,
    packet: Box<RaftPacket>,
    offset: usize,
    complete: bool,
    unanswered: usize,
    progress_reported: Moment,
}

#[derive(Debug, Default)]
pub struct OutgoingSnapshot {
    transfer: Option<Transfer>,
    transfers: TransferNumber,
}

impl OutgoingSnapshot {
    /// Begins a transfer. The same snapshot continues from the pieces that were sent; another one is replaced.
    #[must_use]
    pub fn begin(
        &mut self,
        now: Moment,
        head: SnapshotHead,
        data: Arc<Vec<u8>>,
        packet: Box<RaftPacket>,
    ) -> Option<Report> {
        if let Some(same) = self.transfer.as_mut().filter(|t| t.head == head && !t.complete) {
            same.packet = packet;
            return None;
        }
        let other = self.transfer.as_ref().is_some_and(|t| t.head.index != head.index);
        let replaced = other.then(|| self.lost("a newer snapshot replaced it")).flatten();
        self.transfers += 1;
        self.transfer = Some(Transfer {
            number: self.transfers,
            head,
            data,
            packet,
            offset: 0,
            complete: false,
            unanswered: 0,
            progress_reported: now,
        });
        replaced
    }

    /// The next piece, which counts as sent.
    pub fn next_piece(&mut self) -> Option<Piece> {
        let transfer = self.transfer.as_mut().filter(|t| !t.complete)?;
        let end = transfer.data.len().min(transfer.offset + CHUNK);
        transfer.complete = end == transfer.data.len();
        let message = PeerMessage::SnapshotChunk {
            head: transfer.head.clone(),
            from: transfer.packet.from,
            offset: transfer.offset as u64,
            data: transfer.data[transfer.offset..end].to_vec(),
            last: transfer.complete.then(|| transfer.packet.clone()),
        };
        transfer.offset = end;
        transfer.unanswered += 1;
        Some(Piece { transfer: transfer.number, from: transfer.packet.from, message })
    }

    /// Whether this transfer is running: the pieces of an earlier one mean nothing.
    pub fn is_current(&self, number: TransferNumber) -> bool {
        self.transfer.as_ref().is_some_and(|t| t.number == number)
    }

    /// A piece of this transfer ended.
    #[must_use]
    pub fn piece_ended(&mut self, now: Moment, number: TransferNumber, end: PieceEnd) -> Option<Report> {
        let transfer = self.transfer.as_mut().filter(|t| t.number == number)?;
        transfer.unanswered -= 1;
        match end {
            PieceEnd::Taken if transfer.complete && transfer.unanswered == 0 => self.end(SnapshotOutcome::Delivered),
            PieceEnd::Taken if now.since(transfer.progress_reported) >= PROGRESS_INTERVAL => {
                transfer.progress_reported = now;
                Some(Report::Progress { to: transfer.packet.to, index: transfer.head.index })
            }
            PieceEnd::Taken => None,
            PieceEnd::Refused(reason) => self.end(SnapshotOutcome::Refused(reason)),
            PieceEnd::Lost(why) => self.end(SnapshotOutcome::Lost(why)),
        }
    }

    /// Ends the transfer, if there is one.
    #[must_use]
    pub fn lost(&mut self, why: &str) -> Option<Report> {
        self.end(SnapshotOutcome::Lost(why.to_owned()))
    }

    fn end(&mut self, outcome: SnapshotOutcome) -> Option<Report> {
        let transfer = self.transfer.take()?;
        Some(Report::Ended { to: transfer.packet.to, index: transfer.head.index, outcome })
    }

    /// The snapshot at this index is not needed any more.
    pub fn stop(&mut self, index: u64) {
        self.transfer.take_if(|t| t.head.index == index);
    }

    /// The bytes of the running transfer that were sent.
    pub fn bytes_sent(&self) -> Option<usize> {
        self.transfer.as_ref().map(|t| t.offset)
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::wire::PacketKind;

    use super::super::assembly::tests::packet;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Moment = Moment(0);

    fn head(index: u64, bytes: usize) -> SnapshotHead {
        SnapshotHead { index, term: 2, voters: vec![1], learners: vec![], bytes: bytes as u64, digest: [0; 32] }
    }
    fn begin(outgoing: &mut OutgoingSnapshot, index: u64, bytes: usize) -> Option<Report> {
        let head = head(index, bytes);
        let packet = Box::new(packet(Some(head.clone()), PacketKind::Snapshot, 2));
        outgoing.begin(START, head, Arc::new(vec![7; bytes]), packet)
    }
    /// The number, offset, length of a piece, and whether it is the last one.
    fn piece(outgoing: &mut OutgoingSnapshot) -> Option<(TransferNumber, u64, usize, bool)> {
        let Piece { transfer, message, .. } = outgoing.next_piece()?;
        let PeerMessage::SnapshotChunk { offset, data, last, .. } = message else { panic!("another message") };
        Some((transfer, offset, data.len(), last.is_some()))
    }
    fn ended(index: u64, outcome: SnapshotOutcome) -> Option<Report> {
        Some(Report::Ended { to: RaftId(1), index, outcome })
    }

    #[test]
    fn snapshot_is_delivered_when_its_last_piece_is_answered() {
        let mut outgoing = OutgoingSnapshot::default();
        assert_eq!(begin(&mut outgoing, 7, CHUNK + 10), None);
        assert_eq!(piece(&mut outgoing), Some((1, 0, CHUNK, false)));
        assert_eq!(piece(&mut outgoing), Some((1, CHUNK as u64, 10, true)));
        assert_eq!(piece(&mut outgoing), None);
        assert_eq!(outgoing.bytes_sent(), Some(CHUNK + 10));
        assert_eq!(outgoing.piece_ended(START, 1, PieceEnd::Taken), None);
        assert_eq!(outgoing.piece_ended(START, 1, PieceEnd::Taken), ended(7, SnapshotOutcome::Delivered));
        assert_eq!(outgoing.bytes_sent(), None);
    }

    #[test]
    fn empty_snapshot_is_one_piece() {
        let mut outgoing = OutgoingSnapshot::default();
        assert_eq!(begin(&mut outgoing, 7, 0), None);
        assert_eq!((piece(&mut outgoing), piece(&mut outgoing)), (Some((1, 0, 0, true)), None));
    }

    #[test]
    fn progress_is_reported_once_a_second() {
        let mut outgoing = OutgoingSnapshot::default();
        assert_eq!(begin(&mut outgoing, 7, 9 * CHUNK), None);
        let mut reported = Vec::new();
        for tenth in [3, 10, 12, 19, 20] {
            assert!(outgoing.next_piece().is_some());
            let report = outgoing.piece_ended(START + SECOND / 10 * tenth, 1, PieceEnd::Taken);
            reported.extend(report.map(|report| (tenth, report)));
        }
        let progress = Report::Progress { to: RaftId(1), index: 7 };
        assert_eq!(reported, [(10, progress.clone()), (20, progress)]);
    }

    #[test]
    fn same_snapshot_continues_and_another_one_replaces_it() {
        let mut outgoing = OutgoingSnapshot::default();
        assert_eq!(begin(&mut outgoing, 7, 2 * CHUNK), None);
        assert_eq!(piece(&mut outgoing), Some((1, 0, CHUNK, false)));
        assert_eq!(begin(&mut outgoing, 7, 2 * CHUNK), None);
        assert_eq!(piece(&mut outgoing), Some((1, CHUNK as u64, CHUNK, true)));
        // All its pieces were sent, and the raft member asks again: once more, from the first piece.
        assert_eq!(begin(&mut outgoing, 7, 2 * CHUNK), None);
        assert_eq!(piece(&mut outgoing), Some((2, 0, CHUNK, false)));
        assert_eq!(outgoing.piece_ended(START, 1, PieceEnd::Refused("late".to_owned())), None);
        let replaced = SnapshotOutcome::Lost("a newer snapshot replaced it".to_owned());
        assert_eq!(begin(&mut outgoing, 9, CHUNK), ended(7, replaced));
        assert!(outgoing.is_current(3) && !outgoing.is_current(2));
    }

    #[test]
    fn transfer_ends_with_the_first_failed_piece() {
        let ends = [
            (PieceEnd::Refused("full".to_owned()), SnapshotOutcome::Refused("full".to_owned())),
            (PieceEnd::Lost("gone".to_owned()), SnapshotOutcome::Lost("gone".to_owned())),
        ];
        for (end, outcome) in ends {
            let mut outgoing = OutgoingSnapshot::default();
            assert_eq!(begin(&mut outgoing, 7, 3 * CHUNK), None);
            assert!(outgoing.next_piece().is_some() && outgoing.next_piece().is_some());
            assert_eq!(outgoing.piece_ended(START, 1, end), ended(7, outcome));
            assert_eq!(outgoing.piece_ended(START, 1, PieceEnd::Taken), None);
            assert!(outgoing.next_piece().is_none());
        }
    }

    #[test]
    fn only_the_snapshot_at_its_index_is_stopped() {
        let mut outgoing = OutgoingSnapshot::default();
        assert_eq!(begin(&mut outgoing, 7, CHUNK), None);
        outgoing.stop(6);
        assert!(outgoing.is_current(1));
        outgoing.stop(7);
        assert!(!outgoing.is_current(1));
        assert_eq!(outgoing.lost("the session ended"), None);
    }
}
