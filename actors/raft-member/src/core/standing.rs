//! What a member says about itself, and why it must refuse.

use std::sync::Arc;

use muster_messages::protocol::{ProposeError, ReadError};
use muster_messages::{
    Moment, NodeId, PeerProblem, PeerProgress, RaftId, RaftRole, RaftStatus, Replica, Revision, Term,
};
use raft::{INVALID_ID, ProgressState, StateRole};

use super::{Answer, RaftCore};

impl RaftCore {
    pub(super) fn publish(&mut self, now: Moment) {
        let status = self.status(now);
        let last = &self.replica;
        let age = self.published_at.map(|at| now.since(at));
        let news = self.tables.revision != last.tables.revision || !same_essence(&status, &last.raft);
        let due = status.role == RaftRole::Leader && age.is_some_and(|age| age >= self.config.publish_every);
        if news || due || age.is_none() {
            self.published_at = Some(now);
            self.replica = Arc::new(Replica { tables: self.tables.clone(), raft: status });
            self.out.publish = Some(Arc::clone(&self.replica));
            self.tell_members();
        }
    }

    fn tell_members(&mut self) {
        let own = self.replica.raft.raft_id;
        let same = self
            .told_members
            .as_ref()
            .is_some_and(|(m, seat)| *seat == own && m.iter().eq(self.tables.members.values()));
        if !same {
            let members = (self.tables.members.values().cloned().collect(), own);
            self.told_members = Some(members.clone());
            self.out.members = Some(members);
        }
    }

    /// As of now, not as published.
    pub fn status(&self, now: Moment) -> RaftStatus {
        let Some(seat) = &self.seat else { return RaftStatus::default() };
        let raft = &seat.raw.raft;
        let leads = raft.state == StateRole::Leader;
        let leader = self.leader();
        RaftStatus {
            raft_id: Some(seat.id).filter(|_| !seat.removed),
            role: match raft.state {
                StateRole::Follower => RaftRole::Follower,
                StateRole::PreCandidate => RaftRole::PreCandidate,
                StateRole::Candidate => RaftRole::Candidate,
                StateRole::Leader => RaftRole::Leader,
            },
            term: Term(raft.term),
            leader,
            leader_node: leader.and_then(|l| self.node_of(l)),
            commit: Revision(raft.raft_log.committed),
            applied: self.tables.revision,
            leading: leads && seat.raw.store().applied().term == raft.term,
            progress: if leads { self.progress(now) } else { Vec::new() },
            silent: self.silent(now).filter_map(|id| self.node_of(RaftId(id))).collect(),
        }
    }

    /// Who leads, as far as this member knows. One that has no vote calls no election, and raft would believe in its last leader
    /// for ever: whoever was not heard for an election timeout leads it no more.
    pub(super) fn leader(&self) -> Option<RaftId> {
        let raft = &self.seat.as_ref()?.raw.raft;
        let deaf = raft.state == StateRole::Follower && !raft.promotable() && raft.pass_election_timeout();
        Some(RaftId(raft.leader_id)).filter(|leader| leader.0 != INVALID_ID && !deaf)
    }

    fn progress(&self, now: Moment) -> Vec<PeerProgress> {
        let Some(seat) = &self.seat else { return Vec::new() };
        let prs = seat.raw.raft.prs();
        let mut sorted: Vec<(u64, &raft::Progress)> = prs.iter().map(|(id, pr)| (*id, pr)).collect();
        sorted.sort_unstable_by_key(|(id, _)| *id);
        let peer = |(id, pr): (u64, &raft::Progress)| PeerProgress {
            raft_id: RaftId(id),
            node: self.node_of(RaftId(id)),
            voter: prs.conf().voters().contains(id),
            matched: pr.matched,
            acked_ago: if id == seat.id.0 {
                Some(std::time::Duration::ZERO)
            } else {
                seat.acked.get(&id).map(|at| now.since(*at))
            },
            in_snapshot: pr.state == ProgressState::Snapshot,
            problem: self.problem_of(id),
        };
        sorted.into_iter().map(peer).collect()
    }

    /// Why a member that answers cannot follow.
    fn problem_of(&self, id: u64) -> Option<PeerProblem> {
        let seat = self.seat.as_ref()?;
        let diverged = self.divergence_of(id);
        diverged.or_else(|| seat.transfers.problem(|at| self.wall_of(at), id))
    }

    /// Whether a member that answers follows the leader as well.
    pub(super) fn can_follow(&self, id: RaftId) -> bool {
        self.seat.as_ref().is_some_and(|s| !s.transfers.has_problem(id.0) && !self.digests.is_diverged(id.0))
    }

    /// Without a leader: the other voters that have said nothing for three election timeouts, because within two each has campaigned
    /// that lives; and those that a leader had lost touch with when it stepped down, until something is heard of them.
    fn silent(&self, now: Moment) -> impl Iterator<Item = u64> {
        let long = self.config.election_timeout * 3;
        let leaderless = self.seat.iter().filter(|seat| seat.raw.raft.leader_id == INVALID_ID);
        leaderless.flat_map(move |seat| {
            let heard = |id: &u64| self.heard.get(&RaftId(*id)).map_or(seat.leaderless_since, |by| by.at);
            let heard = move |id: &u64| heard(id).max(seat.leaderless_since);
            let lost = move |id: &u64| heard(id) == seat.leaderless_since && seat.lost_touch.contains(id);
            let voters = seat.raw.store().conf().voters.iter().copied();
            voters.filter(move |id| *id != seat.id.0 && (lost(id) || now.since(heard(id)) >= long))
        })
    }

    /// Whether a quorum of the voters is in reach, and the nodes of those that are not. A leader counts recent
    /// acknowledgements, the others count sessions in which something is heard.
    pub(super) fn missing_voters(&self, now: Moment) -> (bool, Vec<NodeId>) {
        let Some(seat) = &self.seat else { return (false, Vec::new()) };
        let voters = &seat.raw.store().conf().voters;
        let leads = seat.raw.raft.state == StateRole::Leader;
        let fresh = self.config.election_timeout;
        let silent: Vec<u64> = self.silent(now).collect();
        let in_reach = |id: u64| {
            let heard = || seat.acked.get(&id).copied().unwrap_or(seat.led_since);
            let in_session = || self.node_of(RaftId(id)).is_some_and(|n| self.sessions.contains(&n));
            let speaks = || in_session() && !silent.contains(&id);
            id == seat.id.0 || if leads { now.since(heard()) < fresh && self.can_follow(RaftId(id)) } else { speaks() }
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
        let waits = leader.is_none() && self.seat.as_ref().is_some_and(|s| !s.removed);
        match self.missing_voters(now) {
            (false, missing) if waits => ProposeError::NoQuorum { missing },
            _ => ProposeError::NotLeader { leader: node },
        }
    }

    /// Ends what waited too long.
    pub(super) fn expire(&mut self, now: Moment) {
        let (proposals, reads, _) = self.in_flight();
        if proposals + reads == 0 {
            return;
        }
        let (quorum, missing) = self.missing_voters(now);
        let leaderless = self.leader().is_none();
        // Only what never entered the log is refused for the lack of a quorum: the rest may be committed by another leader.
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

/// Whether nothing differs that is news as soon as it changes; the rest is published now and then.
fn same_essence(a: &RaftStatus, b: &RaftStatus) -> bool {
    let own = |s: &RaftStatus| (s.raft_id, s.role, s.term, s.leader, s.leader_node, s.leading);
    own(a) == own(b) && a.silent == b.silent && peers(a).eq(peers(b))
}

fn peers(s: &RaftStatus) -> impl Iterator<Item = (RaftId, bool, bool, bool, bool, bool)> {
    // A learner that has caught up is waited for: it becomes a voter at once, not with the next regular publication.
    let caught_up = |p: &PeerProgress| !p.voter && p.matched >= s.commit.0;
    s.progress
        .iter()
        .map(move |p| (p.raft_id, p.voter, p.in_snapshot, p.acked_ago.is_some(), caught_up(p), p.problem.is_some()))
}
