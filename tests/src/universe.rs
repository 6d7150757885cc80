//! A universe: one test's root supervisor, and what must hold when the test ends.

use std::time::Duration;

use muster_kernel::{Address, Children, Cx, Fault, Fuse, Shell, Spec, Tree};
use muster_messages::protocol::{Named, Reply};
use muster_messages::{ActorExit, ActorNode, CrashHow, ExitKind};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::heard::Heard;
use crate::host::Host;
use crate::journal::Journal;
use crate::{PATIENCE, Probe};

/// A real root supervisor, and the judge of what went wrong unseen.
///
/// A test [starts](Self::start) one, [finishes](Self::finish) it, and is failed by it for
/// - a panic on its runtime that it did not [expect](Self::expects_panic), whether somebody caught it or not;
/// - an ERROR event that it did not [expect](Self::expects_error);
/// - an actor below its root that ended with a fault which it did not [expect](Self::expects_fault), although its supervisor started
///   it again;
/// - a task, an actor's too, that is there when the tree has stopped and was not before;
/// - what it expected and did not get.
///
/// It hears whatever happens on its test's runtime, on each of its threads and on the blocking pool, where factories run; on a
/// thread of an actor's own that has entered the runtime; and on the runtimes that it is told to [include](Self::includes). One
/// universe lives on a runtime at a time. A test of several processes has a [`Host`] for each of the [others](Self::another).
///
/// It is no simulation: time and mailboxes are the kernel's own. Cores alone need none of it.
pub struct Universe {
    /// Empty once it is finished.
    home: Option<Host>,
    journal: Journal,
    /// The test's own first.
    runtimes: Vec<Watched>,
    expected_panics: Vec<Expected>,
    expected_errors: Vec<Expected>,
    expected_faults: Vec<Expected>,
}

/// A runtime whose panics, ERROR events and tasks are the test's.
struct Watched {
    runtime: Handle,
    heard: Heard,
    /// Tasks that it had before.
    before: usize,
}

impl Watched {
    fn new(runtime: Handle) -> Self {
        let heard = Heard::listen(&runtime).expect("there is one universe on a runtime at a time");
        Self { heard, before: runtime.metrics().num_alive_tasks(), runtime }
    }
    /// Tasks, those of actors included, that were not there before.
    fn left(&self) -> usize {
        self.runtime.metrics().num_alive_tasks().saturating_sub(self.before)
    }
}

struct Expected {
    text: String,
    /// It may also not come.
    optional: bool,
}

/// How often others get a turn before time may pass: what comes at once comes within so many.
const TURNS: u32 = 200;

impl Universe {
    /// Starts one, whose root is called `node`.
    pub async fn start() -> Self {
        Self::at("node").await
    }

    /// Starts one whose root has this path.
    pub async fn at(path: &str) -> Self {
        let runtimes = vec![Watched::new(Handle::current())];
        Self {
            home: Some(Host::start(path).await),
            journal: Journal::new(),
            runtimes,
            expected_panics: Vec::new(),
            expected_errors: Vec::new(),
            expected_faults: Vec::new(),
        }
    }

    /// From now on this runtime is the test's, too: that of an actor which keeps some work on threads of its own.
    pub fn includes(&mut self, runtime: &Handle) {
        self.runtimes.push(Watched::new(runtime.clone()));
    }

    fn home(&self) -> &Host {
        self.home.as_ref().expect("it lives until it is finished")
    }
    /// Starts an actor, or a group of them, below the root. It is reached once it is [healthy](Self::healthy).
    pub fn start_actor(&self, spec: Spec) {
        self.home().start_actor(spec);
    }
    /// The root's children.
    pub fn children(&self) -> &Children {
        self.home().children()
    }
    /// The live tree.
    pub fn tree(&self) -> &Tree {
        self.home().tree()
    }
    /// What another process would be: a root and a tree of its own, under the same judge. The test [stops](Host::stop) it before it finishes
    /// the universe, for which its tasks were a leak otherwise.
    pub async fn another(&self, path: &str) -> Host {
        Host::start(path).await
    }

    /// A probe that records into the journal of this universe.
    pub fn probe<M: Named + Send + 'static>(&self, name: &str) -> Probe<M> {
        Probe::recording(name, self.journal.clone())
    }
    /// `probe: message` for everything that its probes heard, in the order in which it arrived.
    pub fn journal(&self) -> Vec<String> {
        self.journal.lines()
    }
    /// The address of an actor that hands everything to this probe, for those who want more than a recipient. It is a
    /// child of the root, by the probe's name; [`Tree::crash`] and the like reach it as they reach any other.
    pub async fn address_of<M: Named + Send + 'static>(&self, probe: &Probe<M>) -> Address<M> {
        let (address, hand_over) = (Address::new(usize::MAX), probe.hand_over());
        let make = move || Ok(StandIn { hand_over: Box::new(hand_over.clone()) });
        self.start_actor(Spec::actor(probe.name(), address.clone(), make));
        self.healthy(&format!("{}/{}", self.home().path(), probe.name()), 1).await;
        address
    }

    /// Waits until the tree says this of an actor; the actor as it then is.
    pub async fn until(&self, path: &str, what: &str, holds: impl Fn(&ActorNode) -> bool) -> ActorNode {
        self.home().until(path, what, holds).await
    }
    /// Waits until this incarnation of an actor is healthy.
    pub async fn healthy(&self, path: &str, incarnation: u64) -> ActorNode {
        self.home().healthy(path, incarnation).await
    }
    /// Waits until there is no actor at this path.
    pub async fn gone(&self, path: &str) {
        self.home().gone(path).await;
    }
    /// Crashes an actor on purpose. The panic of [`CrashHow::Panic`] is expected.
    pub fn crash(&mut self, path: &str, how: CrashHow) {
        let tree = self.tree().clone();
        self.crash_in(&tree, path, how);
    }
    /// Crashes an actor of [another](Self::another) process.
    pub fn crash_in(&mut self, tree: &Tree, path: &str, how: CrashHow) {
        if how == CrashHow::Panic {
            self.expected_panics.push(Expected { text: "crashed on request".to_owned(), optional: true });
        }
        tree.crash(path, how).expect("who is to be crashed runs");
    }

    /// Has an actor crash at one of its crash points. The panic is expected, and so is that it does not come.
    pub fn crash_at(&mut self, path: &str, fuse: &Fuse) {
        self.expected_panics.push(Expected { text: Fuse::BLOWN.to_owned(), optional: true });
        self.tree().arm(path, fuse.clone()).expect("who is to crash is in the tree");
    }
    /// The same in [another](Self::another) process, as soon as the actor is in its tree: most likely before it has begun.
    pub async fn crash_at_in(&mut self, tree: &Tree, path: &str, fuse: &Fuse) {
        self.expected_panics.push(Expected { text: Fuse::BLOWN.to_owned(), optional: true });
        let deadline = Instant::now() + PATIENCE;
        let mut turns = 0;
        while tree.arm(path, fuse.clone()).is_err() {
            assert!(Instant::now() < deadline, "never in the tree: {path}");
            turns += 1;
            match turns {
                ..TURNS => tokio::task::yield_now().await,
                _ => tokio::time::sleep(Duration::from_micros(500)).await,
            }
        }
    }
    /// A crash point outside the actor: if it is the one, the actor is killed as soon as it takes its next message. Such are the
    /// moments at which its collaborators have heard of something, have done it, and have answered.
    pub fn point(&mut self, path: &str, fuse: &Fuse) {
        if fuse.pass() {
            // Nobody to kill is no matter: it is down already.
            let _down = self.tree().crash(path, CrashHow::Kill);
        }
    }

    /// Some panic with this in its text must come, and any number of them may.
    pub fn expects_panic(&mut self, text: &str) {
        self.expected_panics.push(Expected { text: text.to_owned(), optional: false });
    }
    /// Some ERROR event with this in its text (`target: message field=value …`) must come, and any number of them may.
    pub fn expects_error(&mut self, text: &str) {
        self.expected_errors.push(Expected { text: text.to_owned(), optional: false });
    }

    /// Some actor below the root must end with a fault that has this in its text, and any number of them may.
    pub fn expects_fault(&mut self, text: &str) {
        self.expected_faults.push(Expected { text: text.to_owned(), optional: false });
    }
    /// The same of a fault that may also not come, such as one of many random histories.
    pub fn allows_fault(&mut self, text: &str) {
        self.expected_faults.push(Expected { text: text.to_owned(), optional: true });
    }

    /// Stops the tree in reverse start order, and fails the test for whatever went wrong unseen.
    pub async fn finish(mut self) {
        let home = self.home.take().expect("it is finished once");
        let tree = home.tree().clone();
        let faults = faults(&tree);
        home.stop().await;
        // The last tasks, and what works beside actors, get to see that these have gone.
        let deadline = Instant::now() + PATIENCE;
        let left = |runtimes: &[Watched]| runtimes.iter().map(Watched::left).sum::<usize>();
        while (left(&self.runtimes) > 0 || !tree.list().is_empty()) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut wrong: Vec<String> = tree.list().into_iter().map(|p| format!("{p} is still in the tree")).collect();
        let left = left(&self.runtimes);
        if left > 0 {
            wrong.push(format!("tasks outlived it ({left}): actors that nobody stopped, or tasks that nobody ended"));
        }
        let heard = |texts: fn(&Heard) -> Vec<String>| {
            self.runtimes.iter().flat_map(|watched| texts(&watched.heard)).collect::<Vec<String>>()
        };
        judge("a panic", &heard(Heard::panics), &self.expected_panics, &mut wrong);
        judge("an ERROR", &heard(Heard::errors), &self.expected_errors, &mut wrong);
        judge("a fault", &faults, &self.expected_faults, &mut wrong);
        assert!(wrong.is_empty(), "the universe ended badly:\n  {}", wrong.join("\n  "));
    }
}

impl Drop for Universe {
    fn drop(&mut self) {
        let judged = self.home.is_none() || std::thread::panicking();
        assert!(judged, "a universe was dropped before it was finished: nobody has judged it");
    }
}

/// The faults that actors ended with, unless a test has asked for them. Each actor keeps its last few.
fn faults(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for actor in tree.flat() {
        let of_its_own = |exit: &&ActorExit| {
            matches!(exit.kind, ExitKind::Error | ExitKind::Start) && !exit.text.ends_with("on request")
        };
        faults.extend(actor.last_exits.iter().filter(of_its_own).map(|exit| format!("{}: {}", actor.path, exit.text)));
    }
    faults
}

fn judge(kind: &str, came: &[String], expected: &[Expected], wrong: &mut Vec<String>) {
    for text in came.iter().filter(|text| !expected.iter().any(|e| text.contains(&e.text))) {
        wrong.push(format!("{kind} that nobody expected: {text}"));
    }
    for missing in expected.iter().filter(|e| !e.optional && !came.iter().any(|text| text.contains(&e.text))) {
        wrong.push(format!("{kind} that was expected did not come: {}", missing.text));
    }
}

/// Looks again until it holds. In virtual time this takes none.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Asks until there is an answer, as everybody does whom Muster's actors serve: after a crash the question comes again.
pub async fn insisting<M: Send + 'static, T: Send + 'static>(
    address: &Address<M>,
    mut make: impl FnMut(Reply<T>) -> M,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match address.ask(PATIENCE, &mut make).await {
            Ok(answer) => return answer,
            Err(why) => assert!(Instant::now() < deadline, "never answered: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The actor before a probe.
struct StandIn<M> {
    hand_over: Box<dyn Fn(M) + Send>,
}
impl<M: Named + Send + 'static> Shell for StandIn<M> {
    type Msg = M;
    const KIND: &'static str = "Probe";
    async fn handle(&mut self, _cx: &Cx<M>, msg: M) -> Result<(), Fault> {
        (self.hand_over)(msg);
        Ok(())
    }
}
