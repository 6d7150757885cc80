//! Digests: this host's reports about its sessions to the leader.
//!
//! Owns        the facts of all sessions, which of them the leader lacks, and the digest in flight.
//! Invariants  SESSION-7  the current leader has a full digest of this host, or is being sent one: a change of leader, a failed
//!                        digest and the passing of `digest_every` each lead to a full one.
//!             SESSION-8  one digest is in flight to a leader at a time, so they arrive in the order of their sequence; one
//!                        meant for an earlier leader is given up, and ignored by its sequence if it arrives.
//! Why pieces: ten thousand sessions do not fit into one message. The first piece is the full digest, the others follow as
//! changes; in between the leader sees the remaining nodes as absent, which has no effect before the grace period has
//! passed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use muster_messages::wire::{SessionDigest, SessionFact};
use muster_messages::{Moment, NodeId};

use crate::config::SessionsConfig;

#[derive(Clone, Debug)]
pub struct Digests {
    facts: BTreeMap<NodeId, SessionFact>,
    changed: BTreeSet<NodeId>,
    /// Pieces of a full digest that are not sent yet.
    pieces: VecDeque<Vec<NodeId>>,
    need_full: bool,
    in_flight: Option<u64>,
    sequence: u64,
    not_before: Moment,
    full_at: Moment,
}

impl Digests {
    /// `first`: larger than any sequence used before this host's last restart.
    pub fn new(first: u64) -> Self {
        Self {
            facts: BTreeMap::new(),
            changed: BTreeSet::new(),
            pieces: VecDeque::new(),
            need_full: true,
            in_flight: None,
            sequence: first,
            not_before: Moment(0),
            full_at: Moment(0),
        }
    }

    pub fn facts(&self) -> &BTreeMap<NodeId, SessionFact> {
        &self.facts
    }
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What a session reports about its node now. A fact that disappears shows in the next full digest.
    pub fn set(&mut self, node: NodeId, fact: Option<SessionFact>) -> Option<SessionFact> {
        match fact {
            Some(fact) if self.facts.get(&node) == Some(&fact) => Some(fact),
            Some(fact) => {
                self.changed.insert(node);
                self.facts.insert(node, fact)
            }
            None => {
                self.changed.remove(&node);
                self.facts.remove(&node)
            }
        }
    }

    /// Another leader, or the same one in another term: it has no digest of this host.
    pub fn leader_changed(&mut self) {
        self.need_full = true;
        self.in_flight = None;
        self.not_before = Moment(0);
    }

    pub fn answered(&mut self, now: Moment, sequence: u64, ok: bool, config: &SessionsConfig) {
        if self.in_flight != Some(sequence) {
            return;
        }
        self.in_flight = None;
        if !ok {
            self.need_full = true;
            self.not_before = now + config.digest_retry;
        }
    }

    /// The digest that is due now, if any.
    pub fn due(&mut self, now: Moment, config: &SessionsConfig) -> Option<SessionDigest> {
        if self.in_flight.is_some() || now < self.not_before {
            return None;
        }
        let full = self.need_full || now >= self.full_at;
        let nodes = if full {
            self.begin_full(now, config)
        } else if let Some(piece) = self.pieces.pop_front() {
            piece
        } else if self.changed.is_empty() {
            return None;
        } else {
            self.take_changed(config.digest_bytes)
        };
        for node in &nodes {
            self.changed.remove(node);
        }
        self.sequence += 1;
        self.in_flight = Some(self.sequence);
        self.not_before = now + config.digest_batch;
        let sessions = nodes.iter().filter_map(|n| self.facts.get(n)).cloned().collect();
        Some(SessionDigest { sequence: self.sequence, full, sessions })
    }

    pub fn wake_at(&self) -> Option<Moment> {
        if self.in_flight.is_some() {
            return None;
        }
        let more = self.need_full || !self.pieces.is_empty() || !self.changed.is_empty();
        let at = if more { self.not_before } else { self.full_at.max(self.not_before) };
        Some(at)
    }

    fn begin_full(&mut self, now: Moment, config: &SessionsConfig) -> Vec<NodeId> {
        self.need_full = false;
        self.full_at = now + config.digest_every.max(Duration::from_millis(1));
        let (mut pieces, mut piece, mut bytes) = (VecDeque::new(), Vec::new(), 0);
        for (node, fact) in &self.facts {
            if bytes >= config.digest_bytes {
                pieces.push_back(std::mem::take(&mut piece));
                bytes = 0;
            }
            bytes += size(fact);
            piece.push(*node);
        }
        pieces.push_back(piece);
        let first = pieces.pop_front().unwrap_or_default();
        self.pieces = pieces;
        first
    }

    fn take_changed(&mut self, limit: usize) -> Vec<NodeId> {
        let mut bytes = 0;
        let fits = |node: &&NodeId| {
            let fits = bytes < limit;
            bytes += self.facts.get(node).map_or(0, size);
            fits
        };
        self.changed.iter().take_while(fits).copied().collect()
    }
}

/// Roughly how many bytes a fact takes on the wire.
fn size(fact: &SessionFact) -> usize {
    let labels: usize = fact.labels.iter().map(|(k, v)| k.len() + v.len() + 4).sum();
    128 + fact.addr.len() + fact.release.len() + labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::fact;

    fn at(ms: u64) -> Moment {
        Moment(ms * 1000)
    }

    #[test]
    fn first_change_is_sent_at_once_and_later_ones_batched() {
        let config = SessionsConfig::default();
        let mut d = Digests::new(0);
        assert!(d.due(at(1), &config).unwrap().full);
        d.answered(at(1), 1, true, &config);
        d.set(fact(1).node, Some(fact(1)));
        assert_eq!(d.wake_at(), Some(at(21)), "the batch window after the previous digest");
        let first = d.due(at(30), &config).unwrap();
        assert!(!first.full && first.sessions.len() == 1);
        for n in 2..50 {
            d.set(fact(n).node, Some(fact(n)));
        }
        assert_eq!(d.due(at(60), &config), None, "one in flight at a time");
        d.answered(at(61), first.sequence, true, &config);
        let second = d.due(at(61), &config).unwrap();
        assert_eq!((second.sessions.len(), second.sequence), (48, first.sequence + 1));
    }

    #[test]
    fn another_leader_and_a_failure_lead_to_a_full_digest() {
        let config = SessionsConfig::default();
        let mut d = Digests::new(100);
        d.set(fact(1).node, Some(fact(1)));
        let first = d.due(at(1), &config).unwrap();
        d.answered(at(2), first.sequence, false, &config);
        assert_eq!(d.due(at(3), &config), None);
        let again = d.due(at(203), &config).unwrap();
        assert!(again.full && again.sessions.len() == 1);
        d.answered(at(204), again.sequence, true, &config);
        assert_eq!(d.due(at(300), &config), None);
        d.leader_changed();
        assert!(d.due(at(301), &config).unwrap().full);
    }

    #[test]
    fn ten_thousand_sessions_travel_in_pieces_that_fit_a_frame() {
        let config = SessionsConfig::default();
        let mut d = Digests::new(0);
        for n in 0..10_000 {
            d.set(fact(n).node, Some(fact(n)));
        }
        let (mut now, mut sent, mut fulls) = (1, 0, 0);
        while sent < 10_000 {
            let digest = d.due(at(now), &config).unwrap();
            assert!(muster_messages::wire::encode(&digest).unwrap().len() < 512 * 1024);
            sent += digest.sessions.len();
            fulls += usize::from(digest.full);
            d.answered(at(now), digest.sequence, true, &config);
            now += 20;
        }
        assert_eq!((sent, fulls), (10_000, 1));
        assert!(now < 1000, "{now} ms");
    }

    #[test]
    fn full_digest_is_sent_every_few_seconds() {
        let config = SessionsConfig::default();
        let mut d = Digests::new(0);
        let mut fulls = 0;
        for ms in 0..60_000 {
            if let Some(digest) = d.due(at(ms), &config) {
                fulls += usize::from(digest.full);
                d.answered(at(ms), digest.sequence, true, &config);
            }
        }
        assert_eq!(fulls, 12);
    }
}
