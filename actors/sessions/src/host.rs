//! The shell of the sessions' host: takes the gateway's connections, keeps one child per node, sends digests to
//! the leader. [`crate::core::host`] decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{Connection, Registration, Services};
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Slot, Spec};
use muster_messages::protocol::{LeaderCalls, Named, Reply, Service, SessionsMsg};
use muster_messages::wire::{ActorsAsk, HostFrame, PeerCall, SessionDigest, SessionFact};
use muster_messages::{ErrorBody, ErrorCode, NodeId, Replica, Tables};
use serde_json::{Value, json};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::config::SessionsConfig;
use crate::core::host::{Effect, Host, Input};
use crate::core::instances::Duplicate;
use crate::core::node_update::{NodeUpdate, Shared, changed, shared_changed};
use crate::core::session::ConnId;
use crate::line::reject;
use crate::session::{self, Inbox, SessionPorts, session_name, session_spec};

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(SessionsMsg),
    Arrived(Box<Arrival>),
    Replica,
    Reported {
        node: NodeId,
        fact: Option<Box<SessionFact>>,
        connected: bool,
    },
    /// A session that has seen all connections up to this one has nothing to remember.
    Forget {
        node: NodeId,
        seen: ConnId,
    },
    DigestAnswered {
        sequence: u64,
        ok: bool,
    },
    Wake,
}

/// A connection that passes through the mailbox.
pub struct Arrival {
    connection: Connection,
    _room: OwnedSemaphorePermit,
}

impl From<SessionsMsg> for Msg {
    fn from(msg: SessionsMsg) -> Self {
        Msg::Protocol(msg)
    }
}

/// What the sessions' host gets from the code that wires the tree.
#[derive(Clone)]
pub struct SessionsPorts {
    pub config: SessionsConfig,
    /// Where the gateway finds the agents' service.
    pub services: Services,
    /// The local replica, as the raft member publishes it.
    pub replica: watch::Receiver<Arc<Replica>>,
    pub leader: Arc<dyn LeaderCalls>,
}

/// An address for a host that does not exist yet.
pub fn sessions_address(config: &SessionsConfig) -> Address<Msg> {
    Address::new(config.mailbox)
}

pub fn sessions_spec(address: Address<Msg>, ports: SessionsPorts) -> Spec {
    let report_to = address.clone();
    Spec::actor("sessions", address, move || Ok(SessionsShell::new(ports.clone(), report_to.clone()))).with_children()
}

struct Child {
    address: Address<session::Msg>,
    inbox: Inbox,
    /// The newest connection that was handed over.
    newest: ConnId,
}

pub struct SessionsShell {
    core: Host,
    ports: SessionsPorts,
    config: Arc<SessionsConfig>,
    me: Address<Msg>,
    registration: Option<Registration>,
    children: BTreeMap<NodeId, Child>,
    waiting: BTreeMap<ConnId, Connection>,
    next_conn: u64,
    copy: Tables,
    shared: Arc<Shared>,
    /// Reports that the newest replica was taken, so that the watcher may bring the next.
    taken: Arc<Notify>,
    alarm: Alarm,
}

impl SessionsShell {
    fn new(ports: SessionsPorts, me: Address<Msg>) -> Self {
        let clock = muster_kernel::Clock;
        // Larger than any sequence before this host's restart: it sends far fewer than a thousand a second.
        let first = u64::try_from(clock.wall().0).unwrap_or(0).saturating_mul(1000);
        Self {
            core: Host::new(ports.config.clone(), clock.now(), first),
            config: Arc::new(ports.config.clone()),
            ports,
            me,
            registration: None,
            children: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_conn: 0,
            copy: Tables::default(),
            shared: Arc::default(),
            taken: Arc::default(),
            alarm: Alarm::default(),
        }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut effects = Vec::new();
        self.core.step(cx.now(), input, &mut effects);
        for effect in effects {
            self.apply(cx, effect);
        }
        self.alarm.set(cx, self.core.wake_at(cx.now()), Msg::Wake);
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) {
        match effect {
            Effect::Admit { node, conn } => {
                if let Some(connection) = self.waiting.remove(&conn) {
                    self.admit(cx, node, conn, connection);
                }
            }
            Effect::Refuse { conn, mut refusal } => {
                if let Some(connection) = self.waiting.remove(&conn) {
                    refusal.managers = self.shared.managers.clone();
                    let limit = self.config.write_deadline;
                    cx.spawn(reject(connection, HostFrame::Ended(refusal), limit));
                }
            }
            Effect::Move { node } => {
                if let Some(child) = self.children.get(&node) {
                    let reason = "this manager has no leader".to_owned();
                    // A session that is restarting has no connection to move.
                    let _restarting = child.address.tell(session::Msg::Move { reason });
                }
            }
            Effect::Digest(digest) => self.send_digest(cx, digest),
            Effect::DuplicateFound(duplicate) => warn_of(&duplicate),
            Effect::DuplicateResolved(node) => info!(%node, "duplicate node identity resolved"),
        }
    }

    /// Hands the connection to the node's session, which is started if needed.
    fn admit(&mut self, cx: &Cx<Msg>, node: NodeId, conn: ConnId, connection: Connection) {
        let node_update = NodeUpdate::of(&self.copy, node, &self.shared);
        let child = self.children.entry(node).or_insert_with(|| {
            let address = Address::new(self.config.session_mailbox);
            let inbox = Inbox::default();
            inbox.tell(node_update);
            let ports = SessionPorts {
                node,
                config: Arc::clone(&self.config),
                inbox: inbox.clone(),
                memory: Slot::new(),
                leader: Arc::clone(&self.ports.leader),
                host: self.me.clone(),
            };
            cx.children().start(session_spec(address.clone(), ports));
            Child { address, inbox, newest: conn }
        });
        child.newest = conn;
        child.inbox.put_connection(conn, connection);
        let _it_reads_the_inbox_on_start = child.address.tell(session::Msg::InboxChanged);
    }

    fn arrived(&mut self, cx: &Cx<Msg>, connection: Connection) {
        let Some((node, _)) = connection.identity.as_ref().and_then(|i| i.node()) else {
            debug!(remote = %connection.remote, "an agent connection without a node's certificate");
            return;
        };
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.waiting.insert(conn, connection);
        self.step(cx, Input::Arrived { node, conn });
    }

    /// A session that has not seen its newest connection yet stays.
    fn forget(&mut self, cx: &Cx<Msg>, node: NodeId, seen: ConnId) {
        if self.children.get(&node).is_some_and(|child| child.newest == seen) {
            self.children.remove(&node);
            cx.children().stop(&session_name(node));
        }
    }

    fn replica(&mut self, cx: &Cx<Msg>) {
        let replica = Arc::clone(&self.ports.replica.borrow_and_update());
        let old = std::mem::replace(&mut self.copy, replica.tables.clone());
        let mut nodes = changed(&old, &self.copy);
        if shared_changed(&old, &self.copy, &nodes) {
            let shared = Shared::of(&self.copy);
            if shared != *self.shared {
                self.shared = Arc::new(shared);
                nodes = self.children.keys().copied().collect();
            }
        }
        self.update_sessions(nodes);
        let leader = replica.raft.leader.and(replica.raft.leader_node);
        self.step(cx, Input::Leader { term: replica.raft.term, leader });
        self.taken.notify_one();
    }

    fn update_sessions(&self, nodes: BTreeSet<NodeId>) {
        for node in nodes {
            if let Some(child) = self.children.get(&node) {
                child.inbox.tell(NodeUpdate::of(&self.copy, node, &self.shared));
                let _it_reads_the_inbox_on_start = child.address.tell(session::Msg::InboxChanged);
            }
        }
    }

    fn send_digest(&self, cx: &Cx<Msg>, digest: SessionDigest) {
        let (me, limit, sequence) = (cx.me().clone(), self.config.digest_deadline, digest.sequence);
        let calling = self.ports.leader.call(PeerCall::Sessions(digest));
        cx.spawn(async move {
            let ok = matches!(timeout(limit, calling).await, Ok(Ok(_)));
            let _ended = me.tell(Msg::DigestAnswered { sequence, ok });
        });
    }

    fn ask_node(&self, node: NodeId, ask: ActorsAsk, deadline_ms: u64, reply: Reply<Result<String, ErrorBody>>) {
        let Some(child) = self.children.get(&node) else {
            let error = ErrorBody::new(ErrorCode::NotFound, format!("node {node} has no session on this manager"));
            let _gone = reply.send(Err(error));
            return;
        };
        let deadline = std::time::Duration::from_millis(deadline_ms);
        // Undeliverable: the port closes, which the caller sees.
        let _closed = child.address.tell(session::Msg::AskNode { ask, deadline, reply });
    }

    /// From here on the gateway's connections arrive as messages, a bounded number at a time.
    fn listen(&mut self, cx: &Cx<Msg>) {
        let (sink, mut connections) = mpsc::channel(self.config.arrivals);
        self.registration = Some(self.ports.services.register(Service::Agent, sink));
        let (me, room) = (cx.me().clone(), Arc::new(Semaphore::new(self.config.arrivals)));
        cx.spawn(async move {
            while let Some(connection) = connections.recv().await {
                let permit = Arc::clone(&room).acquire_owned().await;
                let permit = permit.expect("the semaphore of the arrivals is never closed");
                let arrival = Arrival { connection, _room: permit };
                if me.tell(Msg::Arrived(Box::new(arrival))).is_err() {
                    return;
                }
            }
        });
    }

    /// One message per replica taken: however often it changes, only the newest counts.
    fn watch_replica(&self, cx: &Cx<Msg>) {
        let mut replica = self.ports.replica.clone();
        replica.mark_changed();
        cx.on_change_taken(replica, &self.taken, Duration::ZERO, || Msg::Replica);
    }
}

fn warn_of(duplicate: &Duplicate) {
    let named: Vec<String> = duplicate.instances.iter().map(|i| i.shown().to_string()).collect();
    warn!(node = %duplicate.node, processes = named.join(", "),
        "two processes use the identity of one node; stop the one on the copied data directory, empty that, \
         and join it as a new node");
}

impl Shell for SessionsShell {
    type Msg = Msg;
    const KIND: &'static str = "Sessions";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.listen(cx);
        self.watch_replica(cx);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Protocol(SessionsMsg::AskNode { node, ask, deadline_ms, reply }) => {
                self.ask_node(node, ask, deadline_ms, reply);
            }
            Msg::Arrived(arrival) => self.arrived(cx, arrival.connection),
            Msg::Replica => self.replica(cx),
            Msg::Reported { node, fact, connected } => self.step(cx, Input::Reported { node, fact, connected }),
            Msg::Forget { node, seen } => self.forget(cx, node, seen),
            Msg::DigestAnswered { sequence, ok } => self.step(cx, Input::DigestAnswered { sequence, ok }),
            Msg::Wake => {
                self.alarm.fired();
                self.step(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        json!({
            "sessions": self.core.connected(),
            "nodes": self.core.facts(),
            "leader": self.core.leader_node(),
            "digest_sequence": self.core.sequence(),
            "refused": self.core.refused(),
            "duplicate_identities": self.core.duplicates(),
            "revision": self.copy.revision,
        })
    }

    async fn stopping(&mut self, _cx: &Cx<Msg>) {
        self.registration = None;
    }
}
