//! The shell of the sessions' host: takes the gateway's connections, passes them to the nodes' sessions, sends digests to
//! the leader. [`crate::core::host`] decides.

mod msg;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{Connection, Registration, Services};
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Spec};
use muster_messages::Replica;
use muster_messages::protocol::{LeaderCalls, Service, SessionsMsg};
use muster_messages::wire::{HostFrame, PeerCall, SessionDigest};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use tracing::{debug, info, warn};

pub use self::msg::Msg;
use crate::config::SessionsConfig;
use crate::core::host::{Effect, Host, Input};
use crate::core::instances::Duplicate;
use crate::core::node_update::SeenState;
use crate::core::session::ConnId;
use crate::core::spread::share_of;
use crate::hosted::HostedSessions;
use crate::line::reject;

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

pub struct SessionsShell {
    core: Host,
    ports: SessionsPorts,
    sessions: HostedSessions,
    registration: Option<Registration>,
    waiting: BTreeMap<ConnId, Connection>,
    next_conn: u64,
    seen: SeenState,
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
            sessions: HostedSessions::new(&ports, me),
            ports,
            registration: None,
            waiting: BTreeMap::new(),
            next_conn: 0,
            seen: SeenState::default(),
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
                    self.sessions.admit(cx, node, (conn, connection), self.seen.update_of(node));
                }
            }
            Effect::Refuse { conn, mut refusal } => {
                if let Some(connection) = self.waiting.remove(&conn) {
                    refusal.managers = self.seen.shared().managers.clone();
                    cx.spawn(reject(connection, HostFrame::Ended(refusal), self.ports.config.write_deadline));
                }
            }
            Effect::Move { node, reason } => self.sessions.move_away(node, reason),
            Effect::CountShare => {
                // Not borrowed while it counts: the next replica could not be published meanwhile.
                let replica = Arc::clone(&self.ports.replica.borrow());
                self.step(cx, Input::Share(share_of(&replica.tables)));
            }
            Effect::Digest(digest) => self.send_digest(cx, digest),
            Effect::DuplicateFound(duplicate) => warn_of(&duplicate),
            Effect::DuplicateResolved(node) => info!(%node, "duplicate node identity resolved"),
        }
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

    fn replica(&mut self, cx: &Cx<Msg>) {
        let replica = Arc::clone(&self.ports.replica.borrow_and_update());
        let changed = self.seen.replace(replica.tables.clone());
        self.sessions.update(changed, &mut self.seen);
        let leader = replica.raft.leader.and(replica.raft.leader_node);
        self.step(cx, Input::Leader { term: replica.raft.term, leader });
        self.taken.notify_one();
    }

    fn send_digest(&self, cx: &Cx<Msg>, digest: SessionDigest) {
        let (limit, sequence) = (self.ports.config.digest_deadline, digest.sequence);
        let calling = self.ports.leader.call(PeerCall::Sessions(digest));
        cx.report(async move {
            let ok = matches!(timeout(limit, calling).await, Ok(Ok(_)));
            Msg::DigestAnswered { sequence, ok }
        });
    }

    /// From here on the gateway's connections arrive as messages, a bounded number at a time.
    fn listen(&mut self, cx: &Cx<Msg>) {
        let room = self.ports.config.arrivals;
        let (sink, connections) = mpsc::channel(room);
        self.registration = Some(self.ports.services.register(Service::Agent, sink));
        cx.forward(connections, room, |connection| Msg::Arrived(Box::new(connection)));
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
                self.sessions.ask(node, ask, Duration::from_millis(deadline_ms), reply);
            }
            Msg::Arrived(arrival) => self.arrived(cx, arrival.item),
            Msg::Replica => self.replica(cx),
            Msg::Reported { node, fact, connected } => self.step(cx, Input::Reported { node, fact, connected }),
            Msg::Forget { node, seen } => self.sessions.forget(cx, node, seen),
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
            "sessions_to_move": self.core.to_move(),
            "nodes": self.core.facts(),
            "leader": self.core.leader_node(),
            "digest_sequence": self.core.sequence(),
            "refused": self.core.refused(),
            "duplicate_identities": self.core.duplicates(),
            "revision": self.seen.revision(),
        })
    }

    async fn stopping(&mut self, _cx: &Cx<Msg>) {
        self.registration = None;
    }
}
