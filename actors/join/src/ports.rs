//! What the join service is given: its message, its ports and limits, and the roots that it offers.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{Connection, Services};
use muster_kernel::Arrived;
use muster_messages::protocol::{LeaderCalls, Named};
use muster_messages::{OfferedRoot, Tables};

/// Inputs of the service.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum JoinMsg {
    Connection(Box<Arrived<Connection>>),
}

/// Limits for unauthenticated clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinLimits {
    /// From the first frame to the answer, which waits for a quorum, not for a person.
    pub conversation: Duration,
    /// Concurrent join requests: each holds a call to the leader. (The gateway limits connections: a client without a join request
    /// must not take a permit from one with a request.)
    pub conversations: usize,
}

impl Default for JoinLimits {
    fn default() -> Self {
        Self { conversation: Duration::from_secs(20), conversations: 256 }
    }
}

/// Ports of a conversation.
#[derive(Clone)]
pub struct JoinPorts {
    pub services: Services,
    pub leader: Arc<dyn LeaderCalls>,
    /// The certificate of the root that signs now.
    pub root_pem: Arc<dyn Fn() -> String + Send + Sync>,
    /// See [`offered`].
    pub roots: Arc<dyn Fn() -> Option<Vec<OfferedRoot>> + Send + Sync>,
    pub limits: JoinLimits,
}

/// The roots that lead a token of an earlier one to those that count now. A root whose key others may have leads nowhere once it
/// does not sign any more: they could vouch for a root of their own, and a joiner could not tell which one is the cluster's.
/// Empty: there was no rotation. `None`: this replica does not know its cluster yet.
pub fn offered(tables: &Tables) -> Option<Vec<OfferedRoot>> {
    tables.cluster.as_ref()?;
    let roots = tables.authorities.roots.values().filter(|root| !root.is_disowned());
    Some(roots.map(|root| root.offered()).collect())
}
