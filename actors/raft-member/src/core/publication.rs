//! Publication: the replica and the members that all others read, and when they get a newer one.
//!
//! Owns        the published replica, the published members, the time of the last publication, and how often a leader became known.
//! Inputs      the tables and the status after a turn.
//! Outputs     the replica and the members to publish.
//! Why not every status at once: acknowledgements change a leader's status with each turn. What others act on is published as soon
//! as it changes, the rest periodically.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::{Member, Moment, PeerProgress, RaftId, RaftRole, RaftStatus, Replica, Tables};

use super::Batch;

#[derive(Default)]
pub(crate) struct Publication {
    replica: Arc<Replica>,
    at: Option<Moment>,
    members: Option<(Vec<Member>, Option<RaftId>)>,
    leader_changes: u64,
}

impl Publication {
    /// The last published replica.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// How often a leader became known, also the former one after a time without any.
    pub fn leader_changes(&self) -> u64 {
        self.leader_changes
    }

    /// Publishes news at once. A leader publishes its peers' progress `every` so often.
    pub fn update(&mut self, now: Moment, tables: &Tables, status: RaftStatus, every: Duration, out: &mut Batch) {
        let age = self.at.map(|at| now.since(at));
        let news = tables.revision != self.replica.tables.revision || !same_main_fields(&status, &self.replica.raft);
        let due = status.role == RaftRole::Leader && age.is_some_and(|age| age >= every);
        if news || due || age.is_none() {
            self.at = Some(now);
            self.leader_changes += u64::from(status.leader.is_some() && status.leader != self.replica.raft.leader);
            self.replica = Arc::new(Replica { tables: tables.clone(), raft: status });
            out.publish = Some(Arc::clone(&self.replica));
            self.update_members(out);
        }
    }

    fn update_members(&mut self, out: &mut Batch) {
        let (own, members) = (self.replica.raft.raft_id, &self.replica.tables.members);
        let same = |(before, id): &(Vec<Member>, Option<RaftId>)| *id == own && before.iter().eq(members.values());
        if !self.members.as_ref().is_some_and(same) {
            self.members = Some((members.values().cloned().collect(), own));
            out.members.clone_from(&self.members);
        }
    }
}

/// Whether everything is equal that is published as soon as it changes; the rest is published periodically.
fn same_main_fields(a: &RaftStatus, b: &RaftStatus) -> bool {
    let own = |s: &RaftStatus| (s.raft_id, s.role, s.term, s.leader, s.leader_node, s.leading);
    own(a) == own(b) && a.silent == b.silent && peers(a).eq(peers(b))
}

fn peers(s: &RaftStatus) -> impl Iterator<Item = (RaftId, bool, bool, bool, bool, bool)> {
    // The leader waits for a learner to catch up: this is published at once, so that it becomes a voter without delay.
    let caught_up = |p: &PeerProgress| !p.voter && p.matched >= s.commit.0;
    s.progress
        .iter()
        .map(move |p| (p.raft_id, p.voter, p.in_snapshot, p.acked_ago.is_some(), caught_up(p), p.problem.is_some()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_messages::{Revision, Term};

    use super::*;

    fn leader(matched: u64) -> RaftStatus {
        let peer = PeerProgress {
            raft_id: RaftId(2),
            node: None,
            voter: true,
            matched,
            acked_ago: None,
            in_snapshot: false,
            problem: None,
        };
        RaftStatus { role: RaftRole::Leader, progress: vec![peer], ..RaftStatus::default() }
    }

    #[test]
    fn progress_waits_and_news_do_not() {
        let (mut publication, mut tables) = (Publication::default(), Tables::default());
        let every = Duration::from_millis(100);
        let mut published = |millis: u64, tables: &Tables, status: RaftStatus| {
            let mut out = Batch::default();
            publication.update(Moment(millis * 1_000), tables, status, every, &mut out);
            (out.publish.is_some(), out.members.is_some())
        };
        assert_eq!(published(0, &tables, RaftStatus::default()), (true, true), "the first");
        assert_eq!(published(1, &tables, leader(1)), (true, false), "it leads");
        assert_eq!(published(2, &tables, leader(2)), (false, false), "only progress");
        assert_eq!(published(101, &tables, leader(2)), (true, false), "periodically");
        tables.revision = Revision(1);
        assert_eq!(published(102, &tables, leader(2)), (true, false), "a newer state");
    }

    #[test]
    fn each_leader_that_becomes_known_is_counted_once() {
        let (mut publication, tables) = (Publication::default(), Tables::default());
        let mut counted = |leader: Option<u64>, term: u64| {
            let status = RaftStatus { leader: leader.map(RaftId), term: Term(term), ..RaftStatus::default() };
            publication.update(Moment(0), &tables, status, Duration::from_millis(100), &mut Batch::default());
            publication.leader_changes()
        };
        // Another notice about the same leader does not count as a change.
        let news = [(None, 0), (Some(1), 1), (Some(1), 2), (Some(2), 3), (None, 4), (Some(2), 5)];
        let counts = news.map(|(leader, term)| counted(leader, term));
        assert_eq!(counts, [0, 1, 1, 2, 2, 3]);
    }
}
