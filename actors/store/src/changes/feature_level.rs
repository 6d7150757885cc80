//! The cluster's feature level: what every manager must be able to read.
//!
//! Keeps  LEVEL-1  the feature level never falls, and rises only where the gate of the managers' scope leads: no manager
//!                 that takes part speaks less.
//!        LEVEL-3  a level that rises takes nobody's vote away who is there: whoever has a seat and is not down takes part at
//!                 it, and a majority of the voters does.
//! Why LEVEL-3 beside the gate: a manager votes before it takes part, and below a raised floor it never does. The gate waits
//! for those who serve; who was away when it was restricted, and is back, is none of them.

use imbl::Vector;
use muster_messages::{
    ClusterRecord, DefinitionKey, Event, Hold, IDENTITY_LEVEL, LEVEL_RECONCILER, Liveness, MANAGERS_SCOPE,
    RECONCILERS_LEVEL, level_release,
};

use super::*;
use crate::apply::is_routine;
use crate::guards::{believed, not_found};
use crate::limits::MAX_OUTCOMES;

/// Nodes that a refusal names.
const NAMED: usize = 5;

pub(super) fn raise(tables: &mut Tables, stamp: &Stamp<'_>, level: u32) -> Result<(), CommandRefusal> {
    let Some(cluster) = tables.cluster.clone() else {
        return Err(not_found("cluster", "of this member"));
    };
    let old = cluster.feature_level;
    if level < old {
        return Err(stale(format!("the feature level is {old} and never falls")));
    }
    if level > old {
        // Below that there is no gate that could have a say, and nobody who asks: no release was ever made of level 1.
        if old >= RECONCILERS_LEVEL {
            led(tables, level)?;
            voted(tables, level)?;
        }
        if old < IDENTITY_LEVEL && IDENTITY_LEVEL <= level {
            begin_identity_level(tables);
        }
        tables.cluster =
            Some(Arc::new(ClusterRecord { feature_level: level, revision: stamp.at, ..cluster.as_ref().clone() }));
        let words = |level| Some(format!("feature level {level}"));
        stamp.log(tables, EventKind::Cluster, None, words(old), words(level));
    }
    Ok(())
}

/// Derives from the state of level 2 what level 3 has in tables of its own. Every member does the same with the same entry.
/// Labels stay in the records: which of them a node had reported was not kept, so all count as the operator's.
/// Outcomes of level 2 stay where they are and are forgotten one by one; see `requests`.
fn begin_identity_level(tables: &mut Tables) {
    let (frequent, others): (Vector<_>, Vector<_>) = std::mem::take(&mut tables.events)
        .into_iter()
        .partition(|event: &Arc<Event>| matches!(event.kind, EventKind::Lease | EventKind::Liveness));
    let (routine, others) = others.into_iter().partition(|event: &Arc<Event>| is_routine(event.kind));
    (tables.frequent_events, tables.routine_events, tables.events) = (frequent, routine, others);
    for token in tables.access_tokens.values().cloned().collect::<Vec<_>>() {
        objects::keep_rights(tables, &token);
    }
    // A full table of level 2 has forgotten others.
    if tables.outcomes.len() == MAX_OUTCOMES {
        tables.requests.floor = tables.outcome_order.front().copied().unwrap_or_default();
    }
    certificates::begin(tables);
}

/// LEVEL-1. A pause is asked for last: what is begun is ended elsewhere, but here it could not be undone.
fn led(tables: &Tables, level: u32) -> Result<(), CommandRefusal> {
    let key = DefinitionKey { reconciler: LEVEL_RECONCILER.to_owned(), release: level_release(level) };
    believed(reconcilers::leads(tables, &key)?, || {
        format!("the gate of {LEVEL_RECONCILER} does not lead to feature level {level}")
    })?;
    let paused = tables.reconcilers.controls.get(LEVEL_RECONCILER).is_some_and(|controls| controls.paused);
    let held = || CommandRefusal::Held(Hold::Paused { reconciler: LEVEL_RECONCILER.to_owned() });
    if paused { Err(held()) } else { Ok(()) }
}

/// LEVEL-3.
fn voted(tables: &Tables, level: u32) -> Result<(), CommandRefusal> {
    let speaks = level_release(level);
    let managers = || tables.reconcilers.participants_of(MANAGERS_SCOPE);
    let less: Vec<_> = managers().filter(|p| p.release.triple < speaks).map(|p| named(tables, p.node)).collect();
    believed(less.is_empty(), || format!("{} would read nothing of feature level {level}; {HELPS}", listed(&less)))?;
    let takes_part = |node: NodeId| managers().any(|p| p.node == Some(node));
    let is_down = |node: &NodeId| tables.nodes.get(node).is_some_and(|record| record.liveness == Liveness::Down);
    let silent = tables.members.values().map(|seat| seat.node).filter(|node| !takes_part(*node) && !is_down(node));
    let silent: Vec<_> = silent.map(|node| named(tables, Some(node))).collect();
    believed(silent.is_empty(), || {
        format!("{} has a seat, and has not said that it speaks feature level {level}; {HELPS}", listed(&silent))
    })?;
    let voters = || tables.members.values().filter(|seat| seat.voter);
    let (all, with) = (voters().count(), voters().filter(|seat| takes_part(seat.node)).count());
    believed(2 * with > all, || {
        format!(
            "{with} of {all} voters take part at feature level {level}: without a majority nobody could write any more"
        )
    })
}

const HELPS: &str = "upgrade, demote or remove it";

fn named(tables: &Tables, node: Option<NodeId>) -> String {
    let record = node.and_then(|id| tables.nodes.get(&id));
    record.map_or_else(|| "a manager without a record".to_owned(), |record| record.name.to_string())
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let first = names[..names.len() - more].join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}
