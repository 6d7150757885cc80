//! Events: accepted as recorders send them, and not kept.

use serde_json::{Value, json};

use crate::world::*;

const EVENTS: &str = "/api/v1/namespaces/ns/events";
const NEWER: &str = "/apis/events.k8s.io/v1/namespaces/ns/events";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

#[test]
fn event_recorder_is_answered_but_nothing_is_kept() {
    let mut server = Server::new();
    let event =
        json!({"metadata": {"name": "x.1"}, "reason": "LeaderElection", "message": "a became leader", "count": 1});
    let created = server.post(EVENTS, event.clone()).expect(201);
    assert_eq!((created.at("/kind"), created.at("/apiVersion")), (json!("Event"), json!("v1")));
    assert_eq!((created.at("/metadata/name"), created.at("/metadata/namespace")), (json!("x.1"), json!("ns")));
    assert_eq!(created.at("/reason"), "LeaderElection");
    // The second time, a recorder increments the count of the event that it wrote.
    server.strategic(&format!("{EVENTS}/x.1"), json!({"count": 2})).expect(200);
    server.put(&format!("{NEWER}/x.1"), event).expect(200);
    for list in [EVENTS, "/api/v1/events", NEWER, "/apis/events.k8s.io/v1/events"] {
        let list = server.get(list).expect(200);
        assert_eq!((list.at("/kind"), list.at("/items")), (json!("EventList"), json!([])));
    }
    assert_eq!(server.get(format!("{EVENTS}/x.1")).expect(404).reason(), "NotFound");
    assert_eq!(server.tables.revision.0, 0, "nothing was written");
}

#[test]
fn protobuf_events_are_identified_by_name() {
    // metadata {1: "x.1", 3: "ns"} in an envelope of v1 Event.
    let metadata = b"\x0a\x03x.1\x1a\x02ns";
    let event = [b"\x0a\x09".as_slice(), metadata].concat();
    let body = [b"k8s\0\x0a\x0b\x0a\x02v1\x12\x05Event\x12\x0b".as_slice(), &event].concat();
    let post = Request { method: "POST", target: EVENTS.into(), body, ..Request::default() };
    let created = Server::new().send(&post.typed(PROTOBUF)).expect(201);
    assert_eq!((created.at("/metadata/name"), created.at("/kind")), (json!("x.1"), json!("Event")));
}

#[test]
fn body_that_is_not_an_event_is_refused() {
    let mut server = Server::new();
    for body in [json!([]), json!({"kind": "Pod"}), json!({"apiVersion": "v2"}), json!({"metadata": 1}), Value::Null] {
        server.post(EVENTS, body).expect(400);
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let list = server.send(&request("GET", EVENTS, Value::Null).accepting(table)).expect(200);
    assert_eq!((list.at("/kind"), list.at("/rows")), (json!("Table"), json!([])));
}
