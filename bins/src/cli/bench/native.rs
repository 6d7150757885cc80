//! A client of `muster-api/1`.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_client::{Client, Outcome, Target};
use muster_messages::wire::{ActorsAsk, ActorsOf, LeaseRef, LeaseRequest, Request};
use muster_messages::{ErrorCode, NodeId, Revision};
use serde::Deserialize;

use super::access::{LABEL, lease_of};
use crate::cli::args::BenchOp;

/// See the module.
pub struct NativeClient {
    client: Client,
    asks: Asks,
}

enum Asks {
    Label(NodeId),
    Node(NodeId),
    Actors,
    /// The client's own lease, and the revision it saw last.
    Lease(LeaseRef, Revision),
}

/// What a run needs of a lease.
#[derive(Deserialize)]
struct Seen {
    revision: Revision,
}

impl NativeClient {
    /// Connected, and with a lease of its own if it changes one.
    pub async fn connect(target: Target, op: BenchOp, node: NodeId, number: u32) -> Outcome<Self> {
        let mut client = Client::to(target, Duration::from_secs(30));
        client.call(Request::Contact).await?;
        let asks = match op {
            BenchOp::Write => Asks::Label(node),
            BenchOp::Read => Asks::Node(node),
            BenchOp::Actors => Asks::Actors,
            BenchOp::Cas => {
                let lease = lease_of(number);
                let revision = hold(&mut client, &lease).await?;
                Asks::Lease(lease, revision)
            }
        };
        Ok(Self { client, asks })
    }

    /// One operation, the `number`th of the run.
    pub async fn once(&mut self, number: u64) -> Outcome {
        let request = match &self.asks {
            Asks::Node(node) => Request::NodeInspect { node: node.to_string(), fresh: true },
            Asks::Actors => Request::Actors { node: ActorsOf::Here, ask: ActorsAsk::Tree },
            Asks::Label(node) => {
                let add = BTreeMap::from([(LABEL.to_owned(), number.to_string())]);
                Request::NodeUpdate { node: node.to_string(), add, remove: Vec::new(), generation: None }
            }
            Asks::Lease(lease, revision) => {
                let (lease, revision) = (lease.clone(), *revision);
                Request::Lease(LeaseRequest::Update { lease, revision, holder: None, duration_ms: None })
            }
        };
        let Asks::Lease(lease, revision) = &mut self.asks else {
            return self.client.call(request).await.map(drop);
        };
        let answer: Outcome<Seen> = self.client.ask(request).await;
        if answer.as_ref().is_err_and(|failure| failure.is(ErrorCode::Conflict)) {
            // A change of unknown outcome was made after all.
            *revision = see(&mut self.client, lease).await?;
        }
        *revision = answer?.revision;
        Ok(())
    }
}

/// Makes sure that the lease is there.
async fn hold(client: &mut Client, lease: &LeaseRef) -> Outcome<Revision> {
    let holder = Some(lease.name.clone());
    // A minute: what a run that was killed leaves behind is free soon.
    let create = LeaseRequest::Create { lease: lease.clone(), holder, duration_ms: Some(60_000) };
    let seen: Outcome<Seen> = client.ask(Request::Lease(create)).await;
    match seen {
        Err(failure) if failure.is(ErrorCode::Conflict) => see(client, lease).await,
        seen => Ok(seen?.revision),
    }
}

async fn see(client: &mut Client, lease: &LeaseRef) -> Outcome<Revision> {
    let seen: Seen = client.ask(Request::Lease(LeaseRequest::Get { lease: lease.clone() })).await?;
    Ok(seen.revision)
}
