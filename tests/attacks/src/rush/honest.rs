//! The other client: it renews a lease and reads, in turn; at the join service, it joins.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_client::{Connection, Failure, Outcome};
use muster_messages::protocol::Service;
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{FencingToken, RequestId, Role, SessionId};
use serde_json::Value;
use tokio::time::Instant;

use super::join;
use super::{ANSWER_TIMEOUT, Door};
use crate::caller::Caller;
use crate::cluster::Cluster;
use crate::pause::scenario_pause;

/// Delay between two requests, and between two joins: an address may join 20 times a second.
const REQUEST_INTERVAL: Duration = Duration::from_millis(10);
const JOIN_INTERVAL: Duration = Duration::from_millis(200);

/// Durations of its requests, and the failures.
type Work = (Vec<Duration>, Vec<String>);

/// Connected, and holder of a lease.
pub struct Honest {
    connection: Connection,
    lease: LeaseRef,
    session: SessionId,
    token: FencingToken,
    /// Join targets and requests: prepared in advance, because signing requests costs processor time here.
    joins: Option<(Caller, Vec<join::Request>)>,
}

impl Honest {
    pub async fn new(cluster: &Cluster, victim: &str, door: Door) -> Outcome<Self> {
        let (to, number) = (cluster.node(victim).listen, rand::random::<u32>());
        let user = cluster.user(&format!("honest-{number}"), muster_messages::UserKind::User).await?;
        let from = Ipv4Addr::new(127, 0, 0, 2);
        let greeted = Caller::with(to, Service::Api.alpn(), &user)?.from(from).greeted().await;
        let connection = Connection::over(greeted.map_err(|no| Failure::internal(format!("{no:?}")))?);
        let lease = LeaseRef { namespace: "default".to_owned(), name: format!("honest-{number}") };
        let session = SessionId(rand::random());
        let joins = match door {
            Door::Join => {
                let token = cluster.token(Role::Worker).await?;
                let requests: Outcome<Vec<_>> = (0..500).map(|_| join::Request::new(cluster, token.clone())).collect();
                Some((Caller::unauthenticated(to, Service::Join.alpn()).from(from), requests?))
            }
            _ => None,
        };
        let mut honest = Self { connection, lease: lease.clone(), session, token: FencingToken(0), joins };
        let acquire = LeaseRequest::Acquire { lease, holder: "honest".to_owned(), session, duration_ms: 120_000 };
        let held = honest.call(Request::Lease(acquire)).await.map_err(Failure::internal)?;
        honest.token = serde_json::from_value(held["fencing_token"].clone()).map_err(Failure::internal)?;
        Ok(honest)
    }

    async fn call(&mut self, request: Request) -> Result<Value, String> {
        let answer = self
            .connection
            .call(request, RequestId::fresh(muster_kernel::Clock.wall(), rand::random()), ANSWER_TIMEOUT)
            .await;
        serde_json::from_str(&answer.map_err(|e| e.to_string())?).map_err(|e| e.to_string())
    }

    async fn renew(&mut self) -> Result<Value, String> {
        let held = vec![(self.lease.clone(), self.token)];
        self.call(Request::Lease(LeaseRequest::Renew { session: self.session, held })).await
    }

    /// Runs until the load ends, at least once.
    pub async fn work(mut self, over: Arc<AtomicBool>) -> Work {
        let joins = self.joins.take().map(|(caller, requests)| tokio::spawn(join_all(caller, requests, over.clone())));
        let (mut took, mut failed) = (Vec::new(), Vec::new());
        loop {
            let begun = Instant::now();
            let mut renewed = self.renew().await;
            // On a machine that is busy with other programs the leader may miss its own deadline. Every elector tries again.
            if renewed.is_err() {
                renewed = self.renew().await;
            }
            took.push(begun.elapsed());
            match renewed {
                Ok(answer) if answer["items"][0]["renewed"] == true => {}
                other => failed.push(format!("renewing: {other:?}")),
            }
            let begun = Instant::now();
            let status = self.call(Request::Status { fresh: true }).await;
            took.push(begun.elapsed());
            failed.extend(status.err().map(|why| format!("status: {why}")));
            if over.load(Ordering::Relaxed) {
                break;
            }
            scenario_pause("the rate of an honest client", REQUEST_INTERVAL).await;
        }
        if let Some(joins) = joins {
            let (joined, not) = joins.await.unwrap_or_default();
            took.extend(joined);
            failed.extend(not);
        }
        (took, failed)
    }
}

async fn join_all(caller: Caller, requests: Vec<join::Request>, over: Arc<AtomicBool>) -> Work {
    let (mut took, mut failed) = (Vec::new(), Vec::new());
    for request in requests {
        match join::join(&caller, request).await {
            Ok(time) => took.push(time),
            Err(why) => failed.push(format!("joining: {why}")),
        }
        if over.load(Ordering::Relaxed) {
            break;
        }
        scenario_pause("an address may join only so often", JOIN_INTERVAL).await;
    }
    (took, failed)
}
