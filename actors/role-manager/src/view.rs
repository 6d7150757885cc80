//! The role manager in the live tree.

use muster_messages::NodeId;
use serde_json::{Value, json};

use crate::core::{Pending, RoleManager, Sent};

pub(crate) fn view(core: &RoleManager, open_asks: usize) -> Value {
    let queues = core.queues();
    let entry = |(node, p): (&NodeId, &Pending)| {
        json!({"node": node, "wants": p.wants, "reason": p.reason, "message": p.message, "since": p.since,
               "retry_at": p.retry_at})
    };
    let steps: Vec<Value> = (core.outbox().iter())
        .map(|(step, o)| {
            let what = match &o.sent {
                Sent::RoleRequest { .. } => "role_request",
                Sent::Write(_) => "write",
                Sent::Membership(_) => "membership",
                Sent::Transfer { .. } => "transfer",
            };
            json!({"step": step.0, "node": o.node, "what": what, "since": o.since.wall, "applied": o.applied})
        })
        .collect();
    json!({
        "pending_reconciliation": queues.reconciliation.iter().map(entry).collect::<Vec<_>>(),
        "pending_removal": queues.removal.keys().collect::<Vec<_>>(),
        "steps": steps,
        "open_asks": open_asks,
    })
}
