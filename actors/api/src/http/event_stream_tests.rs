use axum::http::{Request as HttpRequest, StatusCode};
use http_body_util::BodyExt;
use muster_messages::{Change, DesiredObject, ManagedKey, Name, NodeId, Principal, ReconcilerChange, Tables};
use serde_json::json;
use tokio::time::timeout;
use tower_service::Service as _;

use super::*;
use crate::http::routes;
use crate::tests::{World, tables};

const STREAM: &[(&str, &str)] = &[("accept", "text/event-stream")];

#[test]
fn stream_is_for_those_who_ask_for_it() {
    for (accept, wanted) in [
        ("text/event-stream", true),
        ("application/json, Text/Event-Stream;q=0.5", true),
        ("text/event-stream;q=0, application/json", false),
        ("*/*", false),
    ] {
        let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
        assert_eq!(is_wanted(&headers), wanted, "{accept}");
    }
}

async fn opened(world: &World, target: &str, headers: &[(&str, &str)]) -> Response {
    let peer = Peer::of(world.service.clone(), Principal::Operator, None);
    let mut request = HttpRequest::builder().uri(target).extension(peer);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    routes().call(request.body(Body::empty()).unwrap()).await.unwrap()
}

/// What arrives next; `None`: the stream has ended.
async fn next(response: &mut Response) -> Option<String> {
    let frame = response.body_mut().frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

async fn renamed(world: &World, value: &str) -> u64 {
    let (node, body) = (NodeId::from_entropy(2), json!({"name": value}).to_string());
    let (status, answer) = world.http(&Principal::Operator, "POST", &format!("/v1/nodes/{node}/rename"), &body).await;
    assert_eq!(status, 200, "{answer}");
    world.published.borrow().tables.revision.0
}

#[tokio::test(start_paused = true)]
async fn events_are_streamed_as_they_happen_and_resumed_by_id() {
    let world = World::applying(tables());
    let first = renamed(&world, "a").await;
    let mut stream = opened(&world, "/v1/events", STREAM).await;
    assert_eq!(
        (stream.status(), &stream.headers()[header::CONTENT_TYPE]),
        (StatusCode::OK, &HeaderValue::from_static("text/event-stream"))
    );
    assert_eq!(stream.headers()["muster-request-id"].len(), 32);
    let text = next(&mut stream).await.unwrap();
    assert!(text.starts_with(&format!("id: {first}\ndata: {{")) && text.ends_with("}\n\n"), "{text}");
    let second = renamed(&world, "b").await;
    let text = next(&mut stream).await.unwrap();
    assert!(text.contains(&format!("id: {second}\n")) && !text.contains(&format!("id: {first}\n")), "{text}");
    // The header counts more than the address, which browsers repeat.
    let resumed = [("accept", "text/event-stream, */*"), ("last-event-id", &first.to_string())];
    let mut again = opened(&world, "/v1/events?since=0", &resumed).await;
    assert_eq!(next(&mut again).await.unwrap(), text);
    let mut since = opened(&world, &format!("/v1/events?since={first}"), STREAM).await;
    assert_eq!(next(&mut since).await.unwrap(), text);
    assert_eq!(opened(&world, "/v1/events", &[STREAM[0], ("last-event-id", "x")]).await.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn silent_stream_has_comments_and_ends_after_an_hour() {
    let world = World::applying(tables());
    let mut stream = opened(&world, "/v1/events", STREAM).await;
    let begun = Instant::now();
    assert_eq!(next(&mut stream).await.as_deref(), Some(":\n\n"));
    assert_eq!(begun.elapsed().as_secs(), 5);
    let mut comments = 1;
    while let Some(text) = next(&mut stream).await {
        assert_eq!(text, ":\n\n");
        comments += 1;
    }
    assert_eq!(begun.elapsed().as_secs(), 3600);
    assert!((700..=720).contains(&comments), "{comments}");
}

#[test]
fn last_event_of_a_revision_carries_its_id() {
    let event = |revision: u64, kind: &str| json!({"revision": revision, "kind": kind});
    let text = text_of(&[event(3, "a"), event(3, "b"), event(4, "c")]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.iter().filter(|line| line.starts_with("id:")).copied().collect::<Vec<_>>(), ["id: 3", "id: 4"]);
    assert!(lines[0].starts_with("data:") && lines[1] == "id: 3" && lines[2].contains("\"b\""), "{lines:?}");
}

/// A history that is full, and begins after revision 1.
fn full(tables: &mut Tables) {
    let node = NodeId::from_entropy(2);
    for n in 0..muster_store::MAX_EVENTS + 2 {
        let change = Change::RenameNode { node, name: Name::sanitized(&format!("m{n}")) };
        let command = muster_messages::Command::idempotent(muster_messages::WallTime(0), Principal::Operator, "t");
        let at = tables.revision.next();
        muster_store::apply(tables, at, &command.change(change)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn place_that_is_no_longer_kept_expires_the_stream() {
    let mut tables = tables();
    full(&mut tables);
    let world = World::applying(tables);
    let mut stream = opened(&world, "/v1/events?since=1", STREAM).await;
    assert_eq!(stream.status(), StatusCode::OK);
    assert_eq!(next(&mut stream).await.as_deref(), Some("event: expired\ndata: {}\n\n"));
    assert_eq!(next(&mut stream).await, None);
    // The long poll keeps its answer.
    assert_eq!(world.http(&Principal::Operator, "GET", "/v1/events?since=1", "").await.0, 409);
}

/// Another incarnation of the cluster gave it out, or a client made it up.
#[tokio::test(start_paused = true)]
async fn place_that_was_never_given_out_expires_the_stream() {
    let world = World::applying(tables());
    let now = renamed(&world, "a").await;
    for (place, expires) in [(999_999, true), (now + 1, true), (now, false)] {
        let id = place.to_string();
        let headers = [STREAM[0], ("last-event-id", id.as_str())];
        let mut stream = opened(&world, "/v1/events", &headers).await;
        assert_eq!(stream.status(), StatusCode::OK);
        let text = next(&mut stream).await;
        assert_eq!(text.as_deref() == Some("event: expired\ndata: {}\n\n"), expires, "{place}: {text:?}");
        assert!(!expires || next(&mut stream).await.is_none(), "it ends");
    }
}

/// Some events after the place are gone, although those of roles and membership are all there.
#[tokio::test(start_paused = true)]
async fn place_in_an_incomplete_page_expires_the_stream() {
    let mut tables = tables();
    let node = NodeId::from_entropy(2);
    for name in ["a", "b"] {
        let change = Change::RenameNode { node, name: Name::sanitized(name) };
        let command = muster_messages::Command::idempotent(muster_messages::WallTime(0), Principal::Operator, "t");
        let at = tables.revision.next();
        muster_store::apply(&mut tables, at, &command.change(change)).unwrap();
    }
    let place = tables.revision.0;
    let mut event = (**tables.events.back().unwrap()).clone();
    for n in 0..muster_store::MAX_EVENTS as u64 {
        event.revision = Revision(place + 2 + n);
        tables.frequent_events.push_back(Arc::new(event.clone()));
    }
    tables.revision = event.revision;
    let world = World::applying(tables);
    let mut stream = opened(&world, &format!("/v1/events?since={place}"), STREAM).await;
    assert_eq!(next(&mut stream).await.as_deref(), Some("event: expired\ndata: {}\n\n"));
    assert_eq!(next(&mut stream).await, None);
    // The next place is the first one that lacks nothing.
    let mut stream = opened(&world, &format!("/v1/events?since={}", place + 1), STREAM).await;
    let text = next(&mut stream).await.unwrap();
    assert!(text.starts_with(&format!("id: {}\n", place + 2)), "{}", &text[..80]);
    // A client that has no place gets what there is.
    let mut all = opened(&world, "/v1/events", STREAM).await;
    assert!(next(&mut all).await.unwrap().starts_with("id: "));
}

#[tokio::test(start_paused = true)]
async fn streams_count_as_watches_until_they_are_closed() {
    let world = World::applying(tables());
    let mut streams = Vec::new();
    let refused = loop {
        let response = opened(&world, "/v1/events", STREAM).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        streams.push(response);
        assert!(streams.len() as u64 <= world.service.ports.limits.watches, "not bounded");
    };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    streams.clear();
    let reopened = async {
        while opened(&world, "/v1/events", STREAM).await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), reopened).await.expect("closed streams return their permits");
}

/// Tables with objects of more bytes than a short answer has.
fn full_of_objects() -> Tables {
    let body = json!({"text": "x".repeat(40 * 1024)}).to_string();
    let mut tables = tables();
    for name in ["a", "b"] {
        put(&mut tables, name, &body);
    }
    tables
}
fn put(tables: &mut Tables, name: &str, body: &str) {
    let key = ManagedKey { kind: "job".into(), namespace: "default".into(), name: name.to_owned() };
    let object = DesiredObject { key, labels: std::collections::BTreeMap::new(), body: body.to_owned(), wave: 0 };
    let change = Change::Reconciler(ReconcilerChange::PutObject(Box::new(object)));
    let command = muster_messages::Command::idempotent(muster_messages::WallTime(0), Principal::Operator, "t");
    let at = tables.revision.next();
    muster_store::apply(tables, at, &command.change(change)).unwrap();
}

/// Otherwise each unread stream would hold the whole table in memory.
#[tokio::test(start_paused = true)]
async fn unread_streams_of_objects_count_as_long_answers() {
    let world = World::applying(full_of_objects());
    let mut streams = Vec::new();
    for n in 1..=17 {
        let stream = opened(&world, "/v1/objects", STREAM).await;
        let expected = if n <= 16 { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
        assert_eq!(stream.status(), expected, "{n}");
        streams.push(stream);
    }
    assert!(streams.pop().unwrap().headers().contains_key(header::RETRY_AFTER));
    assert_eq!(world.http(&Principal::Operator, "GET", "/v1/objects", "").await.0, 429, "they are the same shares");
    // A connection that has sent a page asks for the next one.
    assert!(next(&mut streams[0]).await.unwrap().starts_with("id: "));
    assert_eq!(opened(&world, "/v1/objects", STREAM).await.status(), StatusCode::TOO_MANY_REQUESTS, "it may be unsent");
    assert_eq!(next(&mut streams[0]).await.as_deref(), Some(":\n\n"));
    let last = opened(&world, "/v1/objects", STREAM).await;
    assert_eq!(last.status(), StatusCode::OK);
    // What has changed since is short: the reader that has kept up gets it although no share is left.
    let mut now = world.published.borrow().tables.clone();
    put(&mut now, "c", "{}");
    world.published.send_replace(crate::tests::leading(now));
    assert!(next(&mut streams[0]).await.unwrap().contains("\"c\""));
    drop(streams);
    drop(last);
    assert_eq!(world.http(&Principal::Operator, "GET", "/v1/objects", "").await.0, 200);
}

/// Later pages, too: those who read one page and no more.
#[tokio::test(start_paused = true)]
async fn long_changes_wait_for_a_share_and_are_not_lost() {
    let world = World::applying(tables());
    let mut stream = opened(&world, "/v1/objects", STREAM).await;
    assert!(next(&mut stream).await.unwrap().starts_with("id: "));
    let held: Vec<_> = (0..16).map(|_| world.service.long_answer(&Principal::Operator).ok().unwrap()).collect();
    let mut now = world.published.borrow().tables.clone();
    put(&mut now, "long", &json!({"text": "x".repeat(80 * 1024)}).to_string());
    world.published.send_replace(crate::tests::leading(now));
    assert_eq!(next(&mut stream).await.as_deref(), Some(":\n\n"), "there is no share for it");
    drop(held);
    assert!(next(&mut stream).await.unwrap().contains("\"long\""));
}
