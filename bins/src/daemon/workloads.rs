//! The actor that serves workloads on this machine, and its way to the leader: the agent's session.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_agent::AgentPorts;
use muster_api::ExplainWorkloads;
use muster_kernel::{Recipient, Spec};
use muster_messages::protocol::AgentMsg;
use muster_messages::wire::{SignedWorkload, WorkloadRequest};
use muster_messages::{ErrorBody, ErrorCode, WorkloadName, WorkloadView};
use muster_workload_api::{WorkloadApiPorts, WorkloadSigner, explain_process, workload_api_address, workload_api_spec};
use tokio::sync::{Semaphore, watch};

use super::config::Config;

/// Requests on the session at once. Its host accepts four from this node, and the node's own certificate and membership must not wait.
const MAX_SIGNING: usize = 2;
/// As long as the host waits for the leader, and a little for a session. It counts from when there is room: a request that waited is asked, too.
const SIGN_TIMEOUT: Duration = Duration::from_secs(13);

/// What the agent knows of workloads: set once there is an agent.
pub type Known = Arc<OnceLock<watch::Receiver<WorkloadView>>>;

struct Signer {
    agent: Recipient<AgentMsg>,
    room: Arc<Semaphore>,
}

impl WorkloadSigner for Signer {
    fn sign(&self, workload: WorkloadName, spki_der: Vec<u8>) -> BoxFuture<'static, Result<SignedWorkload, ErrorBody>> {
        let (agent, room) = (self.agent.clone(), Arc::clone(&self.room));
        Box::pin(async move {
            let _permit = room.acquire_owned().await.map_err(|_| stopping())?;
            let request = WorkloadRequest { workload, public_key_der: spki_der };
            let asked = agent.ask(SIGN_TIMEOUT, |reply| AgentMsg::SignWorkload { request, reply });
            asked.await.map_err(ErrorBody::from)?
        })
    }
}

/// The actor, if a socket is configured.
pub fn spec(config: &Config, agent: Recipient<AgentMsg>, ports: &AgentPorts) -> Option<Spec> {
    let socket = config.workload_socket.clone()?;
    let signer = Arc::new(Signer { agent, room: Arc::new(Semaphore::new(MAX_SIGNING)) });
    let ports = WorkloadApiPorts::new(socket, ports.workloads(), signer);
    Some(workload_api_spec(workload_api_address(), ports))
}

/// For `muster workload explain`, if a socket is configured.
pub fn explain(config: &Config, known: &Known) -> Option<ExplainWorkloads> {
    let known = Arc::clone(known);
    config.workload_socket.as_ref()?;
    Some(Arc::new(move |pid| {
        let view = known.get().map(|view| view.borrow().clone()).ok_or_else(stopping)?;
        let explained = explain_process(&view, pid)?;
        serde_json::to_string(&explained).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))
    }))
}

fn stopping() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "the daemon is starting or stopping")
}
