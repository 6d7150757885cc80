//! What the actor `node/api` receives: its messages, and connections.

use std::sync::Arc;

use muster_gateway::Connection;
use muster_messages::protocol::Named;
use tokio::sync::{Mutex, mpsc};

/// The API's private messages. Requests arrive through its connections.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum ApiMsg {
    /// The gateway's channel ended: the gateway restarts, and a new registration follows with a new incarnation.
    GatewayGone,
}

/// Connections from the gateway, shared by the incarnations of this actor.
pub type Incoming = Arc<Mutex<mpsc::Receiver<Connection>>>;
