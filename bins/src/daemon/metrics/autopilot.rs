//! Metrics of the declared number of managers, as the leader sees it.

use muster_messages::{AutopilotAction, AutopilotActorView, AutopilotOutcome, word};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{Source, gauge, view};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    action: String,
    outcome: String,
}

/// Only the leader has them.
pub(super) async fn register(registry: &mut Registry, source: &Source) {
    let Some(seen) = view::<AutopilotActorView>(source, "node/manager/leader/autopilot").await else { return };
    for (name, help, value) in [
        (
            "autopilot_declared_managers",
            "Managers that are declared; 0: none are",
            usize::from(seen.declared.unwrap_or(0)),
        ),
        ("autopilot_answering_managers", "Managers that answer the leader", seen.answering),
        ("autopilot_candidates", "Workers that may be promoted; 0 without a declaration", seen.candidates),
        ("autopilot_paused", "1 while the autopilot is paused", usize::from(seen.paused)),
        (
            "autopilot_gave_up",
            "1 while the autopilot is paused because it replaced too many managers",
            usize::from(seen.gave_up),
        ),
        ("nodes_drained", "Nodes in maintenance", seen.drained),
    ] {
        gauge(registry, name, help, value as u64);
    }
    let changes: Family<Ended, Counter> = Family::default();
    // All from the start: the first change of a kind is then an increase.
    use AutopilotOutcome::{Dropped, Refused, Settled, TakenBack};
    for action in [AutopilotAction::Promote, AutopilotAction::Demote].map(word) {
        for outcome in [Settled, Refused, TakenBack, Dropped].map(word) {
            let _zero = changes.get_or_create(&Ended { action: action.clone(), outcome });
        }
    }
    for (action, outcome, count) in seen.ended {
        changes.get_or_create(&Ended { action: word(action), outcome: word(outcome) }).inc_by(count);
    }
    registry.register("autopilot_changes", "Changes of roles by the autopilot that ended under this leader", changes);
}
