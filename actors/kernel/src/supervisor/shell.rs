//! The supervisor's shell: a ractor actor that launches, stops and kills.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{CrashHow, ExitKind, word};
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, Signal, SupervisionEvent};
use serde_json::json;

use super::Children;
use super::child::Child;
use super::children::{Report, SupervisorMsg};
use super::core::{Core, Effect, Fate, Input, Policy, Timer};
use crate::fence::Fence;
use crate::host::{HANG, Panicked, Start};
use crate::spec::{SHUTDOWN_LIMIT, is_segment};
use crate::tree::Registration;
use crate::vitals::{Pulse, Vitals};
use crate::{Clock, Fault, Group, Spec, Strategy, Tree};

pub(super) struct SupervisorActor;

pub(super) struct SupervisorArgs {
    pub path: String,
    pub tree: Tree,
    pub group: Group,
    pub fence: Fence,
    /// Where it shows its current work. An actor's own group of children has no path of its own, and shows nothing.
    pub pulse: Option<Pulse>,
}

pub(super) struct State {
    args: SupervisorArgs,
    core: Core,
    children: BTreeMap<String, Child>,
    /// The child and run of each actor.
    running: HashMap<ActorId, (String, u64)>,
    /// Exits of actors whose launch has not been reported yet (supervision events overtake messages), until it is.
    early: HashMap<ActorId, (ExitKind, String)>,
    /// Runs that ignored stop and kill, shown until they end.
    left: HashMap<u64, Registration>,
    started: u64,
    me: Children,
    report: Option<Report>,
    /// Why this supervisor must end.
    end_reason: Option<String>,
}

/// A number that differs between supervisors and between processes: the delays of restarts must not coincide. Not a secret, and not worth a
/// dependency.
fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Actor for SupervisorActor {
    type Msg = SupervisorMsg;
    type State = State;
    type Arguments = SupervisorArgs;

    async fn pre_start(&self, me: ActorRef<Self::Msg>, args: Self::Arguments) -> Result<State, ActorProcessingErr> {
        args.fence.enter(me.get_cell())?;
        let core = Core::new(args.group, seed());
        Ok(State {
            args,
            core,
            children: BTreeMap::new(),
            running: HashMap::new(),
            early: HashMap::new(),
            left: HashMap::new(),
            started: 0,
            me: Children { supervisor: me },
            report: None,
            end_reason: None,
        })
    }

    async fn handle(&self, me: ActorRef<Self::Msg>, msg: Self::Msg, s: &mut State) -> Result<(), ActorProcessingErr> {
        if s.args.fence.is_closed() {
            return Err("its owner has ended".into());
        }
        s.begin(msg.name());
        match msg {
            SupervisorMsg::Start(spec) => s.start(*spec),
            SupervisorMsg::Stop { name, done } => {
                match (s.children.get_mut(&name), done) {
                    (Some(child), Some(done)) => child.notify_when_stopped(done),
                    (None, Some(done)) => drop(done.send(())),
                    (_, None) => {}
                }
                s.step(Input::Stop { name });
            }
            SupervisorMsg::Restart { name } => s.step(Input::Restart { name }),
            SupervisorMsg::Ended { actor, kind, text } => s.ended(actor, kind, text),
            SupervisorMsg::FailToStart { name, times } => {
                if let Some(child) = s.children.get_mut(&name) {
                    child.fail_next_starts(times);
                }
                s.step(Input::Restart { name });
            }
            SupervisorMsg::Launched { name, run, fence, result } => s.launched(name, run, &fence, result),
            SupervisorMsg::Healthy { name, run } => s.step(Input::Healthy { name, run }),
            SupervisorMsg::Filled(report) => {
                s.report = Some(report);
                s.step(Input::Filled);
            }
            SupervisorMsg::Timer { name, run, timer } => s.step(Input::Timer { name, run, timer }),
            SupervisorMsg::Crash(CrashHow::Panic) => return Err(Panicked("crashed on request".to_owned()).into()),
            SupervisorMsg::Crash(CrashHow::Error) => return Err("failed on request".into()),
            SupervisorMsg::Crash(CrashHow::Kill) => {
                me.get_cell().kill();
                return std::future::pending().await;
            }
            SupervisorMsg::Crash(CrashHow::Hang) => tokio::time::sleep(HANG).await,
            // Its own supervisor does this and was notified.
            SupervisorMsg::Crash(CrashHow::Start { .. }) => {}
            SupervisorMsg::Beat(answer) => drop(answer.send(())),
        }
        s.end();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        s: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        s.begin("child_ended");
        let (cell, kind, text) = match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                let text = error.to_string();
                let kind = if error.is::<Panicked>() { ExitKind::Panic } else { ExitKind::Error };
                (cell, kind, text)
            }
            SupervisionEvent::ActorTerminated(cell, state, reason) => {
                let text = reason.unwrap_or_default();
                // A task that its runtime has dropped leaves no state.
                let killed = state.is_none() || text == Signal::Kill.to_string();
                let kind = if killed { ExitKind::Killed } else { ExitKind::Normal };
                if let (ExitKind::Killed, Some(state)) = (kind, state) {
                    // It was not asked to release what it holds. That may panic, or take its time: not here. It has ended once
                    // that is done.
                    let (me, actor) = (me.clone(), cell.get_id());
                    tokio::spawn(async move {
                        let _panicked = tokio::task::spawn_blocking(move || drop(state)).await;
                        let _ending = me.send_message(SupervisorMsg::Ended { actor, kind, text });
                    });
                    s.end();
                    return Ok(());
                }
                (cell, kind, text)
            }
            _ => {
                s.end();
                return Ok(());
            }
        };
        s.ended(cell.get_id(), kind, text);
        s.end();
        Ok(())
    }

    async fn post_stop(&self, _me: ActorRef<Self::Msg>, s: &mut State) -> Result<(), ActorProcessingErr> {
        s.begin("stopping");
        let Some(text) = s.end_reason.take() else {
            s.stop_all().await;
            return Ok(());
        };
        // Children that have not ended by then are killed with it.
        let _late = tokio::time::timeout(SHUTDOWN_LIMIT, s.stop_all()).await;
        Err(text.into())
    }
}

impl State {
    /// Shows this message as current until it has been handled.
    fn begin(&self, message: &'static str) {
        if let Some(pulse) = &self.args.pulse {
            pulse.begin(message);
        }
    }
    fn end(&self) {
        if let Some(pulse) = &self.args.pulse {
            pulse.end();
            pulse.publish(self.view());
        }
    }
    /// How it treats its children; the children show their own work.
    fn view(&self) -> serde_json::Value {
        let Group { strategy, intensity } = self.args.group;
        let restarts = match strategy {
            Strategy::OneForOne => "the child that failed",
            Strategy::OneForAll => "all children",
            Strategy::RestForOne => "the child that failed and those started after it",
        };
        let (failures, within_ms) = (intensity.max + 1, muster_messages::millis(intensity.window));
        json!({
            "children": self.children.len(), "restarts": restarts,
            "gives_up_after": {"failures": failures, "within_ms": within_ms},
        })
    }

    async fn stop_all(&mut self) {
        // An actor that is still being made finds its fence closed and no supervisor.
        let mut in_order: Vec<(u64, String)> = self.children.iter().map(|(name, c)| (c.order, name.clone())).collect();
        in_order.sort();
        for (_, name) in in_order.into_iter().rev() {
            if let Some(child) = self.children.remove(&name) {
                child.stop_in_order().await;
            }
        }
    }

    fn start(&mut self, spec: Spec) {
        let name = spec.name.clone();
        if !is_segment(&name) {
            tracing::error!(path = %self.args.path, ?name, "child not started: its name is not a valid path segment");
            return;
        }
        let policy = Policy {
            restart: spec.restart,
            backoff: spec.backoff,
            start_deadline: spec.start_deadline,
            stop_deadline: spec.stop_deadline,
            contained: spec.contained,
        };
        let requires = spec.requires.clone();
        for missing in requires.iter().filter(|sibling| !self.children.contains_key(*sibling)) {
            tracing::warn!(path = %self.args.path, %name, %missing, "child requires a sibling not started before it");
        }
        match self.children.get_mut(&name) {
            Some(child) => child.spec = spec,
            None => {
                let path = format!("{}/{name}", self.args.path);
                let label = self.args.tree.label(&self.args.path, spec.counted_as.unwrap_or(&name));
                let vitals = Arc::new(Vitals::new(path, spec.kind, label));
                let registration = self.args.tree.register(Arc::clone(&vitals));
                self.started += 1;
                self.children.insert(name.clone(), Child::new(spec, vitals, registration, self.started));
            }
        }
        self.step(Input::Start { name, policy, requires });
    }

    fn ended(&mut self, actor: ActorId, kind: ExitKind, text: String) {
        match self.running.remove(&actor) {
            Some((name, run)) => self.exited(name, run, kind, text),
            None => drop(self.early.insert(actor, (kind, text))),
        }
    }

    fn launched(&mut self, name: String, run: u64, fence: &Fence, result: Result<(), Fault>) {
        let early = fence.actor().and_then(|cell| self.early.remove(&cell.get_id()));
        match (result, early) {
            (Err(fault), _) => return self.exited(name, run, ExitKind::Start, fault.0),
            (Ok(()), Some((kind, text))) => return self.exited(name, run, kind, text),
            (Ok(()), None) => {}
        }
        let cell = fence.actor().expect("a launched actor has entered its fence");
        match self.core.fate(&name, run) {
            Fate::Keep => {}
            Fate::Stop => cell.stop(Some("stopped".to_owned())),
            Fate::Kill => cell.kill(),
        }
        self.running.insert(cell.get_id(), (name, run));
    }

    fn exited(&mut self, name: String, run: u64, kind: ExitKind, text: String) {
        if self.left.remove(&run).is_some() {
            tracing::info!(path = %self.args.path, %name, kind = %word(kind), %text, "a stuck incarnation has ended");
        }
        self.step(Input::Exited { name, run, kind, text });
    }

    fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.core.step(Clock.now(), input, &mut effects);
        for effect in effects {
            self.apply(effect);
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Launch { name, run, incarnation } => self.launch(name, run, incarnation),
            Effect::Stop { name, run } => {
                if let Some(cell) = self.cell(&name, run) {
                    cell.stop(Some("stopped".to_owned()));
                }
            }
            Effect::Kill { name, run } => {
                if let Some(cell) = self.cell(&name, run) {
                    cell.kill();
                }
            }
            Effect::Abandon { name, run } => {
                if let Some(child) = self.children.get(&name) {
                    child.abandon();
                    let left = Arc::new(child.vitals.abandoned_vitals());
                    tracing::error!(path = %left.path, "actor ignored stop and kill; abandoned as stuck");
                    self.left.insert(run, self.args.tree.register(left));
                }
            }
            Effect::SetTimer { name, run, timer, after } => self.set_timer(name, run, timer, after),
            Effect::State { name, state } => {
                if let Some(child) = self.children.get_mut(&name) {
                    child.enter(state);
                }
            }
            Effect::Waits { name, on } => {
                if let Some(child) = self.children.get(&name) {
                    tracing::debug!(path = %child.vitals.path, ?on, "actor waits for its siblings before it starts");
                    child.vitals.explain(json!({ "waits_for": on }));
                }
            }
            Effect::Exit { name, kind, text } => {
                if let Some(child) = self.children.get_mut(&name) {
                    child.ended(kind, text);
                }
            }
            Effect::Removed { name } => {
                if let Some(mut child) = self.children.remove(&name) {
                    child.notify_stopped();
                }
            }
            Effect::Stale { name } => {
                if let Some(child) = self.children.get(&name) {
                    child.vitals.count_stale();
                }
            }
            Effect::Ready => {
                if let Some(report) = &self.report {
                    report.healthy();
                }
            }
            Effect::Escalate { text } => {
                tracing::error!(path = %self.args.path, %text, "supervisor gives up after too many failures");
                self.end_reason = Some(text);
                // Its children stop in `post_stop`: from then on no actor that is still being made can be linked.
                self.me.cell().stop(None);
            }
        }
    }

    fn cell(&self, name: &str, run: u64) -> Option<&ActorCell> {
        self.children.get(name)?.cell_of(run)
    }

    fn set_timer(&mut self, name: String, run: u64, timer: Timer, after: Duration) {
        let Some(child) = self.children.get_mut(&name) else { return };
        let me = self.me.supervisor.clone();
        let set = tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _gone = me.send_message(SupervisorMsg::Timer { name, run, timer });
        });
        child.replace_timer(set.abort_handle());
    }

    fn launch(&mut self, name: String, run: u64, incarnation: u64) {
        let Some(child) = self.children.get_mut(&name) else {
            return;
        };
        // The callers that waited for the end of an earlier incarnation have it, also if a later start brought another.
        child.notify_stopped();
        let fence = Fence::within(self.args.fence.closed());
        child.begin(run, incarnation, fence.clone());
        let start = Start {
            path: child.vitals.path.clone(),
            name: name.clone(),
            incarnation,
            pulse: Pulse { vitals: Arc::clone(&child.vitals), incarnation },
            report: Report::new(&self.me, name.clone(), run),
            reports_ready: child.spec.reports_ready,
            fence: fence.clone(),
            tree: self.args.tree.clone(),
            supervisor: self.me.cell(),
            siblings: self.me.clone(),
        };
        let launching = child.launch(start);
        let me = self.me.supervisor.clone();
        tokio::spawn(async move {
            let result = launching.await;
            // A supervisor that is ending never reads it, but finds the actors that have entered the fence.
            let _ending = me.send_message(SupervisorMsg::Launched { name, run, fence, result });
        });
    }
}
