//! Changes of the Raft configuration.
//!
//! Invariants  MEMBER-1  every Raft member belongs to an existing node.
//!             RAFTID-1  the counter hands out each raft id once, and never again.
//! Checked when the configuration entry is applied: a node may have been demoted or removed between proposal and
//! commit, and its membership would then be a vote that no node casts.

use muster_messages::{
    CommandRefusal, EventKind, Member, MembershipChange, MembershipChangeKind, NodeId, RaftId, Revision, Role, Tables,
    Term,
};

use crate::apply::Stamp;
use crate::bugs::BugInjection;
use crate::guards::{node, not_blocked, not_found, not_leaving, not_member, roles_are, stale};
use crate::injected;
use crate::limits::Limits;

/// Whether a membership change may be applied now. Pure: the raft member checks before it proposes, and again when
/// it applies.
pub fn check_membership(tables: &Tables, change: &MembershipChange) -> Result<(), CommandRefusal> {
    match &change.kind {
        MembershipChangeKind::AddLearner { node: id, raft_id, .. } => {
            if !injected(BugInjection::SkipNodeGuard) {
                not_blocked(tables, *id)?;
                let record = node(tables, *id)?;
                roles_are(record, Role::Manager)?;
                not_leaving(record)?;
            }
            not_member(tables, *id)?;
            next_id_is(tables, *raft_id)
        }
        MembershipChangeKind::PromoteLearner { node: id, raft_id } => {
            if !injected(BugInjection::SkipNodeGuard) {
                let record = node(tables, *id)?;
                roles_are(record, Role::Manager)?;
                not_leaving(record)?;
            }
            check_learner(tables, *id, *raft_id)
        }
        MembershipChangeKind::Remove { raft_id } => {
            let voter = member(tables, *raft_id)?.voter;
            let others = (tables.members.values()).any(|m| m.voter && m.raft_id != *raft_id);
            if voter && !others {
                return Err(CommandRefusal::LastManager);
            }
            Ok(())
        }
        MembershipChangeKind::SetAddress { raft_id, .. } => member(tables, *raft_id).map(drop),
    }
}

/// Applies a membership change at its log position, or applies nothing and returns the reason. `tables.revision` is
/// `at` afterwards, whatever the outcome.
pub fn apply_membership(tables: &mut Tables, at: Revision, change: &MembershipChange) -> Result<(), CommandRefusal> {
    apply_membership_within(&Limits::DEFAULT, tables, at, change)
}

/// [`apply_membership`] within these limits.
pub fn apply_membership_within(
    limits: &Limits,
    tables: &mut Tables,
    at: Revision,
    change: &MembershipChange,
) -> Result<(), CommandRefusal> {
    debug_assert!(at > tables.revision, "entries are applied in log order");
    tables.revision = at;
    check_membership(tables, change)?;
    let stamp = Stamp { at, term: Term(0), wall: change.at, by: &change.by, reason: "", limits };
    match &change.kind {
        MembershipChangeKind::AddLearner { node, raft_id, addr } => add(tables, &stamp, *node, *raft_id, addr),
        MembershipChangeKind::PromoteLearner { raft_id, .. } => promote(tables, &stamp, *raft_id),
        MembershipChangeKind::Remove { raft_id } => remove(tables, &stamp, *raft_id),
        MembershipChangeKind::SetAddress { raft_id, addr } => {
            set_address(tables, &stamp, *raft_id, addr);
        }
    }
    Ok(())
}

fn add(tables: &mut Tables, stamp: &Stamp<'_>, node: NodeId, raft_id: RaftId, addr: &str) {
    let member = Member { node, raft_id, addr: addr.to_owned(), voter: false };
    tables.members.insert(raft_id, member);
    tables.next_raft_id = raft_id.next();
    log(tables, stamp, node, raft_id, "none", "learner");
}

fn promote(tables: &mut Tables, stamp: &Stamp<'_>, raft_id: RaftId) {
    if let Some(member) = tables.members.get_mut(&raft_id) {
        member.voter = true;
        let node = member.node;
        log(tables, stamp, node, raft_id, "learner", "voter");
    }
}

fn remove(tables: &mut Tables, stamp: &Stamp<'_>, raft_id: RaftId) {
    if let Some(member) = tables.members.remove(&raft_id) {
        tables.removed_raft_ids.insert(raft_id);
        if injected(BugInjection::ReuseRaftId) {
            tables.next_raft_id = raft_id;
        }
        let was = if member.voter { "voter" } else { "learner" };
        log(tables, stamp, member.node, raft_id, was, "none");
    }
}

fn set_address(tables: &mut Tables, stamp: &Stamp<'_>, raft_id: RaftId, addr: &str) {
    let old = tables.members.get(&raft_id);
    let Some(old) = old.filter(|m| m.addr != addr).cloned() else {
        return;
    };
    log(tables, stamp, old.node, raft_id, &old.addr, addr);
    let new = Member { addr: addr.to_owned(), ..old };
    tables.members.insert(raft_id, new);
}

fn member(tables: &Tables, raft_id: RaftId) -> Result<&Member, CommandRefusal> {
    tables.members.get(&raft_id).ok_or_else(|| not_found("Raft member", raft_id))
}

fn check_learner(tables: &Tables, node: NodeId, raft_id: RaftId) -> Result<(), CommandRefusal> {
    let member = member(tables, raft_id)?;
    if member.node != node {
        return Err(stale(format!("Raft member {raft_id} belongs to node {}", member.node)));
    }
    if member.voter {
        return Err(stale(format!("node {node} is already a voter")));
    }
    Ok(())
}

fn next_id_is(tables: &Tables, raft_id: RaftId) -> Result<(), CommandRefusal> {
    if tables.next_raft_id == raft_id {
        return Ok(());
    }
    let next = tables.next_raft_id;
    Err(stale(format!("the next raft id is {next}, not {raft_id}")))
}

fn log(tables: &mut Tables, stamp: &Stamp<'_>, node: NodeId, raft_id: RaftId, before: &str, after: &str) {
    let reason = format!("seat {raft_id}");
    let stamp = Stamp { reason: &reason, ..*stamp };
    let (before, after) = (Some(before.to_owned()), Some(after.to_owned()));
    stamp.log(tables, EventKind::Membership, Some(node), before, after);
}
