//! What the role manager knows of a node beside the replicated state: dial-backs, lost data, a learner's progress.
//! All of it can be learnt again, at worst by the node asking again.

use std::collections::BTreeMap;

use muster_messages::wire::DataLoss;
use muster_messages::{Moment, NodeId, RaftId, Replica};
use serde::{Deserialize, Serialize};

use super::{Config, Now};

/// Notes about one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// The address it advertises was dialled back and the right node answered.
    pub proven: Option<Proven>,
    /// The last dial-back failed, and how.
    pub dial_back: Option<String>,
    /// The seat whose data it lost. Remembered until it holds another one.
    pub lost: Option<(RaftId, DataLoss)>,
    /// Its build does not support the cluster's feature level. Kept until a request or report of another build.
    pub too_old: Option<String>,
    /// Why its manager runtime does not run, as it reported. Kept until another report or a membership request.
    pub failure: Option<String>,
    /// Its progress as a learner.
    pub learner: Option<Learner>,
}

/// A successful dial-back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proven {
    pub addr: String,
    pub until: Moment,
}

/// A learner on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learner {
    pub raft_id: RaftId,
    /// The commit index when its seat was first seen: it must have at least this, so that an empty log in a young
    /// cluster does not pass for a complete one.
    pub target: u64,
    pub matched: u64,
    /// When it last acknowledged anything, or when its seat was first seen.
    pub heard: Moment,
    /// True once it has acknowledged anything.
    pub answered: bool,
    pub in_snapshot: bool,
}

impl Learner {
    pub(crate) fn caught_up(&self, commit: u64, now: Moment, config: &Config) -> bool {
        self.answered
            && !self.in_snapshot
            && now.since(self.heard) <= config.election_timeout
            && self.matched >= self.target
            && self.matched.saturating_add(config.catch_up_slack) >= commit
    }
}

impl Note {
    pub(crate) fn proven_at(&self, now: Moment) -> Option<&Proven> {
        self.proven.as_ref().filter(|p| now < p.until)
    }
    fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

/// All notes. A node without one has nothing to note.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Notes(BTreeMap<NodeId, Note>);

impl Notes {
    pub(crate) fn of(&self, node: NodeId) -> Note {
        self.0.get(&node).cloned().unwrap_or_default()
    }
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.0.keys().copied()
    }
    pub(crate) fn values(&self) -> impl Iterator<Item = &Note> {
        self.0.values()
    }
    pub(crate) fn edit(&mut self, node: NodeId, write: impl FnOnce(&mut Note)) {
        let note = self.0.entry(node).or_default();
        write(note);
        if note.is_blank() {
            self.0.remove(&node);
        }
    }

    /// Takes over what the newest replica says, and forgets what it made pointless.
    pub(crate) fn refresh(&mut self, replica: &Replica, now: Now) {
        let tables = &replica.tables;
        for member in tables.members.values() {
            let learner = (!member.voter).then(|| self.learner(replica, member, now));
            self.edit(member.node, |note| {
                note.learner = learner;
                note.dial_back = None;
                note.lost.take_if(|(seat, _)| *seat != member.raft_id);
                note.proven.take_if(|p| p.addr == member.addr);
            });
        }
        let seated: std::collections::BTreeSet<NodeId> = tables.members.values().map(|m| m.node).collect();
        for (node, note) in &mut self.0 {
            note.proven.take_if(|p| now.at >= p.until);
            if !seated.contains(node) {
                note.learner = None;
            }
        }
        let wanted = |node: &NodeId| {
            (tables.nodes.get(node))
                .is_some_and(|r| r.desired_role == muster_messages::Role::Manager && r.removing.is_none())
        };
        self.0.retain(|node, note| wanted(node) && !note.is_blank());
    }

    fn learner(&self, replica: &Replica, member: &muster_messages::Member, now: Now) -> Learner {
        let known = (self.0.get(&member.node)).and_then(|n| n.learner.clone()).filter(|l| l.raft_id == member.raft_id);
        let mut learner = known.unwrap_or(Learner {
            raft_id: member.raft_id,
            target: replica.raft.commit.0,
            matched: 0,
            heard: now.at,
            answered: false,
            in_snapshot: false,
        });
        let progress = replica.raft.progress.iter().find(|p| p.raft_id == member.raft_id);
        if let Some(progress) = progress {
            learner.matched = progress.matched;
            learner.in_snapshot = progress.in_snapshot;
            if let Some(ago) = progress.acked_ago {
                learner.answered = true;
                learner.heard = learner.heard.max(now.at - ago);
            }
        }
        learner
    }
}
