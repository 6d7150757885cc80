//! The API as an actor, before a raft member that is a probe or a closure, with clients on in-memory pipes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request as HttpRequest, StatusCode};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use muster_gateway::{BoxStream, Connection, Kill};
use muster_kernel::{Address, Spec};
use muster_messages::protocol::{Named as _, RaftMemberMsg, Service as Port};
use muster_messages::wire::{self, ApiAnswer, ApiCall, KubeCall, ReconcilerRequest, Refusal, Request};
use muster_messages::{
    CertIdentity, ClusterId, CrashHow, ErrorCode, Incarnation, Member, NodeId, Principal, Progress, RaftId,
    RefusalReason, RequestId, Role, Subject, WallTime, Word,
};
use muster_testkit::{ActorHarness, Probe, WAIT_LIMIT, answered, eventually, eventually_some};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::*;
use crate::native::REFUSAL_PAUSE;
use crate::service::MAX_STOP_CHECKS;
use crate::tests::{TERM, World, leading, runtime, service, tables, triple, users};
use crate::{ApiLimits, ManagerPorts};

const PATH: &str = "node/api";

/// The actor, and the channel on which the gateway hands it connections.
struct Stage {
    harness: ActorHarness,
    service: Service,
    gateway: mpsc::Sender<Connection>,
}

impl Stage {
    async fn set(service: Service, socket: Option<AdminSocket>) -> Self {
        let harness = ActorHarness::start().await;
        let (gateway, incoming) = mpsc::channel(64);
        let (incoming, socket, ours) = (Arc::new(Mutex::new(incoming)), socket.map(Arc::new), service.clone());
        let make = move || {
            let operator: Caller = Arc::new(|| Principal::Operator);
            Ok(ApiShell::new(ours.clone(), Arc::clone(&incoming), socket.clone(), operator))
        };
        harness.start_actor(Spec::actor("api", Address::new(8), make));
        harness.healthy(PATH, 1).await;
        Self { harness, service, gateway }
    }

    /// A client with this certificate, or none.
    async fn connect(&self, port: Port, subject: Option<Subject>, refused: Option<Refusal>) -> DuplexStream {
        self.connect_with_switch(port, subject, refused).await.0
    }
    /// The same, and what the gateway ends the connection with.
    async fn connect_with_switch(
        &self,
        port: Port,
        subject: Option<Subject>,
        refused: Option<Refusal>,
    ) -> (DuplexStream, Kill) {
        let (ours, theirs) = tokio::io::duplex(16 * 1024);
        let identity = |subject| CertIdentity {
            cluster: ClusterId::from_entropy(1),
            subject,
            serial: String::new(),
            granted: None,
            incarnation: Incarnation(1),
            not_after: WallTime(0),
            pin: None,
            issuer: None,
        };
        let (stream, address): (BoxStream, _) = (Box::pin(theirs), ([127, 0, 0, 1], 1).into());
        let connection = Connection::detached(stream, port, subject.map(identity), address);
        let connection = Connection { refused, ..connection };
        let kill = connection.kill.clone();
        assert!(self.gateway.send(connection).await.is_ok(), "the API accepts the connection");
        (ours, kill)
    }
    async fn native(&self, subject: &Subject) -> Framed<DuplexStream> {
        Framed::new(self.connect(Port::Api, Some(subject.clone()), None).await)
    }
    /// An HTTP/2 client, and the task that drives its connection.
    async fn http2(&self, subject: &Subject) -> (http2::SendRequest<Body>, JoinHandle<()>) {
        let stream = TokioIo::new(self.connect(Port::Http, Some(subject.clone()), None).await);
        let (client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        (client, tokio::spawn(async move { drop(connection.await) }))
    }

    fn in_progress(&self) -> u64 {
        self.service.counters.in_progress.load(Ordering::Relaxed)
    }
}

fn admin() -> Subject {
    Subject::Admin("eve".parse().unwrap())
}

/// A leading manager whose raft member is this probe. It leads until the last returned value is dropped.
fn leader(raft: &Probe<RaftMemberMsg>) -> (Service, impl Sized + use<>) {
    let published = watch::Sender::new(leading(tables()));
    let in_force: watch::Sender<Option<Arc<ManagerPorts>>> =
        watch::Sender::new(Some(runtime(published.subscribe(), raft.recipient())));
    (service(in_force.subscribe()), (published, in_force))
}

/// Confirms all reads from now on, pending ones first.
fn confirm(raft: &mut Probe<RaftMemberMsg>) {
    let confirmed = |msg| match msg {
        RaftMemberMsg::Read { reply, .. } => answered(reply, Ok(leading(tables()))),
        other => Some(other),
    };
    raft.on(confirmed);
    assert!(raft.drain().into_iter().filter_map(confirmed).next().is_none(), "only reads");
}

fn call(request: Request) -> ApiCall {
    ApiCall { id: u64::MAX, request_id: RequestId(u128::MAX), timeout_ms: 5_000, request }
}

/// A call whose frame has this many bytes.
fn of_size(bytes: usize) -> ApiCall {
    let with = |text: usize| call(Request::NodeInspect { node: "x".repeat(text), fresh: false });
    let text = bytes - 100;
    let around = wire::encode(&with(text)).unwrap().len() - text;
    let call = with(bytes - around);
    assert_eq!(wire::encode(&call).unwrap().len(), bytes);
    call
}

/// Whether the holder of this certificate gets an answer rather than a closed connection.
async fn is_answered(stage: &Stage, subject: &Subject, call: &ApiCall) -> bool {
    let mut client = stage.native(subject).await;
    let talk = async {
        client.send(call).await.ok()?;
        client.recv::<ApiAnswer>().await.ok()?
    };
    timeout(WAIT_LIMIT, talk).await.expect("an answer or the end of the connection").is_some()
}

#[tokio::test(start_paused = true)]
async fn only_an_operator_sends_large_frames() {
    let stage = Stage::set(World::new().service, None).await;
    let node = Subject::Node { node: NodeId::from_entropy(2), role: Role::Worker };
    let user = Subject::User("ann".parse().unwrap());
    for (subject, kib) in [(user, 64), (node, 96), (admin(), 640)] {
        assert!(is_answered(&stage, &subject, &of_size(kib * 1024)).await, "{subject:?}: {kib} KiB");
        assert!(!is_answered(&stage, &subject, &of_size(kib * 1024 + 1)).await, "{subject:?}: more than {kib} KiB");
    }
    stage.harness.finish().await;
}

/// A worker forwards what it received over HTTP, header and body.
#[tokio::test(start_paused = true)]
async fn largest_request_of_a_node_fits_its_frame() {
    let text = |bytes: usize| "x".repeat(bytes);
    let id = NodeId::from_entropy(1);
    let report = |output| Progress {
        reconciler: text(63),
        term: TERM,
        node: id,
        release: triple("2.0.0").into(),
        phase: Word::Other(text(64)),
        reason: Word::Other(text(64)),
        message: text(2 * 1024),
        since: WallTime(0),
        attempt: u32::MAX,
        consecutive_failures: u32::MAX,
        last_error: Some(text(2 * 1024)),
        next_retry_at: Some(WallTime(0)),
        wave: Some((u32::MAX, u32::MAX)),
        output: text(output),
    };
    let output = 64 * 1024;
    assert!(muster_gates::fault_of_progress(&report(output)).is_none());
    assert!(muster_gates::fault_of_progress(&report(output + 1)).is_some(), "so this is the largest report");
    let written = KubeCall {
        method: "PUT".to_owned(),
        target: text(16 * 1024),
        content_type: None,
        accept: None,
        user_agent: None,
        body: vec![b' '; ApiLimits::default().body],
    };
    let stage = Stage::set(World::new().service, None).await;
    let node = Subject::Node { node: id, role: Role::Manager };
    for request in
        [Request::Reconciler(ReconcilerRequest::Progress { progress: report(output) }), Request::Kube(written)]
    {
        assert!(is_answered(&stage, &node, &call(request)).await);
    }
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn rejected_native_connection_gets_retry_after_and_is_paced() {
    let stage = Stage::set(World::new().service, None).await;
    let ann = Subject::Admin("ann".parse().unwrap());
    let mut permits = Vec::new();
    while let Ok(permit) = stage.service.enter(&Principal::Admin("ann".parse().unwrap()), false) {
        permits.push(permit);
    }
    let (mut client, began) = (stage.native(&ann).await, tokio::time::Instant::now());
    for _ in 0..10 {
        client.send(&call(Request::Contact)).await.unwrap();
        let answer: ApiAnswer = client.recv().await.unwrap().unwrap();
        let refused = answer.result.unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (ErrorCode::TooManyRequests, Some(500)));
    }
    assert!(began.elapsed() >= Duration::from_millis(90), "refused as fast as it asks: {:?}", began.elapsed());
    let overloaded = stage.harness.tree().inspect(PATH).await.unwrap().view["overloaded"].clone();
    assert!(overloaded.as_u64() >= Some(10), "the tree shows the refusals: {overloaded}");
    drop(permits);
    client.send(&call(Request::Contact)).await.unwrap();
    assert!(client.recv::<ApiAnswer>().await.unwrap().unwrap().result.is_ok());
    stage.harness.finish().await;
}

/// One certificate opens hundreds of connections, and need not read from any.
#[tokio::test]
async fn unread_long_native_answers_of_a_caller_are_bounded() {
    let world = World::applying(tables());
    let body = serde_json::json!({"text": "x".repeat(80 * 1024)}).to_string();
    let put = ReconcilerRequest::ObjectPut { key: users(), labels: Default::default(), body };
    let (status, answer, _) = world.reconciler(&Principal::Operator, put).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let stage = Stage::set(world.service.clone(), None).await;
    let get = || call(Request::Reconciler(ReconcilerRequest::ObjectGet { key: users() }));
    let asked = async |name: &str| {
        let mut client = stage.native(&Subject::Admin(name.parse().unwrap())).await;
        client.send(&get()).await.unwrap();
        client
    };
    let mut unread = Vec::new();
    for _ in 0..20 {
        unread.push(asked("eve").await);
    }
    let overloaded = || stage.service.counters.overloaded.load(Ordering::Relaxed);
    eventually("all but sixteen are refused", || overloaded() == 4).await;
    let answer: ApiAnswer = asked("bob").await.recv().await.unwrap().unwrap();
    assert!(answer.result.is_ok(), "others have a share of their own");
    drop(unread);
    let read = async || asked("eve").await.recv::<ApiAnswer>().await.unwrap().unwrap().result.ok();
    eventually_some("closed connections return theirs", read).await;
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn http_client_refused_by_gateway_learns_when_to_retry() {
    use RefusalReason as R;
    let without_runtime = watch::Sender::new(None);
    for node in [World::new().service, service(without_runtime.subscribe())] {
        let stage = Stage::set(node, None).await;
        for (reason, retry_after_ms, expected) in [
            (R::TooManyRequests, Some(200), StatusCode::TOO_MANY_REQUESTS),
            (R::NotKnownHereYet, Some(200), StatusCode::SERVICE_UNAVAILABLE),
            (R::Unauthenticated, None, StatusCode::FORBIDDEN),
        ] {
            for path in ["/v1/nodes", "/api/v1/namespaces/default/configmaps"] {
                let refusal = Refusal { reason, message: "not now".to_owned(), managers: Vec::new(), retry_after_ms };
                // The node's own identity, for which a worker vouches.
                let own = Subject::Node { node: NodeId::from_entropy(1), role: Role::Worker };
                let mut client = stage.connect(Port::Http, Some(own), Some(refusal)).await;
                let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
                client.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.unwrap();
                assert!(answer.starts_with(&format!("HTTP/1.1 {} ", expected.as_u16())), "{path}: {answer}");
                assert!(answer.contains("not now"), "{path}: {answer}");
                assert_eq!(answer.contains("retry-after: 1\r\n"), retry_after_ms.is_some(), "{path}: {answer}");
            }
        }
        stage.harness.finish().await;
    }
}

fn certificates() -> HttpRequest<Body> {
    HttpRequest::get("http://muster/v1/certificates").body(Body::empty()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn http2_connection_has_bounded_requests_in_flight() {
    const MAX_IN_FLIGHT: usize = 128;
    let mut raft = Probe::new("raft-member");
    let (service, _leads) = leader(&raft);
    let stage = Stage::set(service, None).await;
    let (client, driver) = stage.http2(&admin()).await;
    let mut asked = JoinSet::new();
    for _ in 0..1000 {
        let mut client = client.clone();
        asked.spawn(async move { client.send_request(certificates()).await.unwrap().status() });
    }
    eventually("MAX_IN_FLIGHT requests are in progress", || raft.waiting() == MAX_IN_FLIGHT).await;
    // Paused time advances only when all tasks are idle.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (raft.waiting(), stage.in_progress()),
        (MAX_IN_FLIGHT, MAX_IN_FLIGHT as u64),
        "the others wait at the client"
    );
    confirm(&mut raft);
    let statuses = asked.join_all().await;
    assert!(statuses.len() == 1000 && statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}");
    drop(client);
    driver.await.unwrap();
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn rejected_http2_connection_gets_retry_after_and_is_paced() {
    const REQUESTS_SENT: u32 = 100;
    let raft = Probe::new("raft-member");
    let (service, _leads) = leader(&raft);
    let stage = Stage::set(service, None).await;
    let mut permits = Vec::new();
    while let Ok(permit) = stage.service.enter(&Principal::Admin("eve".parse().unwrap()), false) {
        permits.push(permit);
    }
    let ((client, driver), began) = (stage.http2(&admin()).await, tokio::time::Instant::now());
    for round in 0..3 {
        let mut asked = JoinSet::new();
        for _ in 0..REQUESTS_SENT {
            let mut client = client.clone();
            asked.spawn(async move { client.send_request(certificates()).await.unwrap() });
        }
        for refused in asked.join_all().await {
            let later = refused.headers()["retry-after"].to_str().unwrap();
            assert_eq!((refused.status(), later), (StatusCode::TOO_MANY_REQUESTS, "1"));
        }
        assert!(
            began.elapsed() >= REFUSAL_PAUSE * REQUESTS_SENT * round,
            "a pause for each refusal: {:?}",
            began.elapsed()
        );
    }
    assert_eq!(raft.waiting(), 0);
    drop((client, permits));
    driver.await.unwrap();
    stage.harness.finish().await;
}

/// K2.11: by the gateway, which evicts it, and by the end of the API. A client that gets no GOAWAY cannot tell which of its writes were
/// carried out.
#[tokio::test(start_paused = true)]
async fn http2_connection_ends_after_what_it_received() {
    for api_stops in [false, true] {
        let mut raft = Probe::new("raft-member");
        let (service, _leads) = leader(&raft);
        let stage = Stage::set(service, None).await;
        let (stream, kill) = stage.connect_with_switch(Port::Http, Some(admin()), None).await;
        let (mut client, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let driver = tokio::spawn(driver);
        let mut asking = client.clone();
        let asked =
            tokio::spawn(async move { asking.send_request(certificates()).await.map(|answer| answer.status()) });
        eventually("the request is in progress", || raft.waiting() == 1).await;
        let Stage { harness, .. } = stage;
        let client = async {
            // Paused time advances only when all tasks are idle.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let unsent = client.send_request(certificates()).await.unwrap_err();
            assert!(unsent.is_canceled(), "the client knows that it was not sent: {unsent:?}");
            confirm(&mut raft);
            assert_eq!(asked.await.unwrap().unwrap(), StatusCode::OK, "it was received before");
            // The connection may end before the client has acknowledged that.
            drop(driver.await.unwrap());
        };
        if api_stops {
            tokio::join!(harness.finish(), client);
        } else {
            kill.retire();
            client.await;
            harness.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn api_crash_ends_requests_and_next_incarnation_answers() {
    let mut raft = Probe::new("raft-member");
    let (service, _leads) = leader(&raft);
    let mut stage = Stage::set(service, None).await;
    let watch = "http://muster/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0";
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        let mut native = stage.native(&admin()).await;
        native.send(&call(Request::CertList)).await.unwrap();
        let (mut client, driver) = stage.http2(&admin()).await;
        let watching = client.send_request(HttpRequest::get(watch).body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(watching.status(), StatusCode::OK);
        let mut other = client.clone();
        let asked = tokio::spawn(async move { other.send_request(certificates()).await.is_err() });
        eventually("both requests are in progress", || raft.waiting() == 2).await;
        assert_eq!(stage.service.counters.watches.load(Ordering::Relaxed), 1);

        stage.harness.crash(PATH, how);
        assert!(!matches!(native.recv::<ApiAnswer>().await, Ok(Some(_))), "the native connection is closed");
        assert!(asked.await.unwrap(), "the HTTP connection is closed too");
        driver.await.unwrap();
        let watches = &stage.service.counters.watches;
        eventually("all permits are returned", || stage.in_progress() + watches.load(Ordering::Relaxed) == 0).await;
        drop((watching, raft.drain()));

        stage.harness.healthy(PATH, incarnation).await;
        let connections = |actor: &muster_messages::ActorNode| actor.view["connections"] == 0;
        stage.harness.until(PATH, "without connections", connections).await;
        assert!(is_answered(&stage, &admin(), &call(Request::Contact)).await);
    }
    stage.harness.finish().await;
}

/// On a real socket, in real time.
#[tokio::test]
async fn connection_to_a_full_admin_socket_waits() {
    let dir = std::env::temp_dir().join(format!("muster-full-{}", std::process::id()));
    let path = dir.join("sock");
    let mut service = World::new().service;
    service.ports_mut().limits.socket_connections = 2;
    let stage = Stage::set(service, Some(AdminSocket::bind(&path).unwrap())).await;
    let connect = async || Framed::new(UnixStream::connect(&path).await.unwrap());
    let ask = async |client: &mut Framed<UnixStream>| client.send(&call(Request::Contact)).await.unwrap();
    let is_answered = async |client: &mut Framed<UnixStream>| {
        let answer = timeout(WAIT_LIMIT, client.recv::<ApiAnswer>()).await.expect("an answer in time");
        answer.unwrap().is_some_and(|answer| answer.result.is_ok())
    };
    let mut held = [connect().await, connect().await];
    for client in &mut held {
        ask(client).await;
        assert!(is_answered(client).await);
    }
    let mut late = connect().await;
    ask(&mut late).await;
    for client in &mut held {
        ask(client).await;
        assert!(is_answered(client).await, "connections with a permit are served");
    }
    assert_eq!(
        stage.harness.tree().inspect(PATH).await.unwrap().view["connections"],
        2,
        "the third connection is not accepted yet"
    );
    drop(held);
    assert!(is_answered(&mut late).await, "the waiting connection is served");
    stage.harness.finish().await;
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Each check of `node may-stop` sends a heartbeat to every manager.
#[tokio::test(start_paused = true)]
async fn stop_checks_beyond_the_bound_are_rejected() {
    let mut raft: Probe<RaftMemberMsg> = Probe::new("raft-member");
    let mut tables = tables();
    for n in [1, 3, 4] {
        let node = NodeId::from_entropy(n.into());
        let member = Member { node, raft_id: RaftId(n), addr: "h:1".to_owned(), voter: true };
        tables.members.insert(member.raft_id, member);
    }
    let replica = leading(tables);
    let published = watch::Sender::new(Arc::clone(&replica));
    raft.on(move |msg| match msg {
        RaftMemberMsg::Read { reply, .. } => answered(reply, Ok(Arc::clone(&replica))),
        other => Some(other),
    });
    let in_force = watch::Sender::new(Some(runtime(published.subscribe(), raft.recipient())));
    let service = service(in_force.subscribe());
    let mut asking = JoinSet::new();
    for _ in 0..=MAX_STOP_CHECKS {
        let service = service.clone();
        let request = Request::NodeMayStop { node: "n1".to_owned() };
        asking.spawn(async move { service.answer(Principal::Operator, call(request)).await });
    }
    let mut checks = Vec::new();
    while checks.len() < MAX_STOP_CHECKS {
        match raft.next("a check").await {
            RaftMemberMsg::CheckReachable { members, reply, .. } => checks.push((members, reply)),
            other => panic!("{}", other.name()),
        }
    }
    let refused = asking.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!((refused.code, refused.retry_after_ms), (ErrorCode::TooManyRequests, Some(500)));
    assert_eq!(service.counters.overloaded.load(Ordering::Relaxed), 1);
    for (members, reply) in checks {
        reply.send(Ok(members)).unwrap();
    }
    while let Some(answer) = asking.join_next().await {
        assert!(answer.unwrap().unwrap().contains("\"may_stop\":true"));
    }
    assert!(service.enter_stop_check().is_ok(), "an answered check returns its permit");
}
