//! Invariants of the replicated state after every entry. The simulation checks them after every step; a violation is a
//! bug in Muster, never an operator's mistake.

mod authorities;
mod autolock;
mod autopilot;
mod gates;

use std::collections::BTreeMap;

use muster_messages::{MAX_WORKLOADS, NodeRecord, Principal, RaftId, Requests, Role, Tables, Workloads};

use crate::limits::{MAX_CALLERS, MAX_EVENTS, MAX_OUTCOMES};

/// Every Raft member belongs to an existing node, and no node is two members.
pub const MEMBER_1: &str = "MEMBER-1";
/// The counter hands out each raft id once, and never again.
pub const RAFTID_1: &str = "RAFTID-1";
/// A Raft member's node is granted manager: it is added after the grant and removed before it ends.
pub const ROLE_1: &str = "ROLE-1";
/// A founded cluster has a voter.
pub const VOTER_1: &str = "VOTER-1";
/// A blocked node has no record.
pub const BLOCK_1: &str = "BLOCK-1";
/// A block is never shortened.
pub const BLOCK_2: &str = "BLOCK-2";
/// A recorded certificate is for a role that was granted, as of the revision it carries.
pub const CERT_1: &str = "CERT-1";
/// No two nodes have the same name.
pub const NAME_1: &str = "NAME-1";
/// A node's report is bounded, and is deleted with its record.
pub const LABEL_1: &str = "LABEL-1";
/// A lease's token grows with every change of its holder.
pub const FENCE_1: &str = "FENCE-1";
/// A held lease has a token, which is a revision of the past.
pub const FENCE_2: &str = "FENCE-2";
/// No participant serves below the floor of a gate of its scope.
pub const RELEASE_1: &str = "RELEASE-1";
/// A participant that begins to serve finds what it needs applied.
pub const RELEASE_2: &str = "RELEASE-2";
/// While a gate is working, its floor is the higher and its release the lower of both ends.
pub const RELEASE_3: &str = "RELEASE-3";
/// Epochs and terms of a gate only grow, also over its deletion.
pub const RELEASE_4: &str = "RELEASE-4";
/// A participant's record is deleted with its lease.
pub const RELEASE_7: &str = "RELEASE-7";
/// A finalization stands only while no serving member is incompatible with what it allows.
pub const RELEASE_9: &str = "RELEASE-9";
pub const RELEASE_10: &str = "RELEASE-10";
pub const RELEASE_11: &str = "RELEASE-11";
/// An object of a wave is written by a runner only while the conditions of all earlier waves hold.
pub const RELEASE_12: &str = "RELEASE-12";
/// Everything that grows with use is bounded, and the remembered outcomes are exactly those of the recent requests.
pub const BOUND_1: &str = "BOUND-1";
/// A request id is applied at most once per caller: whatever is remembered is newer than whatever was forgotten.
pub const APPLY_3: &str = "APPLY-3";
/// Revisions only grow, and no object is newer than the state that contains it.
pub const REVISION_1: &str = "REVISION-1";

/// Exactly one authority is active: it alone signs.
pub const ROOT_1: &str = "ROOT-1";
/// A retired or revoked authority has no key.
pub const ROOT_4: &str = "ROOT-4";
/// A root whose key others may have never signs again.
pub const ROOT_11: &str = "ROOT-11";
/// Versions of the replicated unlock key only grow, and a version has one key.
pub const SEAL_10: &str = "SEAL-10";
/// A former unlock key is kept while a node may need it to start.
pub const SEAL_9: &str = "SEAL-9";
/// An entry of the workloads names itself, is bounded, and is as old as the state at most.
pub const SPIFFE_6: &str = "SPIFFE-6";
/// Only the key for which an authority above was asked becomes a root of that authority.
pub const UP_2: &str = "UP-2";

/// At most one change of the autopilot has begun and not ended.
pub const AUTO_4: &str = "AUTO-4";

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is broken: {detail}")]
pub struct Broken {
    pub name: &'static str,
    pub detail: String,
}

type CheckResult = Result<(), Broken>;

/// Checks one state.
pub fn check(tables: &Tables) -> CheckResult {
    members(tables)?;
    raft_ids(tables)?;
    blocks(tables)?;
    nodes(tables)?;
    objects(tables)?;
    gates::check(tables)?;
    authorities::check(tables)?;
    autolock::check(tables)?;
    autopilot::check(tables)?;
    workloads(tables)?;
    bounds(tables)
}

/// Checks the step between two states that are valid by themselves, over one or more entries.
pub fn check_step(before: &Tables, after: &Tables) -> CheckResult {
    holds(after.revision >= before.revision, REVISION_1, || {
        format!("revision {} after {}", after.revision, before.revision)
    })?;
    holds(after.next_raft_id >= before.next_raft_id, RAFTID_1, || {
        let (was, is) = (before.next_raft_id, after.next_raft_id);
        format!("the counter went from {was} to {is}")
    })?;
    for id in &before.removed_raft_ids {
        let remembered = after.removed_raft_ids.contains(id);
        holds(remembered, RAFTID_1, || format!("removed id {id} forgotten"))?;
    }
    for (id, member) in &before.members {
        let same = match after.members.get(id) {
            Some(now) => now.node == member.node && (now.voter || !member.voter),
            None => after.removed_raft_ids.contains(id),
        };
        holds(same, RAFTID_1, || format!("member {id} changed its node or vanished"))?;
    }
    for (id, block) in &before.blocklist {
        let now = after.blocklist.get(id);
        let lasts = now.is_none_or(|now| now.expires_at >= block.expires_at);
        holds(lasts, BLOCK_2, || format!("the block of {id} became shorter"))?;
    }
    for (key, object) in &before.objects {
        // An object deleted in between is a new one; that its tokens grow, too, is checked over whole histories.
        let now = after.objects.get(key).filter(|now| now.meta.created == object.meta.created);
        let (Some(was), Some(now)) = (object.lease(), now.and_then(|now| now.lease())) else { continue };
        let (old, new) = (was.holding.token, now.holding.token);
        let passed = was.spec.held_by() != now.spec.held_by() && now.spec.held_by().is_some();
        holds(new > old || new == old && !passed, FENCE_1, || format!("{key}: token {new} after {old}"))?;
    }
    gates::check_step(before, after)?;
    authorities::check_step(before, after)?;
    autolock::check_step(before, after)
}

fn holds(fact: bool, name: &'static str, detail: impl FnOnce() -> String) -> CheckResult {
    if fact {
        return Ok(());
    }
    let detail = detail();
    Err(Broken { name, detail })
}

fn members(tables: &Tables) -> CheckResult {
    let mut ids_by_node = BTreeMap::new();
    for (id, member) in &tables.members {
        let node = member.node;
        holds(*id == member.raft_id, MEMBER_1, || format!("member {id} is recorded as {}", member.raft_id))?;
        let record = tables.nodes.get(&node);
        holds(record.is_some(), MEMBER_1, || format!("member {id} belongs to node {node}, which does not exist"))?;
        let manager = record.is_some_and(|n| n.role == Role::Manager);
        holds(manager, ROLE_1, || format!("member {id} belongs to worker {node}"))?;
        let other: Option<RaftId> = ids_by_node.insert(node, *id);
        holds(other.is_none(), MEMBER_1, || format!("node {node} is member {id} and another"))?;
    }
    let voters = tables.members.values().filter(|m| m.voter).count();
    holds(tables.cluster.is_none() || voters > 0, VOTER_1, || "there is no voter".to_owned())
}

fn raft_ids(tables: &Tables) -> CheckResult {
    let next = tables.next_raft_id;
    for id in tables.members.keys() {
        holds(!tables.removed_raft_ids.contains(id), RAFTID_1, || format!("removed id {id} is a member"))?;
    }
    for id in (tables.members.keys()).chain(&tables.removed_raft_ids) {
        holds(*id < next, RAFTID_1, || format!("id {id} is handed out, the counter is at {next}"))?;
    }
    Ok(())
}

fn blocks(tables: &Tables) -> CheckResult {
    for (id, block) in &tables.blocklist {
        holds(*id == block.node, BLOCK_1, || format!("the block of {id} names {}", block.node))?;
        holds(!tables.nodes.contains_key(id), BLOCK_1, || format!("blocked node {id} has a record"))?;
    }
    Ok(())
}

fn nodes(tables: &Tables) -> CheckResult {
    let mut names = BTreeMap::new();
    for (id, node) in &tables.nodes {
        let other = names.insert(&node.name, id);
        holds(other.is_none(), NAME_1, || format!("{id} and another node are named {}", node.name))?;
        let newest = node.revision.max(node.granted);
        holds(newest <= tables.revision, REVISION_1, || format!("node {id} is of revision {newest}"))?;
        certificate(node)?;
    }
    for (id, reported) in &tables.reported {
        holds(tables.nodes.contains_key(id), LABEL_1, || format!("{id} has a report and no record"))?;
        let fit = muster_messages::labels_fit(&reported.labels);
        holds(fit.is_ok(), LABEL_1, || format!("{id} reports {}", fit.clone().err().unwrap_or_default()))?;
    }
    Ok(())
}

fn objects(tables: &Tables) -> CheckResult {
    for (key, object) in &tables.objects {
        holds(*key == object.key(), REVISION_1, || format!("{key} is recorded as {}", object.key()))?;
        let newest = object.meta.revision.max(object.meta.created);
        holds(newest <= tables.revision, REVISION_1, || format!("{key} is of revision {newest}"))?;
        let Some(lease) = object.lease() else { continue };
        let token = lease.holding.token.0;
        let sound = token <= tables.revision.0 && (token > 0 || lease.spec.held_by().is_none());
        holds(sound, FENCE_2, || format!("{key} is held under token {token}"))?;
    }
    Ok(())
}

fn certificate(node: &NodeRecord) -> CheckResult {
    let Some(certificate) = &node.certificate else {
        return Ok(());
    };
    let was_granted = match certificate.granted {
        // Only the founder's first certificate, which makes it a manager.
        None => certificate.role == Role::Manager,
        Some(granted) if granted == node.granted => certificate.role == node.role,
        Some(granted) => granted < node.granted,
    };
    holds(was_granted, CERT_1, || {
        let (role, granted) = (certificate.role, certificate.granted);
        format!("node {} has a certificate as {role} of {granted:?}", node.id)
    })?;
    holds(node.last_not_after >= certificate.not_after, BLOCK_2, || {
        format!("node {} has a certificate that outlives the latest recorded expiry", node.id)
    })
}

fn workloads(tables: &Tables) -> CheckResult {
    let Workloads { entries, changed, .. } = &tables.workloads;
    holds(entries.len() <= MAX_WORKLOADS, BOUND_1, || format!("{} workloads", entries.len()))?;
    holds(*changed <= tables.revision, SPIFFE_6, || format!("the workloads are of revision {changed}"))?;
    for (name, entry) in entries {
        holds(*name == entry.name, SPIFFE_6, || format!("{name} is recorded as {}", entry.name))?;
        holds(entry.check().is_ok(), SPIFFE_6, || format!("{name}: {}", entry.check().err().unwrap_or_default()))?;
        let is_past = entry.revision <= *changed;
        holds(is_past, SPIFFE_6, || format!("{name} is of revision {}, the workloads of {changed}", entry.revision))?;
    }
    Ok(())
}

fn bounds(tables: &Tables) -> CheckResult {
    let outcomes = tables.outcomes.len();
    let ordered = tables.outcome_order.len();
    holds(outcomes == ordered, BOUND_1, || format!("{outcomes} outcomes of {ordered} requests"))?;
    holds(outcomes <= MAX_OUTCOMES, BOUND_1, || format!("{outcomes} outcomes"))?;
    for history in [&tables.events, &tables.routine_events, &tables.frequent_events] {
        let events = history.len();
        holds(events <= MAX_EVENTS, BOUND_1, || format!("{events} events"))?;
    }
    requests(&tables.requests)
}

fn requests(requests: &Requests) -> CheckResult {
    let (callers, weight) = (requests.callers.len(), requests.weight);
    holds(callers <= MAX_CALLERS, BOUND_1, || format!("{callers} callers"))?;
    holds(weight <= MAX_OUTCOMES as u64, BOUND_1, || format!("outcomes of weight {weight}"))?;
    let all: u64 = requests.callers.values().map(|own| own.weight).sum();
    holds(all == weight, BOUND_1, || format!("outcomes of weight {all} count as {weight}"))?;
    for (caller, own) in &requests.callers {
        let count = own.outcomes.len() as u64;
        holds(count <= own.weight, BOUND_1, || format!("{count} outcomes of {caller} weigh {}", own.weight))?;
        let oldest = own.outcomes.get_min().map(|(id, _)| *id);
        // Muster's own actors use arbitrary ids.
        let above = *caller == Principal::Cluster || oldest.is_none_or(|oldest| oldest > own.floor);
        holds(above, APPLY_3, || format!("{oldest:?} of {caller} is remembered, and {} forgotten", own.floor))?;
    }
    Ok(())
}
