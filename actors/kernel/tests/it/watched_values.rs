//! Watched values: what an actor that watches one may rely on, over crashes and restarts.

use std::sync::{Arc, Mutex};

use muster_kernel::{Address, Cx, Fault, Intensity, Shell, Slot, Spec, Supervisor, Tree};
use muster_messages::{ActorState, CrashHow, Named};
use tokio::sync::watch;

use crate::parts::{eventually, quiet};

#[derive(Clone, Copy)]
struct Watched {
    part: u64,
    rest: u64,
}
/// How an actor watches the value: one of the context's ways.
type Watch = fn(&Cx<Changed>, watch::Receiver<Watched>);

fn of_the_part(cx: &Cx<Changed>, watched: watch::Receiver<Watched>) {
    cx.on_change_of(watched, |watched| watched.part, || Changed);
}
fn of_the_value(cx: &Cx<Changed>, watched: watch::Receiver<Watched>) {
    cx.on_change(watched, || Changed);
}

/// Watches a value as actors do: a message for each change, and its handler reads the newest.
struct Watcher {
    watch: Watch,
    watched: watch::Receiver<Watched>,
    seen: Arc<Mutex<Vec<u64>>>,
    newest: Slot<u64>,
}
struct Changed;
impl Named for Changed {
    fn name(&self) -> &'static str {
        "changed"
    }
}
impl Shell for Watcher {
    type Msg = Changed;
    const KIND: &'static str = "Watcher";
    async fn started(&mut self, cx: &Cx<Changed>) -> Result<(), Fault> {
        (self.watch)(cx, self.watched.clone());
        Ok(())
    }
    async fn handle(&mut self, _cx: &Cx<Changed>, Changed: Changed) -> Result<(), Fault> {
        let value = self.watched.borrow().part;
        self.seen.lock().expect("no thread panics while it holds the value").push(value);
        self.newest.set(value);
        Ok(())
    }
}

struct Bench {
    tree: Tree,
    root: Supervisor,
    watched: watch::Sender<Watched>,
    seen: Arc<Mutex<Vec<u64>>>,
    newest: Slot<u64>,
}
impl Bench {
    async fn new(watch: Watch) -> Self {
        let tree = Tree::new();
        let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.expect("a root starts");
        let (watched, seen, newest) = (watch::Sender::new(Watched { part: 0, rest: 0 }), Arc::default(), Slot::new());
        let bench = Self { tree, root, watched, seen, newest };
        // The only receiver that remains is the spec's own.
        let (watched, seen, newest) = (bench.watched.subscribe(), Arc::clone(&bench.seen), bench.newest.clone());
        let make =
            move || Ok(Watcher { watch, watched: watched.clone(), seen: Arc::clone(&seen), newest: newest.clone() });
        bench.root.children().start(Spec::actor("w", Address::new(64), make));
        bench
    }
    fn publish(&self, part: u64) {
        self.watched.send_replace(Watched { part, rest: 0 });
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
    let bench = Bench::new(of_the_part).await;
    bench.until("the first value is seen", |b| b.seen() == [0]).await;
    // No task runs in between: on one thread, the watcher runs after the burst.
    (1..=100).for_each(|n| bench.publish(n));
    bench.until("the last value is seen", |b| b.seen().last() == Some(&100)).await;
    quiet().await;
    assert_eq!(bench.seen(), [0, 100]);
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn watcher_of_a_part_sees_only_changes_of_it() {
    let bench = Bench::new(of_the_part).await;
    bench.until("the first value is seen", |b| b.seen() == [0]).await;
    for rest in 1..=3 {
        bench.watched.send_replace(Watched { part: 0, rest });
        quiet().await;
    }
    assert_eq!((bench.seen(), bench.watched.borrow().rest), (vec![0], 3));
    // Compared with the part last reported, not with the first.
    for part in [1, 1, 0] {
        bench.publish(part);
        quiet().await;
    }
    assert_eq!(bench.seen(), [0, 1, 0]);
    bench.root.shut_down().await;
}

/// Its publisher may intend it.
#[tokio::test(start_paused = true)]
async fn watcher_of_a_value_sees_an_equal_one_as_a_change() {
    let bench = Bench::new(of_the_value).await;
    bench.until("the actor is running", |b| b.state() == Some(ActorState::Healthy)).await;
    quiet().await;
    assert_eq!(bench.seen(), [0; 0], "the present value is not a change");
    for _ in 0..2 {
        bench.publish(0);
        quiet().await;
    }
    assert_eq!(bench.seen(), [0, 0]);
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn new_incarnation_sees_only_the_current_value() {
    let bench = Bench::new(of_the_part).await;
    bench.until("the first value is seen", |b| b.seen() == [0]).await;
    bench.tree.crash("node/w", CrashHow::Panic).expect("the actor is running");
    bench.until("it is down", |b| b.state() == Some(ActorState::BackingOff)).await;
    assert_eq!(bench.newest.get(), Some(0), "its knowledge has outlived it");
    (1..=10).for_each(|n| bench.publish(n));
    bench.until("its successor sees the newest value", |b| b.seen().last() == Some(&10)).await;
    assert_eq!(bench.seen(), [0, 10]);
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn ended_watchers_are_released() {
    let bench = Bench::new(of_the_part).await;
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
    assert!(bench.watched.send(Watched { part: 7, rest: 0 }).is_err(), "and the publisher can tell");
    bench.root.shut_down().await;
}
