//! Messages to the sessions' host and the dispatcher.

use super::{Named, Reply};
use crate::model::{ErrorBody, NodeId};
use crate::wire::{ActorsAsk, SessionDigest};

/// Messages of the sessions' host (`node/manager/sessions`).
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum SessionsMsg {
    /// Asks a node in session here about its actors. `not_found` when it has no session here, `timed_out` at the
    /// deadline, `unreachable` when the session ends first. Lost: the port closes. Repeated: see [`ActorsAsk`]. Late:
    /// the node may still do what it was asked to do.
    AskNode { node: NodeId, ask: ActorsAsk, deadline_ms: u64, reply: Reply<Result<String, ErrorBody>> },
}

/// Messages of the dispatcher (leader).
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum DispatcherMsg {
    /// A host's view of its sessions. `conflict`: changes of a host that this leader does not know; it sends all of
    /// them. Lost: the host sends all of them next. Repeated or late: ignored by `sequence`, unless it names all
    /// sessions of a host that was silent for a quarter of the grace period. From an old leader: taken in there alone; the
    /// host sends all of them to the next leader.
    Digest { host: NodeId, digest: SessionDigest, reply: Reply<Result<(), ErrorBody>> },
}
