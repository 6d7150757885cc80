//! Writes: what was handed to the disk, how much of it is durable, and the messages that wait for it.
//!
//! Owns        the writes in flight, the messages held back for them, the hard state as handed to the disk and as durable.
//! Inputs      writes, messages of raft, the number up to which the disk has everything.
//! Outputs     messages that may leave, the raft `Ready` up to which everything is durable.
//! Invariants  DURABLE-1  this member acknowledges nothing before its disk has it.
//!             DURABLE-2  a vote, an answer and a leader's messages of a term leave only once that vote, entry or term is durable.
//! Why the messages wait here: a crash loses them together with the writes that they wait for.

use std::collections::VecDeque;
use std::time::Duration;

use muster_messages::Moment;

use super::{Durable, HardMark, Outbound};

/// The own writes in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Settling {
    Nothing,
    Entries,
    Snapshot,
}

struct InFlight {
    write: u64,
    /// The last raft `Ready` that this write and those before it make durable; 0: none of this member's.
    ready: u64,
    issued: Moment,
    settling: Settling,
    hard: HardMark,
}

#[derive(Default)]
pub(crate) struct Writes {
    /// The number of the last write.
    last: u64,
    in_flight: VecDeque<InFlight>,
    /// Messages that wait for the write of this number.
    held: VecDeque<(u64, Vec<Outbound>)>,
    /// As last handed to the disk, and as the disk has it.
    hard: HardMark,
    durable: HardMark,
    /// The last write that was reported as slow; 0: none.
    reported_slow: u64,
}

impl Writes {
    /// A member starts with this hard state, which the disk has.
    pub fn start(&mut self, hard: HardMark) {
        (self.hard, self.durable) = (hard, hard);
    }
    /// A founder starts with a hard state that the disk does not have yet.
    pub fn found(&mut self) {
        self.durable = HardMark::default();
    }
    /// Another member id: no write in flight makes anything of it durable, and no message of the old one leaves.
    pub fn start_over(&mut self) {
        self.held.clear();
        for flight in &mut self.in_flight {
            (flight.ready, flight.settling) = (0, Settling::Nothing);
        }
    }

    /// Raft's hard state. Returns whether it must be written: a new commit index alone can wait for the next write, because raft
    /// finds it again after a crash.
    pub fn promise(&mut self, hard: HardMark) -> bool {
        let before = std::mem::replace(&mut self.hard, hard);
        (hard.term, hard.vote) != (before.term, before.vote)
    }
    /// The next write, empty.
    pub fn next(&self) -> Durable {
        Durable { number: self.last + 1, ..self.repeated() }
    }
    /// A write that replaces all up to the last one.
    pub fn repeated(&self) -> Durable {
        Durable { number: self.last, hard: self.hard, ..Durable::default() }
    }
    /// Everything of raft up to `ready` is durable once this write is. 0: it contains nothing of raft's.
    pub fn issue(&mut self, now: Moment, write: &Durable, ready: u64, settling: Settling) {
        debug_assert_eq!(write.number, self.last + 1);
        self.last = write.number;
        self.in_flight.push_back(InFlight { write: self.last, ready, issued: now, settling, hard: write.hard });
    }
    /// This `Ready` needs no write, so it is as durable as the writes in flight before it. Returns whether there are any.
    pub fn join(&mut self, ready: u64) -> bool {
        self.in_flight.back_mut().map(|flight| flight.ready = ready).is_some()
    }
    /// DURABLE-2. A leader (of the term `leads`) replicates before its own write is durable, but only once its term is: a lone
    /// voter is elected at once, and would otherwise lead the same term twice after a crash.
    pub fn send(&mut self, messages: Vec<Outbound>, leads: Option<u64>, out: &mut Vec<Outbound>) {
        let waits = leads != Some(self.durable.term);
        match self.in_flight.back().filter(|_| waits) {
            Some(flight) => self.held.push_back((flight.write, messages)),
            None => out.extend(messages),
        }
    }
    /// The disk has everything up to this write. Returns the last `Ready` that is durable now; 0: none.
    pub fn persisted(&mut self, number: u64, out: &mut Vec<Outbound>) -> u64 {
        let mut ready = 0;
        while let Some(flight) = self.in_flight.front()
            && flight.write <= number
        {
            ready = ready.max(flight.ready);
            self.durable = flight.hard;
            self.in_flight.pop_front();
        }
        while let Some((write, _)) = self.held.front()
            && *write <= number
        {
            out.extend(self.held.pop_front().into_iter().flat_map(|(_, messages)| messages));
        }
        ready
    }

    /// The most critical kind of write in flight.
    pub fn settling(&self) -> Settling {
        self.in_flight.iter().map(|f| f.settling).max().unwrap_or(Settling::Nothing)
    }
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
    /// Whether the oldest write has taken this long.
    pub fn is_slow(&self, now: Moment, limit: Duration) -> bool {
        self.in_flight.front().is_some_and(|w| now.since(w.issued) >= limit)
    }
    /// Whether the oldest write was not reported as slow before.
    pub fn report_slow(&mut self) -> bool {
        let oldest = self.in_flight.front().map_or(0, |w| w.write);
        std::mem::replace(&mut self.reported_slow, oldest) != oldest
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::wire::PacketKind;
    use muster_messages::{NodeId, RaftId};

    use super::super::packets;
    use super::*;

    fn message(to: u64) -> Vec<Outbound> {
        let mut packet = packets::state_digest(RaftId(1), RaftId(to), 2, 1, [0; 32], false);
        packet.kind = PacketKind::AppendResponse;
        vec![Outbound { node: NodeId::from_entropy(u128::from(to)), addr: String::new(), packet }]
    }

    fn in_term(term: u64) -> Writes {
        let mut writes = Writes::default();
        writes.start(HardMark { term, vote: 1, commit: 0 });
        writes
    }

    fn issue(writes: &mut Writes, ready: u64) -> u64 {
        let write = writes.next();
        writes.issue(Moment(0), &write, ready, Settling::Entries);
        write.number
    }

    #[test]
    fn messages_wait_for_the_writes_before_them() {
        let (mut writes, mut out) = (in_term(2), Vec::new());
        let first = issue(&mut writes, 1);
        writes.send(message(2), None, &mut out);
        let second = issue(&mut writes, 2);
        writes.send(message(3), None, &mut out);
        assert!(out.is_empty());
        assert_eq!(writes.persisted(first, &mut out), 1);
        assert_eq!(out, message(2));
        assert_eq!((writes.persisted(second, &mut out), out.len(), writes.in_flight()), (2, 2, 0));
        writes.send(message(4), None, &mut out);
        assert_eq!(out.len(), 3, "nothing is in flight");
    }

    #[test]
    fn leader_replicates_early_only_in_a_durable_term() {
        let (mut writes, mut out) = (in_term(2), Vec::new());
        assert!(writes.promise(HardMark { term: 3, vote: 1, commit: 0 }), "a vote must be written");
        let election = issue(&mut writes, 1);
        writes.send(message(2), Some(3), &mut out);
        assert!(out.is_empty(), "the term of this leader could be lost");
        writes.persisted(election, &mut out);
        issue(&mut writes, 2);
        writes.send(message(3), Some(3), &mut out);
        assert_eq!(out.len(), 2);
    }

    #[test]
    fn commit_index_alone_needs_no_write() {
        let mut writes = in_term(2);
        assert!(!writes.promise(HardMark { term: 2, vote: 1, commit: 9 }));
        assert!(!writes.join(7), "no write is in flight, so it is durable");
        assert_eq!(writes.next().hard.commit, 9, "the next write carries it");
        issue(&mut writes, 8);
        assert!(writes.join(9));
        assert_eq!(writes.persisted(1, &mut Vec::new()), 9);
    }

    #[test]
    fn new_member_id_drops_what_waits() {
        let (mut writes, mut out) = (in_term(2), Vec::new());
        let write = issue(&mut writes, 5);
        writes.send(message(2), None, &mut out);
        writes.start_over();
        assert_eq!((writes.settling(), writes.persisted(write, &mut out)), (Settling::Nothing, 0));
        assert!(out.is_empty());
    }
}
