//! Calls between managers: to the leader, and from other managers to the services of this one. [`core`] decides.

use std::sync::Arc;
use std::time::Duration;

use muster_api::{ManagerPorts, Service as Api};
use muster_kernel::{Address, Clock, Cx, Fault, Shell, Spec};
use muster_messages::protocol::{
    CertAuthorityMsg, DispatcherMsg, IncomingCall, LeaderCalls, Named, PeerAnswer, RoleManagerMsg, RootRotationMsg,
};
use muster_messages::wire::{self, PeerCall};
use muster_messages::{CertIdentity, ErrorBody, ErrorCode, NodeId};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::Instant;
use tracing::warn;

use self::core::no_leader;

/// Bound of every call between managers: longer than an election, shorter than a joiner's timeout.
const PEER_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls of other managers that may be in progress here.
const MAX_CALLS_IN_PROGRESS: usize = 1024;

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
        Spec::actor("router", Address::new(16), move || {
            Ok(RouterShell {
                router: router.clone(),
                incoming: Arc::clone(&incoming),
                permits: Arc::new(Semaphore::new(MAX_CALLS_IN_PROGRESS)),
            })
        })
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

    /// Answers a call of another manager, with the leader's line beside that manager's.
    async fn answer_peer(&self, forwarder: NodeId, call: PeerCall) -> Result<Vec<u8>, ErrorBody> {
        let leading = self.ports.replica.borrow().raft.leading;
        let line = core::audit::of_forwarded_call(leading, forwarder, &call);
        let answer = Box::pin(self.answer(forwarder, call, PEER_CALL_TIMEOUT));
        audit::written(self.api.audit(), line, answer).await
    }

    /// Answers a call on this manager, if it may.
    async fn answer(&self, forwarder: NodeId, call: PeerCall, left: Duration) -> Result<Vec<u8>, ErrorBody> {
        let leader = &self.ports.leader;
        let left = left.min(PEER_CALL_TIMEOUT);
        core::may_answer(&self.ports.replica.borrow(), self.ports.node, forwarder, &call).inspect_err(|refusal| {
            if refusal.code == ErrorCode::Forbidden {
                warn!(%forwarder, "forwarded call refused: the forwarder is not a manager");
            }
        })?;
        match call {
            PeerCall::Api { caller, request_id, timeout_ms, request } => self
                .api
                .answer_forwarded(forwarder, caller, request_id, timeout_ms, request)
                .await
                .map(String::into_bytes),
            PeerCall::SignPinned { identity, pin, observed_addr, csr_pem } => {
                let identity = Box::new(CertIdentity { pin: Some(pin), ..identity });
                let make = |reply| CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem, reply };
                encoded(leader.authority.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::SignNode { identity, observed_addr, csr_pem } => {
                let make =
                    |reply| CertAuthorityMsg::SignNode { identity: Box::new(identity), observed_addr, csr_pem, reply };
                encoded(leader.authority.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::SignWorkload { identity, pin, request } => {
                let identity = Box::new(CertIdentity { pin, ..identity });
                let make = |reply| CertAuthorityMsg::SignWorkload { identity, request, reply };
                encoded(leader.authority.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::Join { observed_addr, request } => {
                let make = |reply| CertAuthorityMsg::Join { observed_addr, request: Box::new(request), reply };
                encoded(leader.authority.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::Membership { node, request } => {
                let make = |reply| RoleManagerMsg::RequestMembership { node, request, reply };
                encoded(leader.roles.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::ReportManager { node, report } => {
                let make = |reply| RoleManagerMsg::ReportManager { node, report, reply };
                leader.roles.ask(left, make).await.map_err(as_no_leader)?.map(|()| Vec::new())
            }
            PeerCall::TrustRoots { node, generation } => {
                let make = |reply| RootRotationMsg::TrustRoots { node, generation, reply };
                leader.rotation.ask(left, make).await.map_err(as_no_leader)?.map(|()| Vec::new())
            }
            PeerCall::ReportSeal(seal) => seals::record(&self.ports, forwarder, seal, left).await.map(|()| Vec::new()),
            PeerCall::Sessions(digest) => {
                let make = |reply| DispatcherMsg::Digest { host: forwarder, digest, reply };
                leader.dispatcher.ask(left, make).await.map_err(as_no_leader)?.map(|()| Vec::new())
            }
            PeerCall::Clock => encoded(Ok(Clock.wall())),
            PeerCall::Actors(call) => self.api.answer_actors(&call, left).await.map(String::into_bytes),
        }
    }
}

/// The leader's actor is starting or restarting: treated like a missing leader.
fn as_no_leader(error: muster_kernel::AskError) -> ErrorBody {
    match error {
        muster_kernel::AskError::Down | muster_kernel::AskError::Closed => no_leader(),
        other => other.into(),
    }
}

fn encoded<T: serde::Serialize>(answer: Result<T, ErrorBody>) -> Result<Vec<u8>, ErrorBody> {
    wire::encode(&answer?).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))
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

struct RouterShell {
    router: Router,
    incoming: Arc<Mutex<mpsc::Receiver<IncomingCall>>>,
    permits: Arc<Semaphore>,
}

impl Shell for RouterShell {
    type Msg = RouterMsg;
    const KIND: &'static str = "Router";

    async fn started(&mut self, cx: &Cx<RouterMsg>) -> Result<(), Fault> {
        let (incoming, me) = (Arc::clone(&self.incoming), cx.me().clone());
        cx.spawn(async move {
            let mut incoming = incoming.lock().await;
            while let Some(call) = incoming.recv().await {
                if me.tell(RouterMsg::Call(Box::new(call))).is_err() {
                    break;
                }
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<RouterMsg>, msg: RouterMsg) -> Result<(), Fault> {
        let RouterMsg::Call(call) = msg;
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let router = self.router.clone();
        cx.spawn(async move {
            let IncomingCall { forwarder, call, reply } = *call;
            let answer = match &permit {
                Ok(_) => router.answer_peer(forwarder, call).await,
                Err(_) => {
                    let busy = ErrorBody::new(
                        ErrorCode::TooManyRequests,
                        "too many calls from other managers are in progress; retry",
                    );
                    Err(busy.retry_after(Duration::from_millis(200)))
                }
            };
            let _gave_up = reply.send(answer);
            drop(permit);
        });
        Ok(())
    }

    fn view(&self) -> Value {
        json!({"in_progress": MAX_CALLS_IN_PROGRESS - self.permits.available_permits()})
    }
}

mod audit;
pub mod core;
mod seals;
#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
