//! The notifier between probes: a script in place of the cluster, and a probe in place of the file.

use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use muster_client::{ErrorCode, EventView, EventsView, Failure, Outcome, Revision};
use muster_example_notifier::{Events, NotesMsg, Notifier};
use muster_kernel::{Address, CrashHow, Slot, Spec};
use muster_testkit::{ActorHarness, Probe};
use serde_json::json;

/// Answers in order, and the positions after which they were asked for. After the last one it is silent.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<Vec<Outcome<EventsView<EventView>>>>>,
    asked: Arc<Mutex<Vec<u64>>>,
}

impl Events for Script {
    fn next(&mut self, after: Revision) -> BoxFuture<'_, Outcome<EventsView<EventView>>> {
        self.asked.lock().expect("no test panicked with it").push(after.0);
        let mut answers = self.answers.lock().expect("no test panicked with it");
        if answers.is_empty() {
            return Box::pin(std::future::pending());
        }
        let answer = answers.remove(0);
        Box::pin(async move { answer })
    }
}

fn page(revision: u64, kinds: &[&str]) -> Outcome<EventsView<EventView>> {
    let event = |kind: &&str| {
        json!({"revision": revision, "at": "2026-01-01T00:00:00Z", "kind": kind, "node": null,
            "by": {"kind": "cluster", "id": null}, "reason": "it changed", "before": null, "after": "down"})
    };
    let items: Vec<_> = kinds.iter().map(event).collect();
    Ok(serde_json::from_value(json!({"items": items, "revision": revision})).expect("a page"))
}

/// Starts the notifier, which gets these answers.
fn started(harness: &ActorHarness, notes: &Probe<NotesMsg>, answers: Vec<Outcome<EventsView<EventView>>>) -> Script {
    let script = Script { answers: Arc::new(Mutex::new(answers)), asked: Arc::default() };
    let (events, notes, position) = (script.clone(), notes.recipient(), Slot::new());
    harness.start_actor(Spec::actor("notifier", Address::new(8), move || {
        Ok(Notifier::new(Box::new(events.clone()), notes.clone(), position.clone()))
    }));
    script
}

#[tokio::test(start_paused = true)]
async fn events_of_nodes_are_noted_also_after_a_time_without_leader() {
    let harness = ActorHarness::start().await;
    let mut notes = harness.probe("notes");
    let away = Err(Failure::new(ErrorCode::NoQuorum, "no leader"));
    let script = started(&harness, &notes, vec![page(7, &["node", "lease"]), away, page(9, &["role"])]);
    for expected in ["7 it changed: - -> down", "9 it changed: - -> down"] {
        let lines = notes.expect("a note", |NotesMsg::Append { lines }| Some(lines)).await;
        assert_eq!(lines, [expected]);
    }
    harness.healthy("node/notifier", 1).await;
    assert_eq!(script.asked.lock().unwrap()[..3], [0, 7, 7]);
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crashed_notifier_resumes_where_it_was() {
    let mut harness = ActorHarness::start().await;
    let mut notes = harness.probe("notes");
    let script = started(&harness, &notes, vec![page(7, &["node"])]);
    notes.until("the note", |NotesMsg::Append { lines }| lines[0].starts_with('7')).await;
    harness.crash("node/notifier", CrashHow::Panic);
    harness.healthy("node/notifier", 2).await;
    assert_eq!(script.asked.lock().unwrap()[..], [0, 7, 7]);
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn expired_position_is_a_fault_after_which_all_is_read_again() {
    let mut harness = ActorHarness::start().await;
    let mut notes = harness.probe("notes");
    harness.expects_fault("read what you need again");
    let expired = Err(Failure::new(ErrorCode::Expired, "read what you need again"));
    let script = started(&harness, &notes, vec![page(7, &["node"]), expired]);
    notes.until("the note", |NotesMsg::Append { lines }| lines[0].starts_with('7')).await;
    harness.healthy("node/notifier", 2).await;
    // Not from the same position, which would fail without end.
    assert_eq!(script.asked.lock().expect("no test panicked with it")[..], [0, 7, 0]);
    harness.finish().await;
}
