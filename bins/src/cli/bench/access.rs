//! How the load reaches the cluster, and leaving the cluster as it was.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_client::{Client, Failure, Identity, Outcome, Target};
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{ErrorCode, LeaseView, Name, NodeId, RaftStatusView, UserKind};
use serde::Deserialize;

use crate::cli::args::Global;
use crate::cli::commands::user::{NewUser, create};
use crate::cli::duration::millis;

/// Where runs keep their leases; deleted again at the end.
pub const NAMESPACE: &str = "muster-bench";

/// The label that writes change; removed again at the end.
pub const LABEL: &str = "bench";

/// How long the identity of a run lives if nobody takes it back: longer than any run.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// See the module.
pub struct Access {
    pub target: Target,
    /// A user made for this run.
    user: Option<Name>,
}

impl Access {
    /// An operator identity of its own, over TLS; the socket where no manager can be reached that way.
    pub async fn prepare(control: &mut Client, global: &Global) -> Outcome<Self> {
        let (identity, user) = match &global.identity {
            Some(file) => (Identity::read(file)?, None),
            None => {
                let identity = own_identity(control).await?;
                let user = identity.name.clone();
                (identity, Some(user))
            }
        };
        let managers = leader_first(control, identity.managers.clone()).await?;
        let tls = Target::Managers { dialer: Box::new(identity.dialer()?), managers };
        match Client::to(tls.clone(), global.timeout()).call(Request::Contact).await {
            Ok(_) => Ok(Self { target: tls, user }),
            Err(failure) if failure.is(ErrorCode::Unreachable) => Ok(Self { target: control.target().clone(), user }),
            Err(failure) => Err(failure),
        }
    }

    /// A word for it.
    pub fn transport(&self) -> &'static str {
        match self.target {
            Target::Managers { .. } => "tls",
            Target::Socket(_) => "socket",
        }
    }

    /// Leaves the cluster as it was. What cannot be taken back now expires within a day.
    pub async fn give_back(&self, control: &mut Client, node: &NodeId) {
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

/// An operator made for a run.
pub async fn own_identity(control: &mut Client) -> Outcome<Identity> {
    let name: Name = format!("bench-{:08x}", rand::random::<u32>()).parse().expect("a legal name");
    let wanted = NewUser { name, kind: UserKind::Operator, namespaces: Vec::new(), ttl_ms: Some(millis(LIFETIME)) };
    Ok(create(control, wanted).await?.0)
}

/// The lease of the client of this number.
pub fn lease_of(number: u32) -> LeaseRef {
    LeaseRef { namespace: NAMESPACE.to_owned(), name: format!("client-{number}") }
}

/// What runs have created.
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

/// What a client of one run needs to know of it.
pub fn over_tls(target: &Target) -> Outcome<(&muster_gateway::Dialer, &[String])> {
    match target {
        Target::Managers { dialer, managers } => Ok((dialer, managers)),
        Target::Socket(_) => {
            Err(Failure::new(ErrorCode::Unreachable, "no manager's TLS port can be reached, which HTTP needs"))
        }
    }
}
