//! Peers: who of the others is there, by what was received from them.
//!
//! Owns        sessions, the last packet of each member id, acknowledgements while leading, when a leader was lost.
//! Inputs      sessions that begin and end, packets, acknowledgements, the beginning and the loss of leadership.
//! Outputs     which voters are silent, which answer the leader, where a member's packets go.
//! Why packets count by member id and not by node: an empty replica answers its leader before it knows the members. Each node has
//! at most one member id here, so that a peer cannot fill the map with invented ids.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::{Moment, NodeId, RaftId, Tables};

/// Ends when the node gets another member id.
struct Received {
    node: NodeId,
    at: Moment,
}

#[derive(Default)]
pub(crate) struct Peers {
    /// The nodes in session with this one.
    sessions: BTreeSet<NodeId>,
    /// The node that last sent packets for each member id, and when.
    last_received: BTreeMap<RaftId, Received>,
    /// When each peer last acknowledged something in the term that this member leads.
    acked: BTreeMap<u64, Moment>,
    led_since: Moment,
    /// When the last leader was lost, if there is none now.
    leaderless_since: Moment,
    /// The voters that had acknowledged nothing for an election timeout when this leader stepped down.
    lost_contact: Vec<u64>,
}

impl Peers {
    /// This node gets a member id. What other nodes sent to it counts further.
    pub fn start(&mut self, now: Moment) {
        self.acked.clear();
        self.lost_contact.clear();
        (self.led_since, self.leaderless_since) = (now, now);
    }
    pub fn session(&mut self, node: NodeId, up: bool) {
        if up {
            self.sessions.insert(node);
        } else {
            self.sessions.remove(&node);
        }
    }
    pub fn received(&mut self, now: Moment, member: RaftId, node: NodeId) {
        if self.last_received.get(&member).is_none_or(|before| before.node != node) {
            self.last_received.retain(|_, other| other.node != node);
        }
        self.last_received.insert(member, Received { node, at: now });
    }
    pub fn acknowledged(&mut self, now: Moment, id: u64) {
        self.acked.insert(id, now);
    }
    pub fn leads(&mut self, now: Moment) {
        self.led_since = now;
    }
    /// This member does not lead, or in another term: earlier acknowledgements say nothing.
    pub fn forget_acknowledgements(&mut self) {
        self.acked.clear();
    }
    /// The leader was lost. `led`: it was this member, of these voters.
    pub fn leader_lost(&mut self, now: Moment, own: RaftId, led: Option<&[u64]>, timeout: Duration) {
        self.leaderless_since = now;
        let lost = |id: &u64| *id != own.0 && !self.answers(now, *id, timeout);
        self.lost_contact = led.unwrap_or_default().iter().copied().filter(lost).collect();
    }

    /// The node of a member id, by its packets.
    pub fn node_of(&self, member: RaftId) -> Option<NodeId> {
        self.last_received.get(&member).map(|by| by.node)
    }
    /// Where a member's packets go. Without an address: into the session that the node opened.
    pub fn destination(&self, tables: &Tables, to: RaftId) -> Option<(NodeId, String)> {
        let known = tables.members.get(&to).map(|m| (m.node, m.addr.clone()));
        known.or_else(|| self.node_of(to).map(|node| (node, String::new())))
    }
    pub fn in_session(&self, node: NodeId) -> bool {
        self.sessions.contains(&node)
    }
    /// While leading: when this peer last acknowledged something.
    pub fn acked_at(&self, id: u64) -> Option<Moment> {
        self.acked.get(&id).copied()
    }
    /// While leading: whether this peer acknowledged something within `timeout`. A young leader gives each peer that time.
    pub fn answers(&self, now: Moment, id: u64, timeout: Duration) -> bool {
        now.since(self.acked_at(id).unwrap_or(self.led_since)) < timeout
    }
    /// Without a leader: the other voters that were silent for three election timeouts, because within two every live voter
    /// has campaigned; and those that a leader had lost contact with when it stepped down, until they send something.
    pub fn silent(&self, now: Moment, own: RaftId, voters: &[u64], timeout: Duration) -> Vec<u64> {
        let since = |id: u64| {
            let received = self.last_received.get(&RaftId(id)).map_or(self.leaderless_since, |by| by.at);
            received.max(self.leaderless_since)
        };
        let lost = |id: u64| since(id) == self.leaderless_since && self.lost_contact.contains(&id);
        let silent = |id: &u64| *id != own.0 && (lost(*id) || now.since(since(*id)) >= timeout * 3);
        voters.iter().copied().filter(silent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(600);
    const VOTERS: [u64; 3] = [1, 2, 3];

    fn at(millis: u64) -> Moment {
        Moment(0) + Duration::from_millis(millis)
    }
    fn node(n: u64) -> NodeId {
        NodeId::from_entropy(u128::from(n))
    }

    #[test]
    fn voter_is_silent_after_three_timeouts() {
        let mut peers = Peers::default();
        peers.start(at(0));
        peers.received(at(1_000), RaftId(2), node(2));
        let silent = |now: u64| peers.silent(at(now), RaftId(1), &VOTERS, TIMEOUT);
        assert_eq!((silent(1_799), silent(1_800), silent(2_800)), (vec![], vec![3], vec![2, 3]));
    }

    #[test]
    fn deposed_leader_knows_the_silent_voters_at_once() {
        let mut peers = Peers::default();
        peers.leads(at(0));
        peers.acknowledged(at(500), 2);
        peers.leader_lost(at(1_000), RaftId(1), Some(&VOTERS), TIMEOUT);
        assert_eq!(peers.silent(at(1_001), RaftId(1), &VOTERS, TIMEOUT), [3]);
        peers.received(at(1_002), RaftId(3), node(3));
        assert!(peers.silent(at(1_003), RaftId(1), &VOTERS, TIMEOUT).is_empty(), "it sent something");
    }

    #[test]
    fn young_leader_counts_every_peer_as_answering() {
        let mut peers = Peers::default();
        peers.leads(at(0));
        assert!(peers.answers(at(599), 2, TIMEOUT) && !peers.answers(at(600), 2, TIMEOUT));
        peers.acknowledged(at(600), 2);
        peers.forget_acknowledgements();
        assert_eq!(peers.acked_at(2), None);
    }

    #[test]
    fn node_has_one_member_id() {
        let mut peers = Peers::default();
        for id in 2..100 {
            peers.received(at(id), RaftId(id), node(2));
        }
        assert_eq!((peers.last_received.len(), peers.node_of(RaftId(99))), (1, Some(node(2))));
    }
}
