//! The elector as an actor, and its handle for the program.
//!
//! Invariants  ELECTOR-1  the guarded work of one term has returned, or was dropped and left alone until its lease was over,
//!                        before the next begins: also when the actor crashed in between.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Address, Cx, Fault, Intensity, Shell, Slot, Spec, Supervisor, Tree};
use muster_messages::protocol::Named;
use muster_messages::{ErrorBody, FencingToken, Moment};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::clock::{BootTime, Timekeeper};
use crate::config::{ConfigRefusal, ElectorConfig};
use crate::core::kubernetes_lease::{self, KubernetesElector, What};
use crate::core::muster_lease::{self, MusterElector, OutstandingToken};
use crate::core::{Effect, ElectorView, Hold, LockError, Signal};
use crate::health::{Unhealthy, evaluate};
use crate::ports::Lock;
use crate::session::Session;
use crate::work::{Candidate, Term};

/// Mailbox capacity: an elector has a handful of open requests.
const MAILBOX: usize = 256;

/// The authority over the lease.
#[derive(Clone)]
pub enum Election {
    /// A Muster cluster.
    Muster(Session),
    /// A record in Kubernetes.
    Kubernetes(Arc<dyn Lock>),
}

/// The configuration of an elector.
#[derive(Clone)]
pub struct Setup {
    pub config: ElectorConfig,
    pub election: Election,
    pub candidate: Arc<dyn Candidate>,
    pub clock: Arc<dyn Timekeeper>,
}

impl Setup {
    /// With the production clock.
    pub fn new(config: ElectorConfig, election: Election, candidate: Arc<dyn Candidate>) -> Self {
        Self { config, election, candidate, clock: Arc::new(BootTime) }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub view: ElectorView,
    /// While leading: how long leadership is valid.
    pub hold: Option<Hold>,
    /// Set once the elector has ended.
    pub outcome: Option<Result<(), ErrorBody>>,
}

/// The handle of an elector. Cheap to clone.
#[derive(Clone)]
pub struct LeaderElector {
    config: Arc<ElectorConfig>,
    clock: Arc<dyn Timekeeper>,
    status: watch::Receiver<Status>,
    stop: CancellationToken,
    /// Of an elector with a tree of its own.
    _root: Option<Arc<Supervisor>>,
}

impl LeaderElector {
    /// Starts an elector under its own supervisor. It ends with the last clone of the handle: the work is dropped and the lease
    /// runs out. To release the lease, call [`LeaderElector::stop`] and wait for [`LeaderElector::ended`].
    pub async fn start(setup: Setup) -> Result<Self, StartError> {
        let (spec, mut elector) = Self::spec("elector", setup)?;
        let root = Supervisor::root("elector", Tree::new(), Intensity::default()).await;
        let root = root.map_err(|fault| StartError::Fault(fault.to_string()))?;
        root.children().start(spec);
        elector._root = Some(Arc::new(root));
        Ok(elector)
    }

    /// An elector for an existing tree.
    pub fn spec(name: &str, setup: Setup) -> Result<(Spec, Self), ConfigRefusal> {
        match setup.election {
            Election::Muster(_) => setup.config.validate()?,
            Election::Kubernetes(_) => setup.config.validate_for_kubernetes()?,
        }
        let memory = Slot::new();
        let view = Machine::new(&setup, None).view();
        let status = watch::Sender::new(Status { view, hold: None, outcome: None });
        let elector = Self {
            config: Arc::new(setup.config.clone()),
            clock: Arc::clone(&setup.clock),
            status: status.subscribe(),
            stop: CancellationToken::new(),
            _root: None,
        };
        let stop = elector.stop.clone();
        let status = Arc::new(status);
        let make = move || Ok(ElectorShell::new(setup.clone(), memory.clone(), Arc::clone(&status), stop.clone()));
        Ok((Spec::actor(name, Address::new(MAILBOX), make), elector))
    }

    /// Whether this process leads now, by the clock.
    pub fn is_leader(&self) -> bool {
        self.status.borrow().hold.is_some_and(|hold| self.clock.now() < hold.step_down_at)
    }
    /// The leader, as far as known.
    pub fn leader(&self) -> Option<String> {
        self.status.borrow().view.leader.clone()
    }
    /// The token of the current term.
    pub fn token(&self) -> Option<FencingToken> {
        self.status.borrow().view.token
    }
    /// The complete state, as a watched value.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
    pub fn config(&self) -> &ElectorConfig {
        &self.config
    }
    /// Fails only if this process still holds, in its own view, a lease that ran out more than `tolerance` ago: it hangs and
    /// should be restarted. Followers are always healthy.
    pub fn check(&self, tolerance: Duration) -> Result<(), Unhealthy> {
        evaluate(&self.status.borrow().view, &self.config, self.clock.now(), tolerance)
    }

    /// Asks it to end: the work is cancelled, and the lease is released once it has returned. Does not wait.
    pub fn stop(&self) {
        self.stop.cancel();
    }
    /// Waits until the elector has ended.
    pub async fn ended(&self) -> Result<(), ErrorBody> {
        let mut status = self.status.clone();
        let ended = status.wait_for(|status| status.outcome.is_some()).await;
        // A tree that was stopped has ended as well.
        ended.ok().and_then(|status| status.outcome.clone()).unwrap_or(Ok(()))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigRefusal),
    #[error("the elector cannot run: {0}")]
    Fault(String),
}

/// Messages of the actor, all sent by itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Woke,
    Muster(muster_lease::Answer),
    Kubernetes(kubernetes_lease::Answer),
    Changed,
    WorkEnded,
    Stop,
}

enum Machine {
    Muster(MusterElector),
    Kubernetes(KubernetesElector),
}

impl Machine {
    fn new(setup: &Setup, left: Option<Held>) -> Self {
        let seed = rand::random();
        match &setup.election {
            Election::Muster(_) => {
                let outstanding =
                    left.and_then(|held| Some(OutstandingToken { token: held.token?, until: held.hold.over_at }));
                Self::Muster(MusterElector::new(&setup.config, seed, outstanding))
            }
            Election::Kubernetes(_) => {
                let quiet_until = left.map(|held| held.hold.over_at);
                Self::Kubernetes(KubernetesElector::new(&setup.config, seed, quiet_until))
            }
        }
    }
    fn view(&self) -> ElectorView {
        match self {
            Self::Muster(machine) => machine.view(),
            Self::Kubernetes(machine) => machine.view(),
        }
    }
}

/// What the next incarnation must know about this one's work.
#[derive(Clone, Copy)]
struct Held {
    token: Option<FencingToken>,
    hold: Hold,
}

/// The work in progress. When dropped, also by a crash, the work is cancelled.
struct Running {
    hold: watch::Sender<Hold>,
    ended: CancellationToken,
}
impl Drop for Running {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// One incarnation.
struct ElectorShell {
    setup: Setup,
    machine: Machine,
    memory: Slot<Option<Held>>,
    status: Arc<watch::Sender<Status>>,
    stop: CancellationToken,
    running: Option<Running>,
    /// While leading.
    hold: Option<Hold>,
    wake_at: watch::Sender<Option<Moment>>,
}

enum Input {
    Signal(Signal),
    Muster(muster_lease::Answer),
    Kubernetes(kubernetes_lease::Answer),
}

impl ElectorShell {
    fn new(
        setup: Setup,
        memory: Slot<Option<Held>>,
        status: Arc<watch::Sender<Status>>,
        stop: CancellationToken,
    ) -> Self {
        let machine = Machine::new(&setup, memory.get().flatten());
        Self { setup, machine, memory, status, stop, running: None, hold: None, wake_at: watch::Sender::new(None) }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let now = self.setup.clock.now();
        let wall = self.setup.clock.wall();
        let mut effects = Vec::new();
        match (&mut self.machine, input) {
            (Machine::Muster(machine), input) => {
                let mut out = Vec::new();
                match input {
                    Input::Signal(signal) => machine.step(now, signal, &mut out),
                    Input::Muster(answer) => machine.answer(now, answer, &mut out),
                    Input::Kubernetes(_) => {}
                }
                for effect in out {
                    effect.sort(&mut effects, |ask| self.setup.ask_cluster(cx, ask));
                }
            }
            (Machine::Kubernetes(machine), input) => {
                let mut out = Vec::new();
                match input {
                    Input::Signal(signal) => machine.step(now, wall, signal, &mut out),
                    Input::Kubernetes(answer) => machine.answer(now, wall, answer, &mut out),
                    Input::Muster(_) => {}
                }
                for effect in out {
                    effect.sort(&mut effects, |ask| self.setup.ask_lock(cx, ask));
                }
            }
        }
        let mut outcome = None;
        let mut challenges = Vec::new();
        for effects in effects {
            match effects {
                Effect::Stopped(result) => outcome = Some(result),
                Effect::Challenged { by } => challenges.push(by),
                other => self.apply_effect(cx, other),
            }
        }
        self.status.send_modify(|status| {
            status.view = self.machine.view();
            status.hold = self.hold;
            status.outcome = status.outcome.take().or(outcome);
        });
        for by in challenges {
            let yields = self.setup.candidate.on_challenge(&by);
            info!(challenger = %by, yields, "another candidate is preferred");
            self.step(cx, Input::Signal(Signal::Challenge { by, yields }));
        }
    }

    fn apply_effect(&mut self, cx: &Cx<Msg>, effect: Effect<std::convert::Infallible>) {
        let Setup { config, candidate, clock, .. } = &self.setup;
        match effect {
            Effect::Ask(never) => match never {},
            Effect::Stopped(_) | Effect::Challenged { .. } => {}
            Effect::Begin { token, hold } => {
                info!(lease = %config.lease, ?token, "became leader");
                self.memory.set(Some(Held { token, hold }));
                let (holds, seen) = watch::channel(hold);
                let ended = CancellationToken::new();
                let term = Term { token, ended: ended.clone(), hold: seen, clock: Arc::clone(clock) };
                self.running = Some(Running { hold: holds, ended });
                self.hold = Some(hold);
                candidate.on_event(&format!("{} became leader", config.identity));
                let (work, me) = (candidate.on_started_leading(term), cx.me().clone());
                cx.spawn(async move {
                    work.await;
                    let _gone = me.tell(Msg::WorkEnded);
                });
            }
            Effect::Extend(hold) => {
                let token = self.memory.get().flatten().and_then(|held| held.token);
                self.memory.set(Some(Held { token, hold }));
                if let Some(running) = &self.running {
                    running.hold.send_replace(hold);
                }
                self.hold = self.hold.map(|_| hold);
            }
            Effect::End(ending) => {
                info!(lease = %config.lease, why = %ending, "stopped leading; the guarded work is cancelled");
                self.hold = None;
                if let Some(running) = &self.running {
                    running.ended.cancel();
                }
            }
            Effect::Overdue if !candidate.must_end_in_time() => {}
            Effect::Overdue => {
                error!(lease = %config.lease, "the guarded work outlives its lease; another process can hold it now");
                candidate.on_event(&format!("the work of {} outlives its lease", config.identity));
            }
            Effect::Leader(leader) => candidate.on_new_leader(leader.as_deref()),
            Effect::Over(ending) => {
                // None of its work is running any more, but its token is still pending.
                let now = clock.now();
                let token = self.memory.get().flatten().and_then(|held| held.token);
                self.memory.set(Some(Held { token, hold: Hold { step_down_at: now, over_at: now } }));
                self.running = None;
                self.hold = None;
                candidate.on_event(&format!("{} stopped leading", config.identity));
                candidate.on_stopped_leading(&ending);
            }
            Effect::WakeAt(at) => drop(self.wake_at.send_replace(Some(at))),
        }
    }
}

impl Setup {
    fn ask_cluster(&self, cx: &Cx<Msg>, ask: muster_lease::Ask) {
        let Election::Muster(session) = &self.election else { return };
        let ElectorConfig { lease, identity, lease_duration, .. } = &self.config;
        let (session, lease, holder, duration) = (session.clone(), lease.clone(), identity.clone(), *lease_duration);
        let me = cx.me().clone();
        cx.spawn(async move {
            let _gone = me.tell(Msg::Muster(session.ask(lease, holder, duration, ask).await));
        });
    }

    fn ask_lock(&self, cx: &Cx<Msg>, ask: kubernetes_lease::Ask) {
        let Election::Kubernetes(lock) = &self.election else { return };
        let (lock, me) = (Arc::clone(lock), cx.me().clone());
        cx.spawn(async move {
            let asked = match ask.what {
                What::Get => lock.get(),
                What::Create(record) => lock.create(record),
                What::Update(record) => lock.update(record),
            };
            let result = tokio::time::timeout(ask.timeout, asked).await;
            let result = result.unwrap_or_else(|_| Err(LockError::Other("no answer in time".to_owned())));
            let _gone = me.tell(Msg::Kubernetes(kubernetes_lease::Answer { number: ask.number, result }));
        });
    }
}

/// Minimum pause between two reads of a changing lock: a lease that is written all the time must not keep us busy.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(100);

/// One alarm at a time, always the newest.
async fn run_alarm(clock: Arc<dyn Timekeeper>, mut wake_at: watch::Receiver<Option<Moment>>, me: Address<Msg>) {
    loop {
        let at = *wake_at.borrow_and_update();
        let alarm = async {
            match at {
                Some(at) => clock.until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = wake_at.changed() => if changed.is_err() { return },
            () = alarm => {
                if me.tell(Msg::Woke).is_err() || wake_at.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

impl Shell for ElectorShell {
    type Msg = Msg;
    const KIND: &'static str = "LeaderElector";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        if self.status.borrow().outcome.is_some() {
            return Ok(()); // it had ended before the crash
        }
        cx.spawn(run_alarm(Arc::clone(&self.setup.clock), self.wake_at.subscribe(), cx.me().clone()));
        let (stop, me) = (self.stop.clone(), cx.me().clone());
        cx.spawn(async move {
            stop.cancelled().await;
            let _gone = me.tell(Msg::Stop);
        });
        if let Election::Kubernetes(lock) = &self.setup.election {
            let (lock, me) = (Arc::clone(lock), cx.me().clone());
            cx.spawn(async move {
                loop {
                    lock.changed().await;
                    if me.tell(Msg::Changed).is_err() {
                        return;
                    }
                    tokio::time::sleep(MIN_READ_INTERVAL).await;
                }
            });
        }
        self.step(cx, Input::Signal(Signal::Started));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        let input = match msg {
            Msg::Woke => Input::Signal(Signal::Woke),
            Msg::Changed => Input::Signal(Signal::RetryNow),
            Msg::Muster(answer) => Input::Muster(answer),
            Msg::Kubernetes(answer) => Input::Kubernetes(answer),
            Msg::Stop => Input::Signal(Signal::Cancelled),
            Msg::WorkEnded => {
                (self.running, self.hold) = (None, None);
                Input::Signal(Signal::WorkEnded)
            }
        };
        self.step(cx, input);
        Ok(())
    }

    fn view(&self) -> Value {
        view_json(&self.machine.view(), self.setup.clock.now())
    }
}

/// For people: an age, because a moment of this clock means nothing elsewhere.
fn view_json(view: &ElectorView, now: Moment) -> Value {
    let mut view_json = serde_json::to_value(view).unwrap_or_default();
    if let Some(fields) = view_json.as_object_mut() {
        fields.remove("renewed");
        let ago = view.renewed.map(|renewed| muster_messages::millis(now.since(renewed)));
        fields.insert("renewed_ms_ago".to_owned(), ago.into());
    }
    view_json
}

#[cfg(test)]
mod view_tests {
    use super::*;

    #[test]
    fn a_renewal_is_shown_by_its_age() {
        let view = ElectorView {
            phase: "leading",
            leader: None,
            token: None,
            renewed: Some(Moment(3_793_939_536)),
            blocked: None,
            terms: 1,
            renewals: 2,
            failures: 0,
            slow_path: 0,
        };
        let seen = view_json(&view, Moment(3_793_939_536 + 1_500_000));
        assert_eq!((&seen["renewed_ms_ago"], &seen["renewed"]), (&1_500.into(), &Value::Null));
        assert_eq!(view_json(&ElectorView { renewed: None, ..view }, Moment(1))["renewed_ms_ago"], Value::Null);
    }
}
