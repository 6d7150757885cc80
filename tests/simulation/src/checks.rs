//! The invariants, checked after every step of every member. `docs/invariants.md` defines them.

use std::collections::BTreeMap;

use muster_messages::{
    Event, EventKind, IDENTITY_LEVEL, Incarnation, MembershipChangeKind, NodeId, Principal, RaftId, Revision, Role,
    Tables, WallTime,
};
use muster_store::invariants::{self, Broken, CERT_1, RAFTID_1};

use crate::blocks;
use crate::fleet;
use crate::machine::MachineIdx;
use crate::model::Model;
use crate::recoveries::RECOVER_3;

pub const LEADER_1: &str = "LEADER-1";
pub const WRITE_1: &str = "WRITE-1";
pub const READ_1: &str = "READ-1";
pub const INTENT_1: &str = "INTENT-1";
pub const PROPOSE_1: &str = "PROPOSE-1";
pub const QUORUM_1: &str = "QUORUM-1";
pub const APPLY_1: &str = "APPLY-1";
pub const NOTIFY_1: &str = "NOTIFY-1";
pub const DOWN_1: &str = "DOWN-1";
pub const MEMBER_2: &str = "MEMBER-2";
pub const EVENT_1: &str = "EVENT-1";
pub const CONVERGE_1: &str = "CONVERGE-1";

/// Every this many revisions two states of one revision are compared in full; their small tables are always compared.
const FULL_COMPARISON_EVERY: u64 = 32;

pub type CheckResult = Result<(), Broken>;

pub fn violation(name: &'static str, detail: impl Into<String>) -> Broken {
    Broken { name, detail: detail.into() }
}

/// Everything observed so far in the simulation.
#[derive(Default)]
pub struct Checks {
    /// The state at every revision at which a member's step ended.
    states: BTreeMap<Revision, Tables>,
    leaders: BTreeMap<u64, (MachineIdx, u32)>,
    owners: BTreeMap<RaftId, NodeId>,
    /// The role written at each grant revision.
    grants: BTreeMap<(NodeId, Revision), Role>,
    /// Expiry of the newest certificate ever issued to a node.
    signed: BTreeMap<NodeId, WallTime>,
    /// How many events of each sort are kept.
    events: usize,
    /// Of the newest recovery. States that older members still apply belong to another history.
    incarnation: Incarnation,
    /// The greatest revision that any member had before the last recovery.
    before_recovery: Revision,
    /// Observed membership changes.
    pub changes: Vec<MembershipChangeKind>,
}

impl Checks {
    /// `events`: how many events of each sort are kept.
    pub fn new(events: usize) -> Self {
        Self { events, ..Self::default() }
    }

    /// The newest state that any member has applied.
    pub fn newest(&self) -> Option<&Tables> {
        self.states.last_key_value().map(|(_, tables)| tables)
    }

    /// Starts another history with this state. RECOVER-3: no revision of it repeats one of an earlier history.
    pub fn recovered(&mut self, tables: &Tables) -> CheckResult {
        let newest = self.states.last_key_value().map_or(Revision(0), |(revision, _)| *revision);
        self.before_recovery = self.before_recovery.max(newest);
        self.incarnation = incarnation_of(tables);
        self.states.clear();
        self.leaders.clear();
        self.changes.clear();
        self.check_after_recovery(tables.revision)?;
        invariants::check(tables)?;
        self.check_owners(tables)?;
        self.states.insert(tables.revision, tables.clone());
        Ok(())
    }

    fn check_after_recovery(&self, at: Revision) -> CheckResult {
        if at > self.before_recovery {
            return Ok(());
        }
        let detail =
            format!("revision {at} follows a recovery, but revision {} existed before it", self.before_recovery);
        Err(violation(RECOVER_3, detail))
    }

    fn check_owners(&mut self, tables: &Tables) -> CheckResult {
        for (member_id, member) in &tables.members {
            let owner = *self.owners.entry(*member_id).or_insert(member.node);
            if owner != member.node {
                return Err(violation(
                    RAFTID_1,
                    format!("member id {member_id} belonged to {owner} and now belongs to {}", member.node),
                ));
            }
        }
        Ok(())
    }

    /// Whether a member has become the leader of a later term, which this one may not have noticed.
    pub fn is_replaced(&self, term: u64) -> bool {
        self.leaders.range(term + 1..).next().is_some()
    }

    /// LEADER-1: a term has one leader, and a crashed leader does not lead its term again.
    pub fn leads(&mut self, term: u64, idx: MachineIdx, runtime: u32) -> CheckResult {
        let first = *self.leaders.entry(term).or_insert((idx, runtime));
        if first == (idx, runtime) {
            return Ok(());
        }
        Err(violation(LEADER_1, format!("term {term} is led by n{} and by n{}", first.0 + 1, idx + 1)))
    }

    /// A member has applied up to this state.
    pub fn applied(&mut self, tables: &Tables, model: &Model, today: WallTime) -> CheckResult {
        if incarnation_of(tables) < self.incarnation {
            return Ok(());
        }
        let at = tables.revision;
        if let Some(known) = self.states.get(&at) {
            return same(known, tables);
        }
        self.check_after_recovery(at)?;
        invariants::check(tables)?;
        let before = self.states.range(..at).next_back().map(|(_, t)| t);
        let after = self.states.range(at..).next().map(|(_, t)| t);
        if let Some(before) = before {
            step(before, tables, model)?;
            events_stay(before, tables, self.events)?;
            blocks::outlives(before, tables, &self.signed, today)?;
        }
        if let Some(after) = after {
            step(tables, after, model)?;
            events_stay(tables, after, self.events)?;
        } else if let Some(before) = before {
            self.changes.extend(membership_changes(before, tables));
        }
        self.check_owners(tables)?;
        for (id, node) in &tables.nodes {
            let role = *self.grants.entry((*id, node.granted)).or_insert(node.role);
            if role != node.role {
                let at = node.granted;
                return Err(violation(APPLY_1, format!("{id} was granted {role} and {} at {at}", node.role)));
            }
        }
        self.states.insert(at, tables.clone());
        Ok(())
    }

    /// MEMBER-2: the Raft configuration equals the applied membership changes.
    pub fn configured(&self, tables: &Tables, (voters, learners): (Vec<u64>, Vec<u64>)) -> CheckResult {
        let raft_ids = |voter| tables.members.values().filter(move |m| m.voter == voter).map(|m| m.raft_id.0);
        if voters.iter().copied().eq(raft_ids(true)) && learners.iter().copied().eq(raft_ids(false)) {
            return Ok(());
        }
        let detail = format!("raft has {voters:?} and {learners:?}, the tables have {:?}", tables.members);
        Err(violation(MEMBER_2, detail))
    }

    /// CERT-1: a certificate that reached its node carries the role written at its grant revision.
    pub fn certified(&self, node: NodeId, role: Role, granted: Revision) -> CheckResult {
        match self.grants.get(&(node, granted)) {
            Some(written) if *written != role => Err(violation(
                CERT_1,
                format!("{node} received a certificate with role {role}, but was granted {written} at {granted}"),
            )),
            _ => Ok(()),
        }
    }

    /// A certificate is handed out.
    pub fn signed(&mut self, node: NodeId, not_after: WallTime) {
        let newest = self.signed.entry(node).or_insert(not_after);
        *newest = not_after.max(*newest);
    }

    /// NOTIFY-1: a node is informed of a demotion or removal only if some applied state newer than its grant contains it.
    pub fn notified(&self, node: NodeId, granted: Option<Revision>, removed: bool) -> CheckResult {
        let since = granted.unwrap_or_default();
        let so = self.states.range(since..).any(|(_, t)| match t.nodes.get(&node) {
            None => t.cluster.is_some(),
            Some(record) => !removed && record.role == Role::Worker && record.granted > since,
        });
        if so {
            return Ok(());
        }
        let what = if removed { "removed" } else { "demoted" };
        Err(violation(NOTIFY_1, format!("{node} was informed that it is {what}, but no applied state says so")))
    }

    /// The node of a member id, in any applied state.
    pub fn owner(&self, member_id: RaftId) -> Option<NodeId> {
        self.owners.get(&member_id).copied()
    }
}

fn incarnation_of(tables: &Tables) -> Incarnation {
    tables.cluster.as_ref().map_or(Incarnation(0), |cluster| cluster.incarnation)
}

fn same(known: &Tables, tables: &Tables) -> CheckResult {
    let small = known.members == tables.members
        && known.next_raft_id == tables.next_raft_id
        && known.nodes == tables.nodes
        && known.blocklist == tables.blocklist
        && known.reconcilers.changed == tables.reconcilers.changed
        && known.reconcilers.gates == tables.reconcilers.gates
        && known.removed_raft_ids == tables.removed_raft_ids
        && known.events.len() == tables.events.len()
        && known.routine_events.len() == tables.routine_events.len()
        && known.frequent_events.len() == tables.frequent_events.len()
        && known.requests.weight == tables.requests.weight
        && known.outcomes.len() == tables.outcomes.len();
    let whole = !tables.revision.0.is_multiple_of(FULL_COMPARISON_EVERY) || known == tables;
    if small && whole {
        return Ok(());
    }
    Err(violation(APPLY_1, format!("two members disagree about revision {}", tables.revision)))
}

/// Checks the step between two states; no acknowledged value may go backwards.
fn step(before: &Tables, after: &Tables, model: &Model) -> CheckResult {
    invariants::check_step(before, after)?;
    fleet::check_step(before, after)?;
    match model.first_decreased_key(before, after) {
        Some((key, was, is)) => {
            Err(violation(WRITE_1, format!("k{key} went from {was} to {is} at {}", after.revision)))
        }
        None => Ok(()),
    }
}

/// EVENT-1: an event disappears only if as many younger events as are kept exist that neither a lease nor a liveness change caused.
fn events_stay(before: &Tables, after: &Tables, kept: usize) -> CheckResult {
    let oldest = |tables: &Tables| tables.events.front().map(|event| event.revision);
    // Below that feature level all events share one history.
    if before.feature_level() < IDENTITY_LEVEL || oldest(before).is_none() || oldest(before) == oldest(after) {
        return Ok(());
    }
    // Events made by an operator (a recovery reports all leases at once) are exempt.
    let frequent = |event: &Event| match event.kind {
        EventKind::Lease => event.by != Principal::Operator,
        kind => kind == EventKind::Liveness,
    };
    let younger = after.events.iter().filter(|event| !frequent(event)).count();
    if younger >= kept {
        return Ok(());
    }
    let detail = format!("at {} events were dropped, but only {younger} of {kept} remain", after.revision);
    Err(violation(EVENT_1, detail))
}

fn membership_changes(before: &Tables, after: &Tables) -> Vec<MembershipChangeKind> {
    let mut changes = Vec::new();
    if before.members == after.members {
        return changes;
    }
    for (raft_id, member) in &after.members {
        let (node, raft_id) = (member.node, *raft_id);
        match before.members.get(&raft_id) {
            None => {
                changes.push(MembershipChangeKind::AddLearner { node, raft_id, addr: member.addr.clone() });
                if member.voter {
                    changes.push(MembershipChangeKind::PromoteLearner { node, raft_id });
                }
            }
            Some(was) if was.voter != member.voter => {
                changes.push(MembershipChangeKind::PromoteLearner { node, raft_id })
            }
            Some(was) if was.addr != member.addr => {
                changes.push(MembershipChangeKind::SetAddress { raft_id, addr: member.addr.clone() });
            }
            Some(_) => {}
        }
    }
    let gone = before.members.keys().filter(|id| !after.members.contains_key(id));
    changes.extend(gone.map(|id| MembershipChangeKind::Remove { raft_id: *id }));
    changes
}
