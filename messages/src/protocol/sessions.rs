//! What the sessions' host, each AgentSession and the dispatcher hear.

use super::{Named, Reply};
use crate::model::{ErrorBody, NodeId};
use crate::wire::{ActorsAsk, SessionDigest};

/// Messages of the sessions' host (`node/manager/sessions`).
pub enum SessionsMsg {
    /// Asks a node in session here about its actors. `not_found` when it has no session here.
    AskNode { node: NodeId, ask: ActorsAsk, deadline_ms: u64, reply: Reply<Result<String, ErrorBody>> },
}

impl Named for SessionsMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::AskNode { .. } => "ask_node",
        }
    }
}

/// Messages of the dispatcher (leader).
pub enum DispatcherMsg {
    /// A host's view of its sessions. Lost: the next one. Repeated or late: ignored by `sequence`.
    Digest { host: NodeId, digest: SessionDigest, reply: Reply<Result<(), ErrorBody>> },
}

impl Named for DispatcherMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::Digest { .. } => "digest",
        }
    }
}
