//! A yard with parts that do what a test tells them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use muster_kernel::{Address, Cx, Fault, Group, Shell, Spec, Supervisor, Tree};
use muster_messages::{ActorNode, ActorState, CrashHow, Named, Reply};
use tokio::sync::watch;

/// What a part does with its context.
pub type Action = Box<dyn FnOnce(&Cx<Msg>) + Send>;

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Ready,
    Done,
    /// Blocks its thread until the other end is dropped: neither stop nor kill reaches it there. Then does the given deed in the same
    /// handler.
    Block(mpsc::Receiver<()>, Action),
    /// Starts a child below itself.
    Child(Spec),
    /// Runs a task for as long as the incarnation lives; the receiver sees its start and its end.
    Task(watch::Sender<()>),
    /// Which incarnation answers, and its own address.
    Who(Reply<(u64, Address<Msg>)>),
    Echo,
}

/// How the incarnations of a part end.
#[derive(Clone, Copy, PartialEq)]
pub enum StopBehavior {
    AtOnce,
    Late,
    Panics,
    /// Not while they stop, but when the shell is dropped.
    PanicsInDrop,
}

struct Part {
    hand: Hand,
    stop_behavior: watch::Receiver<StopBehavior>,
}
impl Part {
    fn new(hand: &Hand) -> Self {
        Self { hand: hand.clone(), stop_behavior: hand.stop_behavior.subscribe() }
    }
}
impl Drop for Part {
    fn drop(&mut self) {
        self.hand.dropped.fetch_add(1, Ordering::SeqCst);
        if *self.stop_behavior.borrow() == StopBehavior::PanicsInDrop {
            panic!("while it is dropped");
        }
    }
}
impl Shell for Part {
    type Msg = Msg;
    const KIND: &'static str = "Part";
    async fn started(&mut self, _cx: &Cx<Msg>) -> Result<(), Fault> {
        if self.hand.bad_starts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(Fault::new("a bad start"));
        }
        self.hand.log.record(&self.hand.name, "up");
        Ok(())
    }
    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Ready => cx.ready(),
            Msg::Done => cx.done(),
            Msg::Block(until, then) => {
                let _dropped = until.recv();
                then(cx);
            }
            Msg::Child(spec) => cx.children().start(spec),
            Msg::Task(alive) => cx.spawn(async move {
                alive.send_replace(());
                alive.closed().await;
            }),
            Msg::Who(reply) => drop(reply.send((cx.incarnation(), cx.me().clone()))),
            Msg::Echo => {}
        }
        Ok(())
    }
    async fn stopping(&mut self, _cx: &Cx<Msg>) {
        if *self.stop_behavior.borrow() == StopBehavior::Panics {
            panic!("while it stops");
        }
        let _at_once = self.stop_behavior.wait_for(|how| *how != StopBehavior::Late).await;
        self.hand.log.record(&self.hand.name, "down");
    }
}

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);
impl Log {
    fn record(&self, name: &str, what: &str) {
        self.0.lock().expect("no thread panics while it holds the log").push(format!("{name} {what}"));
    }
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no thread panics while it holds the log"))
    }
    pub fn has(&self, line: &str) -> bool {
        self.0.lock().expect("no thread panics while it holds the log").iter().any(|l| l == line)
    }
    pub fn len(&self) -> usize {
        self.0.lock().expect("no thread panics while it holds the log").len()
    }
}

/// One part from outside.
#[derive(Clone)]
pub struct Hand {
    pub name: String,
    pub address: Address<Msg>,
    pub stop_behavior: Arc<watch::Sender<StopBehavior>>,
    /// How many of its next incarnations fail to start.
    pub bad_starts: Arc<AtomicU64>,
    /// How many have been made and dropped, started or not.
    pub dropped: Arc<AtomicU64>,
    log: Log,
}
impl Hand {
    pub fn spec(&self) -> Spec {
        self.made(|| Ok(()))
    }
    /// The same, made by a factory that first runs `first`.
    pub fn made(&self, first: impl Fn() -> Result<(), Fault> + Send + Sync + 'static) -> Spec {
        let hand = self.clone();
        let make = move || {
            first()?;
            Ok(Part::new(&hand))
        };
        Spec::actor(self.name.clone(), self.address.clone(), make)
    }
    /// Sends it as soon as the part is running.
    pub async fn tell(&self, make: impl Fn() -> Msg) {
        eventually("the part takes the message", || self.address.tell(make()).is_ok()).await;
    }
    /// Makes its present incarnation block its thread and then run `then`; returns once it blocks. Dropping the result releases it.
    pub async fn blocks(
        &self,
        yard: &Yard,
        path: &str,
        then: impl FnOnce(&Cx<Msg>) + Send + 'static,
    ) -> mpsc::Sender<()> {
        let (release, until) = mpsc::channel();
        self.address.tell(Msg::Block(until, Box::new(then))).expect("the actor is running");
        let at_it = |node: ActorNode| node.handling.is_some_and(|handling| handling.message == "block");
        eventually(&format!("{path} blocks"), || yard.find(path).is_some_and(at_it)).await;
        release
    }
    /// Makes its present incarnation run a task for as long as it lives; returns once the task has begun.
    pub async fn runs_a_task(&self) -> watch::Receiver<()> {
        let (task, mut alive) = watch::channel(());
        self.address.tell(Msg::Task(task)).expect("the actor is running");
        assert!(alive.changed().await.is_ok(), "the task has begun");
        alive
    }
    pub async fn who(&self) -> Option<(u64, Address<Msg>)> {
        self.address.ask(Duration::from_secs(60), Msg::Who).await.ok()
    }
}
pub struct Yard {
    pub tree: Tree,
    pub root: Supervisor,
    pub log: Log,
}
impl Yard {
    pub async fn new(group: impl Into<Group>) -> Self {
        let tree = Tree::new();
        let root = Supervisor::root("node", tree.clone(), group).await.expect("a root starts");
        Self { tree, root, log: Log::default() }
    }
    pub fn part(&self, name: &str) -> Hand {
        let stop_behavior = Arc::new(watch::Sender::new(StopBehavior::AtOnce));
        let (bad_starts, dropped) = (Arc::default(), Arc::default());
        Hand {
            name: name.to_owned(),
            address: Address::new(8),
            stop_behavior,
            bad_starts,
            dropped,
            log: self.log.clone(),
        }
    }
    pub fn find(&self, path: &str) -> Option<ActorNode> {
        self.tree.flat().into_iter().find(|node| node.path == path)
    }
    pub fn state(&self, path: &str) -> Option<ActorState> {
        self.find(path).map(|node| node.state)
    }
    pub async fn until(&self, path: &str, state: ActorState) {
        eventually(&format!("{path} is {state:?}"), || self.state(path) == Some(state)).await;
    }
    /// It is healthy, in this incarnation.
    pub async fn lives(&self, path: &str, incarnation: u64) {
        let lives = |node: ActorNode| (node.state, node.incarnation) == (ActorState::Healthy, incarnation);
        eventually(&format!("{path} runs in incarnation {incarnation}"), || self.find(path).is_some_and(lives)).await;
    }
    pub fn crash(&self, path: &str, how: CrashHow) {
        self.tree.crash(path, how).expect("the actor is running");
    }
}

/// Checks again until it holds. Takes no time when time is paused.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("condition never held: {what}");
}

/// Until no task has work left. With paused time only: it moves on only then.
pub async fn quiet() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
