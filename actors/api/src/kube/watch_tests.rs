//! Streams whose readers do not read.

use http_body_util::BodyExt;
use muster_testkit::ActorHarness;

use super::super::tests::{MAPS, ManagerRuntime, ann, ask, replica, tables_with_maps};
use super::*;

struct Stalled {
    harness: ActorHarness,
    runtime: ManagerRuntime,
    lines: mpsc::Receiver<Bytes>,
    task: tokio::task::JoinHandle<()>,
    /// The last object of the initial list, which no replica contains any more.
    pinned: std::sync::Weak<muster_messages::Object>,
}

/// A watch of 20 MB of objects whose reader takes nothing while all of them are deleted.
async fn stalled(lifetime: Duration) -> Stalled {
    let harness = ActorHarness::start().await;
    let tables = tables_with_maps(100, 200_000);
    let pinned = Arc::downgrade(tables.objects.values().next_back().unwrap());
    let runtime = ManagerRuntime::with(tables.clone(), None);
    let context = StreamContext {
        ask: ask("GET", &format!("{MAPS}?watch=1")),
        requester: ann(),
        manager: Arc::clone(&runtime.ports),
        runtime: runtime.in_force.subscribe(),
        until: Instant::now() + lifetime,
    };
    let stream = Stream::begin(context, &tables).unwrap_or_else(|e| panic!("{}", e.message));
    runtime.published.send_replace(replica(tables_with_maps(0, 0)));
    drop(tables);
    let (to, lines) = mpsc::channel(1);
    let task = tokio::spawn(stream.run(to));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!task.is_finished() && pinned.upgrade().is_some(), "the stream waits for its reader");
    Stalled { harness, runtime, lines, task, pinned }
}

impl Stalled {
    /// Checks that it ends although the reader does not read, and keeps at most one batch.
    async fn ends(self) -> Vec<Bytes> {
        let Self { harness, runtime, mut lines, task, pinned } = self;
        timeout(Duration::from_secs(20), task).await.expect("the stream ends").unwrap();
        assert!(pinned.upgrade().is_none(), "nothing is pinned");
        drop(runtime);
        let mut left = Vec::new();
        while let Some(batch) = lines.recv().await {
            left.push(batch);
        }
        harness.finish().await;
        left
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_time() {
    let left = stalled(Duration::from_secs(15)).await.ends().await;
    assert!(left.len() == 1 && left[0].len() < 300_000, "one batch: 64 KiB, and one object more");
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_right_to_it() {
    let stream = stalled(Duration::from_secs(3000)).await;
    let mut without = tables_with_maps(0, 0);
    without.users.clear();
    stream.runtime.published.send_replace(replica(without));
    assert_eq!(stream.ends().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn watch_stream_ends_with_its_manager_runtime() {
    let stream = stalled(Duration::from_secs(3000)).await;
    stream.runtime.in_force.send_replace(None);
    assert_eq!(stream.ends().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn watch_that_loses_its_right_gets_only_the_error() {
    let mut stream = stalled(Duration::from_secs(3000)).await;
    let mut without = tables_with_maps(100, 200_000);
    without.users.clear();
    stream.runtime.published.send_replace(replica(without));
    let (mut added, mut last) = (0, String::new());
    while let Some(batch) = stream.lines.recv().await {
        last = String::from_utf8(batch.to_vec()).unwrap();
        added += usize::from(last.contains("ADDED"));
    }
    assert!(last.contains("ERROR") && last.contains("403"), "{last}");
    assert_eq!(added, 1, "only the object created before");
    stream.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn watch_from_before_the_history_is_one_error_event() {
    let tables = tables_with_maps(1, 10);
    let runtime = ManagerRuntime::with(tables.clone(), None);
    runtime.ports.feed.begin_at(Revision(10));
    let service = runtime.service();
    let from_3 = ask("GET", &format!("{MAPS}?watch=1&resourceVersion=3"));
    let ports = Arc::clone(&runtime.ports);
    let begun =
        stream(&service, ports, ann(), &ann().peer, &from_3, &tables).unwrap_or_else(|e| panic!("{}", e.message));
    assert_eq!(begun.status(), 200);
    let body = begun.into_body().collect().await.unwrap().to_bytes();
    let lines: Vec<serde_json::Value> =
        String::from_utf8_lossy(&body).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [event] = lines.as_slice() else { panic!("one event and the end: {lines:?}") };
    assert_eq!((&event["type"], &event["object"]["code"]), (&"ERROR".into(), &410.into()), "{event}");
    assert_eq!(event["object"]["reason"], "Expired");
}
