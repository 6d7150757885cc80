//! The mesh: one session with every other manager, and who may have one.
//!
//! Owns        the links (`core::links`), the greetings, the open sessions, the RPC endpoint, one peer actor per node.
//! Inputs      connections from the gateway, members from the raft member, the replica, sessions opened and ended.
//! Outputs     dials; `PeerSession`, `LeaderGone`; the current link, to each peer actor; refusals, to the agent.
//! Invariants  at most one session of a node is up (MESH-12); no session outlives the RPC endpoint that its hello named.

use std::sync::Arc;

use muster_gateway::Registration;
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Slot, Spec};
use muster_messages::protocol::{RaftMemberMsg, Service};
use muster_messages::{NodeId, Replica};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info};

use crate::core::bindings::Opening;
use crate::core::links::{Effect, Input, Links, SessionNumber};
use crate::core::non_members::NonMembers;
use crate::endpoint::{EndpointEvent, EndpointShell, EndpointShellMsg};
use crate::greeting::{Greeted, GreetedPeer, Opened};
use crate::greetings::Greetings;
use crate::handle::{MemberSet, MeshHandle};
use crate::incoming::EndpointContext;
use crate::msg::Msg;
use crate::open_sessions::OpenSessions;
use crate::peers::PeerActors;
use crate::register::Register;
use crate::session::Sessions;
use crate::session_server::SessionEvent;
use crate::wiring::{MeshConfig, MeshWiring};

mod identity_bindings;
mod non_members;
mod shown;

/// Connections waiting for this actor.
const CONNECTION_QUEUE: usize = 64;

pub(crate) struct MeshShell {
    wiring: MeshWiring,
    member_set: Slot<MemberSet>,
    peers: PeerActors,
    context: Arc<EndpointContext>,
    links: Links,
    sessions: OpenSessions,
    greetings: Greetings,
    register: Register,
    registration: Option<Registration>,
    non_members: NonMembers,
    alarm: Alarm,
}

impl MeshShell {
    pub(crate) fn new(config: &MeshConfig, wiring: MeshWiring, handle: MeshHandle) -> Self {
        let sessions = Sessions::default();
        let context = EndpointContext::new(&wiring, config.snapshot_limit, sessions.clone(), handle.mesh.recipient());
        let own = wiring.credentials.borrow().identity.node().map(|(node, _)| node);
        let own_hello = watch::Sender::new(None);
        let (this, dialer) = ((wiring.starts.clone(), wiring.advertise.clone()), Arc::clone(&wiring.dialer));
        let register =
            Register::new(this, handle.binding_store.clone(), sessions.clone(), dialer, own_hello.subscribe());
        Self {
            greetings: Greetings::new(&wiring, own_hello, register.clone(), Arc::clone(&context.offences)),
            peers: PeerActors::new(handle.peers, wiring.raft.clone()),
            member_set: handle.member_set,
            context: Arc::new(context),
            links: Links::new(own.unwrap_or(NodeId::from_entropy(0)), rand::random(), wiring.hints.clone()),
            sessions: OpenSessions::new(sessions, config.idle),
            register,
            registration: None,
            non_members: NonMembers::default(),
            alarm: Alarm::default(),
            wiring,
        }
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
            Effect::Dial { node, addr } => self.greetings.dial(cx, node, addr),
            Effect::Ask { addr } => self.greetings.ask(cx, addr),
            Effect::End { number, because } => self.sessions.end(number, because.into()),
            Effect::Up { node, number } => self.up(cx, node, number),
            Effect::Down { node } => self.peers.down(node),
            Effect::LeaderGone { node } => {
                info!(%node, "leader's address refuses connections: its process is gone");
                // Lost when its mailbox is full: its own timeouts detect the same.
                let _full = self.wiring.raft.tell(RaftMemberMsg::LeaderGone { node });
            }
            Effect::Forget { node } => {
                self.peers.stop(cx, node);
                self.greetings.forget(node);
                self.register.forget(node);
            }
            Effect::WakeAt(at) => self.alarm.set(cx, Some(at), Msg::Woke),
        }
    }

    fn up(&mut self, cx: &Cx<Msg>, node: NodeId, number: SessionNumber) {
        let Some(session) = self.sessions.get(number) else { return };
        info!(%node, session = number, remote = %session.remote, side = %session.side.word(), "mesh session up");
        self.greetings.up(node);
        self.peers.start(cx, node);
        self.link(node);
    }

    /// A peer actor that is still starting asks for its link when it has started.
    fn link(&self, node: NodeId) {
        if let Some(link) = self.links.up(node).and_then(|number| self.sessions.link(number)) {
            self.peers.link(node, link, self.register.all());
        }
    }

    fn greeted(&mut self, cx: &Cx<Msg>, greeted: Greeted) {
        let who = greeted.who;
        let (outcome, for_session) = self.greetings.greeted(greeted);
        if let Some(opened) = for_session {
            self.open(cx, matches!(who, GreetedPeer::Dialed(_)), opened);
        }
        if let GreetedPeer::Dialed(node) = who {
            self.step(cx, Input::Dialed { node, outcome });
        }
    }

    fn open(&mut self, cx: &Cx<Msg>, dialed: bool, opened: Opened) {
        let (node, newcomer) = (opened.agreed.node, opened.agreed.peer.clone());
        let (start, is_news) = match self.register.take(newcomer, opened.agreed.asked, self.sessions.can_open()) {
            Opening::Session { start, is_news } => (start, is_news),
            Opening::Superseded => return debug!(%node, "another process of this node was accepted meanwhile"),
            Opening::Impossible => return,
        };
        self.sessions.end_other_processes(node, start);
        if is_news {
            self.peers.send_bindings(&self.register.all());
        }
        let certificate = opened.identity.clone();
        let Some(number) = self.sessions.open(cx, dialed, start, opened) else { return };
        self.session_opened(cx, (number, dialed), node, certificate);
        self.step(cx, Input::Opened { number, node, dialed });
    }

    fn session(&mut self, cx: &Cx<Msg>, event: SessionEvent) {
        match event {
            SessionEvent::Ready { number, endpoint } => {
                self.sessions.ready(number, endpoint);
                self.step(cx, Input::Ready { number });
            }
            SessionEvent::Ended { number } => {
                let Some((session, why)) = self.sessions.ended(number) else { return };
                match self.context.offences.ended(cx.now(), session.node, &why) {
                    Some(violation) => self.greetings.failed(session.node, violation),
                    None => info!(node = %session.node, session = number, %why, "mesh session ended"),
                }
                self.step(cx, Input::Ended { number });
            }
        }
    }

    fn endpoint(&mut self, cx: &Cx<Msg>, news: EndpointEvent) {
        match news {
            EndpointEvent::BindingsReported { by, bindings } => return self.bindings_reported(cx, by, bindings),
            EndpointEvent::MemberIdAnnounced { node, start, member_id } => {
                return self.member_id_announced(node, start, member_id);
            }
            EndpointEvent::Opened(pid) => self.greetings.endpoint_opened(pid),
            EndpointEvent::Closed(pid) => self.greetings.endpoint_closed(pid),
        }
        self.observe(cx);
    }

    fn observe(&mut self, cx: &Cx<Msg>) {
        // A new member id is announced within the session; a new RPC endpoint is another actor and needs new sessions.
        if self.greetings.renew(self.member_set.get().map(|members| members.own)) {
            self.step(cx, Input::Renew);
        }
        let wanted = self.member_set.get().unwrap_or_default().addresses(&self.wiring.replica.borrow());
        let me = self.greetings.node();
        for node in wanted.keys().filter(|node| Some(**node) != me) {
            self.peers.start(cx, *node);
        }
        self.step(cx, Input::Wanted(wanted));
    }
}

impl Shell for MeshShell {
    type Msg = Msg;
    const KIND: &'static str = "Mesh";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let own_name = self.greetings.node().map(|node| node.to_string());
        let own_name = own_name.ok_or_else(|| Fault::new("the mesh needs a node's certificate"))?;
        self.sessions.start_server(cx, own_name).await?;

        let (context, opened) = (Arc::clone(&self.context), cx.me().recipient());
        let endpoint: Address<EndpointShellMsg> = Address::new(4);
        let shell = move || Ok(EndpointShell::new(Arc::clone(&context), opened.clone()));
        cx.children().start(Spec::actor("endpoint", endpoint, shell));

        let (sink, connections) = mpsc::channel(CONNECTION_QUEUE);
        self.registration = Some(self.wiring.services.register(Service::Mesh, sink));
        cx.forward(connections, CONNECTION_QUEUE, |connection| Msg::Connection(Box::new(connection)));
        // Only the parts that the mesh uses: the rest changes with every write.
        let parts = |replica: &Arc<Replica>| (replica.tables.members.clone(), replica.raft.raft_id);
        cx.on_change_of(self.wiring.replica.clone(), parts, || Msg::Replica);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Protocol(msg) => self.probe(cx, msg),
            Msg::Members | Msg::Replica => self.observe(cx),
            Msg::Connection(connection) => self.greetings.accept(cx, connection.item),
            Msg::Endpoint(news) => self.endpoint(cx, news),
            Msg::ProcessChecked { binding, because, alive } => self.alive(&binding, because, alive),
            Msg::PeerStarted(node) => self.link(node),
            Msg::Greeted(greeted) => self.greeted(cx, *greeted),
            Msg::Probed { node, opened } => self.probed(cx, node, *opened),
            Msg::Asked { addr, serial, result } => {
                self.greetings.asked(&addr, serial, &result);
                self.step(cx, Input::Asked { addr, found: result.ok() });
            }
            Msg::Session(event) => self.session(cx, event),
            Msg::ReadyBy(number) => self.sessions.ready_by(number),
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
        json!(self.shown())
    }
}
