//! The actor that serves workloads on this machine, and its way to the leader: the agent's session.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_agent::AgentPorts;
use muster_api::ExplainWorkloads;
use muster_kernel::{Recipient, Spec};
use muster_messages::protocol::AgentMsg;
use muster_messages::wire::{SignedWorkload, WorkloadRequest};
use muster_messages::{ErrorBody, ErrorCode, WorkloadView};
use muster_workload_api::{WorkloadApiPorts, WorkloadSigner, explain_process, workload_api_address, workload_api_spec};
use tokio::sync::watch;

use super::config::Config;

/// As long as the host waits for the leader, and a little for a session.
const SIGN_TIMEOUT: Duration = Duration::from_secs(13);

/// What the agent knows of workloads: set once there is an agent.
pub type Known = Arc<OnceLock<watch::Receiver<WorkloadView>>>;

struct Signer {
    agent: Recipient<AgentMsg>,
}

impl WorkloadSigner for Signer {
    fn sign(&self, request: WorkloadRequest) -> BoxFuture<'static, Result<SignedWorkload, ErrorBody>> {
        let agent = self.agent.clone();
        Box::pin(async move {
            let asked = agent.ask(SIGN_TIMEOUT, |reply| AgentMsg::SignWorkload { request, reply });
            asked.await.map_err(ErrorBody::from)?
        })
    }
}

/// The actor, if a socket is configured.
pub fn spec(config: &Config, agent: Recipient<AgentMsg>, ports: &AgentPorts) -> Option<Spec> {
    let socket = config.workload_socket.clone()?;
    let signer = Arc::new(Signer { agent });
    let ports = WorkloadApiPorts::new(socket, ports.workloads(), signer);
    Some(workload_api_spec(workload_api_address(), ports).backoff(config.settings.backoff()))
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

#[cfg(test)]
mod tests {
    use muster_agent::AgentConfig;
    use muster_cert_authority::core::{MAX_LIVE, WORKLOAD_BUDGET};
    use muster_sessions::SessionsConfig;
    use muster_workload_api::core::{MAX_HELD, MAX_SIGNINGS};

    /// A node evicts a certificate that no program uses; the leader counts it until it expires. So a node may use all its room twice.
    #[test]
    fn leader_counts_twice_what_a_node_holds() {
        assert_eq!(MAX_LIVE, 2 * MAX_HELD);
        assert!(WORKLOAD_BUDGET.burst as usize >= 2 * MAX_HELD, "a node that starts again requests all, perhaps twice");
    }

    #[test]
    fn workloads_leave_room_on_the_session_for_their_node() {
        assert_eq!(MAX_SIGNINGS, AgentConfig::default().open_workload_asks);
        let own = ["certificate", "membership", "report of the manager runtime", "acknowledgement of roots"];
        assert_eq!(MAX_SIGNINGS + own.len(), SessionsConfig::default().open_asks);
    }
}
