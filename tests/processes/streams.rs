//! Streams of events: continued at another manager when theirs is killed, and five thousand of them at one manager.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Request as HttpRequest, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use crate::api::http;
use crate::chaos::vitals::snapshot;
use crate::harness::{WAIT_LIMIT, World, eventually_so};

/// A client that keeps its place: events without an id are of a revision that is not complete yet.
struct Follower {
    /// What it has received, in whole revisions.
    events: Vec<Value>,
    place: Option<u64>,
    /// Streams that it has opened.
    opened: usize,
}

impl Follower {
    /// Follows one manager until `enough`, or until its stream ends.
    fn follow(&mut self, socket: &Path, enough: impl Fn(&Self) -> bool) {
        let Ok(mut stream) = UnixStream::connect(socket) else { return };
        let place = self.place.map_or_else(String::new, |place| format!("Last-Event-ID: {place}\r\n"));
        let request = format!("GET /v1/events HTTP/1.0\r\nHost: muster\r\nAccept: text/event-stream\r\n{place}\r\n");
        if stream.write_all(request.as_bytes()).is_err() {
            return;
        }
        let deadline = Instant::now() + WAIT_LIMIT;
        stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a duration");
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let status = lines.next().unwrap_or_default();
        // A manager that has just lost the others refuses: another one is asked.
        if !status.contains(" 200 ") {
            return;
        }
        self.opened += 1;
        let (mut of_one_revision, mut id) = (Vec::new(), None);
        for line in lines.skip_while(|line| !line.is_empty()) {
            // Comments keep a stream open in which nothing happens.
            assert!(Instant::now() < deadline, "{} events at {:?}, and no more come", self.events.len(), self.place);
            assert_ne!(line, "event: expired", "its place {:?} is not known", self.place);
            if let Some(digits) = line.strip_prefix("id: ") {
                id = digits.parse().ok();
            } else if let Some(text) = line.strip_prefix("data: ") {
                of_one_revision.push(serde_json::from_str(text).expect("an event"));
                if id.is_some() {
                    self.place = id.take();
                    self.events.append(&mut of_one_revision);
                }
            }
            if enough(self) {
                return;
            }
        }
    }
}

/// Renames a node until `stop` is set.
fn rename(socket: &Path, stop: &AtomicBool) -> u64 {
    let mut renamed = 0;
    while !stop.load(Ordering::Relaxed) {
        let body = json!({"name": format!("m-{renamed}")}).to_string();
        let node = if renamed == 0 { "n3".to_owned() } else { format!("m-{}", renamed - 1) };
        let answer =
            http(socket, "POST", &format!("/v1/nodes/{node}/rename"), "Content-Type: application/json\r\n", &body);
        // While a leader is elected.
        if answer.status == 200 {
            renamed += 1;
        }
    }
    renamed
}

/// A18. Each event once and in order, over three managers that are killed one after the other while others write.
#[test]
#[ignore = "full tier"]
fn event_stream_continues_at_another_manager() {
    let mut world = World::with(4, 0);
    // Three of four survive, and the writer's own manager is never the one.
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (socket, stop) = (world.socket("n1"), stop.clone());
        std::thread::spawn(move || rename(&socket, &stop))
    };
    let mut follower = Follower { events: Vec::new(), place: None, opened: 0 };
    for (name, next) in [("n2", "n4"), ("n4", "n2"), ("n2", "n4")] {
        let some = follower.events.len() + 40;
        eventually_so("it follows", || {
            follower.follow(&world.socket(name), |it| it.events.len() >= some);
            follower.events.len() >= some
        });
        // Its stream is open while its manager is killed.
        let (socket, (open, is_open)) = (world.socket(name), mpsc::channel());
        let (before, reader) = (follower.opened, &mut follower);
        std::thread::scope(|scope| {
            let killed = scope.spawn(move || {
                eventually_so("its stream opens", || {
                    reader.follow(&socket, |_| open.send(()).is_err());
                    reader.opened > before
                });
            });
            is_open.recv_timeout(WAIT_LIMIT).expect("its stream opens");
            world.node(name).kill();
            killed.join().expect("the stream ends with its manager");
        });
        let place = follower.place;
        eventually_so("it continues elsewhere", || {
            follower.follow(&world.socket(next), |it| it.place > place);
            follower.place > place
        });
        world.node(name).start(&[]).ready();
    }
    stop.store(true, Ordering::Relaxed);
    let renamed = writer.join().expect("it does not panic");
    let all = http(&world.socket("n1"), "GET", "/v1/events", "", "");
    let all: Value = serde_json::from_slice(&all.body).expect("a document");
    let upto = all["revision"].as_u64().expect("a revision");
    let last = all["items"].as_array().and_then(|items| items.last()?["revision"].as_u64());
    eventually_so("it has seen everything", || {
        follower.follow(&world.socket("n1"), |it| it.place >= last);
        follower.place >= last
    });
    let mut received = follower.events.clone();
    received.retain(|event| event["revision"].as_u64() <= Some(upto));
    assert_eq!(&Value::Array(received), &all["items"], "after {} streams and {renamed} writes", follower.opened);
    // Three with each manager that is killed, and one at the end.
    assert!(follower.opened >= 10, "{}", follower.opened);
    println!("{} events over {} streams", follower.events.len(), follower.opened);
}

/// Those of one caller: a quarter of `max_watches`.
const WATCHERS: usize = 5_000;
/// What one may cost its manager, once it has sent events: twice what was measured, and a little (docs/performance.md).
const KIB_EACH: u64 = 40;
/// Streams on one connection, as the daemon announces.
const ON_ONE_CONNECTION: usize = 100;

type Client = http2::SendRequest<Empty<Bytes>>;

async fn connected(socket: PathBuf) -> Client {
    let stream = tokio::net::UnixStream::connect(socket).await.expect("the socket answers");
    let (client, driver) =
        http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.expect("it speaks HTTP/2");
    tokio::spawn(driver);
    client
}

async fn opened(client: &mut Client, since: u64) -> hyper::Response<Incoming> {
    let request =
        HttpRequest::get(format!("http://muster/v1/events?since={since}")).header("accept", "text/event-stream");
    client.ready().await.expect("it is open");
    client.send_request(request.body(Empty::new()).expect("a request")).await.expect("it answers")
}

/// Reads until an event with this text. `None`: the stream has ended, as it does when its manager is too busy to answer within a read's
/// time; a client comes back with its place.
async fn event(mut stream: hyper::Response<Incoming>, text: String) -> Option<hyper::Response<Incoming>> {
    // Flow control may cut an event in two frames.
    let mut read = String::new();
    let received = async {
        while !read.contains(&text) {
            let frame = stream.frame().await?.expect("it is read");
            read.push_str(&String::from_utf8_lossy(&frame.into_data().unwrap_or_default()));
        }
        Some(())
    };
    tokio::time::timeout(WAIT_LIMIT, received).await.expect("a stream that goes on has the event").map(|()| stream)
}

/// A18. What each costs is printed (docs/performance.md).
#[test]
#[ignore = "full tier"]
fn five_thousand_streams_at_one_manager() {
    let mut world =
        World::with_settings(&format!("[api]\nmax_watches = {}\nmax_in_progress = 262144\n", WATCHERS * 4), 1, 0);
    let process = world.node("n1").process_id();
    let socket = world.socket("n1");
    let runtime = local_runtime();
    let before = snapshot(process).kib;
    let since = world.muster_insists(&["status"])["raft"]["applied"].as_u64().expect("a revision");
    let (mut clients, mut streams, mut refused) = (Vec::new(), Vec::new(), 0);
    runtime.block_on(async {
        for _ in 0..=WATCHERS / ON_ONE_CONNECTION {
            let mut client = connected(socket.clone()).await;
            for _ in 0..ON_ONE_CONNECTION {
                let stream = opened(&mut client, since).await;
                match stream.status() {
                    StatusCode::OK => streams.push(stream),
                    StatusCode::TOO_MANY_REQUESTS => {
                        refused += 1;
                        assert_eq!(stream.headers()["retry-after"], "1");
                        let body = stream.into_body().collect().await.expect("it is read").to_bytes();
                        let error: Value = serde_json::from_slice(&body).expect("an error");
                        assert_eq!(error["error"]["code"], "too_many_requests", "{error}");
                    }
                    other => panic!("{other}"),
                }
            }
            clients.push(client);
        }
    });
    assert_eq!((streams.len(), refused), (WATCHERS, ON_ONE_CONNECTION));
    let is_bounded = |when: &str| {
        let each = snapshot(process).kib.saturating_sub(before) as f64 / WATCHERS as f64;
        println!("{WATCHERS} streams, {when}: {each} KiB each");
        assert!(each < KIB_EACH as f64, "{when}: {each} KiB each");
    };
    is_bounded("open");
    for round in 0..3 {
        let node = world.muster_insists(&["status"])["self"]["id"].as_str().expect("an id").to_owned();
        let name = format!("m{round}");
        let begun = Instant::now();
        let (target, body) = (format!("/v1/nodes/{node}/rename"), json!({"name": name}).to_string());
        let answer = http(&socket, "POST", &target, "Content-Type: application/json\r\n", &body);
        assert_eq!(answer.status, 200);
        let each = streams.into_iter().map(|stream| event(stream, format!("named {name}\"")));
        streams = runtime.block_on(futures_util::future::join_all(each)).into_iter().flatten().collect();
        println!("round {round}: {} had the event after {:?}", streams.len(), begun.elapsed());
        assert!(streams.len() > WATCHERS / 10 * 9, "{}", streams.len());
    }
    is_bounded("after three events");
    drop((streams, clients, runtime));
    let first = local_runtime().block_on(reopened(&socket, since, 1));
    println!("afterwards: {} KiB more than before", snapshot(process).kib.saturating_sub(before));
    drop(first);
    // Streams that are closed free their places, all of them.
    let others = local_runtime();
    let again = others.block_on(reopened(&socket, since, WATCHERS));
    assert_eq!(again.len(), WATCHERS);
    // Memory of the closed ones is used again.
    is_bounded("opened again");
}

fn local_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// This many streams of one caller: a place is freed a moment after its stream was closed.
async fn reopened(socket: &Path, since: u64, wanted: usize) -> Vec<hyper::Response<Incoming>> {
    let (mut client, mut others, mut streams) = (connected(socket.to_owned()).await, Vec::new(), Vec::new());
    let deadline = Instant::now() + WAIT_LIMIT;
    while streams.len() < wanted {
        assert!(Instant::now() < deadline, "{} of {wanted} streams", streams.len());
        let stream = opened(&mut client, since).await;
        if stream.status() != StatusCode::OK {
            stream.into_body().collect().await.expect("it is read");
            continue;
        }
        streams.push(stream);
        if streams.len().is_multiple_of(ON_ONE_CONNECTION) {
            others.push(std::mem::replace(&mut client, connected(socket.to_owned()).await));
        }
    }
    streams
}
