//! The role manager's annotations of nodes beside the replicated state: dial-backs, lost data, a learner's progress. All
//! can be learned again, at worst when the node asks again.
//!
//! Owns        one annotation for each node that has any.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::DataLoss;
use muster_messages::{Moment, NodeId, RaftId, Replica};
use serde::{Deserialize, Serialize};

use super::{Config, Now};

/// The annotations of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The advertised address was dialled back and the right node answered.
    pub proven: Option<Proven>,
    /// The error of the last dial-back, if it failed.
    pub dial_back: Option<String>,
    /// The member id whose data it lost. Kept until it holds another one.
    pub lost: Option<(RaftId, DataLoss)>,
    /// Its build does not support the cluster's feature level. Kept until a request or report of another build.
    pub too_old: Option<String>,
    /// Why its manager runtime does not run, as it reported. Kept until another report or a membership request.
    pub failure: Option<String>,
    /// When a request or report last gave one of these two reasons. A member that takes part long after it has neither: the message was
    /// a former process', and came late.
    pub absent_at: Option<Moment>,
    /// Its progress as a learner.
    pub learner: Option<Learner>,
    /// The dial before its request, once for each certificate.
    pub early_dial: Option<EarlyDial>,
}

/// A manager runtime that cannot take part says so again within this: a request every 15 s, a report every 5 s.
const REPEATED_WITHIN: Duration = Duration::from_secs(20);

/// The leader dials a newly certified manager before its request arrives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlyDial {
    /// Of the certificate.
    pub serial: String,
    /// What became of it.
    pub phase: EarlyDialPhase,
}

/// The phases of an early dial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EarlyDialPhase {
    /// It begins at this time, unless the node asks before.
    Due(Moment),
    /// It is in progress, failed, or was not needed.
    Over,
    /// It found the node, which counts as a dial-back once the node asks.
    Found(Proven),
}

/// A node answered at its address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proven {
    /// The address, `host:port`.
    pub addr: String,
    /// The proof counts until then.
    pub until: Moment,
}

/// A learner on its way to voter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learner {
    /// Its member id.
    pub raft_id: RaftId,
    /// The commit index when its membership was first seen: the learner must have at least this, so that an empty log in a
    /// young cluster does not pass for a complete one.
    pub target: u64,
    /// The newest entry that it has acknowledged.
    pub matched: u64,
    /// When it last acknowledged anything, or when its membership was first seen.
    pub last_ack: Moment,
    /// True once it has acknowledged anything.
    pub answered: bool,
    /// Whether it is receiving a snapshot.
    pub in_snapshot: bool,
}

/// When a member last took part, as far as this leader knows: it acknowledged something that it can follow.
fn took_part_at(replica: &Replica, raft_id: RaftId, now: Now) -> Option<Moment> {
    if replica.raft.raft_id == Some(raft_id) {
        return Some(now.at);
    }
    let progress = replica.raft.progress_of(raft_id).filter(|p| p.problem.is_none())?;
    Some(now.at - progress.acked_ago?)
}

impl Learner {
    pub(crate) fn caught_up(&self, commit: u64, now: Moment, config: &Config) -> bool {
        self.answered
            && !self.in_snapshot
            && now.since(self.last_ack) <= config.election_timeout
            && self.matched >= self.target
            && self.matched.saturating_add(config.catch_up_slack) >= commit
    }
}

impl Observation {
    pub(crate) fn proven_at(&self, now: Moment) -> Option<&Proven> {
        self.proven.as_ref().filter(|p| now < p.until)
    }
    /// When to dial it early.
    pub(crate) fn early_dial_at(&self) -> Option<Moment> {
        match self.early_dial.as_ref()?.phase {
            EarlyDialPhase::Due(at) => Some(at),
            EarlyDialPhase::Over | EarlyDialPhase::Found(_) => None,
        }
    }
    /// It was found at this address before it asked.
    pub(crate) fn found_early(&self, now: Moment, addr: &str) -> Option<&Proven> {
        match &self.early_dial.as_ref()?.phase {
            EarlyDialPhase::Found(proven) => Some(proven).filter(|p| now < p.until && p.addr == addr),
            EarlyDialPhase::Due(_) | EarlyDialPhase::Over => None,
        }
    }
    fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

/// All annotations. A node without one has no entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observations(BTreeMap<NodeId, Observation>);

impl Observations {
    pub(crate) fn of(&self, node: NodeId) -> Observation {
        self.0.get(&node).cloned().unwrap_or_default()
    }
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.0.keys().copied()
    }
    pub(crate) fn values(&self) -> impl Iterator<Item = &Observation> {
        self.0.values()
    }
    pub(crate) fn edit(&mut self, node: NodeId, write: impl FnOnce(&mut Observation)) {
        let observation = self.0.entry(node).or_default();
        write(observation);
        if observation.is_blank() {
            self.0.remove(&node);
        }
    }

    /// Records the newest replica's facts, and drops annotations that it makes obsolete.
    pub(crate) fn refresh(&mut self, replica: &Replica, now: Now) {
        let tables = &replica.tables;
        for member in tables.members.values() {
            let learner = (!member.voter).then(|| self.learner(replica, member, now));
            let took_part = took_part_at(replica, member.raft_id, now);
            self.edit(member.node, |observation| {
                observation.learner = learner;
                if observation.absent_at.is_some_and(|at| took_part.is_some_and(|took| took > at + REPEATED_WITHIN)) {
                    (observation.too_old, observation.failure, observation.absent_at) = (None, None, None);
                }
                observation.dial_back = None;
                observation.early_dial.take_if(|_| member.voter);
                observation.lost.take_if(|(lost_id, _)| *lost_id != member.raft_id);
                observation.proven.take_if(|p| p.addr == member.addr);
            });
        }
        let member_nodes: std::collections::BTreeSet<NodeId> = tables.members.values().map(|m| m.node).collect();
        for (node, observation) in &mut self.0 {
            observation.proven.take_if(|p| now.at >= p.until);
            if !member_nodes.contains(node) {
                observation.learner = None;
            }
        }
        let wanted = |node: &NodeId| {
            (tables.nodes.get(node))
                .is_some_and(|r| r.desired_role == muster_messages::Role::Manager && r.removing.is_none())
        };
        self.0.retain(|node, observation| wanted(node) && !observation.is_blank());
    }

    fn learner(&self, replica: &Replica, member: &muster_messages::Member, now: Now) -> Learner {
        let known = (self.0.get(&member.node)).and_then(|n| n.learner.clone()).filter(|l| l.raft_id == member.raft_id);
        let mut learner = known.unwrap_or(Learner {
            raft_id: member.raft_id,
            target: replica.raft.commit.0,
            matched: 0,
            last_ack: now.at,
            answered: false,
            in_snapshot: false,
        });
        if let Some(progress) = replica.raft.progress_of(member.raft_id) {
            learner.matched = progress.matched;
            learner.in_snapshot = progress.in_snapshot;
            if let Some(ago) = progress.acked_ago {
                learner.answered = true;
                learner.last_ack = learner.last_ack.max(now.at - ago);
            }
        }
        learner
    }
}
