//! What an actor starts and receives by message: results of tasks, and what arrives in channels.

use std::sync::{Arc, Mutex, MutexGuard};

use muster_kernel::{Address, Arrived, Cx, Fault, Intensity, Shell, Spec, Supervisor, Tree, Undeliverable};
use muster_messages::{ActorState, CrashHow, ExitKind, Named};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use crate::parts::{eventually, quiet};

/// Small enough to fill in a test.
const MAILBOX: usize = 4;
const PATH: &str = "node/w";

/// What the actor does with its context.
type Action = Box<dyn FnOnce(&Cx<Msg>) + Send>;

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum Msg {
    Do(Action),
    /// Handled only once the other end is dropped.
    Wait(oneshot::Receiver<()>),
    Result(u64),
    Item(Arrived<u64>),
}

/// The messages of all incarnations of the actor, and the items that they have not finished with.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Inner>>);
#[derive(Default)]
struct Inner {
    results: Vec<u64>,
    items: Vec<u64>,
    unfinished: Vec<Arrived<u64>>,
}
impl Seen {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no thread panics while it holds what was seen")
    }
    fn results(&self) -> Vec<u64> {
        self.lock().results.clone()
    }
    fn items(&self) -> Vec<u64> {
        self.lock().items.clone()
    }
    fn finish(&self, item: u64) {
        self.lock().unfinished.retain(|unfinished| unfinished.item != item);
    }
}
struct Worker(Seen);
impl Shell for Worker {
    type Msg = Msg;
    const KIND: &'static str = "Worker";
    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Do(action) => action(cx),
            Msg::Wait(until) => drop(until.await),
            Msg::Result(result) => self.0.lock().results.push(result),
            Msg::Item(arrived) => {
                let mut seen = self.0.lock();
                seen.items.push(arrived.item);
                seen.unfinished.push(arrived);
            }
        }
        Ok(())
    }
}

struct Bench {
    tree: Tree,
    root: Supervisor,
    address: Address<Msg>,
    seen: Seen,
}
impl Bench {
    async fn new() -> Self {
        let tree = Tree::new();
        let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.expect("a root starts");
        let (address, seen) = (Address::new(MAILBOX), Seen::default());
        let shown = seen.clone();
        root.children().start(Spec::actor("w", address.clone(), move || Ok(Worker(shown.clone()))));
        let bench = Self { tree, root, address, seen };
        bench.lives(1).await;
        bench
    }
    async fn lives(&self, incarnation: u64) {
        let wanted = Some((ActorState::Healthy, incarnation));
        let state = || self.tree.flat().into_iter().find(|n| n.path == PATH).map(|n| (n.state, n.incarnation));
        eventually("the incarnation runs", || state() == wanted).await;
    }
    /// In a handler.
    async fn does(&self, action: impl FnOnce(&Cx<Msg>) + Send + 'static) {
        self.address.tell(Msg::Do(Box::new(action))).expect("the actor is running");
        quiet().await;
    }
    /// Makes it run a task that sends a result as a message: the one given to the sender.
    async fn reports(&self) -> oneshot::Sender<u64> {
        let (result, task) = oneshot::channel();
        self.does(|cx| cx.report(async { Msg::Result(task.await.expect("the test gives a result")) })).await;
        result
    }
    /// Makes it forward a channel that holds `bound` items.
    async fn forwards(&self, bound: usize, room: usize) -> mpsc::Sender<u64> {
        let (sender, arriving) = mpsc::channel(bound);
        self.does(move |cx| cx.forward(arriving, room, Msg::Item)).await;
        sender
    }
    /// Handles nothing until the result is dropped.
    async fn waits(&self) -> oneshot::Sender<()> {
        let (release, until) = oneshot::channel();
        self.address.tell(Msg::Wait(until)).expect("the actor is running");
        quiet().await;
        release
    }
}

/// Sends items from `next` on until the channel is full; returns the next one.
async fn fill(sender: &mpsc::Sender<u64>, next: u64) -> u64 {
    for item in next..next + 20 {
        match sender.try_send(item) {
            Ok(()) => quiet().await,
            Err(TrySendError::Full(_)) => return item,
            Err(TrySendError::Closed(_)) => panic!("the channel is closed"),
        }
    }
    panic!("the channel is never full");
}

#[tokio::test(start_paused = true)]
async fn result_of_a_task_arrives_through_a_full_mailbox() {
    let bench = Bench::new().await;
    let result = bench.reports().await;
    let release = bench.waits().await;
    let ignored = || Msg::Do(Box::new(|_| ()));
    // The message that it handles counts.
    (1..MAILBOX).for_each(|_| assert_eq!(bench.address.tell(ignored()), Ok(())));
    assert_eq!((bench.address.depth(), bench.address.tell(ignored())), (MAILBOX, Err(Undeliverable::Full)));
    result.send(7).expect("the task waits");
    quiet().await;
    drop(release);
    quiet().await;
    assert_eq!(bench.seen.results(), [7]);
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn reporting_task_ends_with_its_incarnation() {
    let bench = Bench::new().await;
    let result = bench.reports().await;
    bench.tree.crash(PATH, CrashHow::Error).expect("the actor is running");
    bench.lives(2).await;
    assert!(result.is_closed(), "the task has ended");
    bench.reports().await.send(8).expect("its successor's task waits");
    quiet().await;
    assert_eq!(bench.seen.results(), [8]);
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_reporting_task_is_a_fault_of_its_actor() {
    let bench = Bench::new().await;
    bench.does(|cx| cx.report(async { panic!("in a task") })).await;
    bench.lives(2).await;
    let exits = bench.tree.flat().into_iter().find(|n| n.path == PATH).expect("it is shown").last_exits;
    assert_eq!((exits[0].kind, exits[0].text.as_str()), (ExitKind::Panic, "panicked: in a task"));
    bench.root.shut_down().await;
}

/// The sender then notices the channel's bound. An item counts until the actor drops it, wherever it keeps it.
#[tokio::test(start_paused = true)]
async fn items_beyond_the_room_stay_in_the_channel() {
    let bench = Bench::new().await;
    let sender = bench.forwards(3, 2).await;
    let mut next = fill(&sender, 1).await;
    assert_eq!((next, bench.seen.items()), (6, vec![1, 2]), "two at the actor, three in the channel");
    // One more for each that it has finished, in the order in which they were sent.
    for finished in [2, 1, 3] {
        bench.seen.finish(finished);
        quiet().await;
        next = fill(&sender, next).await;
    }
    assert_eq!((next, bench.seen.items()), (9, vec![1, 2, 3, 4, 5]));
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn busy_actor_gets_no_more_items_than_the_room() {
    let bench = Bench::new().await;
    let sender = bench.forwards(3, 2).await;
    let release = bench.waits().await;
    assert_eq!((fill(&sender, 1).await, bench.address.depth()), (6, 1 + 2), "beside the message that it handles");
    assert_eq!(bench.address.tell(Msg::Result(9)), Ok(()), "the mailbox has space for others");
    drop(release);
    quiet().await;
    assert_eq!((bench.seen.items(), bench.seen.results()), (vec![1, 2], vec![9]));
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn forwarded_channel_closes_with_its_incarnation() {
    let bench = Bench::new().await;
    let sender = bench.forwards(3, 1).await;
    fill(&sender, 1).await;
    bench.tree.crash(PATH, CrashHow::Panic).expect("the actor is running");
    bench.lives(2).await;
    assert!(sender.is_closed(), "its sender can tell");
    // Each incarnation has the whole room, even if an item of an earlier one is not finished.
    let sender = bench.forwards(1, 1).await;
    sender.try_send(7).expect("the channel is empty");
    quiet().await;
    assert_eq!(bench.seen.items(), [1, 7]);
    bench.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn message_follows_once_as_soon_as_a_value_holds() {
    let bench = Bench::new().await;
    let (publish, watched) = watch::channel(1);
    bench.does(move |cx| cx.when(watched, |value| *value >= 3, Msg::Result(7))).await;
    for (value, expected) in [(2, &[][..]), (3, &[7]), (1, &[7]), (4, &[7])] {
        publish.send_replace(value);
        quiet().await;
        assert_eq!(bench.seen.lock().results, expected, "at {value}");
    }
    // It holds already; and one whose publisher ends before it does.
    let (publish, watched) = watch::channel(5);
    let never = watched.clone();
    bench.does(move |cx| cx.when(watched, |value| *value >= 3, Msg::Result(8))).await;
    bench.does(move |cx| cx.when(never, |value| *value >= 9, Msg::Result(9))).await;
    drop(publish);
    quiet().await;
    assert_eq!(bench.seen.lock().results, [7, 8]);
}
