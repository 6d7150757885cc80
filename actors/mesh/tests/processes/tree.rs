//! The mesh's actors alone, in a test harness: the other managers are handwritten clients on in-memory pipes.

use std::sync::Arc;

use muster_gateway::{Connection, Services};
use muster_mesh::{Dial, DialFailure, Dialing, Mesh, MeshConfig, MeshHandle, MeshWiring};
use muster_messages::protocol::{
    AgentMsg, IncomingCall, Named, NodeCredentials, RaftMemberMsg, RaftTransport, Service,
};
use muster_messages::wire::{MeshHello, PeerMessage, PeerReply, Refusal, Starts};
use muster_messages::*;
use muster_testkit::{ActorHarness, Probe, WAIT_LIMIT};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::client::{Client, envelope, hello_of};
use crate::node::{call, identity, node, packet};

const MESH: &str = "node/mesh";

fn peer(n: u128) -> String {
    format!("{MESH}/peer-{}", node(n))
}

/// All dials fail: the other managers connect by themselves.
struct NoListener;
impl Dial for NoListener {
    fn dial<'a>(&'a self, _: &'a str, _: Option<NodeId>, _: Option<&'a MeshHello>) -> Dialing<'a> {
        let failure = DialFailure { text: "no listener".to_owned(), refused_at_once: false, refusal: None };
        Box::pin(async { Err(failure) })
    }
}

/// Node 1's mesh in a cluster of three.
struct Fixture {
    harness: ActorHarness,
    raft: Probe<RaftMemberMsg>,
    agent: Probe<AgentMsg>,
    calls: mpsc::Receiver<IncomingCall>,
    mesh: MeshHandle,
    services: Services,
    renewals: watch::Sender<Arc<NodeCredentials>>,
    _replica: watch::Sender<Arc<Replica>>,
}

impl Fixture {
    async fn set() -> Self {
        Self::with_dialer(Arc::new(NoListener)).await
    }

    async fn with_dialer(dialer: Arc<dyn Dial>) -> Self {
        let fixture = Self::without_members(dialer).await;
        fixture.report_members();
        fixture
    }

    async fn without_members(dialer: Arc<dyn Dial>) -> Self {
        let harness = ActorHarness::start().await;
        let (raft, agent) = (harness.probe("raft-member"), harness.probe::<AgentMsg>("agent"));
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
        harness.start_actor(mesh.spec());
        for path in [MESH.to_owned(), format!("{MESH}/endpoint")] {
            harness.healthy(&path, 1).await;
        }
        let mesh = mesh.handle();
        Self { harness, raft, agent, calls, mesh, services, renewals, _replica: publish }
    }

    fn report_members(&self) {
        let member = |n: u64| Member { node: node(n.into()), raft_id: RaftId(n), addr: format!("n{n}"), voter: true };
        self.mesh.members((1..=3).map(member).collect(), Some(RaftId(1)));
    }

    /// Manager `n` opens a session, which is reported.
    async fn connect(&mut self, n: u8) -> Client {
        let client = self.hello(n, hello_of(n)).await.expect("the hello is accepted").open(n).await;
        self.session(n, true).await;
        client
    }
    /// A process with manager `n`'s certificate sends this hello.
    async fn hello(&self, n: u8, hello: MeshHello) -> Result<Client, Refusal> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (who, address) = (Some(identity(n.into())), ([127, 0, 0, 1], 1).into());
        let connection = Connection::detached(Box::pin(theirs), Service::Mesh, who, address);
        let sink = self.services.sink(Service::Mesh).expect("the mesh serves");
        assert!(sink.send(connection).await.is_ok(), "the mesh accepts the connection");
        Client::with_hello(hello, Box::pin(ours)).await.expect("the hello is answered")
    }
    /// The raft member is informed that a session is up or down.
    async fn session(&mut self, n: u8, is: bool) {
        let of = |msg: &RaftMemberMsg| match msg {
            RaftMemberMsg::PeerSession { node: of, up } => (*of, *up) == (node(n.into()), is),
            _ => false,
        };
        self.raft.until(&format!("a session with {n}: {is}"), of).await;
    }
    /// Manager `n` sends a message that reaches the raft member.
    async fn receives_from(&mut self, n: u8, client: &mut Client) {
        let sent = envelope(client.victim.tag, PeerMessage::Raft(vec![packet(n.into(), 1, 7, 1)]));
        assert_eq!(client.ask(&sent).await, Some(PeerReply::Taken));
        let its =
            |msg: &RaftMemberMsg| matches!(msg, RaftMemberMsg::FromPeer { node: of, .. } if *of == node(n.into()));
        self.raft.until("its message", its).await;
    }
    /// Calls manager 2, which does not answer.
    async fn asks(&self, second: &mut Client) -> JoinHandle<Result<Vec<u8>, ErrorBody>> {
        let mesh = self.mesh.clone();
        let asked = tokio::spawn(async move { mesh.call(node(2), WAIT_LIMIT, call("you")).await });
        second.called().await.expect("a call");
        asked
    }
    fn send(&self, n: u64, index: u64) {
        self.mesh.send(node(n.into()), "", vec![packet(1, n, index, 1)]);
    }
    /// Fills the window of messages to `n`; the rest waits.
    async fn send_more_than_the_window(&self, n: u64) {
        for index in 1..=MESSAGE_COUNT {
            self.send(n, index);
        }
        let waits = |actor: &ActorNode| actor.view["window"]["raft"][0] == 8 && actor.mailbox == 0;
        let peer = self.harness.until(&peer(n.into()), "its window is full", waits).await;
        assert!(peer.view["backlog_bytes"].as_u64() > Some(0), "{}", peer.view);
    }
}

const MESSAGE_COUNT: u64 = 30;

/// Receives this many Raft messages and returns their indices.
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
async fn peer_session_carries_calls_and_cleans_up() {
    let mut fixture = Fixture::set().await;
    let mut client = fixture.connect(2).await;
    fixture.receives_from(2, &mut client).await;
    let asked = envelope(client.victim.tag, PeerMessage::Call(call("who")));
    let service = async {
        let incoming = fixture.calls.recv().await.expect("a call");
        assert_eq!(incoming.forwarder, node(2));
        let _gone = incoming.reply.send(Ok(b"me".to_vec()));
    };
    let (answer, ()) = tokio::join!(client.ask(&asked), service);
    assert_eq!(answer, Some(PeerReply::Answer(Ok(b"me".to_vec()))));

    fixture.send(2, 1);
    assert_eq!(take(&mut client, 1).await, [1]);
    let asks = fixture.mesh.call(node(2), WAIT_LIMIT, call("you"));
    let answers = async {
        let (number, message) = client.called().await.expect("a call");
        assert_eq!(message, PeerMessage::Call(call("you")));
        client.answer(number, &PeerReply::Answer(Ok(b"it".to_vec()))).await;
    };
    assert_eq!(tokio::join!(asks, answers).0, Ok(b"it".to_vec()));
    let view = fixture.harness.tree().inspect(MESH).await.expect("it runs").view;
    let up: Vec<bool> = view["peers"].as_array().expect("peers").iter().map(|peer| peer["state"] == "up").collect();
    assert_eq!(up.iter().filter(|up| **up).count(), 1, "{view:#}");

    fixture.harness.finish().await;
    assert!(!fixture.services.serves(Service::Mesh));
    client.wait_end().await;
}

/// The number of the check that follows a message without an answer.
async fn check_after_silence(fixture: &Fixture, client: &mut Client) -> u64 {
    fixture.send(2, 1);
    let _unanswered = client.called().await.expect("a message");
    let (number, check) = client.called().await.expect("a check, once its deadline has passed");
    assert_eq!(check, PeerMessage::Raft(vec![]));
    number
}

/// B7. The manager was late itself, as after a suspension: what it waited for had not been read yet.
#[tokio::test(start_paused = true)]
async fn session_ends_only_after_an_unanswered_check() {
    let mut fixture = Fixture::set().await;
    let mut client = fixture.connect(2).await;
    let number = check_after_silence(&fixture, &mut client).await;
    client.answer(number, &PeerReply::Taken).await;
    fixture.send(2, 2);
    assert_eq!(take(&mut client, 1).await, [2], "the session continues");
    fixture.send(2, 3);
    for _ in ["the message", "the check"] {
        let _unanswered = client.called().await.expect("a call");
    }
    fixture.session(2, false).await;
    client.wait_end().await;
    let view = fixture.harness.tree().inspect(MESH).await.expect("it runs").view;
    assert_eq!(view["sessions_ended"]["unanswered"], 1, "{view:#}");
    fixture.harness.finish().await;
}

/// The check would stay pending, and the peer would never be checked again.
#[tokio::test(start_paused = true)]
async fn unreadable_answer_to_a_check_ends_the_session() {
    let mut fixture = Fixture::set().await;
    let mut client = fixture.connect(2).await;
    let number = check_after_silence(&fixture, &mut client).await;
    client.answer_bytes(number, &[255; 9]).await;
    fixture.session(2, false).await;
    let view = fixture.harness.tree().inspect(MESH).await.expect("it runs").view;
    assert_eq!(view["sessions_ended"], serde_json::json!({"closed": 1}));
    fixture.harness.finish().await;
}

/// All dials are refused once the test allows it.
struct Refusing {
    dialled: watch::Sender<bool>,
    now: watch::Receiver<bool>,
}
impl Dial for Refusing {
    fn dial<'a>(&'a self, _: &'a str, _: Option<NodeId>, _: Option<&'a MeshHello>) -> Dialing<'a> {
        let mut now = self.now.clone();
        self.dialled.send_replace(true);
        Box::pin(async move {
            let _allowed = now.wait_for(|now| *now).await;
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

/// Attributed to the new certificate, it would fence off the node permanently: nothing is newer than that.
#[tokio::test(start_paused = true)]
async fn late_refusal_is_attributed_to_the_old_certificate() {
    let (now, allowed) = watch::channel(false);
    let (dialled, mut dials) = watch::channel(false);
    let mut fixture = Fixture::with_dialer(Arc::new(Refusing { dialled, now: allowed })).await;
    dials.wait_for(|dials| *dials).await.expect("a dial");
    let old = identity(1).serial;
    let newer = |own: &NodeCredentials| NodeCredentials {
        identity: CertIdentity { serial: "newer".to_owned(), ..own.identity.clone() },
        ..own.clone()
    };
    fixture.renewals.send_modify(|own| *own = Arc::new(newer(own)));
    now.send_replace(true);
    let sent = fixture.agent.next("the refusal").await;
    let AgentMsg::RefusedByPeer { serial, .. } = sent else { panic!("{}", sent.name()) };
    assert_eq!(serial, Some(old));
    fixture.harness.finish().await;
}

/// E45. A manager that accepted it without a member id would later accept a copy of its directory instead.
#[tokio::test(start_paused = true)]
async fn hello_waits_for_own_member_id() {
    let fixture = Fixture::without_members(Arc::new(NoListener)).await;
    let opens = async {
        let waits = |mesh: &ActorNode| mesh.view["hellos_under_way"] == 1;
        fixture.harness.until(MESH, "the hello waits", waits).await;
        fixture.report_members();
    };
    let (client, ()) = tokio::join!(fixture.hello(2, hello_of(2)), opens);
    assert_eq!(client.expect("the hello is accepted").victim.raft_id, Some(RaftId(1)));
    fixture.harness.finish().await;
}

/// E45. Every process of a new manager gets its member id in the session that it already has.
#[tokio::test(start_paused = true)]
async fn copy_is_refused_after_original_got_its_member_id() {
    let mut fixture = Fixture::set().await;
    let process = |start, raft_id| MeshHello { starts: Starts::first(2).next(start), raft_id, ..hello_of(2) };
    let mut original = fixture.hello(2, process(7, None)).await.expect("the hello is accepted").open(2).await;
    fixture.session(2, true).await;
    let member_id = envelope(original.victim.tag, PeerMessage::Membership(RaftId(2)));
    assert_eq!(original.ask(&member_id).await, Some(PeerReply::Taken));
    fixture.receives_from(2, &mut original).await;
    drop(original);
    fixture.session(2, false).await;

    let duplicate = MeshHello { advertise: "elsewhere".to_owned(), ..process(8, Some(RaftId(2))) };
    let refusal = fixture.hello(2, duplicate).await.err().expect("a refusal: its earlier votes are unknown");
    assert_eq!(refusal.reason, RefusalReason::Duplicate);
    assert!(refusal.message.contains("a copy of an older state"), "{refusal}");
    fixture.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crashed_peer_actor_keeps_its_session() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut fixture = Fixture::set().await;
        let (mut second, mut third) = (fixture.connect(2).await, fixture.connect(3).await);
        fixture.send_more_than_the_window(3).await;
        let asked = fixture.asks(&mut second).await;
        fixture.harness.crash(&peer(2), how);
        assert_eq!(asked.await.expect("no panic").unwrap_err().code, ErrorCode::Unreachable, "the caller is informed");
        fixture.harness.healthy(&peer(2), 2).await;
        fixture.session(2, true).await;
        fixture.send(2, 1);
        assert_eq!(take(&mut second, 1).await, [1], "in the same session");
        fixture.receives_from(2, &mut second).await;
        let all: Vec<u64> = (1..=MESSAGE_COUNT).collect();
        assert_eq!(take(&mut third, all.len()).await, all, "the waiting messages, in order");
        let received = fixture.harness.journal();
        assert!(!received.iter().any(|line| line.contains("unreachable")), "{received:#?}");
        fixture.harness.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn crashed_endpoint_ends_sessions_and_reports_losses() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut fixture = Fixture::set().await;
        let (mut second, mut third) = (fixture.connect(2).await, fixture.connect(3).await);
        fixture.send_more_than_the_window(3).await;
        let endpoint = format!("{MESH}/endpoint");
        fixture.harness.crash(&endpoint, how);
        for (n, client) in [(2, &mut second), (3, &mut third)] {
            client.wait_end().await;
            fixture.session(n, false).await;
        }
        let lost = |msg: &RaftMemberMsg| matches!(msg, RaftMemberMsg::Unreachable { to: RaftId(3) });
        fixture.raft.until("the waiting messages are lost", lost).await;
        fixture.harness.healthy(&endpoint, 2).await;
        for n in [2, 3] {
            let mut again = fixture.connect(n).await;
            fixture.receives_from(n, &mut again).await;
            fixture.send(n.into(), 99);
            assert_eq!(take(&mut again, 1).await, [99], "no old message arrives");
        }
        let restarts = fixture.harness.tree().inspect(MESH).await.expect("it runs").incarnation;
        assert_eq!(restarts, 1, "no other actor restarted");
        fixture.harness.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn crashed_mesh_restarts_with_its_members() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut fixture = Fixture::set().await;
        let (mut second, mut third) = (fixture.connect(2).await, fixture.connect(3).await);
        fixture.send_more_than_the_window(3).await;
        let asked = fixture.asks(&mut second).await;
        fixture.harness.crash(MESH, how);
        assert_eq!(asked.await.expect("no panic").unwrap_err().code, ErrorCode::Unreachable, "the caller is informed");
        for client in [&mut second, &mut third] {
            client.wait_end().await;
        }
        fixture.harness.healthy(MESH, 2).await;
        for n in [2, 3] {
            fixture.harness.healthy(&peer(n), 1).await; // the members that the raft member last reported
        }
        for n in [2, 3] {
            let mut again = fixture.connect(n).await;
            fixture.receives_from(n, &mut again).await;
            fixture.send(n.into(), 99);
            assert_eq!(take(&mut again, 1).await, [99]);
        }
        fixture.harness.finish().await;
    }
}
