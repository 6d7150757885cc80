//! The mesh's actors alone, in a universe: the other managers are written by hand, at the ends of in-memory pipes.

use std::sync::Arc;

use muster_gateway::{Connection, Services};
use muster_mesh::{Dial, DialFailure, Dialing, Mesh, MeshConfig, MeshHandle, MeshWiring};
use muster_messages::protocol::{
    AgentMsg, IncomingCall, Named, NodeCredentials, RaftMemberMsg, RaftTransport, Service,
};
use muster_messages::wire::{MeshHello, PeerMessage, PeerReply, Refusal, Starts};
use muster_messages::*;
use muster_tests::{PATIENCE, Probe, Universe};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::client::{Client, envelope, hello_of};
use crate::node::{call, identity, node, packet};

const MESH: &str = "node/mesh";

fn peer(n: u128) -> String {
    format!("{MESH}/peer-{}", node(n))
}

/// Nobody is there to be dialled: the others come by themselves.
struct NobodyThere;
impl Dial for NobodyThere {
    fn dial<'a>(&'a self, _addr: &'a str, _expect: Option<NodeId>) -> Dialing<'a> {
        let failure = DialFailure { text: "nobody there".to_owned(), refused_at_once: false, refusal: None };
        Box::pin(async { Err(failure) })
    }
}

/// Node 1's mesh, of a cluster of three.
struct Stage {
    universe: Universe,
    raft: Probe<RaftMemberMsg>,
    agent: Probe<AgentMsg>,
    calls: mpsc::Receiver<IncomingCall>,
    mesh: MeshHandle,
    services: Services,
    renewals: watch::Sender<Arc<NodeCredentials>>,
    _copy: watch::Sender<Arc<Replica>>,
}

impl Stage {
    async fn set() -> Self {
        Self::dialling(Arc::new(NobodyThere)).await
    }

    async fn dialling(dialer: Arc<dyn Dial>) -> Self {
        let stage = Self::before_the_raft_member(dialer).await;
        stage.raft_member_speaks();
        stage
    }

    async fn before_the_raft_member(dialer: Arc<dyn Dial>) -> Self {
        let universe = Universe::start().await;
        let (raft, agent) = (universe.probe("raft-member"), universe.probe::<AgentMsg>("agent"));
        let own = NodeCredentials {
            cert_pem: String::new(),
            key_pem: Secret::new(""),
            root_pem: String::new(),
            identity: identity(1),
        };
        let (renewals, credentials) = watch::channel(Arc::new(own));
        let (publish, replica) = watch::channel(Arc::new(Replica::default()));
        let (to_services, calls) = mpsc::channel(8);
        let services = Services::new();
        let wiring = MeshWiring {
            starts: Starts::first(1),
            advertise: "n1".to_owned(),
            credentials,
            replica,
            raft: raft.recipient(),
            calls: to_services,
            agent: agent.recipient(),
            dialer,
            services: services.clone(),
            hints: vec![],
        };
        let mesh = Mesh::new(MeshConfig::default(), wiring);
        universe.start_actor(mesh.spec());
        for path in [MESH.to_owned(), format!("{MESH}/door")] {
            universe.healthy(&path, 1).await;
        }
        let mesh = mesh.handle();
        Self { universe, raft, agent, calls, mesh, services, renewals, _copy: publish }
    }

    fn raft_member_speaks(&self) {
        let member = |n: u64| Member { node: node(n.into()), raft_id: RaftId(n), addr: format!("n{n}"), voter: true };
        self.mesh.members((1..=3).map(member).collect(), Some(RaftId(1)));
    }

    /// Manager `n` opens a session, and is heard of.
    async fn connect(&mut self, n: u8) -> Client {
        let client = self.hello(n, hello_of(n)).await.expect("it is heard").open(n).await;
        self.session(n, true).await;
        client
    }
    /// A process with manager `n`'s certificate says this.
    async fn hello(&self, n: u8, hello: MeshHello) -> Result<Client, Refusal> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (who, address) = (Some(identity(n.into())), ([127, 0, 0, 1], 1).into());
        let connection = Connection::detached(Box::pin(theirs), Service::Mesh, who, address);
        let sink = self.services.sink(Service::Mesh).expect("the mesh serves");
        assert!(sink.send(connection).await.is_ok(), "it takes the connection");
        Client::saying(hello, Box::pin(ours)).await.expect("the hello is answered")
    }
    /// The raft member hears that a session is up, or is not any more.
    async fn session(&mut self, n: u8, is: bool) {
        let of = |msg: &RaftMemberMsg| match msg {
            RaftMemberMsg::PeerSession { node: of, up } => (*of, *up) == (node(n.into()), is),
            _ => false,
        };
        self.raft.until(&format!("a session with {n}: {is}"), of).await;
    }
    /// Manager `n` says something to the raft member, and it is heard.
    async fn hears(&mut self, n: u8, client: &mut Client) {
        let said = envelope(client.victim.tag, PeerMessage::Raft(vec![packet(n.into(), 1, 7, 1)]));
        assert_eq!(client.ask(&said).await, Some(PeerReply::Taken));
        let its =
            |msg: &RaftMemberMsg| matches!(msg, RaftMemberMsg::FromPeer { node: of, .. } if *of == node(n.into()));
        self.raft.until("its message", its).await;
    }
    /// Manager 2 has been asked something, and does not answer.
    async fn asks(&self, second: &mut Client) -> JoinHandle<Result<Vec<u8>, ErrorBody>> {
        let mesh = self.mesh.clone();
        let asked = tokio::spawn(async move { mesh.call(node(2), PATIENCE, call("you")).await });
        second.called().await.expect("a call");
        asked
    }
    fn send(&self, n: u64, index: u64) {
        self.mesh.send(node(n.into()), "", vec![packet(1, n, index, 1)]);
    }
    /// So many messages to `n` are on their way, and the rest waits behind those.
    async fn send_more_than_the_window(&self, n: u64) {
        for index in 1..=MESSAGES {
            self.send(n, index);
        }
        let waits = |actor: &ActorNode| actor.view["window"]["raft"][0] == 8 && actor.mailbox == 0;
        let peer = self.universe.until(&peer(n.into()), "its window is full", waits).await;
        assert!(peer.view["backlog_bytes"].as_u64() > Some(0), "{}", peer.view);
    }
}

const MESSAGES: u64 = 30;

/// Takes Raft messages until this many have come; their indices.
async fn take(client: &mut Client, count: usize) -> Vec<u64> {
    let mut indices = Vec::new();
    while indices.len() < count {
        let (number, message) = client.called().await.expect("the session is open");
        let PeerMessage::Raft(packets) = message else { panic!("Raft messages alone: {message:?}") };
        indices.extend(packets.iter().map(|packet| packet.index));
        client.answer(number, &PeerReply::Taken).await;
    }
    indices
}

#[tokio::test(start_paused = true)]
async fn a_manager_is_heard_asks_and_is_asked_and_nothing_is_left_of_it() {
    let mut stage = Stage::set().await;
    let mut client = stage.connect(2).await;
    stage.hears(2, &mut client).await;
    let asked = envelope(client.victim.tag, PeerMessage::Call(call("who")));
    let service = async {
        let incoming = stage.calls.recv().await.expect("a call");
        assert_eq!(incoming.forwarder, node(2));
        let _gone = incoming.reply.send(Ok(b"me".to_vec()));
    };
    let (answer, ()) = tokio::join!(client.ask(&asked), service);
    assert_eq!(answer, Some(PeerReply::Answer(Ok(b"me".to_vec()))));

    stage.send(2, 1);
    assert_eq!(take(&mut client, 1).await, [1]);
    let asks = stage.mesh.call(node(2), PATIENCE, call("you"));
    let answers = async {
        let (number, message) = client.called().await.expect("a call");
        assert_eq!(message, PeerMessage::Call(call("you")));
        client.answer(number, &PeerReply::Answer(Ok(b"it".to_vec()))).await;
    };
    assert_eq!(tokio::join!(asks, answers).0, Ok(b"it".to_vec()));
    let view = stage.universe.tree().inspect(MESH).await.expect("it runs").view;
    let up: Vec<bool> = view["peers"].as_array().expect("peers").iter().map(|peer| peer["state"] == "up").collect();
    assert_eq!(up.iter().filter(|up| **up).count(), 1, "{view:#}");

    stage.universe.finish().await;
    assert!(!stage.services.serves(Service::Mesh));
    client.wait_end().await;
}

/// Everybody answers with a refusal, when they are told to.
struct Refusing {
    dialled: watch::Sender<bool>,
    now: watch::Receiver<bool>,
}
impl Dial for Refusing {
    fn dial<'a>(&'a self, _addr: &'a str, _expect: Option<NodeId>) -> Dialing<'a> {
        let mut now = self.now.clone();
        self.dialled.send_replace(true);
        Box::pin(async move {
            let _told = now.wait_for(|now| *now).await;
            let refusal = Refusal {
                reason: RefusalReason::OldIncarnation,
                message: "the certificate is of an older incarnation".to_owned(),
                managers: vec![],
                retry_after_ms: None,
            };
            Err(DialFailure { text: refusal.message.clone(), refused_at_once: false, refusal: Some(refusal) })
        })
    }
}

/// It would fence off the node for good: nothing is newer than its new certificate.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_comes_after_a_new_certificate_is_said_to_be_of_the_old_one() {
    let (now, told) = watch::channel(false);
    let (dialled, mut dials) = watch::channel(false);
    let mut stage = Stage::dialling(Arc::new(Refusing { dialled, now: told })).await;
    dials.wait_for(|dials| *dials).await.expect("it dials");
    let old = identity(1).serial;
    let newer = |own: &NodeCredentials| NodeCredentials {
        identity: CertIdentity { serial: "newer".to_owned(), ..own.identity.clone() },
        ..own.clone()
    };
    stage.renewals.send_modify(|own| *own = Arc::new(newer(own)));
    now.send_replace(true);
    let said = stage.agent.next("the refusal").await;
    let AgentMsg::RefusedByPeer { serial, .. } = said else { panic!("{}", said.name()) };
    assert_eq!(serial, Some(old));
    stage.universe.finish().await;
}

/// E45. Whoever heard it without a seat would take a copy of its directory in its place later.
#[tokio::test(start_paused = true)]
async fn nobody_is_greeted_before_the_raft_member_has_said_which_seat_it_has() {
    let stage = Stage::before_the_raft_member(Arc::new(NobodyThere)).await;
    let opens = async {
        let waits = |mesh: &ActorNode| mesh.view["hellos_under_way"] == 1;
        stage.universe.until(MESH, "the hello waits", waits).await;
        stage.raft_member_speaks();
    };
    let (client, ()) = tokio::join!(stage.hello(2, hello_of(2)), opens);
    assert_eq!(client.expect("it is heard").victim.raft_id, Some(RaftId(1)));
    stage.universe.finish().await;
}

/// E45. Every process of a new manager gets its seat in the session that it has.
#[tokio::test(start_paused = true)]
async fn a_copy_is_refused_the_seat_that_its_original_got_after_the_hello() {
    let mut stage = Stage::set().await;
    let process = |start, raft_id| MeshHello { starts: Starts::first(2).next(start), raft_id, ..hello_of(2) };
    let mut original = stage.hello(2, process(7, None)).await.expect("it is heard").open(2).await;
    stage.session(2, true).await;
    let seat = envelope(original.victim.tag, PeerMessage::Seat(RaftId(2)));
    assert_eq!(original.ask(&seat).await, Some(PeerReply::Taken));
    stage.hears(2, &mut original).await;
    drop(original);
    stage.session(2, false).await;

    let copy = MeshHello { advertise: "elsewhere".to_owned(), ..process(8, Some(RaftId(2))) };
    let refusal = stage.hello(2, copy).await.err().expect("nobody vouches for what it voted");
    assert_eq!(refusal.reason, RefusalReason::Duplicate);
    assert!(refusal.message.contains("a copy of an older state"), "{refusal}");
    stage.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_actor_that_crashes_keeps_its_session_and_costs_the_others_nothing() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut stage = Stage::set().await;
        let (mut second, mut third) = (stage.connect(2).await, stage.connect(3).await);
        stage.send_more_than_the_window(3).await;
        let asked = stage.asks(&mut second).await;
        stage.universe.crash(&peer(2), how);
        assert_eq!(asked.await.expect("no panic").unwrap_err().code, ErrorCode::Unreachable, "whoever asked is told");
        stage.universe.healthy(&peer(2), 2).await;
        stage.session(2, true).await;
        stage.send(2, 1);
        assert_eq!(take(&mut second, 1).await, [1], "in the session that it had");
        stage.hears(2, &mut second).await;
        let all: Vec<u64> = (1..=MESSAGES).collect();
        assert_eq!(take(&mut third, all.len()).await, all, "what waited for the other, in order");
        let heard = stage.universe.journal();
        assert!(!heard.iter().any(|line| line.contains("unreachable")), "{heard:#?}");
        stage.universe.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_door_that_crashes_ends_the_sessions_and_what_waited_is_told_of() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut stage = Stage::set().await;
        let (mut second, mut third) = (stage.connect(2).await, stage.connect(3).await);
        stage.send_more_than_the_window(3).await;
        let door = format!("{MESH}/door");
        stage.universe.crash(&door, how);
        for (n, client) in [(2, &mut second), (3, &mut third)] {
            client.wait_end().await;
            stage.session(n, false).await;
        }
        let lost = |msg: &RaftMemberMsg| matches!(msg, RaftMemberMsg::Unreachable { to: RaftId(3) });
        stage.raft.until("what was to be sent is lost", lost).await;
        stage.universe.healthy(&door, 2).await;
        for n in [2, 3] {
            let mut again = stage.connect(n).await;
            stage.hears(n, &mut again).await;
            stage.send(n.into(), 99);
            assert_eq!(take(&mut again, 1).await, [99], "nothing old comes late");
        }
        let restarts = stage.universe.tree().inspect(MESH).await.expect("it runs").incarnation;
        assert_eq!(restarts, 1, "nobody else was started again");
        stage.universe.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_mesh_that_crashes_comes_back_with_its_members_and_serves_again() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut stage = Stage::set().await;
        let (mut second, mut third) = (stage.connect(2).await, stage.connect(3).await);
        stage.send_more_than_the_window(3).await;
        let asked = stage.asks(&mut second).await;
        stage.universe.crash(MESH, how);
        assert_eq!(asked.await.expect("no panic").unwrap_err().code, ErrorCode::Unreachable, "whoever asked is told");
        for client in [&mut second, &mut third] {
            client.wait_end().await;
        }
        stage.universe.healthy(MESH, 2).await;
        for n in [2, 3] {
            stage.universe.healthy(&peer(n), 1).await; // as the raft member named them last
        }
        for n in [2, 3] {
            let mut again = stage.connect(n).await;
            stage.hears(n, &mut again).await;
            stage.send(n.into(), 99);
            assert_eq!(take(&mut again, 1).await, [99]);
        }
        stage.universe.finish().await;
    }
}
