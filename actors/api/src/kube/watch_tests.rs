//! Streams whose readers do not read.

use http_body_util::BodyExt;
use muster_tests::Universe;

use super::super::tests::{Half, MAPS, ann, ask, copy_with, replica};
use super::*;

struct Stalled {
    universe: Universe,
    half: Half,
    lines: mpsc::Receiver<Bytes>,
    task: tokio::task::JoinHandle<()>,
    /// The last object of the beginning, which no copy has any more.
    pinned: std::sync::Weak<muster_messages::Object>,
}

/// A watch of 20 MB of objects, of which its reader takes nothing, while all of them are deleted.
async fn stalled(lasts: Duration) -> Stalled {
    let universe = Universe::start().await;
    let tables = copy_with(100, 200_000);
    let pinned = Arc::downgrade(tables.objects.values().next_back().unwrap());
    let half = Half::with(tables.clone(), None);
    let life = Life {
        ask: ask("GET", &format!("{MAPS}?watch=1")),
        who: ann(),
        manager: Arc::clone(&half.ports),
        half: half.in_force.subscribe(),
        until: Instant::now() + lasts,
    };
    let stream = Stream::begin(life, &tables).unwrap_or_else(|e| panic!("{}", e.message));
    half.copy.send_replace(replica(copy_with(0, 0)));
    drop(tables);
    let (to, lines) = mpsc::channel(1);
    let task = tokio::spawn(stream.run(to));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!task.is_finished() && pinned.upgrade().is_some(), "it waits for its reader");
    Stalled { universe, half, lines, task, pinned }
}

impl Stalled {
    /// It ends although nobody reads, and keeps a portion at most.
    async fn ends(self) -> Vec<Bytes> {
        let Self { universe, half, mut lines, task, pinned } = self;
        timeout(Duration::from_secs(20), task).await.expect("it ends").unwrap();
        assert!(pinned.upgrade().is_none(), "nothing is pinned");
        drop(half);
        let mut left = Vec::new();
        while let Some(portion) = lines.recv().await {
            left.push(portion);
        }
        universe.finish().await;
        left
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_time() {
    let left = stalled(Duration::from_secs(15)).await.ends().await;
    assert!(left.len() == 1 && left[0].len() < 300_000, "one portion: 64 KiB, and one object more");
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_right_to_it() {
    let stream = stalled(Duration::from_secs(3000)).await;
    let mut without = copy_with(0, 0);
    without.users.clear();
    stream.half.copy.send_replace(replica(without));
    assert_eq!(stream.ends().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_manager_half() {
    let stream = stalled(Duration::from_secs(3000)).await;
    stream.half.in_force.send_replace(None);
    assert_eq!(stream.ends().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_loses_the_right_is_told_so_and_nothing_more() {
    let mut stream = stalled(Duration::from_secs(3000)).await;
    let mut without = copy_with(100, 200_000);
    without.users.clear();
    stream.half.copy.send_replace(replica(without));
    let (mut added, mut last) = (0, String::new());
    while let Some(portion) = stream.lines.recv().await {
        last = String::from_utf8(portion.to_vec()).unwrap();
        added += usize::from(last.contains("ADDED"));
    }
    assert!(last.contains("ERROR") && last.contains("403"), "{last}");
    assert_eq!(added, 1, "what was made before");
    stream.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn watch_from_before_the_history_is_one_error_event() {
    let tables = copy_with(1, 10);
    let half = Half::with(tables.clone(), None);
    half.ports.feed.begin_at(Revision(10));
    let service = half.service();
    let from_3 = ask("GET", &format!("{MAPS}?watch=1&resourceVersion=3"));
    let ports = Arc::clone(&half.ports);
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
