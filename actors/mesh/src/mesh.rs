//! The mesh: one session with every other manager, and who may have one.
//!
//! Owns   the links (`core::links`), the session server, the door, one peer actor per node.
//! Hears  connections from the gateway, members from the raft member, the replica, sessions opened and ended.
//! Says   dials; `PeerSession`, `LeaderGone`; the link that is up to each peer actor; a refusal to the agent.
//! Keeps  at most one session of a node up (MESH-12); no session outlives the door that its hello named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{Connection, Registration};
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Spec};
use muster_messages::protocol::{AgentMsg, MeshMsg, RaftMemberMsg, Reply, Service};
use muster_messages::{CertIdentity, ErrorBody, NodeId, RefusalReason};
use ractor::{Actor, ActorRef};
use ractor_cluster::NodeServerMessage;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::core::filter::Side;
use crate::core::hello::Own;
use crate::core::links::{DialOutcome, Effect, Input, Links, SessionNumber};
use crate::door::{Counters, DoorMsg, DoorNews, DoorShell, DoorShellMsg, Hall};
use crate::greeting::{Greeted, Greeter, NotOpened, Opened, Who};
use crate::handle::MeshHandle;
use crate::msg::Msg;
use crate::offences::Offences;
use crate::peer::{Link, PeerMsg, PeerShell, no_session};
use crate::register::Register;
use crate::session::{Ending, Facts, Session, Sessions};
use crate::session_server::{SessionEvent, SessionServer};
use crate::stream::Guarded;
use crate::wiring::{MeshConfig, MeshWiring};

mod hearing;
mod shown;

/// From the hello to both doors known: a few frames.
const READY_DEADLINE: Duration = Duration::from_secs(5);
/// Accepted connections of one node that may be in their hello at once: a dial, a probe, and what is left of the last.
const GREETING: usize = 4;
/// Connections that wait for this actor.
const ACCEPTING: usize = 64;
/// Messages that wait for a peer actor: Raft sends a few per tick and batch.
const PEER_MAILBOX: usize = 4096;

/// The session server of this incarnation; stopped with it.
struct Server(ActorRef<NodeServerMessage>, Sessions);
impl Drop for Server {
    fn drop(&mut self) {
        for session in self.1.all() {
            session.end(Ending::Cut("the mesh stopped".to_owned()));
        }
        self.0.stop(None);
    }
}

pub(crate) struct MeshShell {
    config: MeshConfig,
    wiring: MeshWiring,
    handle: MeshHandle,
    hall: Arc<Hall>,
    links: Links,
    sessions: Sessions,
    register: Register,
    server: Option<Server>,
    registration: Option<Registration>,
    door: Option<u64>,
    /// What this side says of itself; nothing while its door is closed, or its seat unknown. Hellos wait for it.
    said: watch::Sender<Option<Own>>,
    next_session: SessionNumber,
    /// Hellos of accepted connections under way, by node.
    greeting: BTreeMap<NodeId, usize>,
    /// Doors of sessions that are ready.
    doors: BTreeMap<SessionNumber, ActorRef<DoorMsg>>,
    alarm: Alarm,
    last_errors: BTreeMap<NodeId, String>,
    /// Managers that hear another process of this node.
    refused_by: BTreeSet<NodeId>,
    endings: BTreeMap<&'static str, u64>,
}

impl MeshShell {
    pub(crate) fn new(config: MeshConfig, wiring: MeshWiring, handle: MeshHandle) -> Self {
        let sessions = Sessions::default();
        let hall = Hall {
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
        // Peer actors of an earlier incarnation went with it.
        handle.peers.clear();
        let said = watch::Sender::new(None);
        let (this, dialer) = ((wiring.starts.clone(), wiring.advertise.clone()), Arc::clone(&wiring.dialer));
        let register = Register::new(this, handle.book.clone(), sessions.clone(), dialer, said.subscribe());
        Self {
            config,
            handle,
            hall: Arc::new(hall),
            links: Links::new(own.unwrap_or(NodeId::from_entropy(0)), rand::random(), wiring.hints.clone()),
            sessions,
            register,
            server: None,
            registration: None,
            door: None,
            said,
            next_session: 1,
            greeting: BTreeMap::new(),
            doors: BTreeMap::new(),
            alarm: Alarm::default(),
            last_errors: BTreeMap::new(),
            refused_by: BTreeSet::new(),
            endings: BTreeMap::new(),
            wiring,
        }
    }

    /// What this side says of itself now; nothing before its door is open and the raft member has said which seat it has, if any:
    /// a process that is heard without a seat may have another one's place (MESH-23).
    fn own(&self) -> Option<Own> {
        let credentials = self.wiring.credentials.borrow();
        let (node, _) = credentials.identity.node()?;
        let seats = self.handle.seats.get()?;
        Some(Own {
            node,
            cluster: credentials.identity.cluster,
            incarnation: credentials.identity.incarnation,
            seat: seats.own,
            door_pid: self.door?,
        })
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let leader = self.wiring.replica.borrow().raft.leader_node;
        let mut effects = Vec::new();
        self.links.step(cx.now(), leader, input, &mut effects);
        for effect in effects {
            self.perform(cx, effect);
        }
    }

    fn perform(&mut self, cx: &Cx<Msg>, effect: Effect) {
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
                self.tell_raft(RaftMemberMsg::PeerSession { node, up: false });
            }
            Effect::LeaderGone { node } => {
                info!(%node, "the leader's process is gone");
                self.tell_raft(RaftMemberMsg::LeaderGone { node });
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

    fn tell_raft(&self, msg: RaftMemberMsg) {
        // Lost when its mailbox is full: it finds out by its own timeouts.
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

    /// Gives the peer actor the link that is up, and then tells the raft member: what it sends from now on arrives. A peer
    /// actor that is only starting asks for its link when it is there.
    fn link(&self, node: NodeId) {
        let session = self.links.up(node).and_then(|n| self.sessions.get(n));
        let door = session.as_ref().and_then(|s| self.doors.get(&s.number).cloned());
        let (Some(peer), Some(session), Some(door)) = (self.handle.peers.get(node), session, door) else { return };
        if peer.tell(PeerMsg::Link(Some(Box::new(Link { session, door })))).is_ok() {
            let _down = peer.tell(PeerMsg::Claims(self.register.all()));
            self.handle.peers.set_up(node, true);
            self.tell_raft(RaftMemberMsg::PeerSession { node, up: true });
        }
    }

    /// The peer actor of a node, made when it is first needed.
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
        let paused = self.hall.offences.paused(cx.now(), node);
        let opening = self.greeter().dial(addr, Some(node), false);
        cx.spawn(async move {
            let result = if paused { Err(NotOpened::Paused) } else { opening.await };
            let _gone = me.tell(Msg::Greeted(Box::new(Greeted { who: Who::Dialed(node), serial, result })));
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
            Ok(node) => info!(%node, addr, "a manager was found where this one was told to look"),
            Err(why) => {
                debug!(addr, %why, "no manager was found where this one was told to look");
                // It may be the way to hear that the cluster goes on without this node. Anything else, such as that this is
                // its own address, is nothing to the agent.
                use RefusalReason as R;
                if let Some(R::Blocked | R::Removed | R::Demoted | R::OldIncarnation) = why.refusal().map(|r| r.reason)
                {
                    self.tell_agent(why, serial);
                }
            }
        }
        self.step(cx, Input::Asked { addr, found: result.ok() });
    }

    /// Of the certificate that whoever is greeted now is shown. Asked for before it is shown: what comes in between makes a refusal
    /// one of an older certificate, which is ignored, and never one of a newer. The hello may lag behind the certificate: what is
    /// said of that concerns none.
    fn serial(&self) -> String {
        let credentials = self.wiring.credentials.borrow();
        let shown = &credentials.identity;
        let lags = self.said.borrow().is_some_and(|own| own.incarnation != shown.incarnation);
        if lags { String::new() } else { shown.serial.clone() }
    }

    fn greeter(&self) -> Greeter {
        Greeter {
            said: self.said.subscribe(),
            replica: self.wiring.replica.clone(),
            dialer: Arc::clone(&self.wiring.dialer),
            register: self.register.clone(),
        }
    }

    fn accept(&mut self, cx: &Cx<Msg>, connection: Connection) {
        let node = connection.identity.as_ref().and_then(CertIdentity::node).map(|(node, _)| node);
        let Some(node) = node else { return };
        let under_way = self.greeting.entry(node).or_default();
        if *under_way >= GREETING || self.hall.offences.paused(cx.now(), node) {
            return; // dropped: the other side dials again
        }
        *under_way += 1;
        let (me, serial, greeting) = (cx.me().clone(), self.serial(), self.greeter().accept(connection));
        cx.spawn(async move {
            let result = greeting.await;
            let _gone = me.tell(Msg::Greeted(Box::new(Greeted { who: Who::Accepted(node), serial, result })));
        });
    }

    fn greeted(&mut self, cx: &Cx<Msg>, greeted: Greeted) {
        let Greeted { who, serial, result } = greeted;
        if let Who::Accepted(node) = who {
            let under_way = self.greeting.remove(&node).unwrap_or(0);
            if under_way > 1 {
                self.greeting.insert(node, under_way - 1);
            }
        }
        let outcome = match result {
            // Said with an old hello: the door that it names is gone.
            Ok(opened) if Some(opened.own.door_pid) != self.door => DialOutcome::Failed,
            Ok(opened) => {
                if !opened.agreed.probe {
                    self.open(cx, matches!(who, Who::Dialed(_)), opened);
                }
                DialOutcome::Opened
            }
            Err(why) => {
                self.not_opened(who, serial, &why);
                if why.refused_at_once() { DialOutcome::Refused } else { DialOutcome::Failed }
            }
        };
        if let Who::Dialed(node) = who {
            self.step(cx, Input::Dialed { node, outcome });
        }
    }

    fn not_opened(&mut self, who: Who, serial: String, why: &NotOpened) {
        let (Who::Dialed(node) | Who::Accepted(node)) = who;
        debug!(%node, %why, "no mesh session");
        if let Who::Dialed(node) = who {
            self.last_errors.insert(node, why.to_string());
        }
        if let Some(refusal) = why.refusal().filter(|refusal| refusal.reason == RefusalReason::Duplicate) {
            // It dials again and again, and each time it is told: once in the log.
            if self.refused_by.insert(node) {
                warn!(by = %node, why = refusal.message, "this process is not heard: another one has this node's identity");
            }
        } else {
            self.tell_agent(why, serial);
        }
    }

    /// What the other side said may concern this whole node: the agent judges.
    fn tell_agent(&self, why: &NotOpened, serial: String) {
        if let Some(refusal) = why.refusal() {
            let msg = AgentMsg::RefusedByPeer { refusal: refusal.clone(), serial: Some(serial) };
            let _gone = self.wiring.agent.tell(msg); // lost: the next refusal
        }
    }

    fn open(&mut self, cx: &Cx<Msg>, dialed: bool, opened: Opened) {
        let agreed = opened.agreed;
        let Some(start) = agreed.peer.starts.this().filter(|_| self.server.is_some()) else { return };
        let Some(news) = self.register.take(agreed.peer, agreed.asked) else {
            return debug!(node = %agreed.node, "another process of this node was taken meanwhile");
        };
        self.hear_only(agreed.node, start);
        if news {
            self.tell_claims();
        }
        let Some(server) = &self.server else { return };
        let number = self.next_session;
        self.next_session += 1;
        let session = Session::new(Facts {
            number,
            node: agreed.node,
            start,
            seat: agreed.seat,
            own_seat: opened.own.seat,
            side: if dialed { Side::Dialed } else { Side::Accepted },
            remote: opened.remote,
            since: cx.wall(),
            own_tag: agreed.own_tag,
            peer_tag: agreed.peer_tag,
            peer_door: agreed.peer_door,
            own_door: agreed.own_door,
            kill: opened.kill,
            permit: opened.permit,
        });
        self.sessions.add(&session);
        let stream = Box::new(Guarded::new(opened.stream, Arc::clone(&session), self.config.idle));
        let _gone = server.0.cast(NodeServerMessage::ConnectionOpenedExternal { stream, is_server: !dialed });
        cx.after(READY_DEADLINE, Msg::ReadyBy(number));
        let valid = opened.identity.not_after.0.saturating_sub(cx.wall().0);
        let valid = Duration::from_millis(u64::try_from(valid).unwrap_or(0));
        cx.spawn(async move {
            tokio::select! {
                () = session.ended().cancelled() => {}
                () = tokio::time::sleep(valid) => session.end(Ending::Expired),
            }
        });
        self.step(cx, Input::Opened { number, node: agreed.node, dialed });
    }

    fn session(&mut self, cx: &Cx<Msg>, event: SessionEvent) {
        match event {
            SessionEvent::Ready { number, door } => {
                self.doors.insert(number, door);
                self.step(cx, Input::Ready { number });
            }
            SessionEvent::Ended { number } => {
                self.doors.remove(&number);
                let Some(session) = self.sessions.remove(number) else { return };
                self.ended(cx, &session);
                self.step(cx, Input::Ended { number });
            }
        }
    }

    fn ended(&mut self, cx: &Cx<Msg>, session: &Session) {
        let ending = session.ending();
        session.end(ending.clone());
        *self.endings.entry(ending.word()).or_default() += 1;
        if let Ending::Violation(violation) = ending
            && violation.is_offence()
        {
            self.last_errors.insert(session.node, violation.to_string());
            self.hall.offences.note(cx.now(), session.node, violation.word());
            self.hall.offences.pause(cx.now(), session.node);
        } else {
            info!(node = %session.node, session = session.number, why = %ending, "mesh session ended");
        }
    }

    fn door(&mut self, cx: &Cx<Msg>, news: DoorNews) {
        match news {
            DoorNews::Claimed { by, claims } => return self.claimed(cx, by, claims),
            DoorNews::Seated { node, start, seat } => return self.seated(node, start, seat),
            DoorNews::Opened(pid) => self.door = Some(pid),
            DoorNews::Closed(pid) => self.door = self.door.filter(|open| *open != pid),
        }
        self.look(cx);
    }

    /// Takes in who the members are and what this side says of itself.
    fn look(&mut self, cx: &Cx<Msg>) {
        let own = self.own();
        let said = self.said.send_replace(own);
        // A new seat is told within the session; a new door is another actor.
        if said.is_some() && said.map(|o| o.door_pid) != self.door {
            self.step(cx, Input::Renew);
        }
        let replica = self.wiring.replica.borrow().clone();
        let seats = self.handle.seats.get().unwrap_or_default();
        let members = replica.tables.members.values().chain(seats.members.iter());
        let wanted: BTreeMap<NodeId, String> = members.map(|m| (m.node, m.addr.clone())).collect();
        // Known before the door is open, and `own` with it.
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
                    // A full or restarting peer drops the reply port: the asker sees a closed port.
                    Some(peer) => {
                        let _full = peer.tell(PeerMsg::Call { deadline, call, reply });
                    }
                    None => {
                        let _gone = reply.send(Err(no_session(to)));
                    }
                }
            }
            MeshMsg::Probe { addr, expect, reply } => self.probe(cx, addr, expect, reply),
            MeshMsg::Cut { node, reason } => {
                for session in self.sessions.all().iter().filter(|s| s.node == node) {
                    session.end(Ending::Cut(reason.clone()));
                }
            }
        }
    }

    fn probe(&self, cx: &Cx<Msg>, addr: String, expect: NodeId, reply: Reply<Result<(), ErrorBody>>) {
        let own = self.wiring.credentials.borrow().identity.node().map(|(node, _)| node);
        if own == Some(expect) {
            return self.probe_itself(cx, addr, expect, reply);
        }
        let opening = self.greeter().dial(addr.clone(), Some(expect), true);
        let me = cx.me().clone();
        cx.spawn(async move {
            let answered = opening.await.map(|_| ()).map_err(|why| why.body(&addr));
            if answered.is_ok() {
                let _gone = me.tell(Msg::Answered(expect));
            }
            let _gone = reply.send(answered);
        });
    }

    /// A leader that has moved dials itself back as it would anybody else. There is no session with oneself: whoever answers
    /// with our certificate is enough.
    fn probe_itself(&self, cx: &Cx<Msg>, addr: String, own: NodeId, reply: Reply<Result<(), ErrorBody>>) {
        let dialer = Arc::clone(&self.wiring.dialer);
        cx.spawn(async move {
            let answered = dialer.dial(&addr, Some(own)).await.map(|_| ());
            let _gone = reply.send(answered.map_err(|why| NotOpened::from(why).body(&addr)));
        });
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

        let (hall, opened) = (Arc::clone(&self.hall), cx.me().recipient());
        let door: Address<DoorShellMsg> = Address::new(4);
        cx.children().start(Spec::actor("door", door, move || Ok(DoorShell::new(Arc::clone(&hall), opened.clone()))));

        let (sink, mut connections) = mpsc::channel(ACCEPTING);
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
                // Only what concerns the mesh: the members, the own seat. The rest changes with every write.
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
            Msg::Members | Msg::Replica => self.look(cx),
            Msg::Connection(connection) => self.accept(cx, *connection),
            Msg::Door(news) => self.door(cx, news),
            Msg::Lives { claim, because, lives } => self.lives(&claim, because, lives),
            Msg::PeerStarted(node) => self.link(node),
            Msg::Greeted(greeted) => self.greeted(cx, *greeted),
            Msg::Answered(node) => self.step(cx, Input::Answered { node }),
            Msg::Asked { addr, serial, result } => self.asked(cx, (addr, serial), *result),
            Msg::Session(event) => self.session(cx, event),
            Msg::ReadyBy(number) => {
                if let Some(session) = self.sessions.get(number).filter(|_| !self.doors.contains_key(&number)) {
                    session.end(Ending::NotReady);
                }
            }
            Msg::ServerEnded => return Err(Fault::new("the session server ended")),
            Msg::Woke => {
                self.alarm.rang();
                self.step(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let own = *self.said.borrow();
        let peers: Vec<Value> = self
            .links
            .each()
            .map(|(node, wanted, addr, dialing, failures)| self.peer_view(node, wanted, addr, dialing, failures))
            .collect();
        json!({
            "node": own.map(|o| o.node), "seat": own.and_then(|o| o.seat), "door_pid": self.door,
            "peers": peers, "hints": self.links.hints(),
            "sessions_ended": self.endings,
            "offences": self.hall.offences.view(),
            "door": self.hall.counters.view(),
            "hellos_under_way": self.greeting.values().sum::<usize>(),
            "identity": self.register.view(),
        })
    }
}
