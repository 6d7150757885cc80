//! Invariants of the autopilot's records.

use muster_messages::{AUTOPILOT_HISTORY, AutopilotOutcome, Tables};

use super::{AUTO_4, BOUND_1, CheckResult, holds};

pub(super) fn check(tables: &Tables) -> CheckResult {
    let autopilot = &tables.autopilot;
    let begun = autopilot.changes.iter().filter(|change| change.outcome == AutopilotOutcome::Begun).count();
    holds(begun <= 1, AUTO_4, || format!("{begun} changes have begun and not ended"))?;
    let changes = autopilot.changes.len();
    holds(changes <= AUTOPILOT_HISTORY, BOUND_1, || format!("{changes} changes of the autopilot"))?;
    // Each of these is deleted with its node.
    let (preferences, requested, drains) = (&autopilot.preferences, &autopilot.requested, &autopilot.drains);
    let named = preferences.keys().chain(requested.keys()).chain(drains.keys());
    let gone = named.into_iter().find(|node| !tables.nodes.contains_key(*node));
    holds(gone.is_none(), BOUND_1, || format!("the autopilot remembers {gone:?}, which has no record"))
}
