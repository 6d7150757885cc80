//! Requests in flight on one connection while the cluster changes around it: each one is answered.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request as HttpRequest, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use muster_attacks::caller::Caller;
use muster_attacks::cluster::{Cluster, SLOW_RAFT_TIMING, until};
use muster_client::Failure;
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::Request;
use muster_messages::{FEATURE_LEVEL, Name, UserKind};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Requests in flight on the HTTP/2 connection, and connections of HTTP/1.1 with one each.
const IN_FLIGHT: usize = 100;
const HTTP1_CONNECTIONS: usize = 10;
/// The server's own deadline for a request is 30 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What the clients saw so far.
#[derive(Default)]
struct Seen {
    ended: AtomicBool,
    answered: AtomicUsize,
    statuses: Mutex<BTreeMap<u16, usize>>,
    unanswered: Mutex<Vec<String>>,
}

impl Seen {
    /// Records how a request ended. False: the client stops.
    async fn record(&self, answer: impl Future<Output = hyper::Result<Response<Incoming>>>) -> bool {
        let whole = async {
            let (head, body) = answer.await?.into_parts();
            body.collect().await?;
            Ok::<_, hyper::Error>(head.status.as_u16())
        };
        let failure = match timeout(ANSWER_TIMEOUT, whole).await {
            Ok(Ok(status)) => {
                *self.statuses.lock().expect("no client panicked").entry(status).or_default() += 1;
                self.answered.fetch_add(1, Ordering::Relaxed);
                return !self.ended.load(Ordering::Relaxed);
            }
            Ok(Err(error)) => format!("{error:?}"),
            Err(_) => "no answer".to_owned(),
        };
        self.unanswered.lock().expect("no client panicked").push(failure);
        false
    }

    /// Waits until each client has had further answers.
    async fn wait_for_further_answers(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        let enough = before + 3 * (IN_FLIGHT + HTTP1_CONNECTIONS);
        let more = async || {
            let broken = !self.unanswered.lock().expect("no client panicked").is_empty();
            Ok((broken || self.answered.load(Ordering::Relaxed) >= enough).then_some(()))
        };
        until("further requests are answered", more).await.expect("they do");
    }
}

/// Reads, writes through the log, and writes of Kubernetes clients in turn. The lease exists after the first of them.
fn request(number: usize) -> HttpRequest<Full<Bytes>> {
    let lease = format!(r#"{{"metadata": {{"name": "l", "labels": {{"padding": "{}"}}}}}}"#, "x".repeat(60));
    let (method, path, body) = match number % 3 {
        0 => ("GET", "/v1/nodes/n1?fresh=true", String::new()),
        1 => ("PATCH", "/v1/nodes/n1", format!(r#"{{"add": {{"number": "{number}"}}}}"#)),
        _ => ("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease),
    };
    let request = HttpRequest::builder().method(method).uri(format!("https://x{path}")).header("host", "x");
    request.header("content-type", "application/json").body(Full::new(Bytes::from(body))).expect("a request")
}

/// Clients of one manager, each of which asks again as soon as it is answered.
async fn clients(cluster: &Cluster, at: &str, who: &NodeCredentials, seen: &Arc<Seen>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let connect = async |alpn: &[u8]| {
        let caller = Caller::with(cluster.node(at).listen, &[alpn], who).expect("good credentials");
        TokioIo::new(caller.tls().await.expect("TLS"))
    };
    let (sender, connection) = http2::handshake(TokioExecutor::new(), connect(b"h2").await).await.expect("HTTP/2");
    tokio::spawn(connection);
    for client in 0..IN_FLIGHT {
        let (seen, mut sender) = (Arc::clone(seen), sender.clone());
        clients.spawn(async move {
            for number in client.. {
                if !seen.record(sender.send_request(request(number))).await {
                    break;
                }
            }
        });
    }
    for client in 0..HTTP1_CONNECTIONS {
        let (mut sender, connection) = http1::handshake(connect(b"http/1.1").await).await.expect("HTTP/1.1");
        tokio::spawn(connection);
        let seen = Arc::clone(seen);
        clients.spawn(async move {
            for number in client.. {
                if !seen.record(sender.send_request(request(number))).await {
                    break;
                }
            }
        });
    }
    clients
}

/// K2.11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn requests_in_flight_are_answered_through_changes() {
    let program = Path::new(env!("CARGO_BIN_EXE_muster-attack"));
    let mut cluster = Cluster::at_level_two(program, 3).await.expect("a cluster");
    let settings = cluster.folder().join("this-build.toml");
    std::fs::write(&settings, SLOW_RAFT_TIMING).expect("it is written");
    let becomes_this_build = async |cluster: &mut Cluster, name: &str| {
        let node = cluster.node_mut(name);
        assert!(node.stop().await, "it stops");
        node.config = Some(settings.clone());
        node.start_and_wait(&[]).await.expect("it starts");
        cluster.settled().await.expect("all are settled");
    };
    becomes_this_build(&mut cluster, "n2").await;
    becomes_this_build(&mut cluster, "n3").await;
    let eve = cluster.user("eve", UserKind::Operator).await.expect("a user");
    let (bob, namespace): (Name, _) = ("bob".parse().expect("a name"), "default".to_owned());
    let token = Request::AccessTokenCreate { user: bob.clone(), namespace, ttl_ms: None };
    cluster.ask("n2", token).await.expect("a token");

    let seen = Arc::new(Seen::default());
    let clients = clients(&cluster, "n2", &eve, &seen).await;
    seen.wait_for_further_answers().await;
    let serial = async |cluster: &Cluster| {
        let node = cluster.seen("n2", "n2").await?.expect("n2 is a node");
        Ok::<_, Failure>(node.certificate.serial)
    };
    // The serving manager leads, and does not any more.
    for to in ["n2", "n3"] {
        cluster.ask("n2", Request::TransferLeader { to: Some(to.to_owned()) }).await.expect("another leader");
        seen.wait_for_further_answers().await;
    }
    cluster.ask("n2", Request::UserRevoke { name: bob }).await.expect("revoked");
    seen.wait_for_further_answers().await;
    let before = serial(&cluster).await.expect("n2 answers");
    cluster.ask("n2", Request::CertRotate { node: "n2".to_owned() }).await.expect("asked");
    let renewed = async || Ok((serial(&cluster).await? != before).then_some(()));
    until("n2 has another certificate", renewed).await.expect("it has");
    seen.wait_for_further_answers().await;
    // The last manager of the earlier build: the feature level rises.
    becomes_this_build(&mut cluster, "n1").await;
    let raised = async || {
        Ok((cluster.ask("n2", Request::Status { fresh: true }).await?["cluster"]["feature_level"] == FEATURE_LEVEL)
            .then_some(()))
    };
    until("the feature level rises", raised).await.expect("it does");
    seen.wait_for_further_answers().await;
    seen.ended.store(true, Ordering::Relaxed);
    clients.join_all().await;
    println!("{:?}", seen.statuses.lock().expect("no client panicked"));
    assert_eq!(*seen.unanswered.lock().expect("no client panicked"), Vec::<String>::new());
}
