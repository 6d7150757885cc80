//! The supervisor's shell: a ractor actor that launches, stops and kills.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{CrashHow, word};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use super::Children;
use super::child_table::ChildTable;
use super::children::{Report, SupervisorMsg};
use super::core::{Core, Effect, Fate, Input, Timer};
use super::runs::{ActorEnd, RunEnd, Runs};
use crate::fence::Fence;
use crate::host::{HANG, Panicked};
use crate::spec::SHUTDOWN_LIMIT;
use crate::vitals::Pulse;
use crate::{Clock, Group, Tree};

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
    children: ChildTable,
    runs: Runs,
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
        let (core, runs) = (Core::new(args.group, seed()), Runs::default());
        let children = ChildTable::new(args.path.clone(), args.tree.clone());
        let me = Children { supervisor: me };
        Ok(State { args, core, children, runs, me, report: None, end_reason: None })
    }

    async fn handle(&self, me: ActorRef<Self::Msg>, msg: Self::Msg, s: &mut State) -> Result<(), ActorProcessingErr> {
        if s.args.fence.is_closed() {
            return Err("its owner has ended".into());
        }
        s.begin(msg.name());
        match msg {
            SupervisorMsg::Start(spec) => {
                if let Some(input) = s.children.add(*spec) {
                    s.step(input);
                }
            }
            SupervisorMsg::Stop { name, done } => {
                match (s.children.get_mut(&name), done) {
                    (Some(child), Some(done)) => child.notify_when_stopped(done),
                    (None, Some(done)) => drop(done.send(())),
                    (_, None) => {}
                }
                s.step(Input::Stop { name });
            }
            SupervisorMsg::Restart { name } => s.step(Input::Restart { name }),
            SupervisorMsg::Ended { actor, kind, text } => {
                let end = s.runs.ended(actor, kind, text);
                s.ended(end);
            }
            SupervisorMsg::FailToStart { name, times } => {
                if let Some(child) = s.children.get_mut(&name) {
                    child.fail_next_starts(times);
                }
                s.step(Input::Restart { name });
            }
            SupervisorMsg::Launched { name, run, fence, result } => {
                let end = s.runs.launched(name.clone(), run, fence.actor().map(|cell| cell.get_id()), result);
                if let (None, Some(cell)) = (&end, fence.actor()) {
                    match s.core.fate(&name, run) {
                        Fate::Keep => {}
                        Fate::Stop => cell.stop(Some("stopped".to_owned())),
                        Fate::Kill => cell.kill(),
                    }
                }
                s.ended(end);
            }
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
        match ActorEnd::of(event) {
            // It was not asked to release what it holds. That may panic, or take its time: not here. It has ended once that is done.
            Some(ActorEnd { actor, kind, text, held: Some(held) }) => {
                tokio::spawn(async move {
                    let _panicked = tokio::task::spawn_blocking(move || drop(held)).await;
                    let _ending = me.send_message(SupervisorMsg::Ended { actor, kind, text });
                });
            }
            Some(ActorEnd { actor, kind, text, held: None }) => {
                let end = s.runs.ended(actor, kind, text);
                s.ended(end);
            }
            None => {}
        }
        s.end();
        Ok(())
    }

    async fn post_stop(&self, _me: ActorRef<Self::Msg>, s: &mut State) -> Result<(), ActorProcessingErr> {
        s.begin("stopping");
        let Some(text) = s.end_reason.take() else {
            s.children.stop_all().await;
            return Ok(());
        };
        // Children that have not ended by then are killed with it.
        let _late = tokio::time::timeout(SHUTDOWN_LIMIT, s.children.stop_all()).await;
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
            pulse.publish(self.args.group.view(self.children.len()));
        }
    }
    /// A child's run has ended, if it is known whose it was.
    fn ended(&mut self, end: Option<RunEnd>) {
        let Some(RunEnd { name, run, kind, text }) = end else { return };
        if self.runs.take_stuck(run) {
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
            Effect::Stop { name, run } => self.children.stop(&name, run),
            Effect::Kill { name, run } => self.children.kill(&name, run),
            Effect::Abandon { name, run } => {
                if let Some(shown) = self.children.abandon(&name) {
                    self.runs.abandon(run, self.args.tree.register(Arc::new(shown)));
                }
            }
            Effect::SetTimer { name, run, timer, after } => self.set_timer(name, run, timer, after),
            Effect::State { name, state } => self.children.enter(&name, state),
            Effect::Waits { name, on } => self.children.waits(&name, &on),
            Effect::Exit { name, kind, text } => self.children.ended(&name, kind, text),
            Effect::Removed { name } => self.children.remove(&name),
            Effect::Stale { name } => self.children.count_stale(&name),
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

    fn set_timer(&mut self, name: String, run: u64, timer: Timer, after: Duration) {
        if let Some(child) = self.children.get_mut(&name) {
            child.set_timer(after, self.me.supervisor.clone(), SupervisorMsg::Timer { name, run, timer });
        }
    }

    fn launch(&mut self, name: String, run: u64, incarnation: u64) {
        let Some(child) = self.children.get_mut(&name) else { return };
        let fence = Fence::within(self.args.fence.closed());
        let launching = child.launch(run, incarnation, fence.clone(), &self.me, &self.args.tree);
        let me = self.me.supervisor.clone();
        tokio::spawn(async move {
            let result = launching.await;
            // A supervisor that is ending never reads it, but finds the actors that have entered the fence.
            let _ending = me.send_message(SupervisorMsg::Launched { name, run, fence, result });
        });
    }
}
