//! Publication: the replica and the members that all others read, and when they get a newer one.
//!
//! Owns        the published replicas, the published members, the time of the last publication, and how often a leader became known.
//! Inputs      the tables and the status after a turn.
//! Outputs     the replicas and the members to publish.
//! Why not every status at once: acknowledgements change a leader's status with each turn. What others act on is published as soon
//! as it changes, the rest periodically.
//! Why two replicas: most writes are those of leases, which most actors of a manager do not read. They follow the cluster's replica,
//! which is not replaced for commands about objects alone, except periodically: a write of a lease wakes none of them. Commands count,
//! and not what they changed: an actor whose command was repeated waits for its revision.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::{Member, Moment, PeerProgress, RaftId, RaftRole, RaftStatus, Replica, Tables};

use super::Batch;

#[derive(Default)]
pub(crate) struct Publication {
    replica: Arc<Replica>,
    at: Option<Moment>,
    /// The cluster's replica, and when it was published.
    cluster: Arc<Replica>,
    cluster_at: Option<Moment>,
    /// Entries that are not about objects alone were applied since.
    cluster_news: bool,
    members: Option<(Vec<Member>, Option<RaftId>)>,
    leader_changes: u64,
}

impl Publication {
    /// The last published replica.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// The last published one of the cluster.
    pub fn cluster_replica(&self) -> &Arc<Replica> {
        &self.cluster
    }

    /// How often a leader became known, also the former one after a time without any.
    pub fn leader_changes(&self) -> u64 {
        self.leader_changes
    }

    /// An entry was applied, or a snapshot installed.
    pub fn applied(&mut self, of_objects: bool) {
        self.cluster_news |= !of_objects;
    }

    /// Publishes news at once: a leader its peers' progress `every` so often, and to readers of the cluster's replica what they were
    /// not shown at once. That is with the status of this moment, because its readers count from when they see it.
    pub fn update(&mut self, now: Moment, tables: &Tables, status: RaftStatus, every: Duration, out: &mut Batch) {
        let is_due = |at: Option<Moment>| at.is_none_or(|at| now.since(at) >= every);
        let newer = tables.revision != self.replica.tables.revision;
        // The main fields are those of both: a change of them replaces both.
        let cluster_news = self.at.is_none() || self.cluster_news || !same_main_fields(&status, &self.cluster.raft);
        let cluster_lags = newer || !Arc::ptr_eq(&self.replica, &self.cluster);
        let cluster_due = cluster_lags && is_due(self.cluster_at);
        let due = status.role == RaftRole::Leader && (is_due(self.at) || cluster_due);
        if newer || cluster_news || due {
            self.at = Some(now);
            self.leader_changes += u64::from(status.leader.is_some() && status.leader != self.replica.raft.leader);
            self.replica = Arc::new(Replica { tables: tables.clone(), raft: status });
            out.publish = Some(Arc::clone(&self.replica));
            self.update_members(out);
        }
        if cluster_news || cluster_due || due {
            (self.cluster, self.cluster_at, self.cluster_news) = (Arc::clone(&self.replica), Some(now), false);
            out.publish_cluster = Some(Arc::clone(&self.cluster));
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

    use muster_messages::{NodeId, Revision, Term};

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

    const EVERY: Duration = Duration::from_millis(100);

    /// The revisions of the replica and of the cluster's replica that are published, and how many entries that one's status knows.
    fn published(publication: &mut Publication, millis: u64, revision: u64, status: RaftStatus) -> [Option<u64>; 3] {
        let (mut out, tables) = (Batch::default(), Tables { revision: Revision(revision), ..Tables::default() });
        publication.update(Moment(millis * 1_000), &tables, status, EVERY, &mut out);
        let matched = |replica: &Arc<Replica>| replica.raft.progress.first().map(|peer| peer.matched);
        let known = out.publish_cluster.as_ref().and_then(matched);
        let revision = |replica: Option<Arc<Replica>>| replica.map(|replica| replica.tables.revision.0);
        [revision(out.publish), revision(out.publish_cluster), known]
    }

    #[test]
    fn entries_about_objects_reach_the_cluster_replica_later() {
        let mut publication = Publication::default();
        let mut follower = |millis, revision, of_objects: &[bool]| {
            of_objects.iter().for_each(|of_objects| publication.applied(*of_objects));
            let [replica, cluster, _] = published(&mut publication, millis, revision, RaftStatus::default());
            (replica, cluster)
        };
        assert_eq!(follower(0, 0, &[]), (Some(0), Some(0)), "the first");
        assert_eq!(follower(1, 1, &[true]), (Some(1), None));
        assert_eq!(follower(2, 2, &[true]), (Some(2), None));
        assert_eq!(follower(99, 2, &[]), (None, None));
        assert_eq!(follower(100, 2, &[]), (None, Some(2)), "later, although nothing more is applied");
        assert_eq!(follower(300, 2, &[]), (None, None), "once");
        assert_eq!(follower(301, 3, &[true]), (Some(3), Some(3)), "the first for a long time waits for nothing");
        assert_eq!(follower(302, 6, &[true, false, true]), (Some(6), Some(6)), "one of them is about something else");
        assert_eq!(follower(303, 7, &[true]), (Some(7), None));
    }

    /// Its readers count from when they see a status how long ago a peer answered.
    #[test]
    fn cluster_replica_has_the_status_of_the_moment() {
        let mut publication = Publication::default();
        let mut leading = |millis, revision, matched| published(&mut publication, millis, revision, leader(matched));
        assert_eq!(leading(0, 0, 1), [Some(0), Some(0), Some(1)], "it leads");
        assert_eq!(leading(60, 1, 2), [Some(1), None, None], "a write about objects");
        assert_eq!(leading(100, 1, 3), [Some(1), Some(1), Some(3)], "both, with the newest status");
        assert_eq!(leading(180, 1, 4), [None, None, None]);
        assert_eq!(leading(200, 1, 5), [Some(1), Some(1), Some(5)], "periodically, and both at once");
        let mut silent = leader(6);
        silent.silent = vec![NodeId::from_entropy(2)];
        assert_eq!(published(&mut publication, 201, 1, silent), [Some(1), Some(1), Some(6)], "what others act on");
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
