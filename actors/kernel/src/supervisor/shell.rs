//! The supervisor's shell: a ractor actor that launches, stops and kills.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{ActorState, CrashHow, ExitKind};
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, ActorRuntime, ActorStatus, SupervisionEvent};
use tokio::sync::oneshot;

use super::core::{Core, Effect, Input, Policy, Timer};
use crate::host::{Panicked, Start};
use crate::tree::Registration;
use crate::vitals::{Handle, Vitals};
use crate::{Clock, Fault, Intensity, Spec, Tree};

pub(crate) enum SupervisorMsg {
    Start(Box<Spec>),
    Stop { name: String, done: Option<oneshot::Sender<()>> },
    Restart { name: String },
    Launched { name: String, run: u64, result: Result<ActorCell, Fault> },
    Timer { name: String, run: u64, timer: Timer },
    Crash(CrashHow),
}
impl ractor::Message for SupervisorMsg {}

/// A supervisor's children, from outside.
#[derive(Clone)]
pub struct Children {
    supervisor: ActorRef<SupervisorMsg>,
}

impl Children {
    /// Starts a child, or replaces the one of that name (the old one stops first).
    pub fn start(&self, spec: Spec) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Start(Box::new(spec)));
    }
    /// Asks a child to stop; it does not come back.
    pub fn stop(&self, name: &str) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Stop { name: name.to_owned(), done: None });
    }
    /// Asks a child to stop and waits until it has gone, or was given up as stuck. Not from inside a handler.
    pub async fn stop_and_wait(&self, name: &str) {
        let (tx, rx) = oneshot::channel();
        if self.supervisor.send_message(SupervisorMsg::Stop { name: name.to_owned(), done: Some(tx) }).is_ok() {
            let _gone = rx.await;
        }
    }
    /// Asks a child to stop and starts it again.
    pub fn restart(&self, name: &str) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Restart { name: name.to_owned() });
    }
    /// Stops all children in reverse start order, and the group itself.
    pub async fn shut_down(&self) {
        let cell = self.supervisor.get_cell();
        if cell.stop_and_wait(Some("shutdown".to_owned()), Some(SHUTDOWN_LIMIT)).await.is_err() {
            cell.kill();
        }
    }

    /// An actor's own group of children.
    pub(crate) fn launch(path: String, tree: Tree, intensity: Intensity, parent: ActorCell) -> Self {
        let args = SupervisorArgs { path, tree, intensity };
        let (supervisor, _starting) = ActorRuntime::spawn_linked_instant(None, SupervisorActor, args, parent)
            .expect("an unnamed actor can always be spawned");
        Self { supervisor }
    }
    pub(crate) fn cell(&self) -> ActorCell {
        self.supervisor.get_cell()
    }
    pub(crate) fn crash(&self, how: CrashHow) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Crash(how));
    }
    pub(crate) async fn spawn(
        path: String,
        tree: Tree,
        intensity: Intensity,
        parent: Option<ActorCell>,
    ) -> Result<Self, Fault> {
        let args = SupervisorArgs { path, tree, intensity };
        let spawned = match parent {
            Some(parent) => Actor::spawn_linked(None, SupervisorActor, args, parent).await,
            None => Actor::spawn(None, SupervisorActor, args).await,
        };
        let (supervisor, _joined) = spawned.map_err(|e| Fault::new(e.to_string()))?;
        Ok(Self { supervisor })
    }
}

/// The longest an orderly shutdown of a group may take: the contract gives the process 10 s.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(9);

/// The root of a tree. Dropped, it stops the tree in the background, in reverse start order.
pub struct Supervisor {
    children: Children,
    vitals: Arc<Vitals>,
    _registration: Registration,
}

impl Supervisor {
    /// Starts the root supervisor of a tree at `path`.
    pub async fn root(path: &str, tree: Tree, intensity: Intensity) -> Result<Self, Fault> {
        let vitals = Arc::new(Vitals::new(path.to_owned(), "Supervisor"));
        vitals.incarnate(1);
        let registration = tree.register(Arc::clone(&vitals));
        let children = Children::spawn(path.to_owned(), tree, intensity, None).await?;
        vitals.enter(ActorState::Healthy);
        Ok(Self { children, vitals, _registration: registration })
    }
    /// Its children.
    pub fn children(&self) -> &Children {
        &self.children
    }
    /// Returns when the root supervisor has ended: it escalated, or was shut down.
    pub async fn ended(&self) {
        let cell = self.children.cell();
        if cell.get_status() != ActorStatus::Stopped {
            let _gone = cell.wait(None).await;
        }
        self.vitals.enter(ActorState::Dead);
    }
    /// Stops everything in reverse start order.
    pub async fn shut_down(&self) {
        self.vitals.enter(ActorState::Stopping);
        self.children.shut_down().await;
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.children.cell().stop(Some("its handle was dropped".to_owned()));
    }
}

/// Exits that are kept until their launch is reported: more than a supervisor ever launches at once.
const EARLY_KEPT: usize = 64;

pub(crate) struct GroupHandle {
    pub children: Children,
    pub siblings: Children,
    pub name: String,
}
impl Handle for GroupHandle {
    fn refresh(&self) -> bool {
        false
    }
    fn crash(&self, how: CrashHow) {
        self.children.crash(how);
    }
    fn restart(&self) {
        self.siblings.restart(&self.name);
    }
    fn depth(&self) -> u64 {
        0
    }
}

struct SupervisorActor;

struct SupervisorArgs {
    path: String,
    tree: Tree,
    intensity: Intensity,
}

struct Child {
    spec: Spec,
    vitals: Arc<Vitals>,
    _registration: Registration,
    cell: Option<(u64, ActorCell)>,
    stopped: Vec<oneshot::Sender<()>>,
    /// Start order, for the reverse order of shutdown.
    order: u64,
}

struct State {
    args: SupervisorArgs,
    core: Core,
    children: BTreeMap<String, Child>,
    /// Which child and run an actor is.
    running: HashMap<ActorId, (String, u64)>,
    /// Exits of actors whose launch has not been reported yet (supervision events overtake messages).
    early: VecDeque<(ActorId, ExitKind, String)>,
    started: u64,
    me: Children,
}

impl Actor for SupervisorActor {
    type Msg = SupervisorMsg;
    type State = State;
    type Arguments = SupervisorArgs;

    async fn pre_start(&self, me: ActorRef<Self::Msg>, args: Self::Arguments) -> Result<State, ActorProcessingErr> {
        let core = Core::new(args.intensity, rand::random());
        Ok(State {
            args,
            core,
            children: BTreeMap::new(),
            running: HashMap::new(),
            early: VecDeque::new(),
            started: 0,
            me: Children { supervisor: me },
        })
    }

    async fn handle(&self, me: ActorRef<Self::Msg>, msg: Self::Msg, s: &mut State) -> Result<(), ActorProcessingErr> {
        match msg {
            SupervisorMsg::Start(spec) => s.start(*spec),
            SupervisorMsg::Stop { name, done } => {
                match (s.children.get_mut(&name), done) {
                    (Some(child), Some(done)) => child.stopped.push(done),
                    (None, Some(done)) => drop(done.send(())),
                    (_, None) => {}
                }
                s.step(Input::Stop { name })
            }
            SupervisorMsg::Restart { name } => s.step(Input::Restart { name }),
            SupervisorMsg::Launched { name, run, result } => s.launched(name, run, result),
            SupervisorMsg::Timer { name, run, timer } => s.step(Input::Timer { name, run, timer }),
            SupervisorMsg::Crash(CrashHow::Panic) => Err(Panicked("crashed on request".to_owned()).into()),
            SupervisorMsg::Crash(CrashHow::Error) => Err("failed on request".into()),
            SupervisorMsg::Crash(CrashHow::Kill) => {
                me.get_cell().kill();
                std::future::pending().await
            }
            SupervisorMsg::Crash(CrashHow::Hang) => {
                tokio::time::sleep(Duration::from_secs(30)).await;
                Ok(())
            }
        }
    }

    async fn handle_supervisor_evt(
        &self,
        _me: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        s: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (cell, kind, text) = match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                let text = error.to_string();
                let kind = if error.is::<Panicked>() { ExitKind::Panic } else { ExitKind::Error };
                (cell, kind, text)
            }
            SupervisionEvent::ActorTerminated(cell, state, reason) => {
                drop(state);
                let text = reason.unwrap_or_default();
                let kind = if text == "killed" { ExitKind::Killed } else { ExitKind::Normal };
                (cell, kind, text)
            }
            _ => return Ok(()),
        };
        match s.running.remove(&cell.get_id()) {
            Some((name, run)) => s.step(Input::Exited { name, run, kind, text }),
            None => {
                if s.early.len() == EARLY_KEPT {
                    s.early.pop_front();
                }
                s.early.push_back((cell.get_id(), kind, text));
                Ok(())
            }
        }
    }

    async fn post_stop(&self, _me: ActorRef<Self::Msg>, s: &mut State) -> Result<(), ActorProcessingErr> {
        let mut in_order: Vec<(&u64, &String)> = s.children.iter().map(|(name, c)| (&c.order, name)).collect();
        in_order.sort();
        let names: Vec<String> = in_order.into_iter().rev().map(|(_, name)| name.clone()).collect();
        for name in names {
            if let Some(child) = s.children.remove(&name) {
                child.stop_in_order().await;
            }
        }
        Ok(())
    }
}

impl Child {
    async fn stop_in_order(self) {
        let Some((_, cell)) = self.cell else { return };
        if cell.get_status() == ActorStatus::Stopped {
            return;
        }
        self.vitals.enter(ActorState::Stopping);
        let began = tokio::time::Instant::now();
        let deadline = Some(self.spec.stop_deadline);
        if cell.stop_and_wait(Some("shutdown".to_owned()), deadline).await.is_err()
            && cell.kill_and_wait(deadline).await.is_err()
        {
            self.vitals.enter(ActorState::Stuck);
            tracing::error!(path = %self.vitals.path, "actor ignored stop and kill");
        }
        tracing::debug!(path = %self.vitals.path, took = ?began.elapsed(), "stopped");
    }
}

impl State {
    fn start(&mut self, spec: Spec) -> Result<(), ActorProcessingErr> {
        let name = spec.name.clone();
        let policy = Policy {
            restart: spec.restart,
            backoff: spec.backoff,
            start_deadline: spec.start_deadline,
            stop_deadline: spec.stop_deadline,
            contained: spec.contained,
        };
        match self.children.get_mut(&name) {
            Some(child) => child.spec = spec,
            None => {
                let path = format!("{}/{name}", self.args.path);
                let vitals = Arc::new(Vitals::new(path, spec.kind));
                let registration = self.args.tree.register(Arc::clone(&vitals));
                self.started += 1;
                let child = Child {
                    spec,
                    vitals,
                    _registration: registration,
                    cell: None,
                    stopped: Vec::new(),
                    order: self.started,
                };
                self.children.insert(name.clone(), child);
            }
        }
        self.step(Input::Start { name, policy })
    }

    fn launched(&mut self, name: String, run: u64, result: Result<ActorCell, Fault>) -> Result<(), ActorProcessingErr> {
        match result {
            Ok(cell) if !self.core.awaits(&name, run) => {
                // It started after it was given up: nobody waits for it any more.
                self.running.insert(cell.get_id(), (name, run));
                cell.kill();
                Ok(())
            }
            Ok(cell) => {
                let id = cell.get_id();
                if let Some(at) = self.early.iter().position(|(early, _, _)| *early == id) {
                    let (_, kind, text) = self.early.remove(at).expect("the position was just found");
                    return self.step(Input::Exited { name, run, kind, text });
                }
                self.running.insert(id, (name.clone(), run));
                if self.core.is_stopping(&name) {
                    cell.stop(Some("stopped".to_owned()));
                }
                if let Some(child) = self.children.get_mut(&name) {
                    child.cell = Some((run, cell));
                }
                self.step(Input::Started { name, run })
            }
            Err(fault) => self.step(Input::Exited { name, run, kind: ExitKind::Start, text: fault.0 }),
        }
    }

    fn step(&mut self, input: Input) -> Result<(), ActorProcessingErr> {
        let mut effects = Vec::new();
        self.core.step(Clock.now(), input, &mut effects);
        for effect in effects {
            self.perform(effect)?;
        }
        Ok(())
    }

    fn perform(&mut self, effect: Effect) -> Result<(), ActorProcessingErr> {
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
            Effect::SetTimer { name, run, timer, after } => {
                let me = self.me.supervisor.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    let _gone = me.send_message(SupervisorMsg::Timer { name, run, timer });
                });
            }
            Effect::State { name, state } => {
                if let Some(child) = self.children.get(&name) {
                    child.vitals.enter(state);
                    if state == ActorState::Stuck {
                        tracing::error!(path = %child.vitals.path, "actor ignored stop and kill; its successor runs without it");
                    }
                }
            }
            Effect::Exit { name, kind, text } => {
                if let Some(child) = self.children.get_mut(&name) {
                    child.cell = None;
                    if kind == ExitKind::Normal {
                        tracing::debug!(path = %child.vitals.path, %text, "actor ended");
                    } else {
                        tracing::warn!(path = %child.vitals.path, ?kind, %text, "actor ended");
                    }
                    child.vitals.exited(kind, text);
                }
            }
            Effect::Removed { name } => {
                if let Some(child) = self.children.remove(&name) {
                    for done in child.stopped {
                        let _gone = done.send(());
                    }
                }
            }
            Effect::Escalate { text } => {
                tracing::error!(path = %self.args.path, %text, "supervisor gives up");
                return Err(text.into());
            }
        }
        Ok(())
    }

    fn cell(&self, name: &str, run: u64) -> Option<&ActorCell> {
        self.children.get(name)?.cell.as_ref().filter(|(of, _)| *of == run).map(|(_, cell)| cell)
    }

    fn launch(&mut self, name: String, run: u64, incarnation: u64) {
        let Some(child) = self.children.get_mut(&name) else {
            return;
        };
        // Whoever waited for the end of an earlier incarnation has seen it, also when a later start brought another.
        for done in child.stopped.drain(..) {
            let _gone = done.send(());
        }
        child.vitals.incarnate(incarnation);
        let start = Start {
            path: child.vitals.path.clone(),
            name: name.clone(),
            incarnation,
            vitals: Arc::clone(&child.vitals),
            tree: self.args.tree.clone(),
            supervisor: self.me.cell(),
            siblings: self.me.clone(),
        };
        let launching = child.spec.launch.launch(start);
        let me = self.me.supervisor.clone();
        tokio::spawn(async move {
            let result = launching.await;
            let late = result.as_ref().ok().cloned();
            if me.send_message(SupervisorMsg::Launched { name, run, result }).is_err()
                && let Some(cell) = late
            {
                cell.kill();
            }
        });
    }
}
