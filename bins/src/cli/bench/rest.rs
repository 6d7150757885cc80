//! An HTTP client on one persistent connection: leases in the Kubernetes subset, labels in `/v1`.
//!
//! It authenticates with a certificate. Like every Kubernetes client, it sends the whole lease back with a new renewal time.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use muster_client::{Failure, Outcome, Target};
use muster_gateway::Dialer;
use muster_kernel::Clock;
use muster_messages::protocol::Service;
use muster_messages::{ErrorCode, NodeId};
use serde_json::{Value, json};

use super::access::{LABEL, NAMESPACE, lease_of, over_tls};
use crate::cli::args::BenchOp;

/// The time limit of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// See the module.
pub struct RestClient {
    dialer: Dialer,
    managers: Vec<String>,
    channel: Option<Channel>,
    operation: Operation,
}

struct Channel {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

enum Operation {
    Label { path: String },
    Read { path: String },
    Update { path: String, lease: Value },
}

impl RestClient {
    /// Connects, and creates its own lease if it reads or changes one.
    pub async fn connect(target: &Target, op: BenchOp, node: NodeId, number: u32) -> Outcome<Self> {
        let (dialer, managers) = over_tls(target)?;
        let operation = Operation::Label { path: format!("/v1/nodes/{node}") };
        let mut client = Self { dialer: dialer.clone(), managers: managers.to_vec(), channel: None, operation };
        client.channel().await?;
        if op == BenchOp::Actors {
            client.operation = Operation::Read { path: "/v1/actors".to_owned() };
        } else if op != BenchOp::Write {
            let name = lease_of(number).name;
            let lease = client.ensure_lease(&name).await?;
            let path = format!("{}/{name}", leases());
            client.operation = match op {
                BenchOp::Read => Operation::Read { path },
                _ => Operation::Update { path, lease },
            };
        }
        Ok(client)
    }

    /// One operation, the `number`th of the run.
    pub async fn once(&mut self, number: u64) -> Outcome {
        match &self.operation {
            Operation::Label { path } => {
                let (path, body) = (path.clone(), json!({"add": {LABEL: number.to_string()}}));
                self.ask(Method::PATCH, &path, Some(&body)).await.map(drop)
            }
            Operation::Read { path } => {
                let path = path.clone();
                self.ask(Method::GET, &path, None).await.map(drop)
            }
            Operation::Update { path, lease } => {
                let (path, mut lease) = (path.clone(), lease.clone());
                lease["spec"]["renewTime"] = now(number);
                let answer = self.ask(Method::PUT, &path, Some(&lease)).await;
                let conflict = answer.as_ref().is_err_and(|failure| failure.is(ErrorCode::Conflict));
                // An earlier update of unknown outcome had been applied.
                let newest = if conflict { self.ask(Method::GET, &path, None).await? } else { Value::Null };
                let lease = if conflict { newest } else { answer.as_ref().map_err(Clone::clone)?.clone() };
                self.operation = Operation::Update { path, lease };
                answer.map(drop)
            }
        }
    }

    /// Ensures that the lease exists.
    async fn ensure_lease(&mut self, name: &str) -> Outcome<Value> {
        let new = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 60, "acquireTime": now(0), "renewTime": now(0)}});
        match self.ask(Method::POST, &leases(), Some(&new)).await {
            Err(failure) if failure.is(ErrorCode::Conflict) => {
                self.ask(Method::GET, &format!("{}/{name}", leases()), None).await
            }
            answer => answer,
        }
    }

    async fn ask(&mut self, method: Method, path: &str, body: Option<&Value>) -> Outcome<Value> {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let exchange = tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(method, path, body)).await;
        let exchange = exchange.unwrap_or_else(|_| Err(lost("it did not answer in time")));
        let (status, text) = exchange.inspect_err(|_| self.channel = None)?;
        let document: Value = serde_json::from_slice(&text).unwrap_or_default();
        if status.is_success() { Ok(document) } else { Err(Failure::from_http(status.as_u16(), &document)) }
    }

    async fn exchange(&mut self, method: Method, path: &str, body: Bytes) -> Outcome<(StatusCode, Bytes)> {
        let channel = self.channel().await?;
        let request = Request::builder().method(method).uri(path).header(header::HOST, &channel.host);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(Full::new(body));
        let request = request.map_err(Failure::internal)?;
        // A connection needs a moment after an answer until it accepts the next request.
        channel.sender.ready().await.map_err(lost)?;
        let answer = channel.sender.send_request(request).await.map_err(lost)?;
        let status = answer.status();
        Ok((status, answer.into_body().collect().await.map_err(lost)?.to_bytes()))
    }

    /// The connection, reopened if it was lost.
    async fn channel(&mut self) -> Outcome<&mut Channel> {
        if self.channel.as_ref().is_none_or(|channel| channel.sender.is_closed()) {
            self.channel = Some(dial(&self.dialer, &self.managers).await?);
        }
        Ok(self.channel.as_mut().expect("connected above"))
    }
}

/// Connects to the first reachable manager.
async fn dial(dialer: &Dialer, managers: &[String]) -> Outcome<Channel> {
    let mut trouble = lost("no manager address is known");
    for manager in managers {
        match dialer.dial(manager, Service::Http, None).await {
            Ok(dialed) => {
                let io = TokioIo::new(dialed.stream.into_inner());
                let (sender, connection) = handshake(io).await.map_err(lost)?;
                tokio::spawn(connection); // the sender sees how it ends
                return Ok(Channel { sender, host: manager.clone() });
            }
            Err(error) => trouble = lost(error),
        }
    }
    Err(trouble)
}

fn leases() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")
}

/// The current time with made-up microseconds, so that two updates within a millisecond differ.
fn now(micros: u64) -> Value {
    let now = Clock.wall().to_string();
    json!(format!("{}{:03}Z", now.trim_end_matches('Z'), micros % 1000))
}

fn lost(why: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::UnknownOutcome, format!("HTTP: {why}"))
}
