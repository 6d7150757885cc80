//! The status that a member reports, and the reasons for its refusals.

use muster_messages::protocol::{ProposeError, ReadError};
use muster_messages::{Moment, NodeId, PeerProblem, PeerProgress, RaftId, RaftRole, RaftStatus, Revision, Term};
use raft::{INVALID_ID, ProgressState, StateRole};

use super::internals::Internals;
use super::{Answer, RaftCore};

impl RaftCore {
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
            applied: self.state.tables().revision,
            leading: leads && raw.store().applied().term == raw.term(),
            progress: if leads { self.progress(now) } else { Vec::new() },
            silent: self.silent(now).into_iter().filter_map(|id| self.node_of(RaftId(id))).collect(),
        }
    }

    /// How many voters come before this one where each does something in turn.
    pub fn place_among_voters(&self) -> u32 {
        let Some(member) = &self.member else { return 0 };
        let voters = self.tables().members.iter().filter(|(_, other)| other.voter).map(|(id, _)| *id);
        place(member.id, self.leader(), voters)
    }

    /// The leader as far as this member knows.
    pub(super) fn leader(&self) -> Option<RaftId> {
        self.member.as_ref()?.leader()
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
                self.peers.acked_at(id).map(|at| now.since(at))
            },
            in_snapshot: pr.state == ProgressState::Snapshot,
            problem: self.problem_of(id),
        };
        sorted.into_iter().map(peer).collect()
    }

    /// Why a member that responds cannot follow.
    fn problem_of(&self, id: u64) -> Option<PeerProblem> {
        let member = self.member.as_ref()?;
        let wall = |at| self.wall_of(at);
        self.digests.problem(wall, id).or_else(|| member.transfers.problem(wall, id))
    }

    /// Whether a member that responds can also follow the leader.
    pub(super) fn can_follow(&self, id: RaftId) -> bool {
        self.member.as_ref().is_some_and(|s| !s.transfers.has_problem(id.0) && !self.digests.is_diverged(id.0))
    }

    /// Without a leader: the voters that are silent.
    fn silent(&self, now: Moment) -> Vec<u64> {
        let leaderless = self.member.as_ref().filter(|member| member.raw.leader_id() == INVALID_ID);
        leaderless.map_or_else(Vec::new, |member| {
            self.peers.silent(now, member.id, member.voters(), self.config.election_timeout)
        })
    }

    /// Whether a quorum of the voters is reachable, and the nodes of those that are not. A leader counts recent acknowledgements,
    /// the others count sessions that carry packets.
    pub(super) fn missing_voters(&self, now: Moment) -> (bool, Vec<NodeId>) {
        let Some(member) = &self.member else { return (false, Vec::new()) };
        let voters = member.voters();
        let leads = member.raw.leads();
        let timeout = self.config.election_timeout;
        let silent = self.silent(now);
        let in_reach = |id: u64| {
            let in_session = || self.node_of(RaftId(id)).is_some_and(|n| self.peers.in_session(n));
            let responds = || in_session() && !silent.contains(&id);
            id == member.id.0
                || if leads { self.peers.answers(now, id, timeout) && self.can_follow(RaftId(id)) } else { responds() }
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

/// By their ids, and the leader last: while it is busy, the others are not.
fn place(own: RaftId, leader: Option<RaftId>, voters: impl Iterator<Item = RaftId>) -> u32 {
    let order = |id: RaftId| (Some(id) == leader, id);
    let before = voters.filter(|id| order(*id) < order(own)).count();
    u32::try_from(before).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voters_take_turns_and_the_leader_is_last() {
        let voters = || [2, 4, 5].map(RaftId).into_iter();
        for (leader, places) in [(None, [0, 1, 2]), (Some(RaftId(2)), [2, 0, 1]), (Some(RaftId(4)), [0, 2, 1])] {
            let found: Vec<u32> = voters().map(|own| place(own, leader, voters())).collect();
            assert_eq!(found, places, "{leader:?}");
        }
        assert_eq!(place(RaftId(9), None, [RaftId(9)].into_iter()), 0);
    }
}
