//! Calls from another manager that end at this process' API.

use std::time::Duration;

use muster_audit::Origin;
use muster_messages::wire::{ActorsCall, ApiCall, Request};
use muster_messages::{ErrorBody, NodeId, Principal, RequestId};

use crate::service::Service;

impl Service {
    /// A request that another manager passes on for a caller it has authenticated. Answered only while leading.
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

    /// A question about this process' actors, or those of a node in session with it.
    pub async fn answer_actors(&self, call: &ActorsCall, left: Duration) -> Result<String, ErrorBody> {
        let me = (self.ports.facts)().id;
        if call.node == me {
            return self.actors_here(&call.ask).await;
        }
        let manager = self.ports.manager.borrow().clone();
        let manager = manager.ok_or_else(crate::reads::not_leading)?;
        self.hosted(&manager, call.node, &call.ask, left).await
    }
}
