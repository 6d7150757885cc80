//! The mesh: one session with every other manager, and who may have one.
//!
//! Owns        the links (`core::links`), the session server, the RPC endpoint, one peer actor per node.
//! Inputs      connections from the gateway, members from the raft member, the replica, sessions opened and ended.
//! Outputs     dials; `PeerSession`, `LeaderGone`; the current link, to each peer actor; refusals, to the agent.
//! Invariants  at most one session of a node is up (MESH-12); no session outlives the RPC endpoint that its hello named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{Connection, Registration};
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Spec};
use muster_messages::protocol::{AgentMsg, MeshMsg, RaftMemberMsg, Reply, Service};
use muster_messages::{CertIdentity, ErrorBody, NodeId, RefusalReason};
use ractor::{Actor, ActorRef};
use ractor_cluster::NodeServerMessage;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use self::non_members::NonMembers;
use crate::core::filter::Side;
use crate::core::hello::Own;
use crate::core::links::{DialOutcome, Effect, Input, Links, SessionNumber};
use crate::endpoint::{Counters, EndpointContext, EndpointEvent, EndpointMsg, EndpointShell, EndpointShellMsg};
use crate::greeting::{Greeted, GreetedPeer, Greeter, NotOpened, Opened};
use crate::handle::MeshHandle;
use crate::msg::Msg;
use crate::offences::Offences;
use crate::peer::{Link, PeerMsg, PeerShell, no_session};
use crate::register::Register;
use crate::session::{EndReason, Facts, Session, Sessions};
use crate::session_server::{SessionEvent, SessionServer};
use crate::stream::Guarded;
use crate::wiring::{MeshConfig, MeshWiring};

mod identity_bindings;
mod non_members;
mod shown;

/// From the hello until both RPC endpoints are known: a few frames.
const READY_DEADLINE: Duration = Duration::from_secs(5);
/// Concurrent hellos on accepted connections of one node: a dial, a probe, and the remains of earlier ones.
const MAX_HELLOS_PER_NODE: usize = 4;
/// Connections waiting for this actor.
const CONNECTION_QUEUE: usize = 64;
/// Messages waiting for a peer actor: Raft sends a few per tick and batch.
const PEER_MAILBOX: usize = 4096;

/// The session server of this incarnation, which stops it when it ends.
struct Server(ActorRef<NodeServerMessage>, Sessions);
impl Drop for Server {
    fn drop(&mut self) {
        for session in self.1.all() {
            session.end(EndReason::Cut("the mesh stopped".to_owned()));
        }
        self.0.stop(None);
    }
}

pub(crate) struct MeshShell {
    config: MeshConfig,
    wiring: MeshWiring,
    handle: MeshHandle,
    context: Arc<EndpointContext>,
    links: Links,
    sessions: Sessions,
    register: Register,
    server: Option<Server>,
    registration: Option<Registration>,
    endpoint: Option<u64>,
    /// This side's hello; `None` while its RPC endpoint is closed or its member id unknown. Hello exchanges wait for it.
    own_hello: watch::Sender<Option<Own>>,
    next_session: SessionNumber,
    /// Hellos in progress on accepted connections, by node.
    greeting: BTreeMap<NodeId, usize>,
    /// The peers' RPC endpoints of sessions that are ready.
    endpoints: BTreeMap<SessionNumber, ActorRef<EndpointMsg>>,
    non_members: NonMembers,
    alarm: Alarm,
    last_errors: BTreeMap<NodeId, String>,
    /// Managers that accept another process of this node.
    refused_by: BTreeSet<NodeId>,
    end_reasons: BTreeMap<&'static str, u64>,
}

impl MeshShell {
    pub(crate) fn new(config: MeshConfig, wiring: MeshWiring, handle: MeshHandle) -> Self {
        let sessions = Sessions::default();
        let context = EndpointContext {
            sessions: sessions.clone(),
            replica: wiring.replica.clone(),
            raft: wiring.raft.clone(),
            calls: wiring.calls.clone(),
            snapshot_limit: config.snapshot_limit,
            counters: Counters::default(),
            offences: Arc::new(Offences::default()),
            news: handle.mesh.recipient(),
        };
        let own = wiring.credentials.borrow().identity.node().map(|(node, _)| node);
        // Peer actors of an earlier incarnation ended with it.
        handle.peers.clear();
        let own_hello = watch::Sender::new(None);
        let (this, dialer) = ((wiring.starts.clone(), wiring.advertise.clone()), Arc::clone(&wiring.dialer));
        let register =
            Register::new(this, handle.binding_store.clone(), sessions.clone(), dialer, own_hello.subscribe());
        Self {
            config,
            handle,
            context: Arc::new(context),
            links: Links::new(own.unwrap_or(NodeId::from_entropy(0)), rand::random(), wiring.hints.clone()),
            sessions,
            register,
            server: None,
            registration: None,
            endpoint: None,
            own_hello,
            next_session: 1,
            greeting: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            non_members: NonMembers::default(),
            alarm: Alarm::default(),
            last_errors: BTreeMap::new(),
            refused_by: BTreeSet::new(),
            end_reasons: BTreeMap::new(),
            wiring,
        }
    }

    /// This side's hello; `None` until its RPC endpoint is open and the raft member has reported its member id, if it has one:
    /// a process that was accepted without a member id can be replaced by another one (MESH-23).
    fn own(&self) -> Option<Own> {
        let credentials = self.wiring.credentials.borrow();
        let (node, _) = credentials.identity.node()?;
        let member_set = self.handle.member_set.get()?;
        Some(Own {
            node,
            cluster: credentials.identity.cluster,
            incarnation: credentials.identity.incarnation,
            member_id: member_set.own,
            endpoint_pid: self.endpoint?,
        })
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let leader = self.wiring.replica.borrow().raft.leader_node;
        let mut effects = Vec::new();
        self.links.step(cx.now(), leader, input, &mut effects);
        for effect in effects {
            self.apply(cx, effect);
        }
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) {
        match effect {
            Effect::Dial { node, addr } => self.dial(cx, node, addr),
            Effect::Ask { addr } => self.ask(cx, addr),
            Effect::End { number, because } => {
                if let Some(session) = self.sessions.get(number) {
                    session.end(because.into());
                }
            }
            Effect::Up { node, number } => self.up(cx, node, number),
            Effect::Down { node } => {
                self.handle.peers.set_up(node, false);
                if let Some(peer) = self.handle.peers.get(node) {
                    let _gone = peer.tell(PeerMsg::Link(None));
                }
                self.send_to_raft(RaftMemberMsg::PeerSession { node, up: false });
            }
            Effect::LeaderGone { node } => {
                info!(%node, "leader's address refuses connections: its process is gone");
                self.send_to_raft(RaftMemberMsg::LeaderGone { node });
            }
            Effect::Forget { node } => {
                self.handle.peers.remove(node);
                self.last_errors.remove(&node);
                self.register.forget(node);
                cx.children().stop(&peer_name(node));
            }
            Effect::WakeAt(at) => self.alarm.set(cx, Some(at), Msg::Woke),
        }
    }

    fn send_to_raft(&self, msg: RaftMemberMsg) {
        // Lost when its mailbox is full: its own timeouts detect the same.
        let _full = self.wiring.raft.tell(msg);
    }

    fn up(&mut self, cx: &Cx<Msg>, node: NodeId, number: SessionNumber) {
        let Some(session) = self.sessions.get(number) else { return };
        info!(%node, session = number, remote = %session.remote, side = ?session.side, "mesh session up");
        self.last_errors.remove(&node);
        self.refused_by.remove(&node);
        self.peer(cx, node);
        self.link(node);
    }

    /// Sends the current link to the peer actor, then informs the raft member, whose messages arrive from then on. A peer
    /// actor that is still starting asks for its link when it has started.
    fn link(&self, node: NodeId) {
        let session = self.links.up(node).and_then(|n| self.sessions.get(n));
        let endpoint = session.as_ref().and_then(|s| self.endpoints.get(&s.number).cloned());
        let (Some(peer), Some(session), Some(endpoint)) = (self.handle.peers.get(node), session, endpoint) else {
            return;
        };
        if peer.tell(PeerMsg::Link(Some(Box::new(Link { session, endpoint })))).is_ok() {
            let _down = peer.tell(PeerMsg::IdentityBindings(self.register.all()));
            self.handle.peers.set_up(node, true);
            self.send_to_raft(RaftMemberMsg::PeerSession { node, up: true });
        }
    }

    /// The peer actor of a node, started on first use.
    fn peer(&mut self, cx: &Cx<Msg>, node: NodeId) -> Address<PeerMsg> {
        if let Some(peer) = self.handle.peers.get(node) {
            return peer;
        }
        let address = Address::new(PEER_MAILBOX);
        let (raft, started) = (self.wiring.raft.clone(), cx.me().recipient());
        cx.children().start(Spec::actor(peer_name(node), address.clone(), move || {
            Ok(PeerShell::new(node, raft.clone(), started.clone()))
        }));
        self.handle.peers.insert(node, address.clone());
        address
    }

    fn dial(&mut self, cx: &Cx<Msg>, node: NodeId, addr: String) {
        let (me, serial) = (cx.me().clone(), self.serial());
        let paused = self.context.offences.paused(cx.now(), node);
        let opening = self.greeter().dial(addr, Some(node), false);
        cx.spawn(async move {
            let result = if paused { Err(NotOpened::Paused) } else { opening.await };
            let _gone = me.tell(Msg::Greeted(Box::new(Greeted { who: GreetedPeer::Dialed(node), serial, result })));
        });
    }

    fn ask(&self, cx: &Cx<Msg>, addr: String) {
        let opening = self.greeter().dial(addr.clone(), None, true);
        let (me, serial) = (cx.me().clone(), self.serial());
        cx.spawn(async move {
            let result = Box::new(opening.await.map(|opened| opened.agreed.node));
            let _gone = me.tell(Msg::Asked { addr, serial, result });
        });
    }

    fn asked(&mut self, cx: &Cx<Msg>, (addr, serial): (String, String), result: Result<NodeId, NotOpened>) {
        match &result {
            Ok(node) => info!(%node, addr, "manager found at a hinted address"),
            Err(why) => {
                debug!(addr, %why, "no manager found at a hinted address");
                // This may be how the node learns that the cluster continues without it. Other refusals, such as that the
                // address is its own, do not concern the agent.
                use RefusalReason as R;
                if let Some(R::Blocked | R::Removed | R::Demoted | R::OldIncarnation) = why.refusal().map(|r| r.reason)
                {
                    self.send_to_agent(why, serial);
                }
            }
        }
        self.step(cx, Input::Asked { addr, found: result.ok() });
    }

    /// The serial of the certificate that the next hello presents, read before it is presented: a renewal in between attributes a
    /// refusal to an older certificate, and it is ignored; it is never attributed to a newer one. While the hello lags behind
    /// the certificate, refusals concern no certificate.
    fn serial(&self) -> String {
        let credentials = self.wiring.credentials.borrow();
        let shown = &credentials.identity;
        let lags = self.own_hello.borrow().is_some_and(|own| own.incarnation != shown.incarnation);
        if lags { String::new() } else { shown.serial.clone() }
    }

    fn greeter(&self) -> Greeter {
        Greeter {
            own_hello: self.own_hello.subscribe(),
            replica: self.wiring.replica.clone(),
            dialer: Arc::clone(&self.wiring.dialer),
            register: self.register.clone(),
        }
    }

    fn accept(&mut self, cx: &Cx<Msg>, connection: Connection) {
        let node = connection.identity.as_ref().and_then(CertIdentity::node).map(|(node, _)| node);
        let Some(node) = node else { return };
        let under_way = self.greeting.entry(node).or_default();
        if *under_way >= MAX_HELLOS_PER_NODE || self.context.offences.paused(cx.now(), node) {
            return; // dropped: the peer dials again
        }
        *under_way += 1;
        let (me, serial, greeting) = (cx.me().clone(), self.serial(), self.greeter().accept(connection));
        cx.spawn(async move {
            let result = greeting.await;
            let _gone = me.tell(Msg::Greeted(Box::new(Greeted { who: GreetedPeer::Accepted(node), serial, result })));
        });
    }

    fn greeted(&mut self, cx: &Cx<Msg>, greeted: Greeted) {
        let Greeted { who, serial, result } = greeted;
        if let GreetedPeer::Accepted(node) = who {
            let under_way = self.greeting.remove(&node).unwrap_or(0);
            if under_way > 1 {
                self.greeting.insert(node, under_way - 1);
            }
        }
        let outcome = match result {
            // Opened with an old hello: the RPC endpoint that it named is gone.
            Ok(opened) if Some(opened.own.endpoint_pid) != self.endpoint => DialOutcome::Failed,
            Ok(opened) => {
                if !opened.agreed.probe {
                    self.open(cx, matches!(who, GreetedPeer::Dialed(_)), opened);
                }
                DialOutcome::Opened
            }
            Err(why) => {
                self.not_opened(who, serial, &why);
                if why.refused_at_once() { DialOutcome::Refused } else { DialOutcome::Failed }
            }
        };
        if let GreetedPeer::Dialed(node) = who {
            self.step(cx, Input::Dialed { node, outcome });
        }
    }

    fn not_opened(&mut self, who: GreetedPeer, serial: String, why: &NotOpened) {
        let (GreetedPeer::Dialed(node) | GreetedPeer::Accepted(node)) = who;
        debug!(%node, %why, "no mesh session");
        if let GreetedPeer::Dialed(node) = who {
            self.last_errors.insert(node, why.to_string());
        }
        if let Some(refusal) = why.refusal().filter(|refusal| refusal.reason == RefusalReason::Duplicate) {
            // Each dial is refused again: one log line.
            if self.refused_by.insert(node) {
                warn!(by = %node, why = refusal.message, "manager refuses this process: another one runs with this node's identity");
            }
        } else {
            self.send_to_agent(why, serial);
        }
    }

    /// The refusal may concern the whole node: the agent decides.
    fn send_to_agent(&self, why: &NotOpened, serial: String) {
        if let Some(refusal) = why.refusal() {
            let msg = AgentMsg::RefusedByPeer { refusal: refusal.clone(), serial: Some(serial) };
            let _gone = self.wiring.agent.tell(msg); // lost: the next refusal
        }
    }

    fn open(&mut self, cx: &Cx<Msg>, dialed: bool, opened: Opened) {
        let agreed = opened.agreed;
        let Some(start) = agreed.peer.starts.this().filter(|_| self.server.is_some()) else { return };
        let Some(news) = self.register.take(agreed.peer, agreed.asked) else {
            return debug!(node = %agreed.node, "another process of this node was accepted meanwhile");
        };
        self.end_other_processes(agreed.node, start);
        if news {
            self.send_bindings();
        }
        let Some(server) = &self.server else { return };
        let number = self.next_session;
        self.next_session += 1;
        let session = Session::new(Facts {
            number,
            node: agreed.node,
            start,
            member_id: agreed.member_id,
            own_member: opened.own.member_id,
            side: if dialed { Side::Dialed } else { Side::Accepted },
            remote: opened.remote,
            since: cx.wall(),
            own_tag: agreed.own_tag,
            peer_tag: agreed.peer_tag,
            peer_endpoint: agreed.peer_endpoint,
            own_endpoint: agreed.own_endpoint,
            kill: opened.kill,
            permit: opened.permit,
        });
        self.sessions.add(&session);
        let stream = Box::new(Guarded::new(opened.stream, Arc::clone(&session), self.config.idle));
        let _gone = server.0.cast(NodeServerMessage::ConnectionOpenedExternal { stream, is_server: !dialed });
        cx.after(READY_DEADLINE, Msg::ReadyBy(number));
        let valid = opened.identity.not_after.0.saturating_sub(cx.wall().0);
        let valid = Duration::from_millis(u64::try_from(valid).unwrap_or(0));
        if dialed && !self.links.is_member(agreed.node) {
            self.watch_non_member(cx, number, agreed.node, opened.identity);
        }
        cx.spawn(async move {
            tokio::select! {
                () = session.ended().cancelled() => {}
                () = tokio::time::sleep(valid) => session.end(EndReason::Expired),
            }
        });
        self.step(cx, Input::Opened { number, node: agreed.node, dialed });
    }

    fn session(&mut self, cx: &Cx<Msg>, event: SessionEvent) {
        match event {
            SessionEvent::Ready { number, endpoint } => {
                self.endpoints.insert(number, endpoint);
                self.step(cx, Input::Ready { number });
            }
            SessionEvent::Ended { number } => {
                self.endpoints.remove(&number);
                let Some(session) = self.sessions.remove(number) else { return };
                self.ended(cx, &session);
                self.step(cx, Input::Ended { number });
            }
        }
    }

    fn ended(&mut self, cx: &Cx<Msg>, session: &Session) {
        let end_reason = session.end_reason();
        session.end(end_reason.clone());
        *self.end_reasons.entry(end_reason.counter_key()).or_default() += 1;
        if let EndReason::Violation(violation) = end_reason
            && violation.is_offence()
        {
            self.last_errors.insert(session.node, violation.to_string());
            self.context.offences.report(cx.now(), session.node, violation.counter_key());
            self.context.offences.pause(cx.now(), session.node);
        } else {
            info!(node = %session.node, session = session.number, why = %end_reason, "mesh session ended");
        }
    }

    fn endpoint(&mut self, cx: &Cx<Msg>, news: EndpointEvent) {
        match news {
            EndpointEvent::BindingsReported { by, bindings } => return self.bindings_reported(cx, by, bindings),
            EndpointEvent::MemberIdAnnounced { node, start, member_id } => {
                return self.member_id_announced(node, start, member_id);
            }
            EndpointEvent::Opened(pid) => self.endpoint = Some(pid),
            EndpointEvent::Closed(pid) => self.endpoint = self.endpoint.filter(|open| *open != pid),
        }
        self.observe(cx);
    }

    fn observe(&mut self, cx: &Cx<Msg>) {
        let own = self.own();
        let own_hello = self.own_hello.send_replace(own);
        // A new member id is announced within the session; a new RPC endpoint is another actor and needs new sessions.
        if own_hello.is_some() && own_hello.map(|o| o.endpoint_pid) != self.endpoint {
            self.step(cx, Input::Renew);
        }
        let replica = self.wiring.replica.borrow().clone();
        let member_set = self.handle.member_set.get().unwrap_or_default();
        let members = replica.tables.members.values().chain(member_set.members.iter());
        let wanted: BTreeMap<NodeId, String> = members.map(|m| (m.node, m.addr.clone())).collect();
        // Known before the RPC endpoint opens, unlike `own`.
        let me = self.wiring.credentials.borrow().identity.node().map(|(node, _)| node);
        for node in wanted.keys().filter(|node| Some(**node) != me) {
            self.peer(cx, *node);
        }
        self.step(cx, Input::Wanted(wanted));
    }

    fn protocol(&mut self, cx: &Cx<Msg>, msg: MeshMsg) {
        match msg {
            MeshMsg::Call { to, deadline_ms, call, reply } => {
                let deadline = Duration::from_millis(deadline_ms);
                match self.handle.peers.get(to) {
                    // A full or restarting peer actor drops the reply port: the caller sees a closed port.
                    Some(peer) => {
                        let _full = peer.tell(PeerMsg::Call { deadline, call, reply });
                    }
                    None => drop(reply.send(Err(no_session(to)))),
                }
            }
            MeshMsg::Probe { addr, expect, reply } => self.probe(cx, addr, expect, reply),
        }
    }

    fn probe(&self, cx: &Cx<Msg>, addr: String, expect: NodeId, reply: Reply<Result<(), ErrorBody>>) {
        let own = self.wiring.credentials.borrow().identity.node().map(|(node, _)| node);
        if own == Some(expect) {
            let greeter = self.greeter();
            cx.spawn(async move {
                let answered = greeter.finds_itself(&addr, expect).await;
                let _gone = reply.send(answered.map_err(|why| why.body(&addr)));
            });
            return;
        }
        // The stream of a node that is about to become a member stays as its session.
        let stays = self.links.may_introduce(expect) && !self.context.offences.paused(cx.now(), expect);
        let opening = self.greeter().dial(addr.clone(), Some(expect), !stays);
        let me = cx.me().clone();
        cx.spawn(async move {
            let answered = match opening.await {
                Ok(opened) => {
                    let _gone = me.tell(Msg::Probed { node: expect, opened: Box::new(opened) });
                    Ok(())
                }
                Err(why) => Err(why.body(&addr)),
            };
            let _gone = reply.send(answered);
        });
    }

    fn probed(&mut self, cx: &Cx<Msg>, node: NodeId, opened: Opened) {
        self.step(cx, Input::Answered { node });
        // A session that was opened meanwhile is as good.
        let stays = !opened.agreed.probe && self.links.may_introduce(node);
        if stays && Some(opened.own.endpoint_pid) == self.endpoint {
            self.open(cx, true, opened);
        }
    }
}

fn peer_name(node: NodeId) -> String {
    format!("peer-{node}")
}

impl Shell for MeshShell {
    type Msg = Msg;
    const KIND: &'static str = "Mesh";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let own_name = self.wiring.credentials.borrow().identity.node().map(|(n, _)| n.to_string());
        let own_name = own_name.ok_or_else(|| Fault::new("the mesh needs a node's certificate"))?;
        let me = cx.me().clone();
        let tell = Arc::new(move |event| {
            let _gone = me.tell(Msg::Session(event));
        });
        let (server, joined) = Actor::spawn(None, SessionServer { own_name, tell }, ()).await?;
        self.server = Some(Server(server, self.sessions.clone()));
        let me = cx.me().clone();
        cx.spawn(async move {
            let _how = joined.await;
            let _gone = me.tell(Msg::ServerEnded);
        });

        let (context, opened) = (Arc::clone(&self.context), cx.me().recipient());
        let endpoint: Address<EndpointShellMsg> = Address::new(4);
        cx.children().start(Spec::actor("endpoint", endpoint, move || {
            Ok(EndpointShell::new(Arc::clone(&context), opened.clone()))
        }));

        let (sink, mut connections) = mpsc::channel(CONNECTION_QUEUE);
        self.registration = Some(self.wiring.services.register(Service::Mesh, sink));
        let me = cx.me().clone();
        cx.spawn(async move {
            while let Some(connection) = connections.recv().await {
                let _gone = me.tell(Msg::Connection(Box::new(connection)));
            }
        });

        let (me, mut replica) = (cx.me().clone(), self.wiring.replica.clone());
        cx.spawn(async move {
            let mut seen = None;
            loop {
                // Only the parts that the mesh uses: the members and its own member id. The rest changes with every write.
                let now = {
                    let replica = replica.borrow_and_update();
                    (replica.tables.members.clone(), replica.raft.raft_id)
                };
                if seen.as_ref() != Some(&now) {
                    seen = Some(now);
                    let _gone = me.tell(Msg::Replica);
                }
                if replica.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Protocol(msg) => self.protocol(cx, msg),
            Msg::Members | Msg::Replica => self.observe(cx),
            Msg::Connection(connection) => self.accept(cx, *connection),
            Msg::Endpoint(news) => self.endpoint(cx, news),
            Msg::ProcessChecked { binding, because, alive } => self.alive(&binding, because, alive),
            Msg::PeerStarted(node) => self.link(node),
            Msg::Greeted(greeted) => self.greeted(cx, *greeted),
            Msg::Probed { node, opened } => self.probed(cx, node, *opened),
            Msg::Asked { addr, serial, result } => self.asked(cx, (addr, serial), *result),
            Msg::Session(event) => self.session(cx, event),
            Msg::ReadyBy(number) => {
                if let Some(session) = self.sessions.get(number).filter(|_| !self.endpoints.contains_key(&number)) {
                    session.end(EndReason::NotReady);
                }
            }
            Msg::CheckNonMembers => self.check_non_members(cx),
            Msg::ServerEnded => return Err(Fault::new("the session server ended")),
            Msg::Woke => {
                self.alarm.fired();
                self.step(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        self.shown()
    }
}
