use axum::http::StatusCode;
use muster_messages::wire::{ApiCall, Request};
use muster_messages::{AutolockChange, Change, Command, Principal, RequestId, Revision, Secret, Tables, WallTime};
use serde_json::Value;

use crate::tests::{World, tables};

/// A leader that applies what is proposed and then these changes of other requests, before the answer.
fn world(mut others: Vec<(u64, AutolockChange)>) -> World {
    World::with(tables(), move |tables: &mut Tables, command: &_| {
        let at = tables.revision.next();
        let outcome = muster_store::apply(tables, at, command);
        let request = command.request.0;
        others.retain(|(after, change)| {
            if u128::from(*after) != request {
                return true;
            }
            let change = Change::Autolock(Box::new(change.clone()));
            let command = Command::idempotent(WallTime(0), Principal::Cluster, "another").change(change);
            muster_store::apply(tables, tables.revision.next(), &command).expect("it is possible");
            false
        });
        Some(outcome)
    })
}

/// The answer to the request with this id.
async fn asked(world: &World, id: u64, request: Request) -> (StatusCode, Value) {
    let call = ApiCall { id: 0, request_id: RequestId(id.into()), timeout_ms: 5_000, request };
    match world.service.answer(Principal::Operator, call).await {
        Ok(text) => (StatusCode::OK, serde_json::from_str(&text).unwrap()),
        Err(error) => (StatusCode::from_u16(error.code.http_status()).unwrap(), error.to_json()),
    }
}

async fn done(world: &World, id: u64, request: Request) -> Value {
    let (status, answer) = asked(world, id, request).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

fn key(text: &str) -> Secret {
    Secret::new(text)
}

/// A repeated request makes a key in vain: the answer shows the one that counts.
#[tokio::test]
async fn repeated_rotation_answers_with_the_first_key() {
    let world = world(vec![]);
    let on = done(&world, 1, Request::AutolockOn).await;
    let rotated = done(&world, 2, Request::AutolockRotate).await;
    assert!(on["changed"] == true && rotated["changed"] == true && rotated["key"] != on["key"], "{rotated}");
    world.proposed();
    assert_eq!(done(&world, 2, Request::AutolockRotate).await, rotated, "the same answer");
    let proposed = world.proposed();
    assert_eq!(proposed.len(), 1, "it is proposed again");
    assert!(!format!("{proposed:?}").contains(rotated["key"].as_str().unwrap()), "proposals hide the key");
    assert_eq!(done(&world, 1, Request::AutolockOn).await, on, "its key is a former one now");
    let off = done(&world, 3, Request::AutolockOff).await;
    assert_eq!(off["changed"], true);
    assert_eq!(done(&world, 3, Request::AutolockOff).await, off);
    assert_eq!(done(&world, 4, Request::AutolockOff).await["changed"], false);
}

/// The answer is that of the moment at which the request was applied.
#[tokio::test]
async fn overtaken_changes_are_answered_as_they_were_made() {
    let rotate = |text: &str| AutolockChange::Rotate { key: key(text) };
    let world = world(vec![
        (1, AutolockChange::Disable),
        (2, rotate("b")),
        (3, AutolockChange::Disable),
        (5, rotate("c")),
        (6, AutolockChange::Enable { key: key("d") }),
    ]);
    // Switched off again, or rotated, before the answer: the request made this key.
    for (id, request) in [(1, Request::AutolockOn), (2, Request::AutolockOn), (3, Request::AutolockRotate)] {
        let answer = done(&world, id, request.clone()).await;
        assert_eq!((&answer["enabled"], &answer["changed"]), (&true.into(), &true.into()), "{id}: {answer}");
        let version = Revision(answer["version"].as_u64().unwrap());
        let (on_record, key) = {
            let replica = world.published.borrow();
            let autolock = &replica.tables.autolock;
            (autolock.key_of(version).unwrap().0.expose().to_owned(), autolock.version)
        };
        assert!(answer["key"] == *on_record && key > version, "{id}: {answer}");
    }
    done(&world, 4, Request::AutolockOn).await;
    // On already, and rotated since: this request has made no key, and shows the one in force.
    let answer = done(&world, 5, Request::AutolockOn).await;
    assert_eq!((&answer["key"], &answer["changed"]), (&"c".into(), &false.into()));
    // Whether it was this request that switched it off is not on record.
    let (status, answer) = asked(&world, 6, Request::AutolockOff).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::CONFLICT, &"conflict".into()), "{answer}");
}
