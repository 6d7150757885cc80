//! Messages to the mesh, beside connections from the gateway.

use std::pin::Pin;

use super::{Named, Reply};
use crate::model::{ErrorBody, NodeId};
use crate::wire::PeerCall;

/// Messages of the mesh.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum MeshMsg {
    /// Dials an address and exchanges hellos: does `expect` answer there? (The dial-back of a promotion.) The connection stays
    /// as the session of a node that is not a member yet and has no session; any other is closed. Lost: counts as a failed dial-back; the
    /// node asks again. Repeated: dials again. Late: the answer holds for when it was dialled.
    Probe { addr: String, expect: NodeId, reply: Reply<Result<(), ErrorBody>> },
}

/// A call from another manager that the mesh has authenticated. `forwarder` is the peer of the session that carried it.
pub struct IncomingCall {
    pub forwarder: NodeId,
    pub call: PeerCall,
    pub reply: Reply<Result<Vec<u8>, ErrorBody>>,
}

/// The answer to a [`PeerCall`], to come.
pub type PeerAnswer = Pin<Box<dyn Future<Output = Result<Vec<u8>, ErrorBody>> + Send>>;

/// How a service reaches the leader: by message while this process leads, over the mesh otherwise. Closures implement it.
pub trait LeaderCalls: Send + Sync + 'static {
    /// Calls the current leader. Every call is safe to repeat. `unreachable` or `no_quorum` without a leader.
    fn call(&self, call: PeerCall) -> PeerAnswer;
}

impl<F: Fn(PeerCall) -> PeerAnswer + Send + Sync + 'static> LeaderCalls for F {
    fn call(&self, call: PeerCall) -> PeerAnswer {
        self(call)
    }
}
