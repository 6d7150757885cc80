//! The elector as an actor.
//!
//! Invariants  ELECTOR-1  the guarded work of one term has returned, or was dropped and left alone until its lease was over,
//!                        before the next begins: also when the actor crashed in between.

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::FutureExt;
use muster_kernel::{Cx, Fault, Shell, Slot};
use muster_messages::Moment;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::core::{Effect, Signal};
use crate::handle::{Election, Setup, Status};
use crate::leadership::{Held, Leadership};
use crate::machine::{Input, Machine};
use crate::msg::Msg;
use crate::tasks::{run_alarm, watch_lock};
use crate::view::shown;

/// One incarnation.
pub(crate) struct ElectorShell {
    setup: Setup,
    machine: Machine,
    leadership: Leadership,
    status: Arc<watch::Sender<Status>>,
    stop: CancellationToken,
    wake_at: watch::Sender<Option<Moment>>,
}

impl ElectorShell {
    pub fn new(
        setup: Setup,
        memory: Slot<Option<Held>>,
        status: Arc<watch::Sender<Status>>,
        stop: CancellationToken,
    ) -> Self {
        let machine = Machine::new(&setup, memory.get().flatten());
        Self { setup, machine, leadership: Leadership::new(memory), status, stop, wake_at: watch::Sender::new(None) }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let times = (self.setup.clock.now(), self.setup.clock.wall());
        let (requests, effects) = self.machine.step(times, input);
        for request in requests {
            cx.report(request.map(Msg::Answered));
        }
        let mut outcome = None;
        let mut challenges = Vec::new();
        for effect in effects {
            match effect {
                Effect::Stopped(result) => outcome = Some(result),
                Effect::Challenged { by } => challenges.push(by),
                other => self.apply_effect(cx, other),
            }
        }
        self.status.send_modify(|status| {
            status.view = self.machine.view();
            status.hold = self.leadership.hold();
            status.outcome = status.outcome.take().or(outcome);
        });
        for by in challenges {
            let yields = self.setup.candidate.on_challenge(&by);
            info!(challenger = %by, yields, "another candidate is preferred");
            self.step(cx, Input::Signal(Signal::Challenge { by, yields }));
        }
    }

    fn apply_effect(&mut self, cx: &Cx<Msg>, effect: Effect<Infallible>) {
        let Setup { config, candidate, clock, .. } = &self.setup;
        match effect {
            Effect::Ask(never) => match never {},
            Effect::Stopped(_) | Effect::Challenged { .. } => {}
            Effect::Begin { token, hold } => {
                info!(lease = %config.lease, token = token.map(|token| token.0), "became leader");
                let term = self.leadership.begin(token, hold, clock);
                candidate.on_event(&format!("{} became leader", config.identity));
                cx.report(candidate.on_started_leading(term).map(|()| Msg::WorkEnded));
            }
            Effect::Extend(hold) => self.leadership.extend(hold),
            Effect::End(ending) => {
                info!(lease = %config.lease, why = %ending, "stopped leading; the guarded work is cancelled");
                self.leadership.end(&ending);
            }
            Effect::Overdue if !candidate.must_end_in_time() => {}
            Effect::Overdue => {
                error!(lease = %config.lease, "the guarded work outlives its lease; another process can hold it now");
                candidate.on_event(&format!("the work of {} outlives its lease", config.identity));
            }
            Effect::Leader(leader) => candidate.on_new_leader(leader.as_deref()),
            Effect::Over(ending) => {
                self.leadership.over(clock.now());
                candidate.on_event(&format!("{} stopped leading", config.identity));
                candidate.on_stopped_leading(&ending);
            }
            Effect::WakeAt(at) => drop(self.wake_at.send_replace(Some(at))),
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
        cx.report(self.stop.clone().cancelled_owned().map(|()| Msg::Stop));
        if let Election::Kubernetes(lock) = &self.setup.election {
            cx.spawn(watch_lock(Arc::clone(lock), cx.me().clone()));
        }
        self.step(cx, Input::Signal(Signal::Started));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        let input = match msg {
            Msg::Woke => Input::Signal(Signal::Woke),
            Msg::Changed => Input::Signal(Signal::RetryNow),
            Msg::Answered(answer) => answer,
            Msg::Stop => Input::Signal(Signal::Cancelled),
            Msg::WorkEnded => {
                self.leadership.work_ended();
                Input::Signal(Signal::WorkEnded)
            }
        };
        self.step(cx, input);
        Ok(())
    }

    fn view(&self) -> Value {
        shown(&self.machine.view(), self.setup.clock.now())
    }
}
