//! How an incarnation begins: what its supervisor gives to it, the [`Shell`] that its factory makes, and what its actor then has.

use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use ractor::{Actor, ActorCell};
use serde_json::Value;

use crate::fence::Fence;
use crate::host::Hosted;
use crate::panicked::panic_text;
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

/// What the actor of an incarnation has.
pub(crate) struct Body<S: Shell> {
    /// Until it has stopped: dropping it is the actor's work, not the supervisor's, which gets the rest.
    pub shell: Option<S>,
    pub cx: Cx<S::Msg>,
    pub pulse: Pulse,
    pub reports_ready: bool,
    pub end_on_drop: EndOnDrop<S::Msg>,
}

impl<S: Shell> Body<S> {
    pub fn view(&self) -> Value {
        self.shell.as_ref().map_or(Value::Null, Shell::view)
    }
}

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
