//! The actor over a real socket, asked by a client in this process: its user is the test's own. A root of the test signs.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_kernel::{Address, Clock};
use muster_messages::wire::{SignedWorkload, WorkloadRequest, WorkloadWanted};
use muster_messages::{
    ClusterId, CrashHow, DEFAULT_WORKLOAD_TTL, ErrorBody, ErrorCode, Incarnation, WorkloadEntry, WorkloadName,
    WorkloadSelector, WorkloadView,
};
use muster_pki::{Issuer, JwtProfile, PublicKey, Root, Signed, SignedJwt, WorkloadProfile};
use muster_testkit::{ActorHarness, WAIT_LIMIT, at_every_point, eventually, eventually_some};
use muster_workload_api::client::WorkloadClient;
use muster_workload_api::core::MAX_STREAMS_OF_USER;
use muster_workload_api::proto::{
    JwtBundlesResponse, JwtSvidRequest, SECURITY_HEADER, ValidateJwtSvidRequest, X509BundlesResponse, X509SvidResponse,
};
use muster_workload_api::{
    Msg, WorkloadApiPorts, WorkloadSigner, explain_process, workload_api_address, workload_api_spec,
};
use prost_types::value::Kind;
use rcgen::KeyPair;
use serde_json::json;
use tokio::sync::watch;
use tonic::{Code, Status, Streaming};
use x509_parser::prelude::{FromDer, X509Certificate};

const PATH: &str = "node/workloads";

/// A root, and a leader that signs with it.
struct Leader {
    cluster: ClusterId,
    root: Mutex<Root>,
    away: AtomicBool,
    signed: AtomicUsize,
    /// Signs this instead of what it is asked for.
    instead: Mutex<Option<WorkloadName>>,
}

impl Leader {
    fn new() -> Arc<Self> {
        let cluster = ClusterId::from_entropy(7);
        Arc::new(Self {
            cluster,
            root: Mutex::new(Root::create(cluster, Clock.wall()).unwrap()),
            away: AtomicBool::new(false),
            signed: AtomicUsize::new(0),
            instead: Mutex::new(None),
        })
    }
    fn rotate(&self) {
        *self.root.lock().unwrap() = Root::create(self.cluster, Clock.wall()).unwrap();
    }
    fn root_pem(&self) -> String {
        self.root.lock().unwrap().cert_pem.clone()
    }
    fn sign_now(&self, request: &WorkloadRequest) -> Result<SignedWorkload, ErrorBody> {
        if self.away.load(Ordering::Relaxed) {
            return Err(ErrorBody::new(ErrorCode::NoQuorum, "no leader"));
        }
        let workload = self.instead.lock().unwrap().clone().unwrap_or_else(|| request.workload.clone());
        let (cluster, now) = (self.cluster, Clock.wall());
        let root = self.root.lock().unwrap();
        let issuer = Issuer::from_pem(&root.cert_pem, &root.key_pem).unwrap();
        self.signed.fetch_add(1, Ordering::Relaxed);
        match request.wanted().unwrap() {
            WorkloadWanted::Certificate { public_key_der } => {
                let (lifetime, incarnation) = (DEFAULT_WORKLOAD_TTL, Incarnation(1));
                let profile = WorkloadProfile { cluster, workload, dns: Vec::new(), incarnation, lifetime, now };
                let key = PublicKey::parse(&public_key_der).unwrap();
                let Signed { cert_pem, not_after, .. } = issuer.sign_workload(&profile, &key).unwrap();
                Ok(SignedWorkload { text: cert_pem, not_after })
            }
            WorkloadWanted::Jwt { audience } => {
                let profile = JwtProfile { cluster, workload, audience, now };
                let SignedJwt { token, not_after, .. } = issuer.sign_jwt(&profile).unwrap();
                Ok(SignedWorkload { text: token, not_after })
            }
        }
    }
}

struct Signer(Arc<Leader>);
impl WorkloadSigner for Signer {
    fn sign(&self, request: WorkloadRequest) -> BoxFuture<'static, Result<SignedWorkload, ErrorBody>> {
        let leader = Arc::clone(&self.0);
        async move { leader.sign_now(&request) }.boxed()
    }
}

/// A node: the actor, what its agent knows, and its leader.
struct Node {
    harness: ActorHarness,
    leader: Arc<Leader>,
    view: watch::Sender<WorkloadView>,
    ports: WorkloadApiPorts,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn entry(name: &str, selectors: &[WorkloadSelector]) -> WorkloadEntry {
    WorkloadEntry::new(name.parse().unwrap(), selectors.iter().cloned())
}
fn own(name: &str) -> WorkloadEntry {
    entry(name, &[WorkloadSelector::UnixUid(own_uid())])
}

impl Node {
    async fn with(entries: Vec<WorkloadEntry>) -> Self {
        Self::at(workload_api_address(), entries).await
    }
    async fn at(address: Address<Msg>, entries: Vec<WorkloadEntry>) -> Self {
        let harness = ActorHarness::start().await;
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/workloads.sock");
        let leader = Leader::new();
        let view = WorkloadView {
            cluster: leader.cluster,
            entries: Arc::new(entries),
            bundle: Arc::new(vec![leader.root_pem()]),
            generation: 1,
        };
        let view = watch::Sender::new(view);
        let ports = WorkloadApiPorts::new(socket.clone(), view.subscribe(), Arc::new(Signer(Arc::clone(&leader))));
        harness.start_actor(workload_api_spec(address, ports.clone()));
        harness.healthy(PATH, 1).await;
        Self { harness, leader, view, ports, socket, _dir: dir }
    }
    fn set(&self, entries: Vec<WorkloadEntry>) {
        self.view.send_modify(|view| {
            view.entries = Arc::new(entries);
            view.generation += 1;
        });
    }
    async fn client(&self) -> WorkloadClient {
        WorkloadClient::connect(&self.socket).await.unwrap()
    }
    async fn streams(&self, number: u64) {
        self.harness.until(PATH, "streams", |actor| actor.view["streams"] == number).await;
    }
}

async fn message<M: 'static>(stream: &mut Streaming<M>) -> Result<M, Status> {
    let next = tokio::time::timeout(WAIT_LIMIT, stream.message()).await.expect("a message in time");
    next.map(|message| message.expect("the stream ends with a status"))
}
fn ids(response: &X509SvidResponse) -> Vec<&str> {
    response.svids.iter().map(|svid| svid.spiffe_id.rsplit_once("/workload/").unwrap().1).collect()
}

#[tokio::test]
async fn process_gets_its_identities_with_keys_and_roots() {
    let hinted = WorkloadEntry { hint: Some("web".to_owned()), ..own("shop/web") };
    let node = Node::with(vec![hinted, own("shop/api"), entry("x/y", &[WorkloadSelector::UnixUid(4_000_000)])]).await;
    let mut client = node.client().await;
    let mut stream = client.fetch_x509_svid().await.unwrap();
    let response = message(&mut stream).await.unwrap();
    assert_eq!(ids(&response), ["shop/api", "shop/web"]);
    assert_eq!(response.svids.iter().map(|svid| svid.hint.as_str()).collect::<Vec<_>>(), ["", "web"]);
    for svid in &response.svids {
        let (rest, leaf) = X509Certificate::from_der(&svid.x509_svid).unwrap();
        assert!(rest.is_empty());
        let (_, root) = X509Certificate::from_der(&svid.bundle).unwrap();
        leaf.verify_signature(Some(root.public_key())).unwrap();
        let key = KeyPair::try_from(svid.x509_svid_key.as_slice()).unwrap();
        assert_eq!(leaf.public_key().subject_public_key.data.as_ref(), key.public_key_raw());
    }
    let mut bundles = client.fetch_x509_bundles().await.unwrap();
    let roots = message(&mut bundles).await.unwrap().bundles;
    let domain = format!("spiffe://{}", node.leader.cluster);
    assert_eq!(roots.into_iter().collect::<Vec<_>>(), [(domain, response.svids[0].bundle.clone())]);
    drop((stream, bundles, client));
    node.streams(0).await;
    node.harness.finish().await;
}

#[tokio::test]
async fn calls_without_the_security_header_are_invalid() {
    let node = Node::with(vec![own("a/b")]).await;
    let mut client = node.client().await;
    for metadata in [
        &[][..],
        &[(SECURITY_HEADER, "True")],
        &[(SECURITY_HEADER, "true"), (SECURITY_HEADER, "true")],
        &[("workload.spiffe.io.x", "true")],
    ] {
        for method in ["FetchX509SVID", "FetchX509Bundles", "FetchJWTBundles", "x"] {
            let refused = client.stream::<X509SvidResponse>(method, metadata).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{method} {metadata:?}");
        }
    }
    for method in ["FetchWITSVID", "NoSuchCall"] {
        let refused = client.stream::<X509SvidResponse>(method, &[(SECURITY_HEADER, "true")]).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{method}");
    }
    drop(client);
    node.harness.finish().await;
}

#[tokio::test]
async fn process_without_an_entry_is_denied_at_once_and_mid_stream() {
    let node = Node::with(Vec::new()).await;
    let mut client = node.client().await;
    assert_eq!(client.fetch_x509_svid().await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(client.fetch_x509_bundles().await.unwrap_err().code(), Code::PermissionDenied);
    node.set(vec![own("a/b"), own("a/c")]);
    eventually("the entries are known", || node.ports.view.borrow().entries.len() == 2).await;
    let mut svids = retry(&mut client).await;
    let mut bundles = client.fetch_x509_bundles().await.unwrap();
    assert_eq!(ids(&message(&mut svids).await.unwrap()), ["a/b", "a/c"]);
    message::<X509BundlesResponse>(&mut bundles).await.unwrap();
    node.set(vec![own("a/c")]);
    assert_eq!(ids(&message(&mut svids).await.unwrap()), ["a/c"]);
    node.set(Vec::new());
    assert_eq!(message(&mut svids).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(message(&mut bundles).await.unwrap_err().code(), Code::PermissionDenied);
    drop(client);
    node.streams(0).await;
    node.harness.finish().await;
}

/// Asks until the actor has seen the entries.
async fn retry(client: &mut WorkloadClient) -> Streaming<X509SvidResponse> {
    eventually_some("the stream is served", async || client.fetch_x509_svid().await.ok()).await
}

#[tokio::test]
async fn jwt_is_fetched_and_validated_over_a_rotation() {
    let node = Node::with(vec![WorkloadEntry { jwt: true, ..own("a/b") }, own("a/c")]).await;
    let mut client = node.client().await;
    let request = JwtSvidRequest { audience: vec!["db".to_owned()], spiffe_id: String::new() };
    let no_audience = JwtSvidRequest { audience: Vec::new(), ..request.clone() };
    assert_eq!(client.fetch_jwt_svid(no_audience).await.unwrap_err().code(), Code::InvalidArgument);
    for (other, code) in [
        ("spiffe://x/workload/a/c".to_owned(), Code::PermissionDenied),
        ("x".repeat(2048), Code::PermissionDenied),
        ("x".repeat(2049), Code::InvalidArgument),
    ] {
        let other = JwtSvidRequest { spiffe_id: other, ..request.clone() };
        assert_eq!(client.fetch_jwt_svid(other).await.unwrap_err().code(), code);
    }
    let first = client.fetch_jwt_svid(request.clone()).await.unwrap().svids;
    let id = format!("spiffe://{}/workload/a/b", node.leader.cluster);
    assert_eq!(first.iter().map(|svid| svid.spiffe_id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
    assert_eq!(client.fetch_jwt_svid(request.clone()).await.unwrap().svids, first, "the same one again");

    let token = &first[0].svid;
    let validate = |audience: &str| ValidateJwtSvidRequest { audience: audience.to_owned(), svid: token.clone() };
    let good = client.validate_jwt_svid(validate("db")).await.unwrap();
    assert_eq!(good.spiffe_id, id);
    let claims = good.claims.unwrap().fields;
    assert_eq!(claims["sub"].kind, Some(Kind::StringValue(id.clone())));
    for wrong in ["", "other"] {
        assert_eq!(client.validate_jwt_svid(validate(wrong)).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let mut bundles = client.fetch_jwt_bundles().await.unwrap();
    let keys = |response: JwtBundlesResponse| {
        let (_, set) = response.bundles.into_iter().next().unwrap();
        let set: serde_json::Value = serde_json::from_slice(&set).unwrap();
        set["keys"].as_array().unwrap().len()
    };
    assert_eq!(keys(message(&mut bundles).await.unwrap()), 1);
    let old = node.leader.root_pem();
    node.leader.rotate();
    let new = node.leader.root_pem();
    node.view.send_modify(|view| view.bundle = Arc::new(vec![old, new.clone()]));
    assert_eq!(keys(message(&mut bundles).await.unwrap()), 2);
    assert!(client.validate_jwt_svid(validate("db")).await.is_ok(), "the former root is still trusted");
    let second = client.fetch_jwt_svid(request).await.unwrap().svids;
    assert_ne!(second[0].svid, *token);
    node.view.send_modify(|view| view.bundle = Arc::new(vec![new]));
    assert_eq!(keys(message(&mut bundles).await.unwrap()), 1);
    let refused = client.validate_jwt_svid(validate("db")).await.unwrap_err();
    assert!(refused.message().contains("kid"), "{refused}");
    drop((bundles, client));
    node.harness.finish().await;
}

#[tokio::test]
async fn process_without_an_entry_learns_nothing_about_jwts() {
    let node = Node::with(Vec::new()).await;
    let mut client = node.client().await;
    let request = JwtSvidRequest { audience: vec!["db".to_owned()], spiffe_id: String::new() };
    assert_eq!(client.fetch_jwt_svid(request).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(client.fetch_jwt_bundles().await.unwrap_err().code(), Code::PermissionDenied);
    let validate = ValidateJwtSvidRequest { audience: "db".to_owned(), svid: "a.b.c".to_owned() };
    assert_eq!(client.validate_jwt_svid(validate).await.unwrap_err().code(), Code::PermissionDenied);
    drop(client);
    node.harness.finish().await;
}

#[tokio::test]
async fn failed_jwts_are_shown_without_their_audience() {
    let node = Node::with(vec![WorkloadEntry { jwt: true, ..own("a/b") }]).await;
    node.leader.away.store(true, Ordering::Relaxed);
    let mut client = node.client().await;
    let request = JwtSvidRequest { audience: vec!["db".to_owned()], spiffe_id: String::new() };
    assert_eq!(client.fetch_jwt_svid(request.clone()).await.unwrap_err().code(), Code::Unavailable);
    let failed = json!({"held": 0, "signing": 0, "failed": 1, "failing": {"a/b": "no leader"}});
    node.harness.until(PATH, "the failure", |actor| actor.view["jwts"] == failed).await;
    node.leader.away.store(false, Ordering::Relaxed);
    eventually_some("a JWT", async || client.fetch_jwt_svid(request.clone()).await.ok()).await;
    let held = json!({"held": 1, "signing": 0, "failed": 0, "failing": {}});
    node.harness.until(PATH, "the JWT", |actor| actor.view["jwts"] == held).await;
    drop(client);
    node.harness.finish().await;
}

#[tokio::test]
async fn another_root_reaches_open_streams() {
    let node = Node::with(vec![own("a/b")]).await;
    let mut client = node.client().await;
    let (mut svids, mut bundles) =
        (client.fetch_x509_svid().await.unwrap(), client.fetch_x509_bundles().await.unwrap());
    let first = message(&mut svids).await.unwrap();
    message(&mut bundles).await.unwrap();
    let old = node.leader.root_pem();
    node.leader.rotate();
    let new = node.leader.root_pem();
    node.view.send_modify(|view| view.bundle = Arc::new(vec![old, new.clone()]));
    let second = message(&mut svids).await.unwrap();
    assert_eq!(second.svids[0].x509_svid, first.svids[0].x509_svid, "the certificate is still good");
    assert!(second.svids[0].bundle.starts_with(&first.svids[0].bundle));
    let both = message(&mut bundles).await.unwrap();
    assert_eq!(both.bundles.values().next(), Some(&second.svids[0].bundle));
    // The old root is trusted no more: its certificates are replaced at once, however long they would last.
    node.view.send_modify(|view| view.bundle = Arc::new(vec![new]));
    let mut last = message(&mut svids).await.unwrap();
    while last.svids[0].x509_svid == first.svids[0].x509_svid {
        last = message(&mut svids).await.unwrap();
    }
    let (_, leaf) = X509Certificate::from_der(&last.svids[0].x509_svid).unwrap();
    let (_, root) = X509Certificate::from_der(&last.svids[0].bundle).unwrap();
    leaf.verify_signature(Some(root.public_key())).unwrap();
    drop((svids, bundles, client));
    node.streams(0).await;
    node.harness.finish().await;
}

#[tokio::test]
async fn crash_costs_streams_and_no_certificates() {
    let mut node = Node::with(vec![own("a/b")]).await;
    let mut client = node.client().await;
    let mut stream = client.fetch_x509_svid().await.unwrap();
    let before = message(&mut stream).await.unwrap();
    node.leader.away.store(true, Ordering::Relaxed);
    node.harness.crash(PATH, CrashHow::Panic);
    node.harness.expects_panic("crash");
    // The connection is lost. A client keeps what it holds: only `PermissionDenied` takes it away.
    assert!(matches!(message(&mut stream).await.unwrap_err().code(), Code::Unknown | Code::Unavailable));
    drop((stream, client));
    node.harness.healthy(PATH, 2).await;
    let mut client = node.client().await;
    let mut stream = retry(&mut client).await;
    assert_eq!(message(&mut stream).await.unwrap(), before);
    assert_eq!(node.leader.signed.load(Ordering::Relaxed), 1);
    drop((stream, client));
    node.streams(0).await;
    node.harness.finish().await;
}

/// The copy of the keys that outlives a crash has none of them, either.
#[tokio::test]
async fn keys_of_removed_entries_do_not_outlive_a_crash() {
    let mut node = Node::with(vec![own("a/b")]).await;
    let mut client = node.client().await;
    let mut stream = client.fetch_x509_svid().await.unwrap();
    let before = message(&mut stream).await.unwrap();
    node.set(Vec::new());
    assert_eq!(message(&mut stream).await.unwrap_err().code(), Code::PermissionDenied);
    node.set(vec![own("a/b")]);
    drop((stream, client));
    node.harness.crash(PATH, CrashHow::Panic);
    node.harness.expects_panic("crash");
    node.harness.healthy(PATH, 2).await;
    let mut client = node.client().await;
    let mut stream = retry(&mut client).await;
    let after = message(&mut stream).await.unwrap();
    assert!(after.svids[0].x509_svid_key != before.svids[0].x509_svid_key, "another key");
    drop((stream, client));
    node.streams(0).await;
    node.harness.finish().await;
}

/// Nothing is lost for good, wherever it crashes: its clients ask again.
#[tokio::test(start_paused = true)]
async fn crash_at_any_point_delays_identities_only() {
    at_every_point(async |fuse| {
        let mut node = Node::with(vec![own("a/b")]).await;
        node.harness.crash_at(PATH, &fuse);
        let response = eventually_some("an identity", async || {
            let mut client = WorkloadClient::connect(&node.socket).await.ok()?;
            let mut stream = client.fetch_x509_svid().await.ok()?;
            message(&mut stream).await.ok()
        })
        .await;
        assert_eq!(ids(&response), ["a/b"]);
        node.streams(0).await;
        node.harness.finish().await;
    })
    .await;
}

#[tokio::test]
async fn no_leader_means_unavailable_with_its_reason() {
    let node = Node::with(vec![own("a/b")]).await;
    node.leader.away.store(true, Ordering::Relaxed);
    let mut client = node.client().await;
    let refused = client.fetch_x509_svid().await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "no leader"));
    drop(client);
    node.harness.finish().await;
}

#[tokio::test]
async fn another_identity_than_asked_for_is_not_served() {
    let node = Node::with(vec![own("a/b")]).await;
    *node.leader.instead.lock().unwrap() = Some("a/c".parse().unwrap());
    let mut client = node.client().await;
    let refused = client.fetch_x509_svid().await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "the leader signed another identity"));
    drop(client);
    node.harness.finish().await;
}

/// A process connects, passes its socket to another one of the same user, and ends.
#[tokio::test]
async fn stream_ends_with_the_process_that_connected() {
    let node = Node::with(vec![own("a/b")]).await;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_that_connects_and_ends"])
        .env(SOCKET_OF_CHILD, &node.socket)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    node.streams(1).await;
    drop(child.stdin.take());
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
    assert!(ended.await.unwrap().success());
    node.streams(0).await;
    node.harness.finish().await;
}

/// A process connects and ends before its connection is accepted: this test's thread, which accepts it, waits for the process.
#[tokio::test]
async fn connection_of_an_ended_process_is_counted() {
    let node = Node::with(vec![own("a/b")]).await;
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_that_connects_and_ends"])
        .env(SOCKET_OF_CHILD, &node.socket)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status();
    assert!(child.unwrap().success());
    node.harness.until(PATH, "refused", |actor| actor.view["refused_connections"] == 1).await;
    node.streams(0).await;
    node.harness.finish().await;
}

const SOCKET_OF_CHILD: &str = "MUSTER_TEST_WORKLOAD_SOCKET";

/// Not a test, but the process that another test starts: opens a stream, starts a program that has the same socket, and ends once its
/// standard input does.
#[test]
#[expect(clippy::zombie_processes, reason = "the program that it starts outlives it")]
fn process_that_connects_and_ends() {
    use std::io::{Read, Write};
    let Some(path) = std::env::var_os(SOCKET_OF_CHILD) else { return };
    let frame = |kind: u8, flags: u8, stream: u8, body: &[u8]| {
        [&[0, 0, u8::try_from(body.len()).unwrap(), kind, flags, 0, 0, 0, stream], body].concat()
    };
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let header = |(name, value)| [vec![0], text(name), text(value)].concat();
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/SpiffeWorkloadAPI/FetchX509SVID"),
        (":authority", "run%2Fworkloads.sock"), // as gRPC's library for Python sends it
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        (SECURITY_HEADER, "true"),
    ];
    let mut socket = std::os::unix::net::UnixStream::connect(path).unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    socket.write_all(&frame(4, 0, 0, &[])).unwrap();
    socket.write_all(&frame(1, 4, 1, &headers.map(header).concat())).unwrap();
    socket.write_all(&frame(0, 1, 1, &[0; 5])).unwrap();
    // It ends once the socket is closed at the other end.
    let socket = std::os::fd::OwnedFd::from(socket);
    std::process::Command::new("cat").stdin(socket).stdout(std::process::Stdio::null()).spawn().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[tokio::test]
async fn served_socket_is_not_taken_over() {
    let node = Node::with(vec![own("a/b")]).await;
    let other = node.harness.another("other").await;
    other.start_actor(workload_api_spec(workload_api_address(), node.ports.clone()));
    other.until("other/workloads", "an exit", |actor| !actor.last_exits.is_empty()).await;
    let mut client = node.client().await;
    let mut stream = client.fetch_x509_svid().await.unwrap();
    message(&mut stream).await.unwrap();
    drop((stream, client));
    node.streams(0).await;
    other.stop().await;
    node.harness.finish().await;
}

#[tokio::test]
async fn one_connection_has_a_limited_number_of_calls() {
    let node = Node::with(vec![own("a/b")]).await;
    let mut client = node.client().await;
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(client.fetch_x509_svid().await.unwrap());
    }
    node.streams(32).await;
    let one_more = tokio::time::timeout(Duration::from_millis(200), client.fetch_x509_svid()).await;
    assert!(one_more.is_err(), "it waits for another to end");
    streams.clear();
    drop(client);
    node.streams(0).await;
    node.harness.finish().await;
}

/// They would fill the memory while the actor is busy: what a client takes back was sent already.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_are_limited_per_user() {
    const CALLS: usize = 32;
    let mut node = Node::with(vec![own("a/b")]).await;
    let mut clients = Vec::new();
    for _ in 0..=MAX_STREAMS_OF_USER / CALLS {
        clients.push(node.client().await);
    }
    node.harness.crash(PATH, CrashHow::Hang);
    let mut calls = tokio::task::JoinSet::new();
    let more = clients.len() * CALLS - MAX_STREAMS_OF_USER;
    for client in clients.iter().flat_map(|client| std::iter::repeat_n(client, CALLS)) {
        let mut client = client.clone();
        calls.spawn(async move {
            let refusal = client.fetch_x509_svid().await.err();
            refusal.is_some_and(|status| status.message().ends_with("are waiting"))
        });
    }
    let refused = calls.join_all().await.into_iter().filter(|refused| *refused).count();
    assert_eq!(refused, more);
    drop(clients);
    node.streams(0).await;
    node.harness.finish().await;
}

/// The bound of the mailbox holds for the requests of clients, and not for the actor's messages to itself.
#[tokio::test]
async fn requests_are_refused_by_a_full_mailbox() {
    let node = Node::at(Address::new(0), vec![own("a/b")]).await;
    let mut client = node.client().await;
    let refused = client.fetch_x509_svid().await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "the actor's mailbox is full"));
    drop(client);
    node.harness.finish().await;
}

#[tokio::test]
async fn explanation_tells_what_this_process_is() {
    let unit = WorkloadSelector::SystemdUnit("none.service".to_owned());
    let view = WorkloadView {
        cluster: ClusterId::from_entropy(7),
        entries: Arc::new(vec![own("a/b"), entry("a/c", &[WorkloadSelector::UnixUid(own_uid()), unit.clone()])]),
        bundle: Arc::default(),
        generation: 1,
    };
    let explained = explain_process(&view, std::process::id()).unwrap();
    assert!(explained.selectors.contains(&WorkloadSelector::UnixUid(own_uid())));
    assert_eq!(explained.matches, ["a/b".parse().unwrap()]);
    assert_eq!(explained.others[0].selector, Some(unit));
    let none = explain_process(&view, u32::MAX).unwrap_err();
    assert_eq!(none.code, ErrorCode::NotFound);
    let unknown = explain_process(&WorkloadView { generation: 0, ..view }, std::process::id()).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotKnownHereYet);
}
