//! Gateway: the one TLS port of a node.
//!
//! Owns   the port while it lives: accepting, the clock of the connections, the judgement of live ones.
//! Hears  `Cut`, and the local copy when it changes.     Says  nothing; connections go to the registered services.
//! Keeps  GATE-1  no byte of a service is read before the decision who is current.
//!        GATE-2  a connection that a newer copy does not allow ends within a tenth of a second of that copy, and every
//!                connection ends within a second of its certificate.
//!        GATE-3  what strangers do costs a bounded number of sockets, bytes and log lines.
//! Why the connections are not in here: a gateway that crashes must still be able to cut them. They live in [`Port`].

use std::time::Duration;

use muster_kernel::{Cx, Fault, Shell};
use muster_messages::protocol::{GatewayMsg, Named};
use serde_json::Value;

use crate::accept::accept_all;
use crate::port::Port;

/// What the gateway hears, its own timers included.
pub enum Msg {
    Protocol(GatewayMsg),
    /// The local copy is another one.
    CopyChanged,
    Tick,
}

impl From<GatewayMsg> for Msg {
    fn from(msg: GatewayMsg) -> Self {
        Msg::Protocol(msg)
    }
}

impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Msg::Protocol(msg) => msg.name(),
            Msg::CopyChanged => "copy_changed",
            Msg::Tick => "tick",
        }
    }
}

/// How often expired certificates are looked for, and due log lines.
const TICK: Duration = Duration::from_secs(1);
/// The least time between two judgements of all live connections: a tenth of the second in which a block must cut, and
/// long enough that judging thousands costs about one percent of a core while the state changes all the time.
const BETWEEN_JUDGEMENTS: Duration = Duration::from_millis(100);

/// The actor.
pub struct Gateway {
    port: Port,
}

impl Gateway {
    /// A gateway on this port. Each incarnation goes on with the connections of the last one.
    pub fn on(port: Port) -> Self {
        Self { port }
    }
}

impl Shell for Gateway {
    type Msg = Msg;
    const KIND: &'static str = "Gateway";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        {
            let _inside = self.port.inner.lobby.accepting().enter();
            cx.spawn(accept_all(self.port.inner.clone()));
        }
        let (me, mut copy) = (cx.me().clone(), self.port.inner.copy.watch());
        cx.spawn(async move {
            loop {
                // A level: whichever copy is there when the message is handled counts.
                let _gone = me.tell(Msg::CopyChanged);
                tokio::time::sleep(BETWEEN_JUDGEMENTS).await;
                copy.changed().await;
                copy.get();
            }
        });
        cx.after(TICK, Msg::Tick);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Protocol(GatewayMsg::Cut { principal, services, reason }) => {
                let cut = self.port.cut(&principal, &services, reason);
                tracing::debug!(%principal, %reason, cut, "cut");
            }
            Msg::CopyChanged => self.port.inner.judge_live(),
            Msg::Tick => {
                self.port.inner.end_expired();
                self.port.inner.judge_unconfirmed();
                self.port.inner.write_due_lines();
                cx.after(TICK, Msg::Tick);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let running = self.port.inner.services.running();
        let listens = self.port.local_addr().map(|a| a.to_string()).ok();
        match serde_json::to_value(self.port.metrics()) {
            Ok(Value::Object(mut view)) => {
                view.insert("listens".to_owned(), listens.into());
                view.insert("services".to_owned(), serde_json::to_value(running).unwrap_or_default());
                Value::Object(view)
            }
            _ => Value::Null,
        }
    }
}
