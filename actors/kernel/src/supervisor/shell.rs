//! The supervisor's shell: a ractor actor that passes messages, and the ends of actors, to the core. [`State`] launches,
//! stops and kills.

use muster_messages::CrashHow;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use super::children::SupervisorMsg;
use super::core::{Fate, Input};
use super::runs::ActorEnd;
use super::state::{State, SupervisorArgs};
use crate::host::HANG;
use crate::panicked::Panicked;
use crate::spec::SHUTDOWN_LIMIT;

pub(super) struct SupervisorActor;

impl Actor for SupervisorActor {
    type Msg = SupervisorMsg;
    type State = State;
    type Arguments = SupervisorArgs;

    async fn pre_start(&self, me: ActorRef<Self::Msg>, args: Self::Arguments) -> Result<State, ActorProcessingErr> {
        args.fence.enter(me.get_cell())?;
        Ok(State::new(args, me))
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
