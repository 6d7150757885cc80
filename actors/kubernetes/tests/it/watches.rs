//! Watch streams: beginnings, selections, bookmarks, ends.

use muster_kubernetes::{Status, Watcher};
use muster_messages::{Change, ObjectKey, Revision};
use serde_json::{Value, json};

use crate::world::*;

#[test]
fn watch_without_revision_begins_with_existing_objects() {
    let mut server = Server::new();
    for name in ["a", "b", "c", "d", "e"] {
        server.held(name, "h");
    }
    for query in ["watch=true", "watch=1&resourceVersion=0"] {
        let mut stream = server.watch(&format!("{BASE}?{query}"));
        assert_eq!(stream.observed(&server), ["ADDED a", "ADDED b", "ADDED c", "ADDED d", "ADDED e"], "{query}");
    }
    let mut stream = server.watch(&format!("{BASE}?watch=1"));
    stream.events(&server);
    server.merge(&format!("{BASE}/b"), json!({"metadata": {"labels": {"l": "1"}}})).expect(200);
    server.delete(&format!("{BASE}/c"), Value::Null).expect(200);
    server.held("f", "h");
    assert_eq!(stream.observed(&server), ["MODIFIED b", "DELETED c", "ADDED f"]);
    assert_eq!(stream.observed(&server), [""; 0], "each event once");
}

#[test]
fn watch_from_a_revision_sends_later_changes() {
    let mut server = Server::new();
    let lease = server.held("a", "h");
    let seen = server.get(&*lease).revision();
    server.held("b", "h");
    server.delete(&lease, Value::Null).expect(200);
    let events = server.watch(&format!("{BASE}?watch=1&resourceVersion={seen}")).events(&server);
    let revisions: Vec<u64> = events
        .iter()
        .map(|event| event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(revisions.is_sorted() && revisions[0] > seen, "{revisions:?}");
    assert_eq!(events[1]["type"], "DELETED");
    assert_eq!(events[1]["object"]["spec"]["holderIdentity"], "h", "its last state");
    assert_eq!(revisions[1], server.tables.revision.0, "at the revision of the deletion");
}

#[test]
fn watch_omits_other_kinds_and_namespaces() {
    let mut server = Server::new();
    let mut stream = server.watch(&format!("{BASE}?watch=1"));
    server.post("/apis/coordination.k8s.io/v1/namespaces/other/leases", json!({"metadata": {"name": "a"}})).expect(201);
    server.post(MAPS, json!({"metadata": {"name": "a"}})).expect(201);
    assert_eq!(stream.observed(&server), [""; 0]);
    let mut everywhere = server.watch("/apis/coordination.k8s.io/v1/leases?watch=1");
    assert_eq!(everywhere.observed(&server), ["ADDED a"]);
}

#[test]
fn entering_a_selection_is_an_addition_leaving_a_deletion() {
    let mut server = Server::new();
    let lease = server.held("a", "h");
    let mut stream = server.watch(&format!("{BASE}?watch=1&labelSelector=team%3Dred"));
    assert_eq!(stream.observed(&server), [""; 0]);
    let team = |team: Value| json!({"metadata": {"labels": {"team": team}}});
    server.merge(&lease, team("red".into())).expect(200);
    assert_eq!(stream.observed(&server), ["ADDED a"]);
    server.merge(&lease, json!({"metadata": {"labels": {"x": "y"}}})).expect(200);
    assert_eq!(stream.observed(&server), ["MODIFIED a"]);
    let left = server.merge(&lease, team("blue".into())).expect(200).revision();
    let events = stream.events(&server);
    assert_eq!(events[0]["type"], "DELETED");
    assert_eq!(events[0]["object"]["metadata"]["labels"]["team"], "red", "as the client last saw it");
    assert_eq!(events[0]["object"]["metadata"]["resourceVersion"], left.to_string());
    server.delete(&lease, Value::Null).expect(200);
    assert_eq!(stream.observed(&server), [""; 0], "the client had already seen its deletion");
}

#[test]
fn a_watch_of_one_name_and_of_one_lease() {
    let mut server = Server::new();
    let mut stream = server.watch(&format!("{BASE}?watch=1&fieldSelector=metadata.name%3Db"));
    server.held("a", "h");
    server.held("b", "h");
    assert_eq!(stream.observed(&server), ["ADDED b"]);
    let mut stream = server.watch(&format!("{CANDIDATES}?watch=1&fieldSelector=spec.leaseName%3Dl"));
    for (name, lease) in [("c1", "l"), ("c2", "m")] {
        let spec = json!({"leaseName": lease, "binaryVersion": "1.0.0", "strategy": "a.b/c"});
        server.post(CANDIDATES, json!({"metadata": {"name": name}, "spec": spec})).expect(201);
    }
    assert_eq!(stream.observed(&server), ["ADDED c1"]);
}

#[test]
fn streaming_list_marks_the_end_of_initial_events() {
    let mut server = Server::new();
    let query = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let target = format!("{CANDIDATES}?{query}&fieldSelector=metadata.name%3Dc");
    server.held("unrelated", "h");
    let events = server.watch(&target).events(&server);
    let revision = server.tables.revision.to_string();
    assert_eq!(
        events,
        [json!({"type": "BOOKMARK", "object": {
            "kind": "LeaseCandidate", "apiVersion": "coordination.k8s.io/v1beta1",
            "metadata": {"resourceVersion": revision, "annotations": {"k8s.io/initial-events-end": "true"}}}})]
    );
    let target = format!("{BASE}?{query}");
    let mut stream = server.watch(&target);
    assert_eq!(stream.observed(&server), ["ADDED unrelated", "BOOKMARK"]);
    server.held("x", "h");
    assert_eq!(stream.observed(&server), ["ADDED x"], "the same stream continues");
    // Two objects fill a batch exactly: the bookmark is sent all the same.
    assert_eq!(server.watch(&target).observed(&server), ["ADDED unrelated", "ADDED x", "BOOKMARK"]);
}

#[test]
fn watch_without_initial_events_begins_now() {
    let mut server = Server::new();
    server.held("a", "h");
    let query = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut stream = server.watch(&format!("{BASE}?{query}"));
    assert_eq!(stream.observed(&server), [""; 0]);
    server.held("b", "h");
    assert_eq!(stream.observed(&server), ["ADDED b"]);
}

#[test]
fn bookmarks_state_the_revision_to_resume_from() {
    let mut server = Server::new();
    let mut stream = server.watch(&format!("{BASE}?watch=1&allowWatchBookmarks=true"));
    stream.events(&server);
    server.post(MAPS, json!({"metadata": {"name": "unrelated"}})).expect(201);
    stream.events(&server);
    let bookmark: Value =
        serde_json::from_str(&stream.watcher().bookmark().expect("a bookmark was requested")).unwrap();
    let metadata = json!({"resourceVersion": server.tables.revision.to_string()});
    let object = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata});
    assert_eq!(bookmark, json!({"type": "BOOKMARK", "object": object}));
    let mut without = server.watch(&format!("{BASE}?watch=1"));
    without.events(&server);
    assert_eq!(without.watcher().bookmark(), None);
}

#[test]
fn stream_that_cannot_continue_sends_an_error() {
    let server = Server::new();
    let mut stream = server.watch(&format!("{BASE}?watch=1"));
    stream.events(&server);
    let line = stream.watcher().failed(&Status::expired(Revision(3), Revision(9)));
    let event: Value = serde_json::from_str(line.trim_end()).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"], &event["object"]["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
}

#[test]
fn lease_expiry_is_not_a_watch_event() {
    let mut server = Server::new();
    server.held("a", "h");
    let mut stream = server.watch(&format!("{BASE}?watch=1"));
    stream.events(&server);
    server.natively(Change::ExpireLease(ObjectKey::lease("ns", "a")));
    assert_eq!(stream.observed(&server), [""; 0], "invisible to clients, and no second event at one revision");
}

#[test]
fn kubectl_watches_tables() {
    let mut server = Server::new();
    server.held("a", "h");
    let target = format!("{BASE}?watch=true");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let mut stream = Stream::begin(&server, &request("GET", target, Value::Null).accepting(table));
    let first = stream.events(&server);
    assert_eq!(first[0]["object"]["kind"], "Table");
    assert_eq!(first[0]["object"]["columnDefinitions"].as_array().unwrap().len(), 3);
    server.held("b", "h2");
    let next = stream.events(&server);
    assert_eq!(next[0]["object"]["columnDefinitions"], json!([]), "columns are sent once");
    assert_eq!(next[0]["object"]["rows"][0]["cells"], json!(["b", "h2", "0s"]));
}

#[test]
fn watch_batch_has_the_requested_size_and_one_object_more() {
    let mut server = Server::new();
    for n in 0..20 {
        let map = json!({"metadata": {"name": format!("m{n:02}")}, "data": {"k": "x".repeat(10_000)}});
        server.post(MAPS, map).expect(201);
    }
    let ask = request("GET", format!("{MAPS}?watch=1"), Value::Null).ask().unwrap();
    let mut watcher = Watcher::begin(&ask, &server.tables).unwrap();
    let (mut observed, mut batches) = (0, 0);
    while let Some(lines) = watcher.initial(25_000, server.wall()) {
        assert!(lines.len() < 40_000, "{} bytes", lines.len());
        observed += lines.lines().count();
        batches += 1;
    }
    assert_eq!((observed, batches), (20, 7));
    // The same for later changes.
    let changes = server.history.since(Revision(0), usize::MAX).unwrap();
    let mut watcher = Watcher::begin(&ask, &Server::new().tables).unwrap();
    assert_eq!(watcher.initial(1, server.wall()), None);
    let lines = watcher.changes(&changes, 25_000, server.wall());
    assert_eq!((lines.lines().count(), watcher.after()), (3, changes[2].revision), "the rest follows from there");
}

#[test]
fn watch_duration_is_bounded() {
    for (asked, lasts) in [(300, 300), (i64::MAX, 3600)] {
        let ask = request("GET", format!("{BASE}?watch=1&timeoutSeconds={asked}"), Value::Null).ask().unwrap();
        assert_eq!(ask.watch_duration(), Some(std::time::Duration::from_secs(lasts)));
    }
}

/// Ruby's client watches by the path that preceded `?watch=true`.
#[test]
fn older_watch_path_sends_the_same() {
    let mut server = Server::new();
    let older = "/apis/coordination.k8s.io/v1/watch/namespaces/ns/leases";
    let (mut all, mut one) = (server.watch(older), server.watch(&format!("{older}/x?resourceVersion=0")));
    server.held("x", "a");
    server.held("y", "a");
    assert_eq!(all.observed(&server), ["ADDED x", "ADDED y"]);
    assert_eq!(one.observed(&server), ["ADDED x"]);
}
