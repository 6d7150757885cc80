//! The actor: accepts connections from the gateway and holds each conversation in a task, for a limited time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_gateway::{Connection, Framed, JOIN_FRAME_LIMIT, Registration};
use muster_kernel::{Cx, Fault, Shell};
use muster_messages::JoinView;
use muster_messages::protocol::Service;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use crate::conversation::{Counters, converse};
use crate::ports::{JoinMsg, JoinPorts};

/// Connections that the gateway has admitted and the actor has not taken, and as many in its mailbox.
const CONNECTION_QUEUE: usize = 64;

/// The service's shell.
pub struct JoinService {
    ports: JoinPorts,
    registration: Option<Registration>,
    permits: Arc<Semaphore>,
    counters: Arc<Counters>,
}

impl JoinService {
    /// A service without conversations.
    pub fn new(ports: JoinPorts) -> Self {
        let permits = Arc::new(Semaphore::new(ports.limits.conversations));
        Self { ports, registration: None, permits, counters: Arc::default() }
    }
}

impl Shell for JoinService {
    type Msg = JoinMsg;
    const KIND: &'static str = "JoinService";

    async fn started(&mut self, cx: &Cx<JoinMsg>) -> Result<(), Fault> {
        let (sink, connections) = mpsc::channel(CONNECTION_QUEUE);
        self.registration = Some(self.ports.services.register(Service::Join, sink));
        cx.forward(connections, CONNECTION_QUEUE, |connection| JoinMsg::Connection(Box::new(connection)));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<JoinMsg>, msg: JoinMsg) -> Result<(), Fault> {
        let JoinMsg::Connection(connection) = msg;
        let (ports, counters, permits) = (self.ports.clone(), Arc::clone(&self.counters), Arc::clone(&self.permits));
        cx.spawn(async move {
            let Connection { stream, remote, permit, .. } = connection.item;
            let stream = Framed::new(stream).with_limit(JOIN_FRAME_LIMIT);
            let conversation = converse(stream, remote, &ports, &counters, &permits);
            let _late = tokio::time::timeout(ports.limits.conversation, conversation).await;
            drop(permit);
        });
        Ok(())
    }

    fn view(&self) -> Value {
        let load = |c: &AtomicU64| c.load(Ordering::Relaxed);
        json!(JoinView {
            conversations: self.ports.limits.conversations - self.permits.available_permits(),
            roots: load(&self.counters.roots),
            joined: load(&self.counters.joined),
            refused: load(&self.counters.refused),
        })
    }
}
