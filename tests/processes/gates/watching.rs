//! A watch of objects: what is written and deleted, in order, across managers; and its end when deletions may have been missed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use serde_json::Value;

use super::{items, text};
use crate::api::http;
use crate::harness::{ForegroundMuster, WAIT_LIMIT, World, eventually, eventually_so};

/// What a line or an answer of a watch says: `+name` written, `-name` deleted.
fn said(page: &Value) -> Vec<String> {
    let written = items(page, "items").into_iter().map(|object| format!("+{}", text(&object["metadata"]["name"])));
    let deleted = items(page, "deleted").into_iter().map(|object| format!("-{}", text(&object["name"])));
    written.chain(deleted).collect()
}

#[test]
fn object_watch_sees_writes_and_deletions_and_resumes() {
    let world = World::with(2, 1);
    let put = |name: &str, body: &str| world.muster(&["object", "put", "job", name, body]).ended(0).json();
    let delete = |name: &str| world.muster(&["object", "delete", "job", name]).ended(0);
    put("a", "{}");
    world.muster(&["object", "put", "table", "other", "{}"]).ended(0);
    // At a worker, which asks a manager.
    let socket = world.socket("n3");
    let socket = socket.to_str().expect("the folder's path is text");
    let args = ["--socket", socket, "-o", "json", "object", "ls", "job", "--watch"];
    let watch = ForegroundMuster::start(world.folder(), &args);
    let mut pages: Vec<Value> = Vec::new();
    let mut until = |wanted: &[&str]| {
        eventually(&format!("{wanted:?}"), || {
            while let Some(line) = watch.next_line() {
                pages.push(serde_json::from_str(&line).expect("each line is JSON"));
            }
            let all: Vec<String> = pages.iter().flat_map(said).collect();
            (all == wanted).then(|| pages.last().expect("a page")["revision"].as_u64().expect("a revision"))
        })
    };
    until(&["+a"]);
    put("b", "{}");
    let seen = until(&["+a", "+b"]);
    delete("a");
    until(&["+a", "+b", "-a"]);
    put("b", r#"{"status": {"phase": "done"}}"#);
    until(&["+a", "+b", "-a", "+b"]);
    delete("b");
    until(&["+a", "+b", "-a", "+b", "-b"]);
    // Each manager resumes from a revision that another one gave.
    for name in ["n1", "n2", "n3"] {
        let target = format!("/v1/objects?kind=job&watch=1&since={seen}");
        let page = eventually("the manager has applied it", || {
            let answer = http(&world.socket(name), "GET", &target, "", "");
            assert_eq!(answer.status, 200, "{name}: {}", String::from_utf8_lossy(&answer.body));
            let page: Value = serde_json::from_slice(&answer.body).expect("JSON");
            Some(page).filter(|page| said(page) == ["-a", "-b"])
        });
        let next = page["revision"].as_u64().expect("a revision");
        let answer = http(&world.socket(name), "GET", &format!("/v1/objects?since={next}"), "", "");
        assert_eq!(said(&serde_json::from_slice(&answer.body).expect("JSON")), [""; 0], "{name}");
    }
}

#[test]
fn object_stream_and_expired_watches_say_so() {
    let mut world = World::with(1, 0);
    world.muster(&["object", "put", "job", "a", "{}"]).ended(0);
    let socket = world.socket("n1");
    let mut stream = UnixStream::connect(&socket).expect("the socket answers");
    let head = "GET /v1/objects?kind=job HTTP/1.0\r\nHost: muster\r\nAccept: text/event-stream\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("it listens");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a duration");
    let mut received = String::new();
    let mut chunk = [0; 4096];
    let mut until = |what: &str, stream: &mut UnixStream| {
        let deadline = Instant::now() + WAIT_LIMIT;
        while !received.contains(what) {
            // Comments keep a stream open in which nothing happens.
            assert!(Instant::now() < deadline, "no {what:?} in {received}");
            let read = stream.read(&mut chunk).expect("the stream stays open");
            assert_ne!(read, 0, "{received}");
            received.push_str(&String::from_utf8_lossy(&chunk[..read]));
        }
    };
    until("\"name\":\"a\"", &mut stream);
    world.muster(&["object", "delete", "job", "a"]).ended(0);
    until("\"deleted\":[{\"kind\":\"job\"", &mut stream);
    drop(stream);
    // A revision of another incarnation of the cluster.
    let answer = http(&socket, "GET", "/v1/objects?since=999999999", "", "");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status == 410 && text.contains("\"expired\"") && text.contains("list again"), "{text}");
    let ended = world.muster(&["object", "ls", "--watch", "--since", "999999999"]).ended(8);
    assert_eq!(ended.error_code(), "expired");
    let accept = "Accept: text/event-stream\r\n";
    let stream = http(&socket, "GET", "/v1/objects?since=999999999", accept, "");
    assert!(String::from_utf8_lossy(&stream.body).contains("event: expired"));
    // A manager that has restarted knows the deletions since its last snapshot, which is what it applies again.
    let seen = world.muster(&["object", "put", "job", "b", "{}"]).ended(0).json();
    let seen = seen["metadata"]["revision"].as_u64().expect("a revision");
    world.muster(&["object", "delete", "job", "b"]).ended(0);
    world.node("n1").stop();
    world.node("n1").start(&[]).ready();
    eventually_so("the deletion is still known", || {
        let answer = http(&socket, "GET", &format!("/v1/objects?since={seen}"), "", "");
        answer.status == 200 && said(&serde_json::from_slice(&answer.body).expect("JSON")) == ["-b"]
    });
}
