//! The cluster's feature level: the encoding that every manager must support.
//!
//! Invariants  LEVEL-1  the feature level never falls, and rises only if the gate of the managers' scope leads to it: every
//!                      participating manager supports it.
//!             LEVEL-3  a raise of the level takes the vote from no manager that is up: each Raft member that is not down participates
//!                      at the new level, and so does a majority of the voters.
//! Why LEVEL-3 besides the gate: a manager votes before it participates, and below a raised floor it never participates. The
//! gate waits only for serving participants; a manager that was away when the gate was restricted, and is back, is not one of
//! them.

use imbl::Vector;
use muster_messages::{
    ClusterRecord, DefinitionKey, Event, Hold, IDENTITY_LEVEL, LEVEL_RECONCILER, Liveness, MANAGERS_SCOPE,
    RECONCILERS_LEVEL, level_release,
};

use super::*;
use crate::apply::is_routine;
use crate::bugs::{BugInjection, is_injected};
use crate::guards::{expected, not_found};
use crate::limits::MAX_OUTCOMES;

/// Nodes named in a refusal.
const MAX_NAMED_NODES: usize = 5;

pub(super) fn raise(tables: &mut Tables, stamp: &Stamp<'_>, level: u32) -> Result<(), CommandRefusal> {
    let Some(cluster) = tables.cluster.clone() else {
        return Err(not_found("cluster", "of this member"));
    };
    let old = cluster.feature_level;
    if level < old {
        return Err(stale(format!("the feature level is {old} and never falls")));
    }
    if level > old {
        // Below that level there is no gate, and no caller: no release was ever made of level 1.
        if old >= RECONCILERS_LEVEL && !is_injected(BugInjection::RaiseWithoutCheck) {
            check_gate(tables, level)?;
            check_votes(tables, level)?;
        }
        if old < IDENTITY_LEVEL && IDENTITY_LEVEL <= level {
            begin_identity_level(tables);
        }
        tables.cluster =
            Some(Arc::new(ClusterRecord { feature_level: level, revision: stamp.at, ..cluster.as_ref().clone() }));
        reconcilers::runs::withdraw_finalizations(tables, stamp)?;
        let text = |level| Some(format!("feature level {level}"));
        stamp.log(tables, EventKind::Cluster, None, text(old), text(level));
    }
    Ok(())
}

/// Derives the tables of level 3 from the state of level 2, alike on every member. Labels stay in the records: level 2 did
/// not store which of them a node had reported, so all count as the operator's. Outcomes of level 2 stay where they are and
/// are forgotten one by one; see `requests`.
fn begin_identity_level(tables: &mut Tables) {
    let (frequent, others): (Vector<_>, Vector<_>) = std::mem::take(&mut tables.events)
        .into_iter()
        .partition(|event: &Arc<Event>| matches!(event.kind, EventKind::Lease | EventKind::Liveness));
    let (routine, others) = others.into_iter().partition(|event: &Arc<Event>| is_routine(event.kind));
    (tables.frequent_events, tables.routine_events, tables.events) = (frequent, routine, others);
    for token in tables.access_tokens.values().cloned().collect::<Vec<_>>() {
        objects::keep_rights(tables, &token);
    }
    // A full table of level 2 has already forgotten others.
    if tables.outcomes.len() == MAX_OUTCOMES {
        tables.requests.floor = tables.outcome_order.front().copied().unwrap_or_default();
    }
    certificates::begin(tables);
}

/// LEVEL-1. A pause is checked last: a run in progress is completed elsewhere, but a raised level could not be undone.
fn check_gate(tables: &Tables, level: u32) -> Result<(), CommandRefusal> {
    let key = DefinitionKey { reconciler: LEVEL_RECONCILER.to_owned(), release: level_release(level) };
    expected(reconcilers::leads(tables, &key)?, || {
        format!("the gate of {LEVEL_RECONCILER} does not lead to feature level {level}")
    })?;
    let paused = tables.reconcilers.controls.get(LEVEL_RECONCILER).is_some_and(|controls| controls.paused);
    let held = || CommandRefusal::Held(Hold::Paused { reconciler: LEVEL_RECONCILER.to_owned() });
    if paused { Err(held()) } else { Ok(()) }
}

/// LEVEL-3.
fn check_votes(tables: &Tables, level: u32) -> Result<(), CommandRefusal> {
    let supported = level_release(level);
    let managers = || tables.reconcilers.participants_of(MANAGERS_SCOPE);
    let less: Vec<_> = managers().filter(|p| p.release.triple < supported).map(|p| named(tables, p.node)).collect();
    expected(less.is_empty(), || format!("{} supports less than feature level {level}; {REMEDY}", listed(&less)))?;
    let takes_part = |node: NodeId| managers().any(|p| p.node == Some(node));
    let is_down = |node: &NodeId| tables.nodes.get(node).is_some_and(|record| record.liveness == Liveness::Down);
    let silent = tables.members.values().map(|member| member.node).filter(|node| !takes_part(*node) && !is_down(node));
    let silent: Vec<_> = silent.map(|node| named(tables, Some(node))).collect();
    expected(silent.is_empty(), || {
        format!(
            "{} is a Raft member and has not announced support for feature level {level}; {REMEDY}",
            listed(&silent)
        )
    })?;
    let voters = || tables.members.values().filter(|member| member.voter);
    let (all, with) = (voters().count(), voters().filter(|member| takes_part(member.node)).count());
    expected(2 * with > all, || {
        format!(
            "only {with} of {all} voters support feature level {level}: raising it would leave no majority to commit writes"
        )
    })
}

const REMEDY: &str = "upgrade, demote or remove it";

fn named(tables: &Tables, node: Option<NodeId>) -> String {
    let record = node.and_then(|id| tables.nodes.get(&id));
    record.map_or_else(|| "a manager without a record".to_owned(), |record| record.name.to_string())
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(MAX_NAMED_NODES);
    let first = names[..names.len() - more].join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}
