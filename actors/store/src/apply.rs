//! Applies one entry: remembered outcome, guards, changes, events.

use std::sync::Arc;

use muster_messages::{
    Change, Command, CommandRefusal, Event, EventKind, NodeId, ObjectChange, Outcome, Principal, RequestId, Revision,
    Tables, Term, WallTime, in_short,
};

use crate::bugs::{BugInjection, sometimes};
use crate::limits::Limits;
use crate::{changes, guards, injected, requests};

/// Characters of each text of an event, from `IDENTITY_LEVEL` on: events are bounded in bytes, too.
const MAX_EVENT_TEXT: usize = 512;

/// A position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    pub revision: Revision,
    /// Of the leader that proposed the entry.
    pub term: Term,
}

/// For callers without terms: tests that do not depend on them.
impl From<Revision> for LogPosition {
    fn from(revision: Revision) -> Self {
        Self { revision, term: Term(0) }
    }
}

/// Applies a command at its log position. `tables.revision` is that position afterwards, whatever the outcome.
pub fn apply(tables: &mut Tables, at: impl Into<LogPosition>, command: &Command) -> Result<(), CommandRefusal> {
    apply_within(&Limits::DEFAULT, tables, at.into(), command)
}

/// [`apply`] within these limits.
pub fn apply_within(
    limits: &Limits,
    tables: &mut Tables,
    at: LogPosition,
    command: &Command,
) -> Result<(), CommandRefusal> {
    debug_assert!(at.revision > tables.revision, "entries are applied in log order");
    tables.revision = at.revision;
    if command.request == RequestId(0) {
        return check_and_change(limits, tables, at, command);
    }
    if tables.remembers_callers() {
        if let Some(known) = requests::recall(tables, command) {
            return known;
        }
        let result = check_and_change(limits, tables, at, command);
        requests::remember(limits, tables, command, at.revision, result.as_ref().err());
        return result;
    }
    if let Some(first) = tables.outcomes.get(&command.request) {
        return first.refused.as_deref().cloned().map_or(Ok(()), Err);
    }
    let result = check_and_change(limits, tables, at, command);
    remember(limits, tables, command.request, at.revision, result.as_ref().err());
    result
}

/// [`apply`], and its changes of objects, for watches.
pub fn apply_watched(
    tables: &mut Tables,
    at: LogPosition,
    command: &Command,
    seen: &mut Vec<ObjectChange>,
) -> Result<(), CommandRefusal> {
    apply_watched_within(&Limits::DEFAULT, tables, at, command, seen)
}

/// [`apply_watched`] within these limits.
pub fn apply_watched_within(
    limits: &Limits,
    tables: &mut Tables,
    at: LogPosition,
    command: &Command,
    seen: &mut Vec<ObjectChange>,
) -> Result<(), CommandRefusal> {
    let mut touched: Vec<_> = command.changes.iter().filter_map(Change::object).collect();
    touched.sort_unstable();
    touched.dedup();
    let touched: Vec<_> = touched.into_iter().map(|key| (tables.objects.get(&key).cloned(), key)).collect();
    apply_within(limits, tables, at, command)?;
    for (before, key) in touched {
        let after = tables.objects.get(&key).cloned();
        let same = match (&before, &after) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        if !same {
            seen.push(ObjectChange { revision: at.revision, key, before, after });
        }
    }
    Ok(())
}

/// Applies an empty entry (a new leader's first one).
pub fn apply_empty(tables: &mut Tables, at: Revision) {
    debug_assert!(at > tables.revision, "entries are applied in log order");
    tables.revision = at;
}

fn check_and_change(
    limits: &Limits,
    tables: &mut Tables,
    at: LogPosition,
    command: &Command,
) -> Result<(), CommandRefusal> {
    if injected(BugInjection::ApplyNondeterministically) && sometimes() {
        return Ok(());
    }
    let (by, reason) = (&command.by, command.reason.as_str());
    let stamp = Stamp { at: at.revision, term: at.term, wall: command.at, by, reason, limits };
    for guard in &command.guards {
        guards::check(tables, &stamp, guard)?;
    }
    // A change refuses before it writes anything, so a single one needs no copy for a rollback. This is the hot
    // path. A block is checked against the result of the whole command, hence never alone.
    if let [only] = command.changes.as_slice()
        && !matches!(only, Change::Block(_))
    {
        return changes::make(tables, None, &stamp, only);
    }
    let before = tables.clone();
    let made = (command.changes.iter())
        .try_for_each(|change| changes::make(tables, Some(&before), &stamp, change))
        .and_then(|()| changes::check_result(tables, &command.changes));
    if made.is_err() {
        *tables = before;
    }
    made
}

fn remember(
    limits: &Limits,
    tables: &mut Tables,
    request: RequestId,
    revision: Revision,
    refused: Option<&CommandRefusal>,
) {
    let outcome = Outcome { request, revision, refused: refused.cloned().map(Box::new) };
    tables.outcomes.insert(request, outcome);
    tables.outcome_order.push_back(request);
    if tables.outcome_order.len() > limits.outcomes
        && let Some(oldest) = tables.outcome_order.pop_front()
    {
        tables.outcomes.remove(&oldest);
    }
}

/// Log position, time and author: what all changes of one entry share.
pub(crate) struct Stamp<'a> {
    pub at: Revision,
    pub term: Term,
    pub wall: WallTime,
    pub by: &'a Principal,
    pub reason: &'a str,
    pub limits: &'a Limits,
}

impl Stamp<'_> {
    /// Appends an event to the history of its kind's class.
    pub fn log(
        &self,
        tables: &mut Tables,
        kind: EventKind,
        node: Option<NodeId>,
        before: Option<String>,
        after: Option<String>,
    ) {
        let class = if is_routine(kind) { Class::Routine } else { Class::Membership };
        self.keep(tables, class, kind, node, (before, after));
    }

    /// Appends an event that a lease or a node can cause as often as it likes.
    pub fn log_frequent(
        &self,
        tables: &mut Tables,
        kind: EventKind,
        node: Option<NodeId>,
        before: Option<String>,
        after: Option<String>,
    ) {
        self.keep(tables, Class::Frequent, kind, node, (before, after));
    }

    /// From `IDENTITY_LEVEL` on an event evicts only older ones of its class.
    fn keep(
        &self,
        tables: &mut Tables,
        class: Class,
        kind: EventKind,
        node: Option<NodeId>,
        text: (Option<String>, Option<String>),
    ) {
        let event = self.event(tables, kind, node, text);
        let apart = tables.remembers_callers() && !injected(BugInjection::ShareEventQuota);
        let history = match class {
            Class::Routine if apart => &mut tables.routine_events,
            Class::Frequent if apart => &mut tables.frequent_events,
            _ => &mut tables.events,
        };
        history.push_back(Arc::new(event));
        if history.len() > self.limits.events {
            history.pop_front();
        }
    }

    fn event(
        &self,
        tables: &Tables,
        kind: EventKind,
        node: Option<NodeId>,
        (before, after): (Option<String>, Option<String>),
    ) -> Event {
        let bounded = tables.remembers_callers();
        let short = |text: String| if bounded { in_short(&text, MAX_EVENT_TEXT) } else { text };
        Event {
            revision: self.at,
            at: self.wall,
            kind,
            node,
            by: self.by.clone(),
            reason: short(self.reason.to_owned()),
            before: before.map(short),
            after: after.map(short),
        }
    }
}

/// The history that an event belongs to.
#[derive(Clone, Copy)]
enum Class {
    /// The cluster's nodes and their roles.
    Membership,
    Routine,
    Frequent,
}

/// Whether a node, or the holder of a token, can cause unlimited events of this kind.
pub(crate) fn is_routine(kind: EventKind) -> bool {
    match kind {
        EventKind::Certificate | EventKind::Token | EventKind::User | EventKind::Gate => true,
        EventKind::Cluster | EventKind::Node | EventKind::Role | EventKind::Membership | EventKind::Workload => false,
        // Logged as frequent events, except for an operator's actions.
        EventKind::Liveness | EventKind::Lease => false,
    }
}
