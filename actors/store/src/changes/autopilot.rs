//! The declared number of managers, from feature level 5 on.
//!
//! Invariants  AUTO-4  at most one change of the autopilot has begun and not ended.
//!             AUTO-6  a role that a person requested is remembered, until the autopilot changes that node's role.
//! A request of the autopilot may arrive after its change has ended: it is applied only for the change that has begun.

use muster_messages::{
    AUTOPILOT_HISTORY, AUTOPILOT_LEVEL, Autopilot, AutopilotAction, AutopilotChange, AutopilotOutcome, AutopilotPause,
    AutopilotPolicy, AutopilotStep, Drain, Liveness, ManagerPreference, Principal, in_short, word,
};

use super::*;

/// Characters of a text in a record. As many as in an event: a reason with its numbers, and what became of it.
const MAX_TEXT_CHARS: usize = 512;

pub(super) fn make(tables: &mut Tables, stamp: &Stamp<'_>, step: &AutopilotStep) -> Result<(), CommandRefusal> {
    let level = tables.feature_level();
    if level < AUTOPILOT_LEVEL {
        return Err(CommandRefusal::FeatureLevel { needs: AUTOPILOT_LEVEL, level });
    }
    match step {
        AutopilotStep::Declare(policy) => declare(tables, stamp, policy),
        AutopilotStep::Withdraw { generation: expected } => {
            let current = tables.autopilot.policy.as_ref().map_or(Generation(0), |policy| policy.generation);
            if expected.is_some_and(|expected| expected != current) {
                return Err(stale(format!("the declaration is of generation {}", current.0)));
            }
            if let Some(old) = tables.autopilot.policy.take() {
                tables.autopilot.requested.clear();
                tables.autopilot.withdrawn = old.generation;
                let _ended = end(tables, None, AutopilotOutcome::Dropped, "the declaration was withdrawn");
                stamp.log(tables, EventKind::Cluster, None, Some(declared(&old)), None);
            }
            Ok(())
        }
        AutopilotStep::Pause { why, gave_up } => {
            let pause = AutopilotPause {
                by: stamp.by.clone(),
                at: stamp.wall,
                why: in_short(why, MAX_TEXT_CHARS),
                gave_up: *gave_up,
            };
            set_pause(tables, stamp, Some(pause))
        }
        AutopilotStep::Resume => set_pause(tables, stamp, None),
        AutopilotStep::Prefer { node: id, preference } => prefer(tables, stamp, *id, *preference),
        AutopilotStep::Begin { policy: decided_by, action, node: id, replaces, why } => {
            may_begin(tables, stamp, *decided_by, *action, *id)?;
            begin(tables, stamp, *action, *id, *replaces, why);
            Ok(())
        }
        AutopilotStep::End { number, outcome, why } => {
            let ended = end(tables, Some(*number), *outcome, why);
            // A settled change needs no event: the change of the node's role has one.
            if let Some(change) = ended.filter(|change| change.outcome != AutopilotOutcome::Settled) {
                let was = format!("autopilot: {} begun", word(change.action));
                let is = format!("autopilot: {}: {}", word(change.outcome), change.why);
                stamp.log(tables, EventKind::Role, Some(change.node), Some(was), Some(is));
            }
            Ok(())
        }
        AutopilotStep::Drain { node: id, until, replace } => {
            not_leaving(node(tables, *id)?)?;
            let drain = Drain { by: stamp.by.clone(), at: stamp.wall, until: *until, replace: *replace };
            let (before, after) = (tables.autopilot.drains.get(id).map(|old| drained(old)), drained(&drain));
            stamp.log(tables, EventKind::Node, Some(*id), before, Some(after));
            tables.autopilot.drains.insert(*id, Arc::new(drain));
            Ok(())
        }
        AutopilotStep::Undrain { node: id, ends } => {
            let drain = tables.autopilot.drains.get(id);
            if drain.is_some_and(|drain| ends.is_some() && drain.until != *ends) {
                return Ok(());
            }
            if let Some(old) = tables.autopilot.drains.remove(id) {
                stamp.log(tables, EventKind::Node, Some(*id), Some(drained(&old)), None);
            }
            Ok(())
        }
    }
}

/// Whether the autopilot may begin this change, by the state in which it is applied: it was decided by an earlier one.
fn may_begin(
    tables: &Tables,
    stamp: &Stamp<'_>,
    decided_by: Revision,
    action: AutopilotAction,
    id: NodeId,
) -> Result<(), CommandRefusal> {
    let autopilot = &tables.autopilot;
    let policy = autopilot.policy.as_ref().ok_or_else(|| stale("no number of managers is declared"))?;
    if policy.paused.is_some() {
        return Err(stale("the autopilot is paused"));
    }
    if policy.revision != decided_by {
        return Err(stale("another number of managers was declared meanwhile"));
    }
    if let Some(change) = autopilot.outstanding().filter(|_| !injected(BugInjection::BeginTwice)) {
        return Err(stale(format!("change {} of the autopilot has not ended", change.number)));
    }
    let record = node(tables, id)?;
    not_leaving(record)?;
    let (preference, drain) = (autopilot.preference(id), autopilot.drains.get(&id));
    if action == AutopilotAction::Promote {
        if drain.is_some_and(|drain| drain.until.is_none_or(|until| stamp.wall < until)) {
            return Err(stale("the node is drained"));
        }
        if preference == ManagerPreference::Never {
            return Err(stale("the node's preference is `never`: the autopilot does not promote it"));
        }
    }
    // AUTO-6, also for a request that was applied after this was decided.
    let demoted_by_person = autopilot.requested.get(&id) == Some(&Role::Worker);
    if demoted_by_person && (action == AutopilotAction::Demote || preference != ManagerPreference::Prefer) {
        return Err(stale("an operator has requested that the node be a worker"));
    }
    // A dead manager is replaced even if an operator promoted it, and so is one that an operator has drained to be replaced.
    let is_surplus = record.liveness != Liveness::Down && !drain.is_some_and(|drain| drain.replace);
    let wanted_by_person = autopilot.requested.get(&id) == Some(&Role::Manager);
    if action == AutopilotAction::Demote && is_surplus && wanted_by_person {
        return Err(stale("an operator has requested that the node be a manager"));
    }
    Ok(())
}

fn begin(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    action: AutopilotAction,
    id: NodeId,
    replaces: Option<NodeId>,
    why: &str,
) {
    let begins = format!("autopilot: {}: {why}", word(action));
    stamp.log(tables, EventKind::Role, Some(id), None, Some(begins));
    let autopilot = &mut tables.autopilot;
    autopilot.last_number += 1;
    autopilot.requested.remove(&id);
    autopilot.changes.push_back(Arc::new(AutopilotChange {
        number: autopilot.last_number,
        at: stamp.wall,
        action,
        node: id,
        replaces,
        outcome: AutopilotOutcome::Begun,
        why: in_short(why, MAX_TEXT_CHARS),
    }));
    while autopilot.changes.len() > AUTOPILOT_HISTORY {
        // The limits on the rate are computed from the changes that took effect: the others are deleted first.
        let took_no_effect = |outcome| matches!(outcome, AutopilotOutcome::Refused | AutopilotOutcome::Dropped);
        let at = autopilot.changes.iter().position(|change| took_no_effect(change.outcome));
        autopilot.changes.remove(at.unwrap_or(0));
    }
}

fn declare(tables: &mut Tables, stamp: &Stamp<'_>, policy: &AutopilotPolicy) -> Result<(), CommandRefusal> {
    if let Some(fault) = policy.fault() {
        return Err(stale(fault));
    }
    let old = tables.autopilot.policy.clone();
    let generation = old.as_ref().map_or(Generation(0), |old| old.generation);
    if policy.generation != generation {
        return Err(stale(format!("the declaration is of generation {}, not {}", generation.0, policy.generation.0)));
    }
    // A pause is ended by `resume` only.
    let paused = old.as_ref().and_then(|old| old.paused.clone());
    let same = |old: &AutopilotPolicy| {
        *old == AutopilotPolicy { paused: paused.clone(), generation, revision: old.revision, ..policy.clone() }
    };
    if old.as_deref().is_some_and(same) {
        return Ok(());
    }
    let generation = generation.max(tables.autopilot.withdrawn);
    let new = AutopilotPolicy { paused, generation: generation.next(), revision: stamp.at, ..policy.clone() };
    let (before, after) = (old.as_deref().map(declared), Some(declared(&new)));
    tables.autopilot.policy = Some(Arc::new(new));
    stamp.log(tables, EventKind::Cluster, None, before, after);
    Ok(())
}

fn declared(policy: &AutopilotPolicy) -> String {
    let AutopilotPolicy { managers, eligible, zone_label, replace_after_ms, stabilize_ms, shrink, .. } = policy;
    let mut text =
        format!("managers={managers} replace-after={replace_after_ms}ms stabilize={stabilize_ms}ms shrink={shrink}");
    if let Some(label) = zone_label {
        text += &format!(" zone-label={label}");
    }
    if !eligible.is_empty() {
        let labels: Vec<String> = eligible.iter().map(|(key, value)| format!("{key}={value}")).collect();
        text += &format!(" eligible={}", labels.join(","));
    }
    text
}

fn drained(drain: &Drain) -> String {
    let replaced = if drain.replace { ", to be replaced as manager" } else { "" };
    drain.until.map_or_else(|| format!("drained{replaced}"), |until| format!("drained until {until}{replaced}"))
}

/// Without a policy: no change.
fn set_pause(tables: &mut Tables, stamp: &Stamp<'_>, pause: Option<AutopilotPause>) -> Result<(), CommandRefusal> {
    let Autopilot { policy: Some(policy), forgiven, last_number, .. } = &mut tables.autopilot else { return Ok(()) };
    if policy.paused.is_some() == pause.is_some() {
        return Ok(());
    }
    if policy.paused.as_ref().is_some_and(|old| old.gave_up) {
        *forgiven = *last_number;
    }
    let text = |pause: &AutopilotPause| format!("autopilot paused: {}", pause.why);
    let (before, after) = (policy.paused.as_ref().map(text), pause.as_ref().map(text));
    let policy = Arc::make_mut(policy);
    (policy.paused, policy.revision) = (pause, stamp.at);
    stamp.log(tables, EventKind::Cluster, None, before, after);
    Ok(())
}

fn prefer(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    preference: ManagerPreference,
) -> Result<(), CommandRefusal> {
    node(tables, id)?;
    let old = tables.autopilot.preference(id);
    if old == preference {
        return Ok(());
    }
    match preference {
        ManagerPreference::Allow => tables.autopilot.preferences.remove(&id),
        other => tables.autopilot.preferences.insert(id, other),
    };
    let text = |preference| {
        Some(match preference {
            ManagerPreference::Prefer => "preferred as manager".to_owned(),
            ManagerPreference::Allow => "may become manager".to_owned(),
            ManagerPreference::Never => "excluded as manager".to_owned(),
        })
    };
    stamp.log(tables, EventKind::Node, Some(id), text(old), text(preference));
    Ok(())
}

/// `number`: only the change with this number; `None`: the one that has begun. Returns the change that has ended.
fn end(tables: &mut Tables, number: Option<u64>, outcome: AutopilotOutcome, why: &str) -> Option<Arc<AutopilotChange>> {
    let begun = |change: &AutopilotChange| {
        change.outcome == AutopilotOutcome::Begun && number.is_none_or(|number| number == change.number)
    };
    let changes = &mut tables.autopilot.changes;
    let at = changes.iter().position(|change| begun(change))?;
    let mut change = AutopilotChange::clone(&changes[at]);
    change.outcome = outcome;
    if !why.is_empty() {
        change.why = in_short(&format!("{}; {why}", change.why), MAX_TEXT_CHARS);
    }
    let change = Arc::new(change);
    changes.set(at, Arc::clone(&change));
    Some(change)
}

/// AUTO-1, AUTO-6: as the cluster, a role is requested only for the autopilot's change that has begun, and not once a person has requested
/// a role of the node. Other principals are not restricted.
pub(super) fn may_request(tables: &Tables, stamp: &Stamp<'_>, id: NodeId, role: Role) -> Result<(), CommandRefusal> {
    if *stamp.by != Principal::Cluster || tables.feature_level() < AUTOPILOT_LEVEL {
        return Ok(());
    }
    let autopilot = &tables.autopilot;
    if autopilot.policy.is_none() {
        return Err(stale("no number of managers is declared"));
    }
    if autopilot.requested.contains_key(&id) {
        return Err(stale("an operator has requested a role of the node"));
    }
    // A promotion may be taken back.
    let is_for = |change: &AutopilotChange| change.node == id && (change.action.role() == role || role == Role::Worker);
    match autopilot.outstanding() {
        Some(change) if is_for(change) => Ok(()),
        _ => Err(stale("the autopilot has begun no such change")),
    }
}

/// A role was requested. AUTO-6: what a person requests is remembered while there is a policy.
pub(super) fn requested(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId, role: Role) {
    let forgets = injected(BugInjection::ForgetPersons);
    if tables.autopilot.policy.is_some() && *stamp.by != Principal::Cluster && !forgets {
        tables.autopilot.requested.insert(id, role);
    }
}

/// The node was deleted.
pub(super) fn left(tables: &mut Tables, id: NodeId) {
    tables.autopilot.preferences.remove(&id);
    tables.autopilot.requested.remove(&id);
    tables.autopilot.drains.remove(&id);
}

/// After a recovery many managers are down, and only the operator knows which ones will return.
pub(crate) fn pause_after_recovery(tables: &mut Tables, stamp: &Stamp<'_>) {
    let why = "the cluster was recovered: check which nodes return, then `muster autopilot resume`".to_owned();
    let pause = AutopilotPause { by: stamp.by.clone(), at: stamp.wall, why, gave_up: false };
    if let Some(policy) = tables.autopilot.policy.as_mut() {
        Arc::make_mut(policy).paused.get_or_insert(pause);
    }
    let _ended = end(tables, None, AutopilotOutcome::Dropped, "the cluster was recovered");
}
