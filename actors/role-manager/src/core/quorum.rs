//! The voters, their recent acknowledgements, and the quorum that a change would leave.
//!
//! A voter answers if it acknowledged something within one election timeout: an older acknowledgement does not show that
//! it would take part in the next commit or election. The leader itself always answers. Recent acknowledgements suffice to
//! refuse a change. Allowing one that removes or adds a voter also requires a majority of the resulting voters to pass a
//! reachability check.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{Details, ErrorBody, ErrorCode, NodeId, RaftId, Replica, Role, WaitReason, counted, detail};

use super::reachability::{Checked, Required};
use super::{Config, Moment, Now};

/// One voter as the leader knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Voter {
    pub node: NodeId,
    pub name: String,
    pub answers: bool,
    pub matched: u64,
    /// Its desired role is manager.
    pub stays: bool,
}

/// The voters of the current configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Electorate {
    voters: BTreeMap<RaftId, Voter>,
    /// A leader younger than an election timeout lacks acknowledgements: silence proves nothing.
    fresh: bool,
    /// The reachability check that has just ended.
    checked: Option<Checked>,
    skips_gate: bool,
    trusts_recent_acks: bool,
}

/// Whether a membership change may happen.
#[derive(Clone, Debug, PartialEq)]
pub enum QuorumCheck {
    Open,
    /// Unknown: the leader is too young to take silence for absence.
    Undecided,
    /// Allowed by recent acknowledgements. These must respond first.
    Unconfirmed(Required),
    Closed(Obstacle),
}

/// Why not, and what would help.
#[derive(Clone, Debug, PartialEq)]
pub struct Obstacle {
    pub reason: WaitReason,
    pub message: String,
    /// Names of the voters that do not answer.
    pub missing: Vec<String>,
    pub needed: usize,
    pub answering: usize,
}

impl Obstacle {
    /// The error for the caller.
    pub fn to_error(&self) -> ErrorBody {
        let code = match self.reason {
            WaitReason::LastManager => ErrorCode::LastManager,
            _ => ErrorCode::QuorumAtRisk,
        };
        let details = Details::default().with(detail::MISSING_BY_NAME, &self.missing);
        let details = details.with(detail::NEEDED, &self.needed).with(detail::ANSWERING, &self.answering);
        ErrorBody::new(code, self.message.clone()).with_details(&details)
    }
}

fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

fn list(names: &[String]) -> String {
    match names {
        [] => "nobody".to_owned(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

impl Electorate {
    /// Reads the newest replica. `fresh_until` is when this leader will have led for an election timeout.
    pub fn of(
        replica: &Replica,
        seen_at: Now,
        now: Now,
        fresh_until: Option<Moment>,
        checked: Option<Checked>,
        config: &Config,
    ) -> Self {
        let age = now.at.since(seen_at.at);
        let mut voters = BTreeMap::new();
        for member in replica.tables.members.values().filter(|m| m.voter) {
            let progress = replica.raft.progress_of(member.raft_id);
            let own = replica.raft.raft_id == Some(member.raft_id);
            // A voter that answers but cannot follow commits nothing.
            let acked = progress.filter(|p| p.problem.is_none()).and_then(|p| p.acked_ago);
            let record = replica.tables.nodes.get(&member.node);
            let stays = record
                .is_some_and(|r| r.desired_role == Role::Manager && r.role == Role::Manager && r.removing.is_none());
            let voter = Voter {
                node: member.node,
                name: record.map_or_else(|| member.node.to_string(), |r| r.name.to_string()),
                answers: own || acked.is_some_and(|ago| ago + age <= config.election_timeout),
                matched: progress.map_or(0, |p| p.matched),
                stays,
            };
            voters.insert(member.raft_id, voter);
        }
        let fresh = fresh_until.is_some_and(|until| now.at < until);
        let (skips_gate, trusts_recent_acks) = (config.skips_quorum_gate(), config.trusts_recent_acks());
        Self { voters, fresh, checked, skips_gate, trusts_recent_acks }
    }

    /// Voters that answer and stay managers, best transfer target first: the most caught-up one.
    pub fn transfer_targets(&self, me: NodeId) -> Vec<NodeId> {
        let mut transfer_targets: Vec<_> =
            (self.voters.iter()).filter(|(_, v)| v.answers && v.stays && v.node != me).collect();
        transfer_targets.sort_by_key(|(id, v)| (std::cmp::Reverse(v.matched), **id));
        transfer_targets.into_iter().map(|(_, v)| v.node).collect()
    }

    /// Whether any change is possible. The current configuration must be able to commit it.
    pub fn can_commit(&self) -> QuorumCheck {
        if self.skips_gate {
            return QuorumCheck::Open;
        }
        let (answering, missing) = self.count(|_| true);
        let needed = majority(self.voters.len());
        if answering >= needed {
            return QuorumCheck::Open;
        }
        let message = format!(
            "no membership change can be committed: {needed} of {} managers must answer and {answering} \
             {}; missing: {}; retry while they restart, or bring one of them back; only if they are permanently lost, \
             stop this manager and start it with `musterd --force-new-cluster` to continue without them",
            self.voters.len(),
            if answering == 1 { "does" } else { "do" },
            list(&missing),
        );
        self.closed(WaitReason::QuorumAtRisk, message, missing, needed, answering)
    }

    /// Whether this voter may be removed for a while, to become a new member. It stays a manager, so no other node has to.
    pub fn can_replace(&self, whose: NodeId, name: &str, since: Moment) -> QuorumCheck {
        self.can_do_without(&BTreeSet::from([whose]), whose, name, false, since)
    }

    /// Whether `leaving` may be removed. Judged against the current and the resulting configuration. `whose` is the node
    /// in question; the others are leaving already. A reachability check is valid if it was requested at `since` or later.
    pub fn can_remove(&self, leaving: &BTreeSet<NodeId>, whose: NodeId, name: &str, since: Moment) -> QuorumCheck {
        self.can_do_without(leaving, whose, name, true, since)
    }

    fn can_do_without(
        &self,
        leaving: &BTreeSet<NodeId>,
        whose: NodeId,
        name: &str,
        one_must_stay: bool,
        since: Moment,
    ) -> QuorumCheck {
        let gone = |v: &Voter| leaving.contains(&v.node);
        let left = self.voters.values().filter(|v| !gone(v)).count();
        let manager_stays = self.voters.values().any(|v| !gone(v) && v.stays);
        if left == 0 || (one_must_stay && !manager_stays) {
            let others = self.voters.values().filter(|v| v.node != whose).count();
            let message = if others == 0 {
                format!("{name} is the last manager; promote another node and let it join first")
            } else {
                format!(
                    "{name} would be the last manager: the others are already leaving; \
                     promote another node and let it join first"
                )
            };
            let (answering, missing) = self.count(|_| true);
            return QuorumCheck::Closed(Obstacle {
                reason: WaitReason::LastManager,
                message,
                missing,
                needed: majority(self.voters.len()),
                answering,
            });
        }
        match self.can_commit() {
            QuorumCheck::Open => {}
            closed => return closed,
        }
        let after: BTreeMap<RaftId, &str> =
            self.voters.iter().filter(|(_, v)| !gone(v)).map(|(id, v)| (*id, v.name.as_str())).collect();
        let refuse = |answering: usize, missing: Vec<String>| {
            let needed = majority(left);
            let also: Vec<String> =
                (self.voters.values()).filter(|v| gone(v) && v.node != whose).map(|v| v.name.clone()).collect();
            let counting = if also.is_empty() {
                String::new()
            } else {
                format!(" (counting that {} is already leaving)", list(&also))
            };
            let message = format!(
                "without {name} there would be {} of which {needed} must answer, and \
                 {answering} would{counting}; missing: {}; bring it back, or demote it first",
                counted(left, "manager"),
                list(&missing),
            );
            self.closed(WaitReason::QuorumAtRisk, message, missing, needed, answering)
        };
        let (answering, missing) = self.count(|v| !gone(v));
        if answering < majority(left) && !self.skips_gate {
            return refuse(answering, missing);
        }
        self.confirmed(&after, since, refuse)
    }

    /// Whether this learner may become a voter.
    pub fn can_promote(&self, learner: RaftId, name: &str, since: Moment) -> QuorumCheck {
        match self.can_commit() {
            QuorumCheck::Open => {}
            closed => return closed,
        }
        let refuse = |answering: usize, missing: Vec<String>| {
            let needed = majority(self.voters.len() + 1);
            let message = format!(
                "with {name} there would be {} managers of which {needed} must answer, and {answering} would; missing: {}",
                self.voters.len() + 1,
                list(&missing),
            );
            self.closed(WaitReason::QuorumAtRisk, message, missing, needed, answering)
        };
        let (answering, missing) = self.count(|_| true);
        if answering + 1 < majority(self.voters.len() + 1) && !self.skips_gate {
            return refuse(answering + 1, missing);
        }
        let mut after: BTreeMap<RaftId, &str> = self.voters.iter().map(|(id, v)| (*id, v.name.as_str())).collect();
        after.insert(learner, name);
        self.confirmed(&after, since, refuse)
    }

    /// Whether a majority of the resulting voters passed a reachability check that was requested at `since` or later.
    fn confirmed(
        &self,
        after: &BTreeMap<RaftId, &str>,
        since: Moment,
        refuse: impl FnOnce(usize, Vec<String>) -> QuorumCheck,
    ) -> QuorumCheck {
        if self.skips_gate || self.trusts_recent_acks {
            return QuorumCheck::Open;
        }
        let needed = majority(after.len());
        let unconfirmed = || QuorumCheck::Unconfirmed(Required { members: after.keys().copied().collect(), needed });
        let Some(checked) = self.checked.as_ref().filter(|checked| since <= checked.since) else {
            return unconfirmed();
        };
        let is_missing = |id: &RaftId| !checked.reachable.contains(id);
        let missing: Vec<String> =
            after.iter().filter(|(id, _)| is_missing(id)).map(|(_, name)| (*name).to_owned()).collect();
        let reachable = after.len() - missing.len();
        if reachable >= needed {
            QuorumCheck::Open
        } else if checked.members.iter().eq(after.keys()) {
            refuse(reachable, missing)
        } else {
            unconfirmed() // the check was for another set of voters
        }
    }

    fn closed(
        &self,
        reason: WaitReason,
        message: String,
        missing: Vec<String>,
        needed: usize,
        answering: usize,
    ) -> QuorumCheck {
        if self.fresh {
            return QuorumCheck::Undecided;
        }
        QuorumCheck::Closed(Obstacle { reason, message, missing, needed, answering })
    }

    fn count(&self, counted: impl Fn(&Voter) -> bool) -> (usize, Vec<String>) {
        let mut missing = Vec::new();
        let mut answering = 0;
        for voter in self.voters.values().filter(|v| counted(v)) {
            if voter.answers {
                answering += 1;
            } else {
                missing.push(voter.name.clone());
            }
        }
        (answering, missing)
    }

    /// The nodes that vote.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.voters.values().map(|v| v.node)
    }
}
