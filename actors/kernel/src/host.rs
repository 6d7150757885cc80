//! Runs a [`Shell`] as a ractor actor: mailbox tickets, vital signs, crash injection, graceful stop.

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::FutureExt;
use muster_messages::{CrashHow, Named};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::Shell;
use crate::address::Letter;
use crate::fence::at_work;
use crate::launch::Body;
use crate::panicked::{Panicked, panic_text};
use crate::tenancy::EndOnDrop;

/// The actor of a shell.
pub(crate) struct Hosted<S>(pub PhantomData<fn() -> S>);

const HAS_SHELL: &str = "the shell is present until the incarnation has stopped";

/// How long `crash --how hang` holds a handler.
pub(crate) const HANG: Duration = Duration::from_secs(30);

impl<S: Shell> Actor for Hosted<S> {
    type Msg = Letter<S::Msg>;
    type State = Body<S>;
    type Arguments = Body<S>;

    async fn pre_start(
        &self,
        me: ActorRef<Self::Msg>,
        body: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        body.cx.fence().enter(me.get_cell())?;
        let EndOnDrop(tenancy) = &body.end_on_drop;
        if !tenancy.address.move_in(tenancy.number, tenancy.ended.clone(), me) {
            return Err("a later incarnation has its address".into());
        }
        Ok(body)
    }

    async fn post_start(&self, _me: ActorRef<Self::Msg>, body: &mut Self::State) -> Result<(), ActorProcessingErr> {
        body.pulse.begin("started");
        let shell = body.shell.as_mut().expect(HAS_SHELL);
        let done = AssertUnwindSafe(at_work(body.cx.ended(), body.pulse.vitals.fuse(), shell.started(&body.cx)))
            .catch_unwind()
            .await;
        body.pulse.end();
        let done = done.map_err(|panic| Panicked(panic_text(panic.as_ref())))?;
        done.map_err(|fault| ActorProcessingErr::from(fault.0))?;
        body.pulse.publish(body.view());
        if !body.reports_ready {
            body.cx.ready();
        }
        Ok(())
    }

    async fn handle(
        &self,
        me: ActorRef<Self::Msg>,
        letter: Self::Msg,
        body: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match letter {
            Letter::Message(msg, ticket) => {
                body.pulse.begin(msg.name());
                let shell = body.shell.as_mut().expect(HAS_SHELL);
                let done =
                    AssertUnwindSafe(at_work(body.cx.ended(), body.pulse.vitals.fuse(), shell.handle(&body.cx, msg)))
                        .catch_unwind()
                        .await;
                drop(ticket);
                let done = done.map_err(|panic| Panicked(panic_text(panic.as_ref())))?;
                if body.pulse.end() {
                    body.pulse.publish(body.view());
                }
                done.map_err(|fault| ActorProcessingErr::from(fault.0))
            }
            Letter::Refresh => {
                body.pulse.answer(body.view());
                Ok(())
            }
            Letter::TaskPanicked(text) => Err(Panicked(text).into()),
            Letter::Crash(how) => {
                body.pulse.begin("crash");
                match how {
                    // A real panic, through the hook and with unwinding, as for a bug.
                    CrashHow::Panic => {
                        let caught = catch_unwind(|| panic!("crashed on request"));
                        let text = caught.err().map(|panic| panic_text(panic.as_ref()));
                        Err(Panicked(text.unwrap_or_default()).into())
                    }
                    CrashHow::Error => Err("failed on request".into()),
                    CrashHow::Kill => {
                        me.get_cell().kill();
                        std::future::pending().await
                    }
                    CrashHow::Hang => {
                        tokio::time::sleep(HANG).await;
                        body.pulse.end();
                        Ok(())
                    }
                    // The supervisor does this and was notified.
                    CrashHow::Start { .. } => Ok(()),
                }
            }
        }
    }

    async fn post_stop(&self, _me: ActorRef<Self::Msg>, body: &mut Self::State) -> Result<(), ActorProcessingErr> {
        if let Some(children) = body.cx.running_children() {
            children.shut_down().await;
        }
        body.pulse.begin("stopping");
        let mut shell = body.shell.take().expect(HAS_SHELL);
        let stopped = AssertUnwindSafe(at_work(body.cx.ended(), body.pulse.vitals.fuse(), shell.stopping(&body.cx)))
            .catch_unwind()
            .await;
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(shell)));
        body.pulse.end();
        // Now rather than when the supervisor drops the rest of it: that may be busy with its siblings for long.
        body.end_on_drop.0.end();
        let panicked = |panic: Box<dyn Any + Send>| format!("panicked while stopping: {}", panic_text(panic.as_ref()));
        Ok(stopped.and(dropped).map_err(panicked)?)
    }

    async fn handle_supervisor_evt(
        &self,
        _me: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        _body: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            // The only ractor child of a hosted actor is the group of its own children.
            SupervisionEvent::ActorFailed(_, error) => Err(format!("its children failed: {error}").into()),
            _ => Ok(()),
        }
    }
}
