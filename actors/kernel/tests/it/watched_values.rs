//! Watched values: what an actor that watches one may rely on, over crashes and restarts.

use std::sync::{Arc, Mutex};

use muster_kernel::{Address, Cx, Fault, Intensity, Shell, Slot, Spec, Supervisor, Tree};
use muster_messages::protocol::Named;
use muster_messages::{ActorState, CrashHow};
use tokio::sync::watch;

use crate::parts::eventually;

/// Watches a value as actors do: a task of each incarnation reports each change.
struct Watcher {
    watched: watch::Receiver<u64>,
    seen: Arc<Mutex<Vec<u64>>>,
    newest: Slot<u64>,
}
struct NewValue(u64);
impl Named for NewValue {
    fn name(&self) -> &'static str {
        "news"
    }
}
impl Shell for Watcher {
    type Msg = NewValue;
    const KIND: &'static str = "Watcher";
    async fn started(&mut self, cx: &Cx<NewValue>) -> Result<(), Fault> {
        let (me, mut watched) = (cx.me().clone(), self.watched.clone());
        watched.mark_changed();
        cx.spawn(async move {
            while watched.changed().await.is_ok() {
                let new_value = *watched.borrow_and_update();
                let _gone = me.tell(NewValue(new_value));
            }
        });
        Ok(())
    }
    async fn handle(&mut self, _cx: &Cx<NewValue>, NewValue(value): NewValue) -> Result<(), Fault> {
        self.seen.lock().expect("no thread panics while it holds the value").push(value);
        self.newest.set(value);
        Ok(())
    }
}

struct Bench {
    tree: Tree,
    root: Supervisor,
    watched: watch::Sender<u64>,
    seen: Arc<Mutex<Vec<u64>>>,
    newest: Slot<u64>,
}
impl Bench {
    async fn new() -> Self {
        let tree = Tree::new();
        let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.expect("a root starts");
        let (watched, seen, newest) = (watch::Sender::new(0), Arc::default(), Slot::new());
        let bench = Self { tree, root, watched, seen, newest };
        // The only receiver that remains is the spec's own.
        let (watched, seen, newest) = (bench.watched.subscribe(), Arc::clone(&bench.seen), bench.newest.clone());
        let make = move || Ok(Watcher { watched: watched.clone(), seen: Arc::clone(&seen), newest: newest.clone() });
        bench.root.children().start(Spec::actor("w", Address::new(64), make));
        bench
    }
    fn seen(&self) -> Vec<u64> {
        self.seen.lock().expect("no thread panics while it holds the value").clone()
    }
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        eventually(what, || holds(self)).await;
    }
    fn state(&self) -> Option<ActorState> {
        self.tree.flat().into_iter().find(|node| node.path == "node/w").map(|node| node.state)
    }
}

#[tokio::test(start_paused = true)]
async fn watcher_sees_newest_of_a_burst_and_initial_value_once() {
    let bench = Bench::new().await;
    bench.until("the first value is seen", |b| b.seen() == [0]).await;
    // No task runs in between: on one thread, the watcher runs after the burst.
    for n in 1..=100 {
        bench.watched.send_replace(n);
    }
    bench.until("the last value is seen", |b| b.seen().last() == Some(&100)).await;
    assert_eq!(bench.seen(), [0, 100]);
    // An equal value also counts as a change: its publisher may intend it.
    bench.watched.send_replace(100);
    bench.until("it is reported again", |b| b.seen() == [0, 100, 100]).await;
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn new_incarnation_sees_only_the_current_value() {
    let bench = Bench::new().await;
    bench.until("the first value is seen", |b| b.seen() == [0]).await;
    bench.tree.crash("node/w", CrashHow::Panic).expect("the actor is running");
    bench.until("it is down", |b| b.state() == Some(ActorState::BackingOff)).await;
    assert_eq!(bench.newest.get(), Some(0), "its knowledge has outlived it");
    for n in 1..=10 {
        bench.watched.send_replace(n);
    }
    bench.until("its successor sees the newest value", |b| b.seen().last() == Some(&10)).await;
    assert_eq!(bench.seen(), [0, 10]);
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn ended_watchers_are_released() {
    let bench = Bench::new().await;
    for _ in 0..5 {
        bench.until("the actor is running", |b| b.state() == Some(ActorState::Healthy)).await;
        // The receivers of the factory, the shell and its task.
        bench.until("three receivers", |b| b.watched.receiver_count() == 3).await;
        bench.tree.crash("node/w", CrashHow::Error).expect("the actor is running");
        bench.until("it is down", |b| b.state() == Some(ActorState::BackingOff)).await;
        bench.until("one receiver", |b| b.watched.receiver_count() == 1).await;
    }
    bench.root.children().stop_and_wait("w").await;
    bench.until("none", |b| b.watched.receiver_count() == 0).await;
    assert!(bench.watched.send(7).is_err(), "and the publisher can tell");
    bench.root.shut_down().await;
}
