//! Changes of the Raft configuration.
//!
//! Keeps  MEMBER-1  every seat belongs to a node that exists.
//!        RAFTID-1  a raft id is handed out once, by the counter, and never again.
//! Judged when the configuration entry is applied: a node may have been demoted or removed between proposal and
//! commit, and a seat for it would then be a vote that nobody casts.

use muster_messages::{
    CommandRefusal, EventKind, Member, NodeId, RaftId, Revision, Role, SeatChange, SeatChangeKind, Tables, Term,
};

use crate::apply::Stamp;
use crate::guards::{no_seat, node, not_blocked, not_found, not_leaving, roles_are, stale};
use crate::limits::Limits;
use crate::sabotage::Sabotage;
use crate::sabotaged;

/// Whether a seat change may be applied now. Pure: the raft member asks before it proposes, and again at apply time.
pub fn judge_seat(tables: &Tables, change: &SeatChange) -> Result<(), CommandRefusal> {
    match &change.kind {
        SeatChangeKind::AddLearner { node: id, raft_id, .. } => {
            if !sabotaged(Sabotage::SkipNodeGuard) {
                not_blocked(tables, *id)?;
                let record = node(tables, *id)?;
                roles_are(record, Role::Manager)?;
                not_leaving(record)?;
            }
            no_seat(tables, *id)?;
            next_id_is(tables, *raft_id)
        }
        SeatChangeKind::PromoteLearner { node: id, raft_id } => {
            if !sabotaged(Sabotage::SkipNodeGuard) {
                let record = node(tables, *id)?;
                roles_are(record, Role::Manager)?;
                not_leaving(record)?;
            }
            holds_learner_seat(tables, *id, *raft_id)
        }
        SeatChangeKind::Remove { raft_id } => {
            let voter = seat(tables, *raft_id)?.voter;
            let others = (tables.members.values()).any(|m| m.voter && m.raft_id != *raft_id);
            if voter && !others {
                return Err(CommandRefusal::LastManager);
            }
            Ok(())
        }
        SeatChangeKind::SetAddress { raft_id, .. } => seat(tables, *raft_id).map(drop),
    }
}

/// Applies a seat change at its place in the log, or applies nothing and says why.
/// `tables.revision` is `at` afterwards whatever the outcome.
pub fn apply_seat(tables: &mut Tables, at: Revision, change: &SeatChange) -> Result<(), CommandRefusal> {
    apply_seat_within(&Limits::DEFAULT, tables, at, change)
}

/// [`apply_seat`] within these limits.
pub fn apply_seat_within(
    limits: &Limits,
    tables: &mut Tables,
    at: Revision,
    change: &SeatChange,
) -> Result<(), CommandRefusal> {
    debug_assert!(at > tables.revision, "entries are applied in log order");
    tables.revision = at;
    judge_seat(tables, change)?;
    let stamp = Stamp { at, term: Term(0), wall: change.at, by: &change.by, reason: "", limits };
    match &change.kind {
        SeatChangeKind::AddLearner { node, raft_id, addr } => add(tables, &stamp, *node, *raft_id, addr),
        SeatChangeKind::PromoteLearner { raft_id, .. } => promote(tables, &stamp, *raft_id),
        SeatChangeKind::Remove { raft_id } => remove(tables, &stamp, *raft_id),
        SeatChangeKind::SetAddress { raft_id, addr } => {
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
        if sabotaged(Sabotage::ReuseRaftId) {
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

fn seat(tables: &Tables, raft_id: RaftId) -> Result<&Member, CommandRefusal> {
    tables.members.get(&raft_id).ok_or_else(|| not_found("seat", raft_id))
}

fn holds_learner_seat(tables: &Tables, node: NodeId, raft_id: RaftId) -> Result<(), CommandRefusal> {
    let seat = seat(tables, raft_id)?;
    if seat.node != node {
        return Err(stale(format!("seat {raft_id} belongs to {}", seat.node)));
    }
    if seat.voter {
        return Err(stale(format!("node {node} votes already")));
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
