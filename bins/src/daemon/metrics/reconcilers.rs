//! Metrics of reconcilers: their state in this manager's replica, and the results of their runs on this node.
//!
//! A label is the name of a reconciler, for at most [`MAX_RECONCILER_SERIES`] of them, or of its scope, or one of a few words. A scope that no
//! reconciler uses has no series: any program may name one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;

use muster_messages::{ActorNode, ParticipantCounts, ParticipantPhase, ReconcilerStatusView, Tables, word};
use muster_reconciler::RunView;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;

use super::{Number, Source};

/// Reconcilers with their own series, by name; the total number is reported too.
const MAX_RECONCILER_SERIES: usize = 200;
/// Where this node's runs are: its own, and the managers'.
const LOCAL_RUN_GROUPS: [&str; 2] = ["node/reconcilers", "node/manager/feature-level/reconcilers"];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Name {
    reconciler: String,
}
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Gate {
    reconciler: String,
    state: String,
    reconciled: String,
    floor: String,
}
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Phase {
    reconciler: String,
    phase: String,
}
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Failure {
    reconciler: String,
    node: String,
}
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Participants {
    scope: String,
    phase: String,
}

type ByName = Family<Name, Number>;

pub(super) async fn register(registry: &mut Registry, source: &Source) {
    let local_replica = source.manager.borrow().as_ref().map(|manager| manager.replica.borrow().clone());
    if let Some(local_replica) = local_replica {
        // Hundreds of reconcilers and thousands of members take a while: not on the threads that Raft uses.
        if let Ok((all, reported)) = tokio::task::spawn_blocking(move || statuses(&local_replica.tables)).await {
            register_statuses(registry, all, &reported);
        }
    }
    let mut local = Vec::new();
    for group in LOCAL_RUN_GROUPS {
        local.extend(source.tree.inspect(group).await.map(|group| group.children).unwrap_or_default());
    }
    register_local_runs(registry, &local);
}

/// The number of reconcilers, and the status of those with series.
fn statuses(tables: &Tables) -> (usize, Vec<ReconcilerStatusView>) {
    let all = &tables.reconcilers;
    let names: BTreeSet<&String> = all.definitions.keys().map(|key| &key.reconciler).chain(all.gates.keys()).collect();
    let reported = names.iter().take(MAX_RECONCILER_SERIES).filter_map(|name| muster_gates::status(tables, name));
    (names.len(), reported.collect())
}

fn register_statuses(registry: &mut Registry, all: usize, statuses: &[ReconcilerStatusView]) {
    let (gates, phases) = (Family::<Gate, Number>::default(), Family::<Phase, Number>::default());
    let [epochs, blockers, failures, candidates] = [(); 4].map(|()| ByName::default());
    let failed = Family::<Failure, Gauge<f64, AtomicU64>>::default();
    let mut scopes: BTreeMap<&str, ParticipantCounts> = BTreeMap::new();
    for ReconcilerStatusView { brief, blockers: listed, .. } in statuses {
        let (reconciler, gate) = (brief.name.clone(), brief.gate.as_ref());
        if let Some(gate) = gate {
            let entry = gate.entry();
            let reconciled = entry.map(|entry| entry.reconciled.to_string()).unwrap_or_default();
            let floor = entry.map(|entry| entry.floor.to_string()).unwrap_or_default();
            let state = gate.state();
            gates.get_or_create(&Gate { reconciler: reconciler.clone(), state, reconciled, floor }).set(1);
        }
        phases.get_or_create(&Phase { reconciler: reconciler.clone(), phase: brief.phase.to_string() }).set(1);
        if let Some(failure) = &brief.last_failure {
            let node = failure.name.as_ref().map_or_else(|| failure.node.to_string(), ToString::to_string);
            let labels = Failure { reconciler: reconciler.clone(), node };
            failed.get_or_create(&labels).set(failure.at.0 as f64 / 1_000.0);
        }
        let name = Name { reconciler };
        epochs.get_or_create(&name).set(gate.map_or(0, |gate| gate.epoch()));
        blockers.get_or_create(&name).set(listed.len() as u64);
        failures.get_or_create(&name).set(brief.consecutive_failures.into());
        candidates.get_or_create(&name).set(brief.candidates as u64);
        scopes.insert(&brief.scope, brief.participants);
    }
    let members = Family::<Participants, Number>::default();
    for (scope, counts) in scopes {
        let ParticipantCounts { serving, announced, draining } = counts;
        use ParticipantPhase as P;
        for (phase, count) in [(P::Announced, announced), (P::Serving, serving), (P::Draining, draining)] {
            let labels = Participants { scope: scope.to_owned(), phase: word(phase) };
            members.get_or_create(&labels).set(count as u64);
        }
    }
    let total = Number::default();
    total.set(all as u64);
    registry.register("reconcilers", "Reconcilers; only the first 200 by name have their own series", total);
    registry.register("reconciler_gate_info", "1 for the gate's state", gates);
    registry.register("reconciler_phase", "1 for the current phase", phases);
    for (name, help, family) in [
        ("reconciler_gate_epoch", "Number of writes of the gate; 0 without a gate", epochs),
        ("reconciler_blockers", "Serving members that are incompatible with the next release", blockers),
        ("reconciler_consecutive_failures", "Failures since the last success, on any node", failures),
        ("reconciler_candidates", "Live candidates for the runner", candidates),
    ] {
        registry.register(name, help, family);
    }
    let help = "Time of the last failure, and its node; absent once a run has succeeded";
    registry.register("reconciler_last_failure_timestamp_seconds", help, failed);
    registry.register("reconciler_participants", "Members of scopes used by reconcilers, by phase", members);
}

/// `reconcilers`: one group for each reconciler that this node may run, of those in the tree (a hundred below one actor).
fn register_local_runs(registry: &mut Registry, reconcilers: &[ActorNode]) {
    let [attempts, failures] = [(); 2].map(|()| Family::<Name, Counter>::default());
    let last = Family::<Name, Gauge<f64, AtomicU64>>::default();
    for group in reconcilers {
        let Some(reconciler) = group.path.rsplit('/').next().map(str::to_owned) else { continue };
        let run = group.children.iter().find(|child| child.path.ends_with("/run"));
        let Some(runs) = run.and_then(|run| RunView::deserialize(&run.view).ok()?.runs) else { continue };
        let name = Name { reconciler };
        attempts.get_or_create(&name).inc_by(runs.attempts);
        failures.get_or_create(&name).inc_by(runs.failures);
        if let Some(ms) = runs.last_run_ms {
            last.get_or_create(&name).set(ms as f64 / 1_000.0);
        }
    }
    registry.register("reconciler_attempts", "Attempts started on this node", attempts);
    registry.register("reconciler_failures", "Attempts on this node that failed", failures);
    let help = "Duration of the last successful attempt on this node";
    registry.register("reconciler_last_run_seconds", help, last);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_messages::{
        Action, ActorState, Definition, FencingToken, GateEntry, GateState, Participant, ParticipantKey,
        ParticipantPhase, Revision, SessionId, WallTime,
    };
    use prometheus_client::encoding::text::encode;
    use serde_json::{Value, json};

    use super::*;

    fn define(tables: &mut Tables, name: &str) {
        let (release, floor) = ("2.0.0".parse().unwrap(), "2.0.0".parse().unwrap());
        let definition = Definition::new(name, release, "db", floor, Action::Handler);
        tables.reconcilers.definitions.insert(definition.key(), Arc::new(definition));
    }

    fn gate(tables: &mut Tables, name: &str, format: u32) {
        let now = GateEntry {
            epoch: 4,
            state: GateState::Done,
            reconciled: "1.0.0".parse().unwrap(),
            digest: String::new(),
            floor: "1.0.0".parse().unwrap(),
            target: None,
            term: FencingToken(1),
            at: WallTime(0),
            revision: Revision(1),
            why: String::new(),
        };
        let gate =
            muster_messages::Gate { reconciler: name.into(), scope: "db".into(), format, now, history: Vec::new() };
        tables.reconcilers.gates.insert(name.into(), Arc::new(gate));
    }

    fn serves(tables: &mut Tables, scope: &str, member: &str, release: &str) {
        let key = ParticipantKey { scope: scope.into(), member: member.into(), incarnation: SessionId(7) };
        let participant = Participant {
            key: key.clone(),
            node: None,
            release: release.parse().unwrap(),
            needs: BTreeMap::new(),
            phase: ParticipantPhase::Serving,
            token: Some(FencingToken(1)),
            since: WallTime(0),
            revision: Revision(1),
        };
        tables.reconcilers.participants.insert(key, Arc::new(participant));
    }

    fn scraped(tables: &Tables) -> String {
        let mut registry = Registry::with_prefix("muster");
        let (all, reported) = statuses(tables);
        register_statuses(&mut registry, all, &reported);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    #[track_caller]
    fn assert_line(text: &str, line: &str) {
        assert!(text.lines().any(|said| said == line), "{line}\n{text}");
    }

    #[test]
    fn gates_blockers_and_scope_members_have_series() {
        let mut tables = Tables::default();
        define(&mut tables, "schema");
        gate(&mut tables, "schema", 1);
        serves(&mut tables, "db", "old", "1.0.0");
        serves(&mut tables, "db", "new", "2.0.0");
        serves(&mut tables, "elsewhere", "x", "1.0.0");
        let text = scraped(&tables);
        for line in [
            "muster_reconcilers 1",
            r#"muster_reconciler_gate_info{reconciler="schema",state="done",reconciled="1.0.0",floor="1.0.0"} 1"#,
            r#"muster_reconciler_gate_epoch{reconciler="schema"} 4"#,
            r#"muster_reconciler_phase{reconciler="schema",phase="no-candidate"} 1"#,
            r#"muster_reconciler_blockers{reconciler="schema"} 1"#,
            r#"muster_reconciler_consecutive_failures{reconciler="schema"} 0"#,
            r#"muster_reconciler_candidates{reconciler="schema"} 0"#,
            r#"muster_reconciler_participants{scope="db",phase="serving"} 2"#,
            r#"muster_reconciler_participants{scope="db",phase="draining"} 0"#,
        ] {
            assert_line(&text, line);
        }
        assert!(!text.contains("elsewhere"), "{text}");
        gate(&mut tables, "schema", 99);
        assert_line(
            &scraped(&tables),
            r#"muster_reconciler_gate_info{reconciler="schema",state="unreadable",reconciled="",floor=""} 1"#,
        );
        let text = scraped(&Tables::default());
        assert_line(&text, "muster_reconcilers 0");
        assert!(!text.contains("schema") && !text.contains("db"), "{text}");
    }

    #[test]
    fn there_are_series_for_a_bounded_number_of_reconcilers() {
        let mut tables = Tables::default();
        for n in 0..2 * MAX_RECONCILER_SERIES {
            define(&mut tables, &format!("r{n}"));
        }
        let text = scraped(&tables);
        assert_line(&text, "muster_reconcilers 400");
        assert_eq!(text.matches("muster_reconciler_blockers{").count(), MAX_RECONCILER_SERIES);
    }

    fn actor(path: &str, view: Value, children: Vec<ActorNode>) -> ActorNode {
        ActorNode { state: ActorState::Healthy, view, children, ..ActorNode::unknown(path) }
    }

    #[test]
    fn runs_of_this_node_are_counted() {
        let runs = json!({"term": null, "runs": {"attempts": 7, "failures": 2, "last_run_ms": 31}});
        let ran = actor("node/reconcilers/schema/run", runs, Vec::new());
        let never = actor("node/reconcilers/other/run", json!({"term": null, "runs": null}), Vec::new());
        let groups = [("node/reconcilers/schema", ran), ("node/reconcilers/other", never)];
        let groups = groups.map(|(path, run)| actor(path, Value::Null, vec![run]));
        let mut registry = Registry::with_prefix("muster");
        register_local_runs(&mut registry, &groups);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert_line(&text, r#"muster_reconciler_attempts_total{reconciler="schema"} 7"#);
        assert_line(&text, r#"muster_reconciler_failures_total{reconciler="schema"} 2"#);
        assert_line(&text, r#"muster_reconciler_last_run_seconds{reconciler="schema"} 0.031"#);
        assert!(!text.contains("other"), "{text}");
    }
}
