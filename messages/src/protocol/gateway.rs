//! Messages to the gateway.

use super::Named;
use crate::model::{Principal, RefusalReason};

/// The services behind the one port, as ALPN names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    Mesh,
    Agent,
    Join,
    Api,
    Http,
}

impl Service {
    /// All of them, in the order the gateway offers them.
    pub const ALL: [Service; 5] = [Service::Mesh, Service::Agent, Service::Join, Service::Api, Service::Http];
    /// The ALPN protocol ids that lead to this service.
    pub fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Service::Mesh => &[b"muster-mesh/1"],
            Service::Agent => &[b"muster-agent/1"],
            Service::Join => &[b"muster-join/1"],
            Service::Api => &[b"muster-api/1"],
            Service::Http => &[b"h2", b"http/1.1"],
        }
    }
}

/// Messages of the gateway.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum GatewayMsg {
    /// Disconnects a principal's live connections on the named services (empty: all). Lost: the gateway checks all live
    /// connections against each newer replica by itself. Repeated: none is left. Late: ends connections that were
    /// opened since, too; a principal that may connect does so again.
    Cut { principal: Principal, services: Vec<Service>, reason: RefusalReason },
}
