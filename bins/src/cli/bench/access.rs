//! Credentials and transport of the load, and the cleanup after a run.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_client::{Client, Failure, Identity, Outcome, Target};
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{ErrorCode, LeaseView, Name, NodeId, RaftStatusView, UserKind};
use serde::Deserialize;

use crate::cli::args::{BenchCaller, Global};
use crate::cli::commands::user::{NewUser, create};
use crate::cli::duration::millis;

/// The namespace of a run's leases; they are deleted at the end.
pub const NAMESPACE: &str = "muster-bench";

/// The label that writes change; removed at the end.
pub const LABEL: &str = "bench";

/// Validity of a run's identity if it is not revoked: longer than any run.
const IDENTITY_TTL: Duration = Duration::from_secs(24 * 3600);

/// See the module.
pub struct Access {
    pub target: Target,
    /// The user created for this run.
    user: Option<Name>,
}

impl Access {
    /// Connects over TLS with an identity of its own; over the socket, as operator, if no manager is reachable over TLS.
    pub async fn prepare(control: &mut Client, global: &Global, caller: BenchCaller) -> Outcome<Self> {
        let (identity, user) = match (&global.identity, caller) {
            (Some(file), BenchCaller::Operator) => (Identity::read(file)?, None),
            _ => {
                let identity = own_identity(control, caller).await?;
                let user = identity.name.clone();
                (identity, Some(user))
            }
        };
        let managers = leader_first(control, identity.managers.clone()).await?;
        let tls = Target::Managers { dialer: Box::new(identity.dialer()?), managers };
        match Client::to(tls.clone(), global.timeout()).call(Request::Contact).await {
            Ok(_) => Ok(Self { target: tls, user }),
            Err(failure) if failure.is(ErrorCode::Unreachable) && caller == BenchCaller::Operator => {
                Ok(Self { target: control.target().clone(), user })
            }
            Err(failure) => Err(failure),
        }
    }

    /// The transport's name in reports.
    pub fn transport(&self) -> &'static str {
        match self.target {
            Target::Managers { .. } => "tls",
            Target::Socket(_) => "socket",
        }
    }

    /// Removes everything that the run created. The user expires within a day if it cannot be revoked now.
    pub async fn clean_up(&self, control: &mut Client, node: &NodeId) {
        for lease in leases(control).await {
            let _ = control.call(Request::Lease(LeaseRequest::Delete { lease })).await;
        }
        let remove = vec![LABEL.to_owned()];
        let request = Request::NodeUpdate { node: node.to_string(), add: BTreeMap::new(), remove, generation: None };
        let _ = control.call(request).await;
        if let Some(name) = &self.user {
            let _ = control.call(Request::UserRevoke { name: name.clone() }).await;
        }
    }
}

/// Creates an operator for a run, or a user of [`NAMESPACE`].
pub async fn own_identity(control: &mut Client, caller: BenchCaller) -> Outcome<Identity> {
    let name: Name = format!("bench-{:08x}", rand::random::<u32>()).parse().expect("a legal name");
    let (kind, namespaces) = match caller {
        BenchCaller::Operator => (UserKind::Operator, Vec::new()),
        BenchCaller::User => (UserKind::User, vec![NAMESPACE.to_owned()]),
    };
    let wanted = NewUser { name, kind, namespaces, ttl_ms: Some(millis(IDENTITY_TTL)) };
    Ok(create(control, wanted).await?.identity)
}

/// The lease of client `number`.
pub fn lease_of(number: u32) -> LeaseRef {
    LeaseRef { namespace: NAMESPACE.to_owned(), name: format!("client-{number}") }
}

/// The leases that runs have created.
async fn leases(control: &mut Client) -> Vec<LeaseRef> {
    #[derive(Deserialize)]
    struct Listed {
        items: Vec<LeaseView>,
    }
    let all = LeaseRequest::List { namespace: Some(NAMESPACE.to_owned()) };
    let listed: Outcome<Listed> = control.ask(Request::Lease(all)).await;
    let items = listed.map(|listed| listed.items).unwrap_or_default();
    items.into_iter().map(|lease| LeaseRef { namespace: lease.namespace, name: lease.name }).collect()
}

/// The managers' addresses, the leader's first.
async fn leader_first(control: &mut Client, mut managers: Vec<String>) -> Outcome<Vec<String>> {
    let raft: RaftStatusView = control.ask(Request::RaftStatus { fresh: true }).await?;
    let leader = raft.members.iter().find(|member| Some(member.node) == raft.leader);
    if let Some(leader) = leader {
        managers.retain(|addr| *addr != leader.addr);
        managers.insert(0, leader.addr.clone());
    }
    Ok(managers)
}

/// The dialer and the managers, if the load goes over TLS.
pub fn over_tls(target: &Target) -> Outcome<(&muster_gateway::Dialer, &[String])> {
    match target {
        Target::Managers { dialer, managers } => Ok((dialer, managers)),
        Target::Socket(_) => {
            Err(Failure::new(ErrorCode::Unreachable, "HTTP needs a manager's TLS port, but none is reachable"))
        }
    }
}
