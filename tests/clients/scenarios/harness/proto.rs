//! A client that behaves like client-go: one HTTP/2 connection for everything, protobuf bodies, `?timeout=`; and its
//! leader elector. (client-go itself is written in Go, which no test here can build.)

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{Kubeconfig, wire};

/// client-go's Accept header.
const ACCEPT: &str = "application/vnd.kubernetes.protobuf,application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// One connection to one node.
#[derive(Clone)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    server: String,
    pub token: String,
}

/// A complete answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<u64>,
    pub body: Value,
}

impl Connection {
    pub async fn open(kubeconfig: &Kubeconfig) -> Self {
        Self::open_as(&kubeconfig.text("server"), kubeconfig).await
    }

    /// A connection to another server than the one in the file.
    pub async fn open_as(server: &str, kubeconfig: &Kubeconfig) -> Self {
        let root = STANDARD.decode(kubeconfig.text("certificate-authority-data")).expect("base64");
        let (server, token) = (server.to_owned(), kubeconfig.text("token"));
        let addr = server.strip_prefix("https://").expect("TLS").to_owned();
        let stream = tokio::net::TcpStream::connect(&addr).await.expect("the node listens");
        let name = ServerName::try_from(addr.rsplit_once(':').expect("a port").0.to_owned()).expect("an address");
        let stream =
            connector_for_root(&root).connect(name, stream).await.expect("the node has a certificate of that root");
        let (sender, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("the server speaks HTTP/2");
        tokio::spawn(connection);
        Self { sender, server, token }
    }

    /// Sends a request; returns the head of the answer.
    pub async fn send(&self, method: &str, target: &str, body: Vec<u8>) -> Result<Response<Incoming>, hyper::Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{target}", self.server))
            .header("accept", ACCEPT)
            .header("user-agent", "muster-clients/v1 (linux/amd64) kubernetes/v0 leader-election")
            .header("authorization", format!("Bearer {}", self.token));
        if !body.is_empty() {
            request = request.header("content-type", PROTOBUF);
        }
        let request = request.body(Full::new(Bytes::from(body))).expect("a request");
        self.sender.clone().send_request(request).await
    }

    /// Sends a request and reads the answer, while the connection holds.
    pub async fn try_ask(&self, method: &str, target: &str, body: Vec<u8>) -> Result<Answer, hyper::Error> {
        let response = self.send(method, target, body).await?;
        let (head, body) = response.into_parts();
        let retry_after = head.headers.get("retry-after").and_then(|secs| secs.to_str().ok()?.parse().ok());
        let body = body.collect().await?.to_bytes();
        let body = serde_json::from_slice(&body).expect("every answer is JSON");
        Ok(Answer { status: head.status.as_u16(), retry_after, body })
    }

    pub async fn ask(&self, method: &str, target: &str, body: Vec<u8>) -> Answer {
        self.try_ask(method, target, body).await.expect("the connection holds")
    }

    /// Opens a watch.
    pub async fn watch(&self, target: &str) -> Events {
        let response = self.send("GET", target, vec![]).await.expect("the connection holds");
        assert_eq!(response.status(), 200, "{target}");
        Events { body: response.into_body(), read: vec![] }
    }
}

fn connector_for_root(root: &[u8]) -> tokio_rustls::TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(root) {
        roots.add(certificate.expect("PEM")).expect("a root certificate");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.expect("TLS").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

/// The events of a watch.
pub struct Events {
    body: Incoming,
    read: Vec<u8>,
}

impl Events {
    /// The next event's type and object; `None`: the server ended the watch.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).expect("every event is one line of JSON");
                let kind = event["type"].as_str().expect("an event has a type").to_owned();
                return Some((kind, event["object"].take()));
            }
            let frame = self.body.frame().await?.expect("the stream is sound");
            self.read.extend(frame.into_data().unwrap_or_default());
        }
    }
}

/// The durations of an elector.
#[derive(Clone, Copy)]
pub struct Timing {
    pub lease: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

/// An elector that reads, waits and writes as client-go's does.
pub struct Elector {
    connection: Connection,
    lease: String,
    identity: String,
    timing: Timing,
    /// The last record read or written, and what identifies an unchanged one.
    observed: Option<(Lease, Instant)>,
    /// Every answer's status, in order.
    pub statuses: Vec<(&'static str, u16)>,
}

impl Elector {
    pub fn new(connection: Connection, lease: &str, identity: &str, timing: Timing) -> Self {
        let (lease, identity) = (lease.to_owned(), identity.to_owned());
        Self { connection, lease, identity, timing, observed: None, statuses: vec![] }
    }

    pub fn holder(&self) -> Option<&str> {
        self.observed.as_ref()?.0.spec.as_ref()?.holder_identity.as_deref()
    }

    fn leads(&self) -> bool {
        self.holder() == Some(&self.identity)
    }

    /// The holder went without a visible renewal for longer than its record allows, by this process's own clock.
    fn has_expired(&self) -> bool {
        let Some((lease, since)) = &self.observed else { return true };
        let written = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        since.elapsed() >= Duration::from_secs(u64::try_from(written).unwrap_or(0))
    }

    fn target(&self, name: &str) -> String {
        let within = (self.timing.renew_deadline / 2).max(Duration::from_secs(1)).as_secs();
        format!("/apis/coordination.k8s.io/v1/namespaces/default/leases{name}?timeout={within}s")
    }

    async fn ask(&mut self, method: &'static str, name: &str, body: Vec<u8>) -> Option<Answer> {
        let target = self.target(name);
        let asking = self.connection.try_ask(method, &target, body);
        let answer = tokio::time::timeout(self.timing.renew_deadline, asking).await;
        let answer = answer.unwrap_or_else(|_| panic!("{method} {} was never answered", self.lease)).ok()?;
        self.statuses.push((method, answer.status));
        Some(answer)
    }

    /// One attempt to acquire or renew the lease: from the cache first, if it is ours; then from the server.
    pub async fn step(&mut self) -> bool {
        let cached = self.observed.as_ref().map(|(lease, _)| lease.clone());
        if let Some(lease) = cached.filter(|_| self.leads() && !self.has_expired())
            && self.write("PUT", lease).await
        {
            return true;
        }
        let name = format!("/{}", self.lease);
        let Some(answer) = self.ask("GET", &name, vec![]).await else { return false };
        match answer.status {
            404 => {
                let mut lease = Lease::default();
                lease.metadata.name = Some(self.lease.clone());
                lease.metadata.namespace = Some("default".to_owned());
                self.write("POST", lease).await
            }
            200 => {
                let lease: Lease = serde_json::from_value(answer.body).expect("a lease");
                self.observe(lease.clone());
                let free = self.holder().is_none_or(str::is_empty);
                (free || self.leads() || self.has_expired()) && self.write("PUT", lease).await
            }
            _ => false,
        }
    }

    /// Restarts the clock only for a changed record.
    fn observe(&mut self, lease: Lease) {
        match &mut self.observed {
            Some((known, _)) if known.spec == lease.spec => *known = lease,
            observed => *observed = Some((lease, Instant::now())),
        }
    }

    async fn write(&mut self, method: &'static str, mut lease: Lease) -> bool {
        let now = Some(MicroTime(Timestamp::now()));
        let old = lease.spec.take().unwrap_or_default();
        let kept = old.holder_identity.as_ref() == Some(&self.identity);
        let before = old.lease_transitions.unwrap_or(0);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.timing.lease.as_secs()).ok(),
            acquire_time: if kept { old.acquire_time.clone() } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(if kept || method == "POST" { before } else { before + 1 }),
            ..old
        });
        let name = if method == "POST" { String::new() } else { format!("/{}", self.lease) };
        let Some(answer) = self.ask(method, &name, wire::lease(&lease)).await else { return false };
        let written = matches!(answer.status, 200 | 201);
        if written {
            let lease = serde_json::from_value(answer.body).expect("a lease");
            self.observed = Some((lease, Instant::now()));
        }
        written
    }

    /// Leads, renewing as client-go does, until renewals have failed for the whole deadline, which is returned as an error.
    pub async fn lead(&mut self) -> Result<Infallible, Duration> {
        let (mut renewed, mut attempts) = (Instant::now(), self.attempts());
        loop {
            attempts.tick().await;
            if self.step().await {
                renewed = Instant::now();
            } else if renewed.elapsed() > self.timing.renew_deadline {
                return Err(renewed.elapsed());
            }
        }
    }

    /// Retries until it leads.
    pub async fn acquire(&mut self) {
        let mut attempts = self.attempts();
        loop {
            attempts.tick().await;
            if self.step().await {
                return;
            }
        }
    }

    /// The first begins at once, and so does the one after an attempt that took longer than the period.
    fn attempts(&self) -> Interval {
        let mut attempts = interval(self.timing.retry_period);
        attempts.set_missed_tick_behavior(MissedTickBehavior::Delay);
        attempts
    }

    /// The token of its leadership.
    pub fn fencing_token(&self) -> u64 {
        let annotations = self.observed.as_ref().and_then(|(lease, _)| lease.metadata.annotations.as_ref());
        let token = annotations.and_then(|annotations| annotations.get("muster.dev/fencing-token"));
        token.expect("a held lease has a token").parse().expect("a number")
    }
}
