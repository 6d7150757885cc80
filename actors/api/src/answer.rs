//! Calls from another manager that end at this process's API.

use std::time::Duration;

use muster_audit::Origin;
use muster_messages::wire::{ActorsCall, ApiCall, Request};
use muster_messages::{ErrorBody, NodeId, Principal, RequestId};

use crate::service::Service;

impl Service {
    /// A request that another manager forwards for a caller it has authenticated. Answered only while leading.
    pub async fn answer_forwarded(
        &self,
        forwarder: NodeId,
        caller: Principal,
        request_id: RequestId,
        timeout_ms: u64,
        request: Request,
    ) -> Result<String, ErrorBody> {
        let call = ApiCall { id: 0, request_id, timeout_ms, request };
        self.answer_from(&Origin::forwarded_by(forwarder), caller, call).await
    }

    /// A request about the actors of this process, or of a node in session with it.
    pub async fn answer_actors(&self, call: &ActorsCall, left: Duration) -> Result<String, ErrorBody> {
        let me = (self.ports.facts)().id;
        if call.node == me {
            return self.local_actors(&call.ask).await;
        }
        let manager = self.ports.manager.borrow().clone();
        let manager = manager.ok_or_else(crate::reads::not_leading)?;
        self.ask_hosted_node(&manager, call.node, &call.ask, left).await
    }
}
