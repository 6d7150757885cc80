//! Calls between managers: to the leader, and from other managers to the services of this one. [`core`] decides.
//!
//! This file has the way to the leader, and the spec and the message of the actor, which is in `shell`. `answers` has what this manager
//! answers.

use std::sync::Arc;
use std::time::Duration;

use muster_api::{ManagerPorts, Service as Api};
use muster_kernel::{Address, Spec};
use muster_messages::ErrorBody;
use muster_messages::protocol::{IncomingCall, LeaderCalls, Named, PeerAnswer};
use muster_messages::wire::PeerCall;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use self::core::no_leader;
use self::shell::RouterShell;

mod answers;
mod audit;
pub mod core;
mod seals;
mod shell;

/// Bound of every call between managers: longer than an election, shorter than a joiner's timeout.
const PEER_CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Routes calls. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    api: Api,
    ports: Arc<ManagerPorts>,
}

impl Router {
    pub fn new(api: Api, ports: Arc<ManagerPorts>) -> Self {
        Self { api, ports }
    }

    /// The child that answers other managers' calls.
    pub fn spec(&self, incoming: mpsc::Receiver<IncomingCall>) -> Spec {
        let (router, incoming) = (self.clone(), Arc::new(Mutex::new(incoming)));
        Spec::actor("router", Address::new(16), move || Ok(RouterShell::new(router.clone(), Arc::clone(&incoming))))
    }

    /// Asks the leader; waits for one through an election. This node answers the caller, so it writes the audit line.
    async fn to_leader(&self, call: PeerCall) -> Result<Vec<u8>, ErrorBody> {
        let line = core::audit::of_own_call(&call);
        audit::written(self.api.audit(), line, Box::pin(self.ask_leader(call))).await
    }

    async fn ask_leader(&self, call: PeerCall) -> Result<Vec<u8>, ErrorBody> {
        let mut search = self.ports.leader_search(Instant::now() + PEER_CALL_TIMEOUT);
        let mut last = no_leader();
        while let Some(leader) = search.next().await {
            let (call, left) = (call.clone(), search.left());
            let answer = if leader == self.ports.node {
                self.answer(leader, call, left).await
            } else {
                let is_read = self.ports.replica.borrow().tables.records_identities();
                let answer = self.ports.call_leader(leader, left, core::with_pin(call, is_read)).await;
                answer.unwrap_or_else(|| Err(no_leader()))
            };
            match answer {
                Err(error) if core::asks_again(&error) => last = error,
                done => return done,
            }
        }
        Err(last)
    }
}

impl LeaderCalls for Router {
    fn call(&self, call: PeerCall) -> PeerAnswer {
        let router = self.clone();
        Box::pin(async move { router.to_leader(call).await })
    }
}

/// Inputs of the router's actor.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum RouterMsg {
    Call(Box<IncomingCall>),
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
