//! A client over HTTP, on one connection that it keeps: leases in the Kubernetes subset, labels in `/v1`.
//!
//! It speaks with a certificate. A lease is sent back whole, as it came, with the renewal changed: what every client's
//! update does.

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
use muster_messages::{ErrorCode, NodeId, WallTime};
use serde_json::{Value, json};

use super::access::{LABEL, NAMESPACE, lease_of, over_tls};
use crate::cli::args::BenchOp;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// See the module.
pub struct RestClient {
    dialer: Dialer,
    managers: Vec<String>,
    line: Option<Line>,
    asks: Asks,
}

struct Line {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

enum Asks {
    Label { path: String },
    Read { path: String },
    Update { path: String, lease: Value },
}

impl RestClient {
    /// Connected, and with a lease of its own if it reads or changes one.
    pub async fn connect(target: &Target, op: BenchOp, node: NodeId, number: u32) -> Outcome<Self> {
        let (dialer, managers) = over_tls(target)?;
        let asks = Asks::Label { path: format!("/v1/nodes/{node}") };
        let mut client = Self { dialer: dialer.clone(), managers: managers.to_vec(), line: None, asks };
        client.line().await?;
        if op == BenchOp::Actors {
            client.asks = Asks::Read { path: "/v1/actors".to_owned() };
        } else if op != BenchOp::Write {
            let name = lease_of(number).name;
            let lease = client.hold(&name).await?;
            let path = format!("{}/{name}", leases());
            client.asks = match op {
                BenchOp::Read => Asks::Read { path },
                _ => Asks::Update { path, lease },
            };
        }
        Ok(client)
    }

    /// One operation, the `number`th of the run.
    pub async fn once(&mut self, number: u64) -> Outcome {
        match &self.asks {
            Asks::Label { path } => {
                let (path, body) = (path.clone(), json!({"add": {LABEL: number.to_string()}}));
                self.ask(Method::PATCH, &path, Some(&body)).await.map(drop)
            }
            Asks::Read { path } => {
                let path = path.clone();
                self.ask(Method::GET, &path, None).await.map(drop)
            }
            Asks::Update { path, lease } => {
                let (path, mut lease) = (path.clone(), lease.clone());
                lease["spec"]["renewTime"] = now(number);
                let answer = self.ask(Method::PUT, &path, Some(&lease)).await;
                let conflict = answer.as_ref().is_err_and(|failure| failure.is(ErrorCode::Conflict));
                // A change of unknown outcome was made after all.
                let newest = if conflict { self.ask(Method::GET, &path, None).await? } else { Value::Null };
                let lease = if conflict { newest } else { answer.as_ref().map_err(Clone::clone)?.clone() };
                self.asks = Asks::Update { path, lease };
                answer.map(drop)
            }
        }
    }

    /// Makes sure that the lease is there.
    async fn hold(&mut self, name: &str) -> Outcome<Value> {
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
        let exchange = tokio::time::timeout(PATIENCE, self.exchange(method, path, body)).await;
        let exchange = exchange.unwrap_or_else(|_| Err(lost("it did not answer in time")));
        let (status, text) = exchange.inspect_err(|_| self.line = None)?;
        let document: Value = serde_json::from_slice(&text).unwrap_or_default();
        if status.is_success() { Ok(document) } else { Err(Failure::from_http(status.as_u16(), &document)) }
    }

    async fn exchange(&mut self, method: Method, path: &str, body: Bytes) -> Outcome<(StatusCode, Bytes)> {
        let line = self.line().await?;
        let request = Request::builder().method(method).uri(path).header(header::HOST, &line.host);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(Full::new(body));
        let request = request.map_err(Failure::internal)?;
        // A connection that has just given an answer needs a moment until it takes the next request.
        line.sender.ready().await.map_err(lost)?;
        let answer = line.sender.send_request(request).await.map_err(lost)?;
        let status = answer.status();
        Ok((status, answer.into_body().collect().await.map_err(lost)?.to_bytes()))
    }

    /// The connection, made anew when it is gone.
    async fn line(&mut self) -> Outcome<&mut Line> {
        if self.line.as_ref().is_none_or(|line| line.sender.is_closed()) {
            self.line = Some(dial(&self.dialer, &self.managers).await?);
        }
        Ok(self.line.as_mut().expect("it was just made"))
    }
}

/// The first manager that can be reached.
async fn dial(dialer: &Dialer, managers: &[String]) -> Outcome<Line> {
    let mut trouble = lost("no manager is known");
    for manager in managers {
        match dialer.dial(manager, Service::Http, None).await {
            Ok(dialed) => {
                let io = TokioIo::new(dialed.stream.into_inner());
                let (sender, connection) = handshake(io).await.map_err(lost)?;
                tokio::spawn(connection); // how it ends is told to whoever sends
                return Ok(Line { sender, host: manager.clone() });
            }
            Err(error) => trouble = lost(error),
        }
    }
    Err(trouble)
}

fn leases() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")
}

/// With microseconds of our own, so that two changes within a millisecond differ.
fn now(micros: u64) -> Value {
    let wall = Clock.wall().0;
    let millis = wall.rem_euclid(1000);
    let second = WallTime(wall - millis).to_string();
    json!(format!("{}.{millis:03}{:03}Z", second.trim_end_matches('Z'), micros % 1000))
}

fn lost(why: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::UnknownOutcome, format!("HTTP: {why}"))
}
