//! The decisions of a manager as a participant of Muster's own scope.
//!
//! Owns        what was reported last, so that one line is logged for each change.
//! Inputs      the state of its membership; its local replica; what its Raft member cannot read.
//! Outputs     when to take part, and again; a definition to register; lines for the log; whether the manager runtime ends, and with which
//!             sentence.

use muster_messages::{Definition, DefinitionKey, MANAGERS_SCOPE, NodeId, Tables};
use muster_raft_member::Incompatible;
use muster_reconciler::AdmissionState;

/// What follows from a change of the membership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// For the log, if it says something new.
    pub line: Option<String>,
    /// The membership is over: this manager takes part with another one, after a pause.
    pub announces_again: bool,
}

/// How this manager takes part.
#[derive(Clone, Debug)]
pub(super) struct Participation {
    /// The highest level that this build supports.
    level: u32,
    reported: String,
}

impl Participation {
    pub fn new(level: u32) -> Self {
        Self { level, reported: String::new() }
    }

    pub fn observe(&mut self, admission_state: &AdmissionState) -> Change {
        let line = line_of(admission_state, self.level).filter(|line| *line != self.reported);
        if let Some(line) = &line {
            self.reported.clone_from(line);
        }
        let announces_again =
            matches!(admission_state, AdmissionState::Revoked { .. } | AdmissionState::Refused { .. });
        Change { line, announces_again }
    }
}

/// How a manager takes part in the scope, for people. `None`: it is about to, or leaves.
fn line_of(admission_state: &AdmissionState, level: u32) -> Option<String> {
    match admission_state {
        AdmissionState::Serving => {
            Some(format!("participating in the scope {MANAGERS_SCOPE} at feature level {level}"))
        }
        AdmissionState::Waiting { reason, message } => {
            Some(format!("waiting to participate in the scope {MANAGERS_SCOPE}: {reason}: {message}"))
        }
        AdmissionState::Revoked { why } | AdmissionState::Refused { why } => {
            Some(format!("not participating in the scope {MANAGERS_SCOPE} for now: {why}"))
        }
        AdmissionState::Announcing { .. } | AdmissionState::Left => None,
    }
}

/// Whether a replica shows that this node is one of the managers of a cluster: then it takes part.
pub(super) fn is_known(tables: &Tables, me: NodeId) -> bool {
    tables.cluster.is_some() && tables.nodes.contains_key(&me)
}

/// Whether the cluster has the definition of this release already: all builds of a level bring the same one.
pub(super) fn has_definition(tables: &Tables, definition: &Definition) -> bool {
    let key = DefinitionKey { reconciler: definition.reconciler.clone(), release: definition.release.triple };
    tables.reconcilers.definitions.contains_key(&key)
}

/// Whether what this build does not support ends the manager runtime: only a level of its own replica. A snapshot of a later version is
/// one peer's claim.
pub(super) fn ends_runtime(incompatible: Option<Incompatible>) -> bool {
    matches!(incompatible, Some(Incompatible::Level(_)))
}

/// The sentence for operators, whichever actor detected the incompatibility.
pub fn sentence(what: impl std::fmt::Display, supported: u32) -> String {
    format!(
        "{what}, and this build of musterd supports feature level {supported} at most; install the build that the other managers run"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_messages::{AdmissionReason, Name, NodeRecord, Role, WallTime};

    use super::super::{definition, tests::known};
    use super::*;

    const LEVEL: u32 = 2;

    fn waiting(message: &str) -> AdmissionState {
        AdmissionState::Waiting { reason: AdmissionReason::GateClosed.into(), message: message.to_owned() }
    }
    fn revoked() -> AdmissionState {
        AdmissionState::Revoked { why: "its lease was lost".to_owned() }
    }
    fn refused() -> AdmissionState {
        AdmissionState::Refused { why: "forbidden".to_owned() }
    }
    fn announcing() -> AdmissionState {
        AdmissionState::Announcing { trouble: Some("no leader".to_owned()) }
    }

    #[test]
    fn each_state_has_its_line_and_an_end_leads_to_another_try() {
        let not = "not participating in the scope muster for now: ";
        for (state, line, announces_again) in [
            (AdmissionState::Serving, Some("participating in the scope muster at feature level 2".to_owned()), false),
            (waiting("a"), Some("waiting to participate in the scope muster: gate-closed: a".to_owned()), false),
            (revoked(), Some(format!("{not}its lease was lost")), true),
            (refused(), Some(format!("{not}forbidden")), true),
            (announcing(), None, false),
            (AdmissionState::Left, None, false),
        ] {
            let change = Participation::new(LEVEL).observe(&state);
            assert_eq!(change, Change { line, announces_again }, "{state:?}");
        }
    }

    #[test]
    fn unchanged_state_is_logged_once_and_still_tried_again() {
        let mut participation = Participation::new(LEVEL);
        let mut logs = |state: AdmissionState| participation.observe(&state).line.is_some();
        assert_eq!((logs(waiting("a")), logs(waiting("a")), logs(waiting("b"))), (true, false, true));
        assert_eq!((logs(announcing()), logs(waiting("b"))), (false, false), "nothing else was logged in between");
        assert_eq!((logs(AdmissionState::Serving), logs(waiting("b"))), (true, true));
        assert!(logs(revoked()));
        let again = participation.observe(&revoked());
        assert_eq!(again, Change { line: None, announces_again: true });
    }

    #[test]
    fn only_a_manager_in_a_cluster_takes_part() {
        let mut tables = known(1).tables;
        let me = *tables.nodes.keys().next().unwrap();
        assert!(is_known(&tables, me) && !is_known(&tables, NodeId::from_entropy(9)));
        let cluster = tables.cluster.take();
        assert!(cluster.is_some() && !is_known(&tables, me));
        let mut others = Tables { cluster, ..Tables::default() };
        let other = NodeRecord::new(NodeId::from_entropy(9), Name::sanitized("n9"), Role::Manager, WallTime(0));
        others.nodes.insert(other.id, Arc::new(other));
        assert!(!is_known(&others, me));
    }

    #[test]
    fn definition_is_registered_once_for_each_level() {
        let mut tables = Tables::default();
        assert!(!has_definition(&tables, &definition(LEVEL)));
        let earlier = definition(LEVEL - 1);
        let key = |of: &Definition| DefinitionKey { reconciler: of.reconciler.clone(), release: of.release.triple };
        tables.reconcilers.definitions.insert(key(&earlier), Arc::new(earlier));
        assert!(!has_definition(&tables, &definition(LEVEL)));
        let ours = definition(LEVEL);
        tables.reconcilers.definitions.insert(key(&ours), Arc::new(ours));
        assert!(has_definition(&tables, &definition(LEVEL)));
    }

    #[test]
    fn only_a_level_of_its_own_replica_ends_the_runtime() {
        assert!(ends_runtime(Some(Incompatible::Level(3))));
        assert!(!ends_runtime(Some(Incompatible::Snapshot(3))) && !ends_runtime(None));
    }
}
