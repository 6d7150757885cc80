//! Levels: values that are watched. What an actor may rely on when it watches one, over crashes and restarts.

use std::sync::{Arc, Mutex};

use muster_kernel::{Address, Cx, Fault, Intensity, Shell, Slot, Spec, Supervisor, Tree};
use muster_messages::protocol::Named;
use muster_messages::{ActorState, CrashHow};
use tokio::sync::watch;

use crate::parts::eventually;

/// Watches a level, as actors do: a task of each incarnation reports what is new.
struct Watcher {
    level: watch::Receiver<u64>,
    seen: Arc<Mutex<Vec<u64>>>,
    newest: Slot<u64>,
}
struct News(u64);
impl Named for News {
    fn name(&self) -> &'static str {
        "news"
    }
}
impl Shell for Watcher {
    type Msg = News;
    const KIND: &'static str = "Watcher";
    async fn started(&mut self, cx: &Cx<News>) -> Result<(), Fault> {
        let (me, mut level) = (cx.me().clone(), self.level.clone());
        level.mark_changed();
        cx.spawn(async move {
            while level.changed().await.is_ok() {
                let news = *level.borrow_and_update();
                let _gone = me.tell(News(news));
            }
        });
        Ok(())
    }
    async fn handle(&mut self, _cx: &Cx<News>, News(value): News) -> Result<(), Fault> {
        self.seen.lock().expect("nobody panics with it in hand").push(value);
        self.newest.set(value);
        Ok(())
    }
}

struct Bench {
    tree: Tree,
    root: Supervisor,
    level: watch::Sender<u64>,
    seen: Arc<Mutex<Vec<u64>>>,
    newest: Slot<u64>,
}
impl Bench {
    async fn new() -> Self {
        let tree = Tree::new();
        let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.expect("a root starts");
        let (level, seen, newest) = (watch::Sender::new(0), Arc::default(), Slot::new());
        let bench = Self { tree, root, level, seen, newest };
        // The only receiver that stays is the spec's own.
        let (level, seen, newest) = (bench.level.subscribe(), Arc::clone(&bench.seen), bench.newest.clone());
        let make = move || Ok(Watcher { level: level.clone(), seen: Arc::clone(&seen), newest: newest.clone() });
        bench.root.children().start(Spec::actor("w", Address::new(64), make));
        bench
    }
    fn seen(&self) -> Vec<u64> {
        self.seen.lock().expect("nobody panics with it in hand").clone()
    }
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        eventually(what, || holds(self)).await;
    }
    fn state(&self) -> Option<ActorState> {
        self.tree.flat().into_iter().find(|node| node.path == "node/w").map(|node| node.state)
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_burst_the_newest_value_is_seen_and_what_was_set_before_the_first_look_is_seen_once() {
    let bench = Bench::new().await;
    bench.until("the first value is seen", |b| b.seen() == [0]).await;
    // Nobody runs in between: on one thread, the watcher's turn comes after the burst.
    for n in 1..=100 {
        bench.level.send_replace(n);
    }
    bench.until("the last value is seen", |b| b.seen().last() == Some(&100)).await;
    assert_eq!(bench.seen(), [0, 100]);
    // An equal value is news too: whoever sets a level may mean it.
    bench.level.send_replace(100);
    bench.until("it is told again", |b| b.seen() == [0, 100, 100]).await;
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn an_incarnation_sees_the_value_as_it_is_now_not_what_was_in_between() {
    let bench = Bench::new().await;
    bench.until("the first value is seen", |b| b.seen() == [0]).await;
    bench.tree.crash("node/w", CrashHow::Panic).expect("it runs");
    bench.until("it is down", |b| b.state() == Some(ActorState::BackingOff)).await;
    assert_eq!(bench.newest.get(), Some(0), "what it knew has outlived it");
    for n in 1..=10 {
        bench.level.send_replace(n);
    }
    bench.until("its successor sees the newest", |b| b.seen().last() == Some(&10)).await;
    assert_eq!(bench.seen(), [0, 10]);
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn watchers_that_have_gone_are_not_kept() {
    let bench = Bench::new().await;
    for _ in 0..5 {
        bench.until("it runs", |b| b.state() == Some(ActorState::Healthy)).await;
        // The factory's, the shell's and its task's.
        bench.until("three receivers", |b| b.level.receiver_count() == 3).await;
        bench.tree.crash("node/w", CrashHow::Error).expect("it runs");
        bench.until("it is down", |b| b.state() == Some(ActorState::BackingOff)).await;
        bench.until("one receiver", |b| b.level.receiver_count() == 1).await;
    }
    bench.root.children().stop_and_wait("w").await;
    bench.until("none", |b| b.level.receiver_count() == 0).await;
    assert!(bench.level.send(7).is_err(), "and the publisher can tell");
    bench.root.shut_down().await;
}
