//! Logs of runs: where they are asked for, and what is answered if they cannot be read.

use std::sync::{Arc, Mutex};

use muster_kernel::Recipient;
use muster_messages::protocol::SessionsMsg;
use muster_messages::wire::{ActorsAsk, ReconcilerRequest, RunKey, RunLogAsk};
use muster_messages::{ErrorBody, ErrorCode, Principal};
use serde_json::{Value, json};

use crate::tests::{TERM, World, leading, tables};

/// A leader on which node 2 has a session, which answers this. And what it was asked.
fn with_session(answer: Result<String, ErrorBody>) -> (World, Arc<Mutex<Vec<RunLogAsk>>>) {
    let questions = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&questions);
    let sessions = Recipient::new(move |msg| {
        let SessionsMsg::AskNode { reply, ask, .. } = msg;
        let ActorsAsk::RunLog(ask) = ask else { panic!("{ask:?}") };
        asked.lock().unwrap().push(ask);
        let _gone = reply.send(answer.clone());
        Ok(())
    });
    (World::new().hosting(sessions), questions)
}

async fn log(world: &World, name: &str, run: Option<u64>) -> (u16, Value) {
    let request = ReconcilerRequest::Log { name: name.to_owned(), run, offset: 7, wait_ms: 10 };
    let (status, answer, _) = world.reconciler(&Principal::Operator, request).await;
    (status.as_u16(), answer)
}

#[tokio::test]
async fn log_is_read_at_the_node_that_ran_it() {
    let part = json!({"kept": true, "offset": 7, "skipped": 0, "text": "words", "next_offset": 12, "running": true});
    let (world, questions) = with_session(Ok(part.to_string()));
    for run in [Some(2), None] {
        let (status, answer) = log(&world, "schema", run).await;
        assert_eq!((status, &answer["number"], &answer["text"]), (200, &2.into(), &"words".into()));
        assert_eq!((&answer["node_name"], &answer["next_offset"]), (&"n2".into(), &12.into()));
    }
    let run = RunKey { reconciler: "schema".to_owned(), term: TERM, of_term: 2 };
    assert_eq!(*questions.lock().unwrap(), vec![RunLogAsk { run, offset: 7, wait_ms: 10 }; 2]);
    let (_, here) = log(&world, "schema", Some(1)).await;
    assert_eq!((&here["number"], &here["node_name"]), (&1.into(), &"n1".into()), "this manager ran it");
}

#[tokio::test]
async fn unreadable_log_names_the_node_and_what_is_on_record() {
    let error = |code| Err(ErrorBody::new(code, "no answer"));
    let not_kept = json!({"kept": false, "offset": 0, "skipped": 0, "text": "", "next_offset": 0, "running": false});
    for (answer, expected, says) in [
        (error(ErrorCode::Unreachable), 503, "the output of run 2 of schema is on n2, which cannot be reached (n2 ("),
        (
            error(ErrorCode::TimedOut),
            503,
            "the output of run 2 of schema is on n2, which cannot be reached (no answer)",
        ),
        (error(ErrorCode::NotFound), 503, "the output of run 2 of schema is on n2, which cannot be reached (n2 ("),
        (Ok(not_kept.to_string()), 404, "n2 has no log of run 2 of schema"),
    ] {
        let (world, _) = with_session(answer);
        let (status, answer) = log(&world, "schema", None).await;
        let error = &answer["error"];
        assert!(status == expected && error["message"].as_str().unwrap().contains(says), "{says}: {status} {error}");
        let run = &error["details"]["run"];
        assert_eq!((&run["number"], &run["tail"], &run["node_name"]), (&2.into(), &"last".into(), &"n2".into()));
    }
}

/// A reader asks for the next part until the end.
#[tokio::test]
async fn log_that_does_not_advance_is_refused() {
    for (offset, next_offset) in [(7, 7), (7, 3), (0, 7), (12, 12), (12, 11)] {
        let part = json!({"kept": true, "offset": offset, "skipped": 0, "text": "words", "next_offset": next_offset, "running": true});
        let (status, answer) = log(&with_session(Ok(part.to_string())).0, "schema", None).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            status == 409 && message.contains("n2 sends output of run 2 of schema that does not lead beyond byte 7"),
            "{answer}"
        );
    }
    // A run without output so far.
    let nothing = json!({"kept": true, "offset": 0, "skipped": 0, "text": "", "next_offset": 0, "running": true});
    let (status, answer) = log(&with_session(Ok(nothing.to_string())).0, "schema", None).await;
    assert_eq!((status, &answer["next_offset"]), (200, &7.into()), "the next part is not an earlier one");
}

#[tokio::test]
async fn unknown_run_and_unknown_reconciler_are_different_errors() {
    let world = World::new();
    let message = async |name: &str, run| {
        let (status, answer) = log(&world, name, run).await;
        assert_eq!(status, 404);
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    assert!(message("schema", Some(9)).await.contains("lists those that are, 2 is the newest"));
    assert!(message("other", None).await.contains("no such reconciler: other"));
    let mut without = tables();
    without.records.runs.remove("schema");
    world.published.send_replace(leading(without));
    assert!(message("schema", None).await.contains("no run of schema is on record; `muster reconciler status schema`"));
}
