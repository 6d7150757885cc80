//! A yard with parts that do what a test tells them.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_kernel::{Address, Cx, Fault, Group, Shell, Spec, Supervisor, Tree};
use muster_messages::protocol::{Named, Reply};
use muster_messages::{ActorNode, ActorState, CrashHow};
use tokio::sync::watch;

pub enum Msg {
    Ready,
    Done,
    /// Holds its thread until the other end is dropped: neither stop nor kill reaches it there.
    Block(std::sync::mpsc::Receiver<()>),
    /// Starts a child below itself.
    Child(Spec),
    /// Runs a task for as long as the incarnation lives; the receiver sees its beginning and its end.
    Task(watch::Sender<()>),
    /// Which incarnation answers, and its own address.
    Who(Reply<(u64, Address<Msg>)>),
    Echo,
}
impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Msg::Ready => "ready",
            Msg::Done => "done",
            Msg::Block(_) => "block",
            Msg::Child(_) => "child",
            Msg::Task(_) => "task",
            Msg::Who(_) => "who",
            Msg::Echo => "echo",
        }
    }
}

/// How the incarnations of a part end.
#[derive(Clone, Copy, PartialEq)]
pub enum Farewell {
    AtOnce,
    Late,
    Panics,
}

struct Part {
    name: String,
    log: Log,
    farewell: watch::Receiver<Farewell>,
}
impl Shell for Part {
    type Msg = Msg;
    const KIND: &'static str = "Part";
    async fn started(&mut self, _cx: &Cx<Msg>) -> Result<(), Fault> {
        self.log.say(&self.name, "up");
        Ok(())
    }
    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Ready => cx.ready(),
            Msg::Done => cx.done(),
            Msg::Block(until) => {
                let _dropped = until.recv();
                assert!(cx.me().tell(Msg::Echo).is_err(), "it has been given up, and so has its address");
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
        if *self.farewell.borrow() == Farewell::Panics {
            panic!("while it stops");
        }
        let _at_once = self.farewell.wait_for(|how| *how == Farewell::AtOnce).await;
        self.log.say(&self.name, "down");
    }
}

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);
impl Log {
    fn say(&self, name: &str, what: &str) {
        self.0.lock().expect("nobody panics with the log in hand").push(format!("{name} {what}"));
    }
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("nobody panics with the log in hand"))
    }
    pub fn len(&self) -> usize {
        self.0.lock().expect("nobody panics with the log in hand").len()
    }
}

/// One part from outside.
#[derive(Clone)]
pub struct Hand {
    pub name: String,
    pub address: Address<Msg>,
    pub farewell: Arc<watch::Sender<Farewell>>,
    log: Log,
}
impl Hand {
    pub fn spec(&self) -> Spec {
        let (name, log, farewell) = (self.name.clone(), self.log.clone(), self.farewell.subscribe());
        let make = move || Ok(Part { name: name.clone(), log: log.clone(), farewell: farewell.clone() });
        Spec::actor(self.name.clone(), self.address.clone(), make)
    }
    /// The same, made by a factory that does something first.
    pub fn made(&self, first: impl Fn() -> Result<(), Fault> + Send + Sync + 'static) -> Spec {
        let (name, log, farewell) = (self.name.clone(), self.log.clone(), self.farewell.subscribe());
        let make = move || {
            first()?;
            Ok(Part { name: name.clone(), log: log.clone(), farewell: farewell.clone() })
        };
        Spec::actor(self.name.clone(), self.address.clone(), make)
    }
    /// Says it as soon as there is somebody to hear it.
    pub async fn tell(&self, make: impl Fn() -> Msg) {
        eventually("somebody hears it", || self.address.tell(make()).is_ok()).await;
    }
    pub async fn who(&self) -> Option<(u64, Address<Msg>)> {
        self.address.ask(Duration::from_secs(5), Msg::Who).await.ok()
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
        let farewell = Arc::new(watch::Sender::new(Farewell::AtOnce));
        Hand { name: name.to_owned(), address: Address::new(8), farewell, log: self.log.clone() }
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
    /// It is healthy, and has been started as many times.
    pub async fn lives(&self, path: &str, incarnation: u64) {
        let lives = |node: ActorNode| (node.state, node.incarnation) == (ActorState::Healthy, incarnation);
        eventually(&format!("{path} lives for the {incarnation}th time"), || self.find(path).is_some_and(lives)).await;
    }
    pub fn crash(&self, path: &str, how: CrashHow) {
        self.tree.crash(path, how).expect("it runs");
    }
}

/// Looks again until it holds. Under paused time this takes none.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}
