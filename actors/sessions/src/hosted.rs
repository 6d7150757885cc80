//! The sessions below their host: one actor per node, started with its first connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::Connection;
use muster_kernel::{Address, Cx, Slot};
use muster_messages::protocol::{LeaderCalls, Reply};
use muster_messages::wire::ActorsAsk;
use muster_messages::{ErrorBody, ErrorCode, NodeId};

use crate::config::SessionsConfig;
use crate::core::node_update::{NodeUpdate, SeenState};
use crate::core::session::ConnId;
use crate::host::{Msg, SessionsPorts};
use crate::inbox::{Inbox, PassedOn};
use crate::session::{self, SessionPorts, session_name, session_spec};

struct Child {
    address: Address<session::Msg>,
    inbox: Inbox,
    /// The newest connection that was handed over.
    newest: ConnId,
}

impl Child {
    fn wake(&self) {
        let _it_reads_the_inbox_on_start = self.address.tell(session::Msg::InboxChanged);
    }
}

/// See the module.
pub(crate) struct HostedSessions {
    config: Arc<SessionsConfig>,
    leader: Arc<dyn LeaderCalls>,
    host: Address<Msg>,
    passed_on: PassedOn,
    children: BTreeMap<NodeId, Child>,
}

impl HostedSessions {
    pub fn new(ports: &SessionsPorts, host: Address<Msg>) -> Self {
        let (config, leader) = (Arc::new(ports.config.clone()), Arc::clone(&ports.leader));
        Self { config, leader, host, passed_on: PassedOn::default(), children: BTreeMap::new() }
    }

    /// Hands the connection to the node's session, which is started if needed.
    pub fn admit(&mut self, cx: &Cx<Msg>, node: NodeId, (conn, connection): (ConnId, Connection), update: NodeUpdate) {
        let child = self.children.entry(node).or_insert_with(|| {
            let address = Address::new(self.config.session_mailbox);
            let inbox = Inbox::default();
            inbox.tell(update);
            let ports = SessionPorts {
                node,
                config: Arc::clone(&self.config),
                inbox: inbox.clone(),
                memory: Slot::new(),
                leader: Arc::clone(&self.leader),
                passed_on: self.passed_on.clone(),
                host: self.host.clone(),
            };
            cx.children().start(session_spec(address.clone(), ports));
            Child { address, inbox, newest: conn }
        });
        child.newest = conn;
        child.inbox.put_connection(conn, connection);
        child.wake();
    }

    /// A session that has not seen its newest connection yet stays.
    pub fn forget(&mut self, cx: &Cx<Msg>, node: NodeId, seen: ConnId) {
        if self.children.get(&node).is_some_and(|child| child.newest == seen) {
            self.children.remove(&node);
            cx.children().stop(&session_name(node));
        }
    }

    /// Passes on what is known of these nodes; `None`: of all.
    pub fn update(&self, nodes: Option<BTreeSet<NodeId>>, known: &mut SeenState) {
        for node in nodes.unwrap_or_else(|| self.children.keys().copied().collect()) {
            if let Some(child) = self.children.get(&node) {
                child.inbox.tell(known.update_of(node));
                child.wake();
            }
        }
        self.passed_on.set(known.revision());
    }

    /// The agent should use another manager. Lost, or repeated: it stays, or is asked again, and the host counts its sessions anew.
    pub fn move_away(&self, node: NodeId, reason: &str) {
        if let Some(child) = self.children.get(&node) {
            let reason = reason.to_owned();
            // A session that is restarting has no connection to move.
            let _restarting = child.address.tell(session::Msg::Move { reason });
        }
    }

    pub fn ask(&self, node: NodeId, ask: ActorsAsk, deadline: Duration, reply: Reply<Result<String, ErrorBody>>) {
        let Some(child) = self.children.get(&node) else {
            let error = ErrorBody::new(ErrorCode::NotFound, format!("node {node} has no session on this manager"));
            let _gone = reply.send(Err(error));
            return;
        };
        // Undeliverable: the port closes, which the caller sees.
        let _closed = child.address.tell(session::Msg::AskNode { ask, deadline, reply });
    }
}
