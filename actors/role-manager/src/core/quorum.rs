//! Who votes, who answered lately, and what a change would leave of the quorum.
//!
//! A voter answers if it acknowledged something within one election timeout: older news says nothing about whether
//! it would take part in the next commit or election. The leader itself always answers.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{ErrorBody, ErrorCode, NodeId, RaftId, Replica, Role, WaitReason};
use serde_json::json;

use super::{Config, Now};

/// One voter as the leader knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Voter {
    pub node: NodeId,
    pub name: String,
    pub answers: bool,
    pub matched: u64,
    /// It is to stay a manager.
    pub stays: bool,
}

/// The voters of the current configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Electorate {
    voters: BTreeMap<RaftId, Voter>,
    /// A leader younger than an election timeout has not heard everybody yet: silence proves nothing.
    fresh: bool,
}

/// Whether a membership change may happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Gate {
    Open,
    /// Not yet known: the leader is too young to take silence for absence.
    Undecided,
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
    /// As whoever asked sees it.
    pub fn to_error(&self) -> ErrorBody {
        let code = match self.reason {
            WaitReason::LastManager => ErrorCode::LastManager,
            _ => ErrorCode::QuorumAtRisk,
        };
        ErrorBody::new(code, self.message.clone()).with_details(&json!({
            "missing": self.missing, "needed": self.needed, "answering": self.answering,
        }))
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
    /// Reads the newest replica. `fresh_until` is when this leader has led for an election timeout.
    pub fn of(replica: &Replica, seen_at: Now, now: Now, fresh_until: Option<super::Moment>, config: &Config) -> Self {
        let age = now.at.since(seen_at.at);
        let mut voters = BTreeMap::new();
        for member in replica.tables.members.values().filter(|m| m.voter) {
            let progress = (replica.raft.progress.iter()).find(|p| p.raft_id == member.raft_id);
            let own = replica.raft.raft_id == Some(member.raft_id);
            let acked = progress.and_then(|p| p.acked_ago);
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
        Self { voters, fresh }
    }

    /// Voters that answer and stay managers, best heir first: the most caught-up one.
    pub fn heirs(&self, me: NodeId) -> Vec<NodeId> {
        let mut heirs: Vec<_> = (self.voters.iter()).filter(|(_, v)| v.answers && v.stays && v.node != me).collect();
        heirs.sort_by_key(|(id, v)| (std::cmp::Reverse(v.matched), **id));
        heirs.into_iter().map(|(_, v)| v.node).collect()
    }

    /// May anything be changed at all? The current configuration must be able to commit it.
    pub fn can_commit(&self, config: &Config) -> Gate {
        if config.skips_quorum_gate() {
            return Gate::Open;
        }
        let (answering, missing) = self.count(|_| true);
        let needed = majority(self.voters.len());
        if answering >= needed {
            return Gate::Open;
        }
        let message = format!(
            "no membership change can be agreed on: {needed} of {} managers must answer and {answering} \
             {}; missing: {}; bring one of them back first, or, if they are gone for good, stop this manager and start it with \
             `musterd --force-new-cluster` to go on without them",
            self.voters.len(),
            if answering == 1 { "does" } else { "do" },
            list(&missing),
        );
        self.closed(WaitReason::QuorumAtRisk, message, missing, needed, answering)
    }

    /// May this voter lose its seat for a while, to get another one? It stays a manager, so somebody else need not.
    pub fn can_spare(&self, whose: NodeId, name: &str, config: &Config) -> Gate {
        self.can_do_without(&BTreeSet::from([whose]), whose, name, false, config)
    }

    /// May `leaving` lose their seats? Judged against the current and the resulting configuration.
    /// `whose` is the node this is about; the others are gone already.
    pub fn can_lose(&self, leaving: &BTreeSet<NodeId>, whose: NodeId, name: &str, config: &Config) -> Gate {
        self.can_do_without(leaving, whose, name, true, config)
    }

    fn can_do_without(
        &self,
        leaving: &BTreeSet<NodeId>,
        whose: NodeId,
        name: &str,
        one_must_stay: bool,
        config: &Config,
    ) -> Gate {
        let gone = |v: &Voter| leaving.contains(&v.node);
        let left = self.voters.values().filter(|v| !gone(v)).count();
        let heir = self.voters.values().any(|v| !gone(v) && v.stays);
        if left == 0 || (one_must_stay && !heir) {
            let others = self.voters.values().filter(|v| v.node != whose).count();
            let message = if others == 0 {
                format!("{name} is the last manager; promote another node and let it join first")
            } else {
                format!(
                    "{name} would be the last manager: the others are leaving already; \
                     promote another node and let it join first"
                )
            };
            let (answering, missing) = self.count(|_| true);
            return Gate::Closed(Obstacle {
                reason: WaitReason::LastManager,
                message,
                missing,
                needed: majority(self.voters.len()),
                answering,
            });
        }
        match self.can_commit(config) {
            Gate::Open => {}
            closed => return closed,
        }
        let (answering, missing) = self.count(|v| !gone(v));
        let needed = majority(left);
        if answering >= needed || config.skips_quorum_gate() {
            return Gate::Open;
        }
        let also: Vec<String> =
            (self.voters.values()).filter(|v| gone(v) && v.node != whose).map(|v| v.name.clone()).collect();
        let counting = if also.is_empty() {
            String::new()
        } else {
            format!(" (counting that {} is leaving already)", list(&also))
        };
        let message = format!(
            "without {name} there would be {left} managers of which {needed} must answer, and \
             {answering} would{counting}; missing: {}; bring it back, or demote it first",
            list(&missing),
        );
        self.closed(WaitReason::QuorumAtRisk, message, missing, needed, answering)
    }

    /// May this learner become a voter? It answers; that is known by now.
    pub fn can_gain(&self, name: &str, config: &Config) -> Gate {
        match self.can_commit(config) {
            Gate::Open => {}
            closed => return closed,
        }
        let (answering, missing) = self.count(|_| true);
        let needed = majority(self.voters.len() + 1);
        if answering + 1 >= needed || config.skips_quorum_gate() {
            return Gate::Open;
        }
        let message = format!(
            "with {name} there would be {} managers of which {needed} must answer, and {} would; missing: {}",
            self.voters.len() + 1,
            answering + 1,
            list(&missing),
        );
        self.closed(WaitReason::QuorumAtRisk, message, missing, needed, answering)
    }

    fn closed(
        &self,
        reason: WaitReason,
        message: String,
        missing: Vec<String>,
        needed: usize,
        answering: usize,
    ) -> Gate {
        if self.fresh {
            return Gate::Undecided;
        }
        Gate::Closed(Obstacle { reason, message, missing, needed, answering })
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
