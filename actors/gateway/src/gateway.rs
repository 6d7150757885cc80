//! Gateway: the one TLS port of a node.
//!
//! Owns        the port while it runs: accepting, expiry of connections, re-evaluation of live ones.
//! Inputs      `Cut`, and changes of the local replica.
//! Outputs     connections, to the registered services.
//! Invariants  GATE-1  no byte of a service is read before the decision whether the principal is current.
//!             GATE-2  a connection that a newer replica does not allow ends within a tenth of a second of that replica, and
//!                     every connection ends within a second of its certificate.
//!             GATE-3  unauthenticated connections cost a bounded number of sockets, bytes and log lines.
//! Why the connections are in [`Port`]: a gateway that crashed must still be able to disconnect them.

use std::time::Duration;

use muster_kernel::{Cx, Fault, Shell};
use muster_messages::protocol::{GatewayMsg, Named};
use serde_json::{Value, json};

use crate::accept::accept_all;
use crate::metrics::GatewayView;
use crate::port::Port;

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(GatewayMsg),
    ReplicaChanged,
    Tick,
}

impl From<GatewayMsg> for Msg {
    fn from(msg: GatewayMsg) -> Self {
        Msg::Protocol(msg)
    }
}

/// The interval of checks for expired certificates and due log lines.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two evaluations of all live connections: a tenth of the second in which a block must disconnect,
/// and long enough that evaluating thousands costs about one percent of a core while the state changes constantly.
const REEVALUATION_INTERVAL: Duration = Duration::from_millis(100);

pub struct Gateway {
    port: Port,
}

impl Gateway {
    /// A gateway on this port. Each incarnation continues with the connections of the last one.
    pub fn on(port: Port) -> Self {
        Self { port }
    }
}

impl Shell for Gateway {
    type Msg = Msg;
    const KIND: &'static str = "Gateway";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        {
            let _inside = self.port.inner.handshake_pool.accepting().enter();
            cx.spawn(accept_all(self.port.inner.clone()));
        }
        let (me, mut local_replica) = (cx.me().clone(), self.port.inner.local_replica.watch());
        cx.spawn(async move {
            loop {
                // Level-triggered: the replica at the time of handling counts.
                let _gone = me.tell(Msg::ReplicaChanged);
                tokio::time::sleep(REEVALUATION_INTERVAL).await;
                local_replica.changed().await;
                local_replica.get();
            }
        });
        cx.after(TICK_INTERVAL, Msg::Tick);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Protocol(GatewayMsg::Cut { principal, services, reason }) => {
                let cut = self.port.cut(&principal, &services, reason);
                tracing::debug!(%principal, %reason, cut, "disconnected live connections");
            }
            Msg::ReplicaChanged => self.port.inner.reevaluate_live(),
            Msg::Tick => {
                self.port.inner.end_expired();
                self.port.inner.reevaluate_unconfirmed();
                self.port.inner.write_due_lines();
                cx.after(TICK_INTERVAL, Msg::Tick);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        json!(GatewayView {
            metrics: self.port.metrics(),
            listens: self.port.local_addr().map(|a| a.to_string()).ok(),
            services: self.port.inner.services.running(),
        })
    }
}
