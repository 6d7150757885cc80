//! The status that a member reports, and the reasons for its refusals.

use std::sync::Arc;

use muster_messages::protocol::{ProposeError, ReadError};
use muster_messages::{
    Moment, NodeId, PeerProblem, PeerProgress, RaftId, RaftRole, RaftStatus, Replica, Revision, Term,
};
use raft::{INVALID_ID, ProgressState, StateRole};

use super::internals::Internals;
use super::{Answer, RaftCore};

impl RaftCore {
    pub(super) fn publish(&mut self, now: Moment) {
        let status = self.status(now);
        let last = &self.replica;
        let age = self.published_at.map(|at| now.since(at));
        let news = self.tables.revision != last.tables.revision || !same_main_fields(&status, &last.raft);
        let due = status.role == RaftRole::Leader && age.is_some_and(|age| age >= self.config.publish_every);
        if news || due || age.is_none() {
            self.published_at = Some(now);
            self.replica = Arc::new(Replica { tables: self.tables.clone(), raft: status });
            self.out.publish = Some(Arc::clone(&self.replica));
            self.publish_members();
        }
    }

    fn publish_members(&mut self) {
        let own = self.replica.raft.raft_id;
        let same = self
            .published_members
            .as_ref()
            .is_some_and(|(m, member_id)| *member_id == own && m.iter().eq(self.tables.members.values()));
        if !same {
            let members = (self.tables.members.values().cloned().collect(), own);
            self.published_members = Some(members.clone());
            self.out.members = Some(members);
        }
    }

    /// The current status, not the published one.
    pub fn status(&self, now: Moment) -> RaftStatus {
        let Some(member) = &self.member else { return RaftStatus::default() };
        let raw = &member.raw;
        let leads = raw.leads();
        let leader = self.leader();
        RaftStatus {
            raft_id: Some(member.id).filter(|_| !member.removed),
            role: match raw.role() {
                StateRole::Follower => RaftRole::Follower,
                StateRole::PreCandidate => RaftRole::PreCandidate,
                StateRole::Candidate => RaftRole::Candidate,
                StateRole::Leader => RaftRole::Leader,
            },
            term: Term(raw.term()),
            leader,
            leader_node: leader.and_then(|l| self.node_of(l)),
            commit: Revision(raw.committed()),
            applied: self.tables.revision,
            leading: leads && raw.store().applied().term == raw.term(),
            progress: if leads { self.progress(now) } else { Vec::new() },
            silent: self.silent(now).filter_map(|id| self.node_of(RaftId(id))).collect(),
        }
    }

    /// The leader as far as this member knows. A member without a vote starts no election, and raft would name its last leader
    /// indefinitely: a leader that was silent for an election timeout is dropped.
    pub(super) fn leader(&self) -> Option<RaftId> {
        let raw = &self.member.as_ref()?.raw;
        let leader_silent = raw.role() == StateRole::Follower && !raw.promotable() && raw.passed_election_timeout();
        Some(RaftId(raw.leader_id())).filter(|leader| leader.0 != INVALID_ID && !leader_silent)
    }

    fn progress(&self, now: Moment) -> Vec<PeerProgress> {
        let Some(member) = &self.member else { return Vec::new() };
        let prs = member.raw.tracker();
        let mut sorted: Vec<(u64, &raft::Progress)> = prs.iter().map(|(id, pr)| (*id, pr)).collect();
        sorted.sort_unstable_by_key(|(id, _)| *id);
        let peer = |(id, pr): (u64, &raft::Progress)| PeerProgress {
            raft_id: RaftId(id),
            node: self.node_of(RaftId(id)),
            voter: prs.conf().voters().contains(id),
            matched: pr.matched,
            acked_ago: if id == member.id.0 {
                Some(std::time::Duration::ZERO)
            } else {
                member.acked.get(&id).map(|at| now.since(*at))
            },
            in_snapshot: pr.state == ProgressState::Snapshot,
            problem: self.problem_of(id),
        };
        sorted.into_iter().map(peer).collect()
    }

    /// Why a member that responds cannot follow.
    fn problem_of(&self, id: u64) -> Option<PeerProblem> {
        let member = self.member.as_ref()?;
        let diverged = self.divergence_of(id);
        diverged.or_else(|| member.transfers.problem(|at| self.wall_of(at), id))
    }

    /// Whether a member that responds can also follow the leader.
    pub(super) fn can_follow(&self, id: RaftId) -> bool {
        self.member.as_ref().is_some_and(|s| !s.transfers.has_problem(id.0) && !self.digests.is_diverged(id.0))
    }

    /// While there is no leader: the other voters that were silent for three election timeouts, because within two every live voter
    /// has campaigned; and those that a leader had lost contact with when it stepped down, until they send something.
    fn silent(&self, now: Moment) -> impl Iterator<Item = u64> {
        let long = self.config.election_timeout * 3;
        let leaderless = self.member.iter().filter(|member| member.raw.leader_id() == INVALID_ID);
        leaderless.flat_map(move |member| {
            let last_received =
                |id: &u64| self.last_received.get(&RaftId(*id)).map_or(member.leaderless_since, |by| by.at);
            let last_received = move |id: &u64| last_received(id).max(member.leaderless_since);
            let lost = move |id: &u64| last_received(id) == member.leaderless_since && member.lost_contact.contains(id);
            let voters = member.raw.store().conf().voters.iter().copied();
            voters.filter(move |id| *id != member.id.0 && (lost(id) || now.since(last_received(id)) >= long))
        })
    }

    /// Whether a quorum of the voters is reachable, and the nodes of those that are not. A leader counts recent acknowledgements,
    /// the others count sessions that carry packets.
    pub(super) fn missing_voters(&self, now: Moment) -> (bool, Vec<NodeId>) {
        let Some(member) = &self.member else { return (false, Vec::new()) };
        let voters = &member.raw.store().conf().voters;
        let leads = member.raw.leads();
        let fresh = self.config.election_timeout;
        let silent: Vec<u64> = self.silent(now).collect();
        let in_reach = |id: u64| {
            let last_received = || member.acked.get(&id).copied().unwrap_or(member.led_since);
            let in_session = || self.node_of(RaftId(id)).is_some_and(|n| self.sessions.contains(&n));
            let responds = || in_session() && !silent.contains(&id);
            id == member.id.0
                || if leads { now.since(last_received()) < fresh && self.can_follow(RaftId(id)) } else { responds() }
        };
        let missing: Vec<u64> = voters.iter().copied().filter(|id| !in_reach(*id)).collect();
        let quorum = (voters.len() - missing.len()) * 2 > voters.len();
        let mut nodes: Vec<NodeId> = missing.into_iter().filter_map(|id| self.node_of(RaftId(id))).collect();
        nodes.sort_unstable();
        (quorum, nodes)
    }

    /// Why this member refuses a proposal.
    pub(super) fn not_leader(&self, now: Moment) -> ProposeError {
        let leader = self.leader();
        let node = leader.and_then(|leader| self.node_of(leader));
        let waits = leader.is_none() && self.member.as_ref().is_some_and(|s| !s.removed);
        match self.missing_voters(now) {
            (false, missing) if waits => ProposeError::NoQuorum { missing },
            _ => ProposeError::NotLeader { leader: node },
        }
    }

    /// Ends proposals and reads past their deadlines.
    pub(super) fn expire(&mut self, now: Moment) {
        let (proposals, reads, _) = self.in_flight();
        if proposals + reads == 0 {
            return;
        }
        let (quorum, missing) = self.missing_voters(now);
        let leaderless = self.leader().is_none();
        // Only a proposal that never entered the log is refused for lack of a quorum: another leader may commit the others.
        let late = || if quorum { ProposeError::TimedOut } else { ProposeError::NoQuorum { missing: missing.clone() } };
        self.proposals.expire(now, late, &mut self.out.answers);
        let why = match (leaderless, quorum) {
            (_, false) if leaderless || self.leads() => ReadError::NoQuorum { missing },
            (true, _) => ReadError::NoLeader,
            _ => ReadError::TimedOut,
        };
        let expired = self.reads.take_expired(now);
        self.out.answers.extend(expired.into_iter().map(|ask| Answer::Read(ask, Err(why.clone()))));
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
