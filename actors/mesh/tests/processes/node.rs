//! A node in its own process: a real mesh over loopback TCP with made-up identities, driven by lines on stdin, which prints
//! its events as lines on stdout. (Pids and process groups are process-wide: one mesh per process.)

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{BoxStream, Connection, Framed, Services};
use muster_kernel::Recipient;
use muster_mesh::{Dial, DialFailure, DialedPeer, Dialing, Mesh, MeshConfig, MeshHandle, MeshWiring};
use muster_messages::protocol::{
    IncomingCall, NodeCredentials, RaftMemberMsg, RaftTransport, Service, SnapshotOutcome,
};
use muster_messages::wire::{
    EntryKind, MembershipRequest, MeshHello, PacketKind, PeerCall, RaftEntry, RaftPacket, Request, SnapshotHead, Starts,
};
use muster_messages::*;
use muster_testkit::ActorHarness;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub const CLUSTER: u128 = 77;

pub fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}
fn number_of(id: NodeId) -> u128 {
    (0..100).find(|n| node(*n) == id).expect("tests use small numbers")
}
/// The content of a certificate. Each connection authenticates with one byte: the number of the node.
pub fn identity(n: u128) -> CertIdentity {
    CertIdentity {
        cluster: ClusterId::from_entropy(CLUSTER),
        subject: Subject::Node { node: node(n), role: Role::Manager },
        serial: format!("{n:02x}"),
        granted: None,
        incarnation: Incarnation(0),
        not_after: WallTime(i64::MAX),
        pin: None,
        issuer: None,
    }
}
fn print_line(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{line}").and_then(|()| out.flush()).expect("the parent reads");
}

struct PlainDial(u8);
impl Dial for PlainDial {
    fn dial<'a>(&'a self, addr: &'a str, expect: Option<NodeId>, hello: Option<&'a MeshHello>) -> Dialing<'a> {
        Box::pin(async move {
            let failure = |e: std::io::Error| DialFailure {
                text: e.to_string(),
                refused_at_once: e.kind() == std::io::ErrorKind::ConnectionRefused,
                refusal: None,
            };
            let mut stream = TcpStream::connect(addr).await.map_err(failure)?;
            stream.write_u8(self.0).await.map_err(failure)?;
            let theirs = stream.read_u8().await.map_err(failure)?;
            if expect.is_some_and(|expect| node(theirs.into()) != expect) {
                return Err(DialFailure { text: "another node".into(), refused_at_once: false, refusal: None });
            }
            let mut stream = Framed::new(Box::pin(stream) as BoxStream);
            if let Some(hello) = hello {
                let _closed = stream.send(hello).await;
            }
            Ok(DialedPeer { stream: stream.into_inner(), identity: identity(theirs.into()), remote: addr.to_owned() })
        })
    }
}

async fn listen(own: u8, services: Services, background: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("bound");
    background.spawn(async move {
        let mut greeting = JoinSet::new();
        while let Ok((mut stream, remote)) = listener.accept().await {
            let services = services.clone();
            greeting.spawn(async move {
                let theirs = stream.read_u8().await?;
                stream.write_u8(own).await?;
                let identity = Some(identity(theirs.into()));
                let connection = Connection::detached(Box::pin(stream), Service::Mesh, identity, remote);
                if let Some(sink) = services.sink(Service::Mesh) {
                    let _gone = sink.send(connection).await;
                }
                std::io::Result::Ok(())
            });
        }
    });
    addr
}

pub fn packet(from: u64, to: u64, index: u64, bytes: usize) -> RaftPacket {
    let entry = RaftEntry { kind: EntryKind::Normal, term: 1, index, data: vec![7; bytes], context: vec![] };
    RaftPacket {
        kind: PacketKind::Append,
        from: RaftId(from),
        to: RaftId(to),
        term: 1,
        log_term: 1,
        index,
        commit: 0,
        commit_term: 0,
        entries: vec![entry],
        snapshot: None,
        request_snapshot: 0,
        reject: false,
        reject_hint: 0,
        context: vec![],
        priority: 0,
    }
}

fn raft_probe() -> Recipient<RaftMemberMsg> {
    Recipient::new(|msg| {
        match msg {
            RaftMemberMsg::FromPeer { node, packets, .. } => {
                let last = packets.last().map_or(0, |p| p.index);
                print_line(format_args!("packets {} {} {last}", number_of(node), packets.len()));
            }
            RaftMemberMsg::SnapshotReceived { node, data, .. } => {
                print_line(format_args!("snapshot {} {}", number_of(node), data.len()));
            }
            RaftMemberMsg::SnapshotSent { outcome, .. } => {
                print_line(format_args!("sent {}", outcome == SnapshotOutcome::Delivered));
            }
            RaftMemberMsg::PeerSession { node, up } => {
                print_line(format_args!("session {} {}", number_of(node), if up { "up" } else { "down" }));
            }
            RaftMemberMsg::LeaderGone { node } => print_line(format_args!("leader_gone {}", number_of(node))),
            _ => {}
        }
        Ok(())
    })
}

pub fn call(text: &str) -> PeerCall {
    PeerCall::Membership {
        node: node(0),
        request: MembershipRequest {
            advertise: text.to_owned(),
            held: None,
            data_lost: None,
            feature_level: FEATURE_LEVEL,
        },
    }
}

/// Of a client, with so many bytes, and never answered.
fn call_of_client(bytes: usize) -> PeerCall {
    PeerCall::Api {
        caller: Principal::Node(node(0)),
        request_id: RequestId(1),
        timeout_ms: 30_000,
        request: Request::NodeInspect { node: "x".repeat(bytes), fresh: true },
    }
}

async fn answer(mut calls: mpsc::Receiver<IncomingCall>) {
    let mut held = Vec::new();
    while let Some(IncomingCall { call, reply, .. }) = calls.recv().await {
        let PeerCall::Membership { request, .. } = call else {
            held.push(reply); // a client's
            continue;
        };
        if request.advertise.starts_with("hold") {
            held.push(reply);
        } else {
            let _gone = reply.send(Ok(request.advertise.into_bytes()));
        }
    }
}

struct Running {
    own: u64,
    mesh: MeshHandle,
    replica: watch::Sender<Arc<Replica>>,
    harness: ActorHarness,
    /// Tasks around the mesh: listener, services, calls of the test.
    background: JoinSet<()>,
}

pub fn run(own: u8, idle: Duration, hints: Vec<String>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(serve(own, idle, hints));
}

async fn serve(own: u8, idle: Duration, hints: Vec<String>) {
    let services = Services::new();
    let credentials = NodeCredentials {
        cert_pem: String::new(),
        key_pem: Secret::new(""),
        root_pem: String::new(),
        identity: identity(own.into()),
    };
    let (_renewals, credentials) = watch::channel(Arc::new(credentials));
    let (replica, replica_rx) = watch::channel(Arc::new(Replica::default()));
    let (calls, incoming) = mpsc::channel(256);
    let (harness, mut background) = (ActorHarness::start().await, JoinSet::new());
    background.spawn(answer(incoming));
    let wiring = MeshWiring {
        starts: Starts::first(own.into()),
        advertise: String::new(),
        credentials,
        replica: replica_rx,
        raft: raft_probe(),
        calls,
        agent: Recipient::new(|_| Ok(())),
        dialer: Arc::new(PlainDial(own)),
        services: services.clone(),
        hints,
    };
    let mesh = Mesh::new(MeshConfig { idle, ..MeshConfig::default() }, wiring);
    harness.start_actor(mesh.spec());
    harness.healthy("node/mesh", 1).await;
    // As the raft member reports while it has no member id.
    mesh.handle().members(vec![], None);
    let addr = listen(own, services, &mut background).await;
    let mut running = Running { own: own.into(), mesh: mesh.handle(), replica, harness, background };
    print_line(format_args!("listening {addr}"));

    let (lines, mut commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if lines.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0); // the parent has ended
    });
    while let Some(line) = commands.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        if words == ["finish"] {
            running.background.shutdown().await;
            return running.harness.finish().await;
        }
        running.execute(&words).await;
    }
}

fn parse<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("bad word {word}"))
}

impl Running {
    async fn execute(&mut self, words: &[&str]) {
        match words {
            ["members", members @ ..] => {
                let member = |word: &&str| {
                    let (n, addr) = word.split_once('@').expect("n@addr");
                    let member_id = parse(n);
                    Member { node: node(parse(n)), raft_id: RaftId(member_id), addr: addr.to_owned(), voter: true }
                };
                let members: Vec<Member> = members.iter().map(member).collect();
                self.replica.send_modify(|r| {
                    let tables = &mut Arc::make_mut(r).tables;
                    tables.members = members.iter().map(|m| (m.raft_id, m.clone())).collect();
                });
                self.mesh.members(members, Some(RaftId(self.own)));
            }
            ["demoted", n] => self.replica.send_modify(|r| {
                let tables = &mut Arc::make_mut(r).tables;
                let record = NodeRecord::new(node(parse(n)), Name::sanitized("n"), Role::Worker, WallTime(0));
                tables.nodes.insert(record.id, Arc::new(record));
            }),
            ["leader", n] => self.replica.send_modify(|r| Arc::make_mut(r).raft.leader_node = Some(node(parse(n)))),
            ["raft", to, count, bytes] => {
                let (to, bytes) = (parse(to), parse(bytes));
                for index in 1..=parse(count) {
                    self.mesh.send(node(to), "", vec![packet(self.own, to as u64, index, bytes)]);
                    tokio::task::yield_now().await;
                }
            }
            // With another member id.
            ["forge", to, member_id] => {
                let (to, member_id) = (parse(to), parse(member_id));
                self.mesh.send(node(to), "", vec![packet(member_id, to as u64, 1, 1)]);
            }
            ["snapshot", to, bytes] => {
                let (to, data) = (parse(to), vec![9u8; parse(bytes)]);
                let head = SnapshotHead {
                    index: 5,
                    term: 1,
                    voters: vec![1, 2],
                    learners: vec![],
                    bytes: data.len() as u64,
                    digest: Sha256::digest(&data).into(),
                };
                let mut packet = packet(self.own, to as u64, 5, 0);
                packet.kind = PacketKind::Snapshot;
                packet.entries.clear();
                packet.snapshot = Some(head.clone());
                self.mesh.send_snapshot(node(to), "", head, Arc::new(data), packet);
            }
            ["call", to, text] => {
                let (mesh, to, text) = (self.mesh.clone(), node(parse(to)), (*text).to_owned());
                // Held calls are not answered.
                let deadline = Duration::from_secs(if text == "hold" { 3 } else { 20 });
                self.background.spawn(async move {
                    match mesh.call(to, deadline, call(&text)).await {
                        Ok(bytes) => print_line(format_args!("answer ok {}", String::from_utf8_lossy(&bytes))),
                        Err(error) => print_line(format_args!("answer {}", error.code)),
                    }
                });
            }
            ["clients", to, count, bytes] => {
                for _ in 0..parse(count) {
                    let (mesh, to, call) = (self.mesh.clone(), node(parse(to)), call_of_client(parse(bytes)));
                    self.background.spawn(async move {
                        let ended = mesh.call(to, Duration::from_secs(30), call).await;
                        print_line(format_args!(
                            "client {}",
                            ended.err().map_or("ok".to_owned(), |e| e.code.to_string())
                        ));
                    });
                }
            }
            // Not answered before their deadline.
            ["hold", to, count, bytes] => {
                let (to, text) = (node(parse(to)), format!("hold{}", "x".repeat(parse(bytes))));
                for _ in 0..parse(count) {
                    let (mesh, call) = (self.mesh.clone(), call(&text));
                    self.background.spawn(async move {
                        let ended = mesh.call(to, Duration::from_secs(30), call).await.map_err(|error| error.code);
                        print_line(format_args!(
                            "held {}",
                            ended.err().map_or("ok".to_owned(), |code| code.to_string())
                        ));
                    });
                }
            }
            ["probe", addr, expect] => {
                let (addr, expect) = ((*addr).to_owned(), node(parse(expect)));
                let msg = |reply| protocol::MeshMsg::Probe { addr, expect, reply };
                let probed = self.mesh.recipient().ask(Duration::from_secs(60), msg).await.expect("the mesh answers");
                print_line(format_args!("probe {}", probed.map_or_else(|e| e.code.to_string(), |()| "ok".to_owned())));
            }
            ["crash", path] => self.harness.crash(path, CrashHow::Panic),
            ["view", path] => {
                let mut view = serde_json::json!({});
                // A restarting actor has no view yet.
                if let Ok(node) = self.harness.tree().inspect(path).await
                    && node.view.is_object()
                {
                    view = node.view;
                    view["incarnation"] = node.incarnation.into();
                }
                print_line(format_args!("view {view}"));
            }
            _ => panic!("unknown command {words:?}"),
        }
    }
}
