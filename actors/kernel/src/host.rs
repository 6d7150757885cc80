//! Runs a [`Shell`] as a ractor actor: mailbox tickets, vital signs, crash injection, graceful stop.

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_messages::{CrashHow, Named};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use serde_json::Value;

use crate::address::Letter;
use crate::fence::{Fence, at_work};
use crate::supervisor::{Children, Report};
use crate::tenancy::{ActorHandle, EndOnDrop, Tenancy};
use crate::vitals::Pulse;
use crate::{Address, Cx, Fault, Shell, Tree};

/// What a supervisor gives to a new incarnation.
pub(crate) struct Start {
    pub path: String,
    pub name: String,
    pub incarnation: u64,
    pub pulse: Pulse,
    pub report: Report,
    pub reports_ready: bool,
    pub fence: Fence,
    pub tree: Tree,
    pub supervisor: ActorCell,
    pub siblings: Children,
}

pub(crate) trait Launch: Send + Sync {
    /// The actor has entered the given fence by the time this returns.
    fn launch(&self, start: Start) -> BoxFuture<'static, Result<(), Fault>>;
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without text".to_owned())
}

/// A handler or task of an actor panicked. A type of its own, so that the supervisor can tell a panic from a returned
/// error.
#[derive(Debug)]
pub(crate) struct Panicked(pub String);
impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "panicked: {}", self.0)
    }
}
impl std::error::Error for Panicked {}

struct ActorLaunch<S: Shell, F> {
    address: Address<S::Msg>,
    factory: Arc<F>,
}

pub(crate) fn launch_actor<S: Shell>(
    address: Address<S::Msg>,
    factory: impl Fn() -> Result<S, Fault> + Send + Sync + 'static,
) -> Arc<dyn Launch> {
    Arc::new(ActorLaunch::<S, _> { address, factory: Arc::new(factory) })
}

impl<S: Shell, F: Fn() -> Result<S, Fault> + Send + Sync + 'static> Launch for ActorLaunch<S, F> {
    fn launch(&self, start: Start) -> BoxFuture<'static, Result<(), Fault>> {
        let (address, factory) = (self.address.clone(), Arc::clone(&self.factory));
        // Granted before the factory runs: if it returns after it was given up, the address is taken, or reserved for
        // a later incarnation.
        let tenancy = address.grant();
        Box::pin(async move {
            // The factory may open files: it runs where blocking is allowed, and a panic in it is a failed start.
            let made = tokio::task::spawn_blocking(move || factory()).await;
            let shell = made.map_err(|e| Fault::new(format!("panicked while starting: {}", join_text(e))))??;
            let me = address.of_tenancy(tenancy);
            let cx = Cx::new(me, start.path, start.incarnation, start.tree, start.report, start.fence);
            let tenancy = Tenancy { address, number: tenancy, ended: cx.ended().clone() };
            let handle = ActorHandle { tenancy: tenancy.clone(), siblings: start.siblings, name: start.name };
            start.pulse.set_handle(Arc::new(handle));
            let (shell, end_on_drop) = (Some(shell), EndOnDrop(tenancy));
            let body = Body { shell, pulse: start.pulse, reports_ready: start.reports_ready, end_on_drop, cx };
            let spawned = Actor::spawn_linked(None, Hosted::<S>(PhantomData), body, start.supervisor).await;
            spawned.map(drop).map_err(|e| Fault::new(e.to_string()))
        })
    }
}

fn join_text(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => panic_text(panic.as_ref()),
        Err(error) => error.to_string(),
    }
}

struct Body<S: Shell> {
    /// Until it has stopped: dropping it is the actor's work, not the supervisor's, which gets the rest.
    shell: Option<S>,
    cx: Cx<S::Msg>,
    pulse: Pulse,
    reports_ready: bool,
    end_on_drop: EndOnDrop<S::Msg>,
}

struct Hosted<S>(PhantomData<fn() -> S>);

impl<S: Shell> Body<S> {
    fn view(&self) -> Value {
        self.shell.as_ref().map_or(Value::Null, Shell::view)
    }
}

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
