//! The runner as an actor: for each term that is held, a [`Run`] with its requests and effects.
//!
//! Owns        the run of the current term, with its checkpoint in a slot.
//! Inputs      the term and the view, as watched values; answers; how actions ended.
//! Outputs     requests to the cluster; its resignation.
//! A crash loses answers, which are requested again. A running action continues meanwhile, and the next incarnation waits for
//! it instead of beginning another.

use std::sync::Arc;
use std::time::Duration;

use muster_elector::Term;
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::{ReconcilerRequest, RunKey};
use muster_messages::{ErrorBody, FencingToken, NodeId};
use serde_json::{Value, json};
use tracing::{error, info, warn};

use crate::action::action;
use crate::action_slot::RunningAction;
use crate::candidates;
use crate::cluster_requests::{ANSWER_TIMEOUT, ask, record};
use crate::core::run::{
    Effect, Ended, Input, LogLine, Recorded, Run, Runner, Stepped, Succession, TermStep, Waved, Work, step_in_term,
};
use crate::run_view::RunView;
use crate::wiring::Wiring;

const MAILBOX: usize = 64;
/// Time limit for a wave: thousands of log entries.
const WAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Messages of the actor, all sent by itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    ViewChanged,
    Term,
    Ended(FencingToken),
    Stepped { term: FencingToken, number: u64, result: Result<Stepped, ErrorBody> },
    Waved { term: FencingToken, number: u64, result: Result<Waved, ErrorBody> },
    Recorded { term: FencingToken, number: u64, result: Result<Recorded, ErrorBody> },
    Acted { term: FencingToken, number: u64, ended: Box<Ended> },
    Reported { term: FencingToken, ok: bool },
    RunRecorded { term: FencingToken, decided: bool },
    Woke,
}

pub(crate) fn runner_spec(wiring: Wiring) -> Spec {
    Spec::actor("run", Address::new(MAILBOX), move || {
        Ok(RunnerShell { wiring: wiring.clone(), running: None, alarm: Alarm::default() })
    })
}

/// See the module.
pub(crate) struct RunnerShell {
    wiring: Wiring,
    running: Option<(Run, Term)>,
    alarm: Alarm,
}

impl RunnerShell {
    /// Advances the run of the current term.
    fn step(&mut self, cx: &Cx<Msg>, of: Option<FencingToken>, input: Input) {
        let Some((run, term)) = &mut self.running else { return };
        let (mut out, at) = (Vec::new(), (cx.now(), cx.wall()));
        if !step_in_term(run, at, term.is_current(), (of, input), &mut out) {
            return;
        }
        // First the checkpoint for the next incarnation, then the irreversible effects.
        self.wiring.run.set(Some(run.clone()));
        self.wiring.recorded.send_replace(run.is_recorded());
        let (wake_at, term) = (run.wake_at(), term.clone());
        for effect in out {
            self.apply_effect(cx, &term, effect);
        }
        self.alarm.set(cx, wake_at, Msg::Woke);
    }

    fn apply_effect(&self, cx: &Cx<Msg>, held: &Term, effect: Effect) {
        let Wiring { name, setup, .. } = &self.wiring;
        let cluster = Arc::clone(&setup.cluster);
        let (name, term) = (name.clone(), held.token().unwrap_or_default());
        match effect {
            Effect::Step { number, release, digest, epoch, step } => cx.report(async move {
                let request = ReconcilerRequest::Step { name, release, digest, term, epoch, step };
                let result = ask(&*cluster, request, ANSWER_TIMEOUT).await;
                Msg::Stepped { term, number, result }
            }),
            Effect::Wave { number, release, digest, wave } => cx.report(async move {
                let request = ReconcilerRequest::Wave { name, release, digest, term, wave };
                let result = ask(&*cluster, request, WAVE_TIMEOUT).await;
                Msg::Waved { term, number, result }
            }),
            Effect::Record { number, release, digest, defined, step } => cx.report(async move {
                let request = ReconcilerRequest::StepDone { name, release, digest, defined, term, step };
                let result = ask(&*cluster, request, ANSWER_TIMEOUT).await;
                Msg::Recorded { term, number, result }
            }),
            Effect::Act { number, work } => self.begin(cx, held, number, *work),
            Effect::Cancel { number } => {
                if let Some(action) = self.running_action(term).filter(|action| action.number == number) {
                    action.cancel.cancel();
                }
            }
            Effect::Report(progress) => cx.report(async move {
                let request = ReconcilerRequest::Progress { progress: *progress };
                let reported: Result<Value, ErrorBody> = ask(&*cluster, request, ANSWER_TIMEOUT).await;
                Msg::Reported { term, ok: reported.is_ok() }
            }),
            Effect::RecordRun(run) => {
                cx.report(async move { Msg::RunRecorded { term, decided: record(&*cluster, run).await } });
            }
            Effect::Resign => {
                let _repeated_later = self.wiring.candidates.tell(candidates::Msg::Resign);
            }
            Effect::Log(LogLine::Info(text)) => info!("{text}"),
            Effect::Log(LogLine::Warn(text)) => warn!("{text}"),
            Effect::Log(LogLine::Error(text)) => error!("{text}"),
        }
    }

    fn running_action(&self, term: FencingToken) -> Option<RunningAction> {
        self.wiring.action_slot.running_action().filter(|running_action| running_action.term == term)
    }

    fn begin(&self, cx: &Cx<Msg>, held: &Term, number: u64, work: Work) {
        let Wiring { name, setup, action_slot, .. } = &self.wiring;
        let term = held.token().unwrap_or_default();
        let run = RunKey { reconciler: name.clone(), term, of_term: work.of_term };
        let action = action(setup, run, held, work, cx.wall());
        let running_action = action_slot.start((term, number), &held.cancellation(), action);
        self.await_end(cx, running_action);
    }

    fn await_end(&self, cx: &Cx<Msg>, running_action: RunningAction) {
        let (term, number) = (running_action.term, running_action.number);
        cx.report(async move { Msg::Acted { term, number, ended: Box::new(running_action.ended().await) } });
    }

    /// Follows a change of term.
    fn take(&mut self, cx: &Cx<Msg>) {
        let held = self.wiring.terms.borrow().clone().filter(|term| !term.cancellation().is_cancelled());
        let current = self.running.as_ref().map(|(run, _)| run.who().term);
        match TermStep::of(current, held.map(|term| (term.token().unwrap_or_default(), term))) {
            TermStep::End => self.step(cx, None, Input::Ended),
            TermStep::Keep => {}
            TermStep::Begin(token, term) => self.begin_term(cx, token, term),
        }
    }

    fn begin_term(&mut self, cx: &Cx<Msg>, token: FencingToken, term: Term) {
        let running_action = self.running_action(token);
        let acting = running_action.as_ref().map(|running_action| running_action.number);
        let left = self.wiring.run.get().flatten();
        let Succession { run, awaits_action } = Succession::of(self.who(token), rand::random(), left, acting);
        if let Some(running_action) = running_action.filter(|_| awaits_action) {
            self.await_end(cx, running_action);
        }
        info!(reconciler = %self.wiring.name, term = %token, "reconciler term started");
        self.running = Some((run, term.clone()));
        cx.report(async move {
            term.ended().await;
            Msg::Ended(token)
        });
        self.step(cx, None, Input::Woke);
        self.observe(cx);
    }

    fn who(&self, term: FencingToken) -> Runner {
        let Wiring { name, setup, .. } = &self.wiring;
        Runner {
            reconciler: name.clone(),
            node: setup.node.unwrap_or(NodeId::from_entropy(0)),
            member: setup.member.clone(),
            release: setup.release.clone(),
            term,
        }
    }

    fn observe(&mut self, cx: &Cx<Msg>) {
        let view = self.wiring.views.borrow_and_update().clone();
        if let Some(view) = view {
            self.step(cx, None, Input::View(view));
        }
    }
}

impl Shell for RunnerShell {
    type Msg = Msg;
    const KIND: &'static str = "Runner";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let mut terms = self.wiring.terms.subscribe();
        terms.mark_changed();
        cx.on_change(terms, || Msg::Term);
        cx.on_change(self.wiring.views.clone(), || Msg::ViewChanged);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::ViewChanged => self.observe(cx),
            Msg::Term => self.take(cx),
            Msg::Ended(term) => self.step(cx, Some(term), Input::Ended),
            Msg::Stepped { term, number, result } => self.step(cx, Some(term), Input::Stepped { number, result }),
            Msg::Waved { term, number, result } => self.step(cx, Some(term), Input::Waved { number, result }),
            Msg::Recorded { term, number, result } => self.step(cx, Some(term), Input::Recorded { number, result }),
            Msg::Acted { term, number, ended } => self.step(cx, Some(term), Input::Acted { number, ended }),
            Msg::RunRecorded { term, decided } => self.step(cx, Some(term), Input::RunRecorded { decided }),
            Msg::Reported { term, ok } => self.step(cx, Some(term), Input::Reported { ok }),
            Msg::Woke => {
                self.alarm.fired();
                self.step(cx, None, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let runs = self.wiring.run.get().flatten().map(|run| run.tally().clone());
        let view = match &self.running {
            Some((run, term)) if !run.has_ended() => {
                let progress = run.clone().progress(muster_kernel::Clock.wall());
                RunView { term: term.token(), progress: Some(progress), runs }
            }
            _ => RunView { term: None, progress: None, runs },
        };
        json!(view)
    }
}
