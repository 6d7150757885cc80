//! What the supervisor's actor begins with and holds, and how it carries out what the core decides.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::word;
use ractor::ActorRef;

use super::Children;
use super::child_table::ChildTable;
use super::children::{Report, SupervisorMsg};
use super::core::{Core, Effect, Input, Timer};
use super::runs::{RunEnd, Runs};
use crate::fence::Fence;
use crate::vitals::Pulse;
use crate::{Clock, Group, Tree};

pub(super) struct SupervisorArgs {
    pub path: String,
    pub tree: Tree,
    pub group: Group,
    pub fence: Fence,
    /// Where it shows its current work. An actor's own group of children has no path of its own, and shows nothing.
    pub pulse: Option<Pulse>,
}

pub(super) struct State {
    pub args: SupervisorArgs,
    pub core: Core,
    pub children: ChildTable,
    pub runs: Runs,
    me: Children,
    /// Where a group reports once all of its first children are healthy.
    pub report: Option<Report>,
    /// Why this supervisor must end.
    pub end_reason: Option<String>,
}

/// A number that differs between supervisors and between processes: the delays of restarts must not coincide. Not a secret, and not worth a
/// dependency.
fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl State {
    pub fn new(args: SupervisorArgs, me: ActorRef<SupervisorMsg>) -> Self {
        let (core, runs) = (Core::new(args.group, seed()), Runs::default());
        let children = ChildTable::new(args.path.clone(), args.tree.clone());
        let me = Children { supervisor: me };
        Self { args, core, children, runs, me, report: None, end_reason: None }
    }

    /// Shows this message as current until it has been handled.
    pub fn begin(&self, message: &'static str) {
        if let Some(pulse) = &self.args.pulse {
            pulse.begin(message);
        }
    }
    pub fn end(&self) {
        if let Some(pulse) = &self.args.pulse {
            pulse.end();
            pulse.publish(self.args.group.view(self.children.len()));
        }
    }
    /// A child's run has ended, if it is known whose it was.
    pub fn ended(&mut self, end: Option<RunEnd>) {
        let Some(RunEnd { name, run, kind, text }) = end else { return };
        if self.runs.take_stuck(run) {
            tracing::info!(path = %self.args.path, %name, kind = %word(kind), %text, "a stuck incarnation has ended");
        }
        self.step(Input::Exited { name, run, kind, text });
    }

    pub fn step(&mut self, input: Input) {
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
