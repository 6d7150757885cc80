//! Whose request an id stands for, and what a write is called whose outcome is not known.

use axum::http::StatusCode;
use muster_messages::wire::Request;
use muster_messages::*;
use serde_json::json;

use crate::core;
use crate::tests::{World, tables};

fn label(value: &str) -> Request {
    let add = [("owner".to_owned(), value.to_owned())].into();
    Request::NodeUpdate { node: "n2".to_owned(), add, remove: vec![], generation: None }
}

/// A leader that applies what is proposed.
fn applying() -> World {
    World::with(tables(), |tables, command| {
        let at = tables.revision.next();
        Some(muster_store::apply(tables, at, command))
    })
}

#[tokio::test]
async fn an_id_stands_for_one_request_of_one_caller() {
    let world = applying();
    let (ann, bob) = (Principal::Admin("ann".parse().unwrap()), Principal::Admin("bob".parse().unwrap()));
    let (status, node, _) = world.native(&ann, label("one")).await;
    assert_eq!((status, &node["labels"]["owner"]), (StatusCode::OK, &json!("one")));
    let (status, error, _) = world.native(&ann, label("two")).await;
    assert_eq!((status, &error["error"]["code"]), (StatusCode::CONFLICT, &json!("conflict")), "{error}");
    let (status, node, _) = world.native(&bob, label("three")).await;
    assert_eq!((status, &node["labels"]["owner"]), (StatusCode::OK, &json!("three")));
    let (status, node, _) = world.native(&ann, label("one")).await;
    assert_eq!((status, &node["labels"]["owner"]), (StatusCode::OK, &json!("three")), "a retry is not applied again");
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_write_is_not_called_refused() {
    let world = World::with(tables(), |_, _| None);
    let (_, error, _) = world.native(&Principal::Operator, label("one")).await;
    assert_eq!(error["error"]["code"], "unknown_outcome", "{error}");
    let text = error["error"]["message"].as_str().unwrap();
    assert!(text.contains("may still happen") && text.contains("`muster node inspect n2`"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_entered_no_log_is_called_refused() {
    let world = World::with(tables(), |_, _| None);
    world.copy.send_replace(std::sync::Arc::new(Replica { tables: tables(), raft: RaftStatus::default() }));
    let (_, error, proposed) = world.native(&Principal::Operator, label("one")).await;
    assert_eq!((error["error"]["code"].as_str(), proposed.len()), (Some("no_quorum"), 0), "{error}");
}

#[tokio::test]
async fn a_forgotten_outcome_is_final() {
    let mut forgetful = tables();
    forgetful.requests.floor = RequestId(u128::MAX);
    let world = World::with(forgetful, |tables, command| {
        let at = tables.revision.next();
        Some(muster_store::apply(tables, at, command))
    });
    let (_, error, proposed) = world.native(&Principal::Operator, label("one")).await;
    assert_eq!((error["error"]["code"].as_str(), proposed.len()), (Some("unknown_outcome"), 1), "{error}");
    assert_eq!(error["error"]["details"]["final"], true);
}

#[test]
fn events_come_in_pages_that_a_frame_holds() {
    let mut tables = tables();
    for n in 0..6_000 {
        let event = Event {
            revision: Revision(20 + n / 2),
            at: WallTime(0),
            kind: [EventKind::Lease, EventKind::Role, EventKind::Certificate][n as usize % 3],
            node: None,
            by: Principal::Operator,
            reason: format!("{n} {}", "r".repeat(400)),
            before: None,
            after: None,
        };
        let history = match event.kind {
            EventKind::Lease => &mut tables.frequent_events,
            EventKind::Role => &mut tables.events,
            _ => &mut tables.routine_events,
        };
        history.push_back(std::sync::Arc::new(event));
    }
    tables.revision = Revision(5_000);
    let (mut whole, mut since, mut pages) = (None, Revision(0), 0);
    loop {
        let page = core::events_page(&tables, since, 512 * 1024);
        assert!(page.to_string().len() < 600 * 1024, "a page of {} bytes", page.to_string().len());
        let (document, next) = core::events_joined(whole.take(), page);
        pages += 1;
        whole = Some(document);
        let Some(next) = next else { break };
        assert!(since < Revision(next));
        since = Revision(next);
    }
    let whole = whole.unwrap();
    let revisions: Vec<u64> =
        whole["items"].as_array().unwrap().iter().map(|e| e["revision"].as_u64().unwrap()).collect();
    assert!(
        pages > 3 && revisions.is_sorted() && revisions.len() == 6_000,
        "{pages} pages, {} events",
        revisions.len()
    );
    assert_eq!((&whole["revision"], whole.get("more")), (&json!(5_000), None));
}
