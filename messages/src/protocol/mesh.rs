//! What the mesh hears, beside connections from the gateway.

use super::{Named, Reply};
use crate::model::{ErrorBody, NodeId};
use crate::wire::PeerCall;

/// Messages of the mesh.
pub enum MeshMsg {
    /// Calls another manager's services. Answered within `deadline_ms`; `unreachable` when there is no session.
    /// Repeated: the call reaches the peer again (calls are safe to repeat).
    Call { to: NodeId, deadline_ms: u64, call: Box<PeerCall>, reply: Reply<Result<Vec<u8>, ErrorBody>> },
    /// Dials an address, exchanges hellos and closes: who answers there? (The dial-back of a promotion.)
    Probe { addr: String, expect: NodeId, reply: Reply<Result<(), ErrorBody>> },
    /// Ends the sessions with a node that is no current manager.
    Cut { node: NodeId, reason: String },
}

impl Named for MeshMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::Call { .. } => "call",
            Self::Probe { .. } => "probe",
            Self::Cut { .. } => "cut",
        }
    }
}

/// A call from another manager that the mesh has authenticated. `forwarder` is the peer of the session it came through.
pub struct IncomingCall {
    pub forwarder: NodeId,
    pub call: PeerCall,
    pub reply: Reply<Result<Vec<u8>, ErrorBody>>,
}
