//! A client of `muster-api/1`.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_client::{Client, Outcome, Target};
use muster_messages::wire::{ActorsAsk, ActorsOf, LeaseRef, LeaseRequest, Request};
use muster_messages::{ErrorCode, NodeId, Revision};
use serde::Deserialize;

use super::access::{LABEL, lease_of};
use crate::cli::args::{BenchCaller, BenchOp};

/// See the module.
pub struct NativeClient {
    client: Client,
    operation: Operation,
}

enum Operation {
    Label(NodeId),
    Node(NodeId),
    Actors,
    /// The client's own lease: nodes are not a user's business.
    ReadLease(LeaseRef),
    /// The client's own lease, and the revision it saw last.
    Lease(LeaseRef, Revision),
}

/// The part of a lease that a run needs.
#[derive(Deserialize)]
struct LeaseRevision {
    revision: Revision,
}

impl NativeClient {
    /// Connects, and creates its own lease if it reads or changes one.
    pub async fn connect(
        target: Target,
        (op, caller): (BenchOp, BenchCaller),
        node: NodeId,
        number: u32,
    ) -> Outcome<Self> {
        let mut client = Client::to(target, Duration::from_secs(30));
        client.call(Request::Contact).await?;
        let operation = match op {
            BenchOp::Write => Operation::Label(node),
            BenchOp::Read if caller == BenchCaller::User => {
                let lease = lease_of(number);
                ensure_lease(&mut client, &lease).await?;
                Operation::ReadLease(lease)
            }
            BenchOp::Read => Operation::Node(node),
            BenchOp::Actors => Operation::Actors,
            BenchOp::Cas => {
                let lease = lease_of(number);
                let revision = ensure_lease(&mut client, &lease).await?;
                Operation::Lease(lease, revision)
            }
        };
        Ok(Self { client, operation })
    }

    /// One operation, the `number`th of the run.
    pub async fn once(&mut self, number: u64) -> Outcome {
        let request = match &self.operation {
            Operation::Node(node) => Request::NodeInspect { node: node.to_string(), fresh: true },
            Operation::ReadLease(lease) => Request::Lease(LeaseRequest::Get { lease: lease.clone() }),
            Operation::Actors => Request::Actors { node: ActorsOf::Here, ask: ActorsAsk::Tree },
            Operation::Label(node) => {
                let add = BTreeMap::from([(LABEL.to_owned(), number.to_string())]);
                Request::NodeUpdate { node: node.to_string(), add, remove: Vec::new(), generation: None }
            }
            Operation::Lease(lease, revision) => {
                let (lease, revision) = (lease.clone(), *revision);
                Request::Lease(LeaseRequest::Update { lease, revision, holder: None, duration_ms: None })
            }
        };
        let Operation::Lease(lease, revision) = &mut self.operation else {
            return self.client.call(request).await.map(drop);
        };
        let answer: Outcome<LeaseRevision> = self.client.ask(request).await;
        if answer.as_ref().is_err_and(|failure| failure.is(ErrorCode::Conflict)) {
            // An earlier update of unknown outcome had been applied.
            *revision = read_revision(&mut self.client, lease).await?;
        }
        *revision = answer?.revision;
        Ok(())
    }
}

/// Ensures that the lease exists.
async fn ensure_lease(client: &mut Client, lease: &LeaseRef) -> Outcome<Revision> {
    let holder = Some(lease.name.clone());
    // A minute: leases of a killed run become free soon.
    let create = LeaseRequest::Create { lease: lease.clone(), holder, duration_ms: Some(60_000) };
    let seen: Outcome<LeaseRevision> = client.ask(Request::Lease(create)).await;
    match seen {
        Err(failure) if failure.is(ErrorCode::Conflict) => read_revision(client, lease).await,
        seen => Ok(seen?.revision),
    }
}

async fn read_revision(client: &mut Client, lease: &LeaseRef) -> Outcome<Revision> {
    let seen: LeaseRevision = client.ask(Request::Lease(LeaseRequest::Get { lease: lease.clone() })).await?;
    Ok(seen.revision)
}
