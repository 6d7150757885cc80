//! The actor harness: one test's root supervisor, and what must hold when the test ends.

use std::time::Duration;

use muster_kernel::{
    ActorExit, ActorNode, Address, Children, CrashHow, Cx, ErrorBody, ErrorCode, ExitKind, Fault, Fuse, Named, Reply,
    Shell, Spec, Tree,
};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::host::Host;
use crate::journal::Journal;
use crate::observed::Observed;
use crate::{Probe, WAIT_LIMIT};

/// A real root supervisor that fails the test for every unnoticed error.
///
/// A test [starts](Self::start) one and [finishes](Self::finish) it. The harness fails the test on
/// - a panic on its runtime that it did not [expect](Self::expects_panic), caught or not;
/// - an ERROR event that it did not [expect](Self::expects_error);
/// - an actor below its root that ended with a fault that it did not [expect](Self::expects_fault), even if its supervisor
///   restarted it;
/// - a task, an actor's included, that exists after the tree stopped and did not exist before;
/// - an expected event that did not occur.
///
/// It observes its test's runtime, on each of its threads and on the blocking pool, where factories run; an actor's own
/// thread that has entered the runtime; and the runtimes that it [includes](Self::includes). A runtime has one harness
/// at a time. A test of several processes has a [`Host`] for each of the [others](Self::another).
///
/// It is not a simulation: time and mailboxes are the kernel's own. Cores alone do not need it.
pub struct ActorHarness {
    /// Empty once it is finished.
    host: Option<Host>,
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
    observed: Observed,
    /// Tasks that existed before.
    before: usize,
}

impl Watched {
    fn new(runtime: Handle) -> Self {
        let observed = Observed::listen(&runtime).expect("a runtime has one harness at a time");
        Self { observed, before: runtime.metrics().num_alive_tasks(), runtime }
    }
    /// Tasks, those of actors included, that did not exist before.
    fn leftover_tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks().saturating_sub(self.before)
    }
}

struct Expected {
    text: String,
    /// It need not occur.
    optional: bool,
}

/// How often to yield before time may pass: whatever happens at once happens within this many yields.
const MAX_YIELDS: u32 = 200;

impl ActorHarness {
    /// Starts one, whose root is called `node`.
    pub async fn start() -> Self {
        Self::at("node").await
    }

    /// Starts one whose root has this path.
    pub async fn at(path: &str) -> Self {
        let runtimes = vec![Watched::new(Handle::current())];
        Self {
            host: Some(Host::start(path).await),
            journal: Journal::new(),
            runtimes,
            expected_panics: Vec::new(),
            expected_errors: Vec::new(),
            expected_faults: Vec::new(),
        }
    }

    /// Assigns another runtime to the test: that of an actor with threads of its own.
    pub fn includes(&mut self, runtime: &Handle) {
        self.runtimes.push(Watched::new(runtime.clone()));
    }

    fn host(&self) -> &Host {
        self.host.as_ref().expect("the harness is not finished")
    }
    /// Starts an actor, or a group of actors, below the root. It is reachable once it is [healthy](Self::healthy).
    pub fn start_actor(&self, spec: Spec) {
        self.host().start_actor(spec);
    }
    /// The root's children.
    pub fn children(&self) -> &Children {
        self.host().children()
    }
    /// The live tree.
    pub fn tree(&self) -> &Tree {
        self.host().tree()
    }
    /// Another process's equivalent: a root and a tree of its own, observed by this harness. The test [stops](Host::stop) it before it finishes
    /// the harness, which would otherwise report its tasks as a leak.
    pub async fn another(&self, path: &str) -> Host {
        Host::start(path).await
    }

    /// A probe that records into this harness's journal.
    pub fn probe<M: Named + Send + 'static>(&self, name: &str) -> Probe<M> {
        Probe::recording(name, self.journal.clone())
    }
    /// `probe: message` for everything that its probes received, in order of arrival.
    pub fn journal(&self) -> Vec<String> {
        self.journal.lines()
    }
    /// The address of an actor that passes everything to this probe, for callers that need more than a recipient. It is a
    /// child of the root with the probe's name; [`Tree::crash`] and the like reach it like any other actor.
    pub async fn address_of<M: Named + Send + 'static>(&self, probe: &Probe<M>) -> Address<M> {
        let (address, hand_over) = (Address::new(usize::MAX), probe.hand_over());
        let make = move || Ok(StandIn { hand_over: Box::new(hand_over.clone()) });
        self.start_actor(Spec::actor(probe.name(), address.clone(), make));
        self.healthy(&format!("{}/{}", self.host().path(), probe.name()), 1).await;
        address
    }

    /// Waits until an actor satisfies the condition; returns the actor.
    pub async fn until(&self, path: &str, what: &str, holds: impl Fn(&ActorNode) -> bool) -> ActorNode {
        self.host().until(path, what, holds).await
    }
    /// Waits until this incarnation of an actor is healthy.
    pub async fn healthy(&self, path: &str, incarnation: u64) -> ActorNode {
        self.host().healthy(path, incarnation).await
    }
    /// Waits until there is no actor at this path.
    pub async fn gone(&self, path: &str) {
        self.host().gone(path).await;
    }
    /// Crashes an actor deliberately. The panic of [`CrashHow::Panic`] is expected.
    pub fn crash(&mut self, path: &str, how: CrashHow) {
        let tree = self.tree().clone();
        self.crash_in(&tree, path, how);
    }
    /// Crashes an actor of [another](Self::another) process.
    pub fn crash_in(&mut self, tree: &Tree, path: &str, how: CrashHow) {
        if how == CrashHow::Panic {
            self.expected_panics.push(Expected { text: "crashed on request".to_owned(), optional: true });
        }
        tree.crash(path, how).expect("the actor to crash runs");
    }

    /// Makes an actor crash at one of its crash points. The panic is expected but need not occur.
    pub fn crash_at(&mut self, path: &str, fuse: &Fuse) {
        self.expected_panics.push(Expected { text: Fuse::BLOWN.to_owned(), optional: true });
        self.tree().arm(path, fuse.clone()).expect("the actor to crash is in the tree");
    }
    /// The same in [another](Self::another) process, as soon as the actor is in its tree: most likely before it starts.
    pub async fn crash_at_in(&mut self, tree: &Tree, path: &str, fuse: &Fuse) {
        self.expected_panics.push(Expected { text: Fuse::BLOWN.to_owned(), optional: true });
        let deadline = Instant::now() + WAIT_LIMIT;
        let mut yields = 0;
        while tree.arm(path, fuse.clone()).is_err() {
            assert!(Instant::now() < deadline, "never in the tree: {path}");
            yields += 1;
            match yields {
                ..MAX_YIELDS => tokio::task::yield_now().await,
                _ => tokio::time::sleep(Duration::from_micros(500)).await,
            }
        }
    }
    /// A crash point outside the actor: if it is the chosen one, the actor is killed at its next message. Such points
    /// are the moments at which its collaborators received, did, or answered something.
    pub fn point(&mut self, path: &str, fuse: &Fuse) {
        if fuse.pass() {
            // It may be down already.
            let _down = self.tree().crash(path, CrashHow::Kill);
        }
    }

    /// Some panic with this text must occur, and any number may.
    pub fn expects_panic(&mut self, text: &str) {
        self.expected_panics.push(Expected { text: text.to_owned(), optional: false });
    }
    /// Some ERROR event with this text (`target: message field=value …`) must occur, and any number may.
    pub fn expects_error(&mut self, text: &str) {
        self.expected_errors.push(Expected { text: text.to_owned(), optional: false });
    }
    /// The same for an ERROR event that need not occur.
    pub fn allows_error(&mut self, text: &str) {
        self.expected_errors.push(Expected { text: text.to_owned(), optional: true });
    }

    /// Some actor below the root must end with a fault with this text, and any number may.
    pub fn expects_fault(&mut self, text: &str) {
        self.expected_faults.push(Expected { text: text.to_owned(), optional: false });
    }
    /// The same for a fault that need not occur, such as one of many random histories.
    pub fn allows_fault(&mut self, text: &str) {
        self.expected_faults.push(Expected { text: text.to_owned(), optional: true });
    }

    /// Stops the tree in reverse start order, and fails the test on every unnoticed error.
    pub async fn finish(mut self) {
        let host = self.host.take().expect("the harness is finished once");
        let tree = host.tree().clone();
        let faults = faults(&tree);
        host.stop().await;
        // The last tasks, and threads beside actors, still have to notice the stop.
        let deadline = Instant::now() + WAIT_LIMIT;
        let leftover_tasks = |runtimes: &[Watched]| runtimes.iter().map(Watched::leftover_tasks).sum::<usize>();
        while (leftover_tasks(&self.runtimes) > 0 || !tree.list().is_empty()) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut wrong: Vec<String> = tree.list().into_iter().map(|p| format!("{p} is still in the tree")).collect();
        let leftover_tasks = leftover_tasks(&self.runtimes);
        if leftover_tasks > 0 {
            wrong.push(format!("tasks outlived the test ({leftover_tasks}): unstopped actors or unfinished tasks"));
        }
        let observed = |texts: fn(&Observed) -> Vec<String>| {
            self.runtimes.iter().flat_map(|watched| texts(&watched.observed)).collect::<Vec<String>>()
        };
        check_expected("panic", &observed(Observed::panics), &self.expected_panics, &mut wrong);
        check_expected("ERROR event", &observed(Observed::errors), &self.expected_errors, &mut wrong);
        check_expected("fault", &faults, &self.expected_faults, &mut wrong);
        assert!(wrong.is_empty(), "the actor harness found errors:\n  {}", wrong.join("\n  "));
    }
}

impl Drop for ActorHarness {
    fn drop(&mut self) {
        let checked = self.host.is_none() || std::thread::panicking();
        assert!(checked, "an actor harness was dropped before it was finished");
    }
}

/// Faults of actors that the test did not request. Each actor keeps its last few.
fn faults(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for actor in tree.flat() {
        let not_requested = |exit: &&ActorExit| {
            matches!(exit.kind, ExitKind::Error | ExitKind::Start) && !exit.text.ends_with("on request")
        };
        faults
            .extend(actor.last_exits.iter().filter(not_requested).map(|exit| format!("{}: {}", actor.path, exit.text)));
    }
    faults
}

fn check_expected(kind: &str, actual: &[String], expected: &[Expected], wrong: &mut Vec<String>) {
    for text in actual.iter().filter(|text| !expected.iter().any(|e| text.contains(&e.text))) {
        wrong.push(format!("unexpected {kind}: {text}"));
    }
    for missing in expected.iter().filter(|e| !e.optional && !actual.iter().any(|text| text.contains(&e.text))) {
        wrong.push(format!("expected {kind} did not occur: {}", missing.text));
    }
}

/// Polls until it holds. In virtual time this takes none.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Attempts until something comes of it, for what no watched value shows. The attempts themselves may take time.
pub async fn eventually_some<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        match tokio::time::timeout_at(deadline, attempt()).await {
            Ok(Some(found)) => return found,
            Ok(None) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(_) => panic!("never: {what}"),
        }
    }
}

/// Asks until there is an answer, as Muster's clients do: after a crash they repeat the question.
pub async fn insisting<M: Send + 'static, T: Send + 'static>(
    address: &Address<M>,
    mut make: impl FnMut(Reply<T>) -> M,
) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        match address.ask(WAIT_LIMIT, &mut make).await {
            Ok(answer) => return answer,
            Err(why) => assert!(Instant::now() < deadline, "never answered: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Repeats a request under one id until its outcome is known.
pub async fn insisting_until_known<M: From<P> + Send + 'static, P, T: Send + 'static>(
    address: &Address<M>,
    mut make: impl FnMut(Reply<Result<T, ErrorBody>>) -> P,
) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        match insisting(address, |reply| make(reply).into()).await {
            Ok(answer) => return answer,
            Err(error) => {
                let again = error.code == ErrorCode::UnknownOutcome || error.retry_after_ms.is_some();
                assert!(again && Instant::now() < deadline, "{error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The actor in front of a probe.
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
