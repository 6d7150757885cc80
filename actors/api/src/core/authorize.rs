//! Who may ask what.
//!
//! Keeps  API-1  what changes the cluster needs an operator: the admin socket of a manager, or an operator's certificate.
//!        RIGHTS-1  an access token allows what its user could do when it was made and can still do, no more (from
//!               `IDENTITY_LEVEL` on).
//!        RIGHTS-2  a read-only operator reads what an operator reads but secrets, and changes nothing.
//!        API-2  a node reads; it changes nothing but its own session's affairs, which do not pass here, and leases, locks and
//!               config maps of the namespaces that nodes were granted.

use muster_messages::wire::{ActorsAsk, LeaseRef, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{
    DNS_LABEL, DNS_SUBDOMAIN, ErrorBody, ErrorCode, LEVEL_RECONCILER, Name, NodeId, Principal, Role, Tables,
    is_dns_label, is_dns_subdomain,
};

/// What a request does, which decides who may ask it and where it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads that the local copy may answer without quorum, marked stale.
    StaleableRead,
    /// Reads that need quorum.
    Read,
    /// Changes of the cluster.
    Write,
    /// Reads secrets (join tokens).
    SecretRead,
    /// Reads that only the leader can answer: its clock counts.
    LeaderRead,
    /// Looks into or pokes processes.
    Actors,
    /// Restarts or crashes actors.
    ActorsPoke,
}

/// The kind of a request.
pub fn kind_of(request: &Request) -> Kind {
    match request {
        Request::Portion { of, fresh, .. } => kind_of(&of.whole(*fresh)),
        Request::Status { .. }
        | Request::NodeList { .. }
        | Request::NodeInspect { .. }
        | Request::NodeWatch { .. }
        | Request::BlocklistList { .. }
        | Request::RaftStatus { .. } => Kind::StaleableRead,
        Request::CertList | Request::CaShow | Request::UserList | Request::Events { .. } | Request::Contact => {
            Kind::Read
        }
        Request::TokenList | Request::TokenShow { .. } => Kind::SecretRead,
        Request::Reconciler(request) if reads(request) => Kind::Read,
        Request::Lease(LeaseRequest::Watch { .. }) => Kind::Read,
        Request::Lease(
            LeaseRequest::List { .. } | LeaseRequest::Get { .. } | LeaseRequest::Guards | LeaseRequest::Renew { .. },
        ) => Kind::LeaderRead,
        Request::Actors { ask: ActorsAsk::Tree | ActorsAsk::Inspect { .. }, .. } => Kind::Actors,
        Request::Actors { .. } => Kind::ActorsPoke,
        Request::SetRole { .. }
        | Request::NodeRemove { .. }
        | Request::NodeUpdate { .. }
        | Request::NodeRename { .. }
        | Request::TokenCreate { .. }
        | Request::TokenRevoke { .. }
        | Request::TokenRotate { .. }
        | Request::CertRotate { .. }
        | Request::CertRevoke { .. }
        | Request::UserCreate { .. }
        | Request::UserRenew { .. }
        | Request::UserRevoke { .. }
        | Request::AccessTokenCreate { .. }
        | Request::TransferLeader { .. }
        | Request::Lease(_)
        | Request::Reconciler(_)
        | Request::Kube(_)
        | Request::OpenAdmission => Kind::Write,
    }
}

fn reads(request: &ReconcilerRequest) -> bool {
    right_to_reconcile(request) == Right::Read
}

/// What a participant, candidate or runner asks on its own behalf: which of them it may speak for is judged where the
/// state is, by the leases they hold.
pub(super) fn takes_part(request: &ReconcilerRequest) -> bool {
    right_to_reconcile(request) == Right::TakePart
}

/// What a caller must be allowed for a request. A request of a new kind is placed here, where no other match hides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// What everybody with an identity may ask.
    Identity,
    /// Reads of the cluster, for operators and for nodes.
    Read,
    /// Reads that no node needs.
    OperatorRead,
    /// Reads what lets somebody in: join tokens; and a backup, which holds everything.
    Secrets,
    /// Reads of leases: of which, is judged where the state is, see [`may_touch`].
    LeaseRead,
    /// Writes of leases and objects: see [`may_touch`] and [`may_write`].
    LeaseWrite,
    /// What a participant, candidate or runner asks on its own behalf: for whom it may speak is judged where the state is, by the
    /// leases it holds.
    TakePart,
    /// Changes the cluster, or a process.
    Change,
}

/// The right that a request needs.
pub fn right_to(request: &Request) -> Right {
    match request {
        Request::Status { .. } | Request::Contact => Right::Identity,
        Request::Portion { of, fresh, .. } => right_to(&of.whole(*fresh)),
        Request::NodeList { .. }
        | Request::NodeInspect { .. }
        | Request::NodeWatch { .. }
        | Request::BlocklistList { .. }
        | Request::RaftStatus { .. }
        | Request::CertList
        | Request::CaShow
        | Request::UserList
        | Request::Events { .. } => Right::Read,
        Request::TokenList => Right::OperatorRead,
        Request::TokenShow { .. } => Right::Secrets,
        Request::Actors { ask, .. } => match ask {
            ActorsAsk::Tree | ActorsAsk::Inspect { .. } => Right::Read,
            ActorsAsk::Restart { .. } | ActorsAsk::Crash { .. } => Right::Change,
        },
        Request::Lease(request) => match request {
            LeaseRequest::List { .. }
            | LeaseRequest::Get { .. }
            | LeaseRequest::Watch { .. }
            | LeaseRequest::Guards => Right::LeaseRead,
            LeaseRequest::Create { .. }
            | LeaseRequest::Delete { .. }
            | LeaseRequest::DeleteHeld { .. }
            | LeaseRequest::Update { .. }
            | LeaseRequest::Acquire { .. }
            | LeaseRequest::Renew { .. }
            | LeaseRequest::Release { .. } => Right::LeaseWrite,
            LeaseRequest::SetGuard { .. } => Right::Change,
        },
        // Only writes travel so.
        Request::Kube(_) => Right::LeaseWrite,
        Request::Reconciler(request) => right_to_reconcile(request),
        Request::SetRole { .. }
        | Request::NodeRemove { .. }
        | Request::NodeUpdate { .. }
        | Request::NodeRename { .. }
        | Request::TokenCreate { .. }
        | Request::TokenRevoke { .. }
        | Request::TokenRotate { .. }
        | Request::CertRotate { .. }
        | Request::CertRevoke { .. }
        | Request::UserCreate { .. }
        | Request::UserRenew { .. }
        | Request::UserRevoke { .. }
        | Request::AccessTokenCreate { .. }
        | Request::TransferLeader { .. }
        | Request::OpenAdmission => Right::Change,
    }
}

fn right_to_reconcile(request: &ReconcilerRequest) -> Right {
    use ReconcilerRequest as R;
    match request {
        R::List
        | R::Status { .. }
        | R::Plan { .. }
        | R::History { .. }
        | R::MemberList { .. }
        | R::ObjectList { .. }
        | R::ObjectGet { .. }
        | R::Admission { .. }
        | R::Definitions { .. }
        | R::View { .. } => Right::Read,
        R::Announce { .. }
        | R::Admit { .. }
        | R::Leave { .. }
        | R::Step { .. }
        | R::Wave { .. }
        | R::Progress { .. }
        | R::RaiseLevel { .. } => Right::TakePart,
        // Managers bring the built-in ones; which node is a manager is judged where the state is: see `reserved`.
        R::Apply { definitions, .. } if definitions.iter().all(|d| d.reconciler == LEVEL_RECONCILER) => Right::TakePart,
        R::Apply { .. }
        | R::Pause { .. }
        | R::Finalize { .. }
        | R::Retry { .. }
        | R::Repair { .. }
        | R::ForceFloor { .. }
        | R::DeleteGate { .. }
        | R::Delete { .. }
        | R::MemberForget { .. }
        | R::MemberDrain { .. }
        | R::ObjectPut { .. }
        | R::ObjectDelete { .. } => Right::Change,
    }
}

/// Whether a caller has a right.
fn has(caller: &Principal, right: Right) -> bool {
    use Right as R;
    match caller {
        Principal::Operator | Principal::Admin(_) => true,
        Principal::Reader(_) => matches!(right, R::Identity | R::Read | R::OperatorRead | R::LeaseRead),
        Principal::Node(_) => matches!(right, R::Identity | R::Read | R::LeaseRead | R::LeaseWrite | R::TakePart),
        Principal::User(_) | Principal::Bearer { .. } => matches!(right, R::Identity | R::LeaseRead | R::LeaseWrite),
        Principal::Anonymous | Principal::Cluster => false,
    }
}

/// What somebody without identity is told.
pub const NO_IDENTITY: &str = "this needs a certificate: see `muster user create`";

/// Refuses what this caller may not ask. `managers` are named in the refusal.
pub fn authorize(caller: &Principal, request: &Request, managers: &[String]) -> Result<(), ErrorBody> {
    let right = right_to(request);
    if has(caller, right) {
        return Ok(());
    }
    if *caller == Principal::Anonymous {
        return Err(ErrorBody::new(ErrorCode::Unauthenticated, NO_IDENTITY));
    }
    let why = match (caller, right) {
        (Principal::Reader(_), Right::Secrets) => "may not see this, for it holds secrets",
        (Principal::Reader(_), _) => "may not do this, for it only reads",
        _ => "may not do this",
    };
    let details = serde_json::json!({"managers": managers});
    let near = managers.first().map(|m| format!(" (one is {m})")).unwrap_or_default();
    Err(ErrorBody::new(
        ErrorCode::Forbidden,
        format!(
            "{caller} {why}: it needs an operator's credential; run it on a manager{near}, or pass --identity with \
             a file from `muster user create NAME --admin`"
        ),
    )
    .with_details(&details))
}

/// Whether this caller may touch the leases, candidates and locks of a namespace.
pub fn may_touch(tables: &Tables, caller: &Principal, namespace: &str) -> Result<(), ErrorBody> {
    let allowed = match caller {
        Principal::Operator | Principal::Admin(_) | Principal::Node(_) => true,
        Principal::Reader(name) => tables.users.get(name).is_some_and(|user| user.kind.reads_everything()),
        // A user that was revoked since the connection was made has no namespace any more.
        Principal::User(name) => user_may_touch(tables, name, namespace),
        // RIGHTS-1. Neither what its user was given since the token was made, nor what its user has lost.
        Principal::Bearer { user, token } => {
            let rights = tables.token_rights.get(token);
            rights.is_some_and(|rights| rights.kind.reads_everything() || names(&rights.namespaces, namespace))
                && user_may_touch(tables, user, namespace)
        }
        Principal::Anonymous | Principal::Cluster => false,
    };
    if allowed {
        return Ok(());
    }
    if *caller == Principal::Anonymous {
        return Err(ErrorBody::new(ErrorCode::Unauthenticated, NO_IDENTITY));
    }
    Err(ErrorBody::new(
        ErrorCode::Forbidden,
        format!(
            "{caller} may not touch the namespace {namespace}; `muster user create NAME --namespace {namespace}` grants it"
        ),
    ))
}

fn user_may_touch(tables: &Tables, name: &Name, namespace: &str) -> bool {
    tables.users.get(name).is_some_and(|user| user.kind.reads_everything() || names(&user.namespaces, namespace))
}

/// Whether this caller changes nothing anywhere. A token whose user only reads now does so, too, and so does one that was made
/// when its user only read.
pub fn only_reads(tables: &Tables, caller: &Principal) -> bool {
    let user_reads = |name: &Name| tables.users.get(name).is_some_and(|user| user.kind.is_read_only());
    match caller {
        Principal::Reader(_) => true,
        Principal::User(name) => user_reads(name),
        Principal::Bearer { user, token } => {
            user_reads(user) || tables.token_rights.get(token).is_some_and(|rights| rights.kind.is_read_only())
        }
        Principal::Operator | Principal::Admin(_) | Principal::Node(_) | Principal::Anonymous | Principal::Cluster => {
            false
        }
    }
}

fn names(namespaces: &[String], namespace: &str) -> bool {
    namespaces.iter().any(|own| own == namespace || own == "*")
}

/// The namespace that a node writes in whatever was granted.
pub fn own_namespace(node: NodeId) -> String {
    format!("node-{node}")
}

/// API-2, RIGHTS-2. Whether this caller may write in a namespace that it may touch. `granted`: the namespaces that all nodes
/// write in, `*` for all of them. A manager's certificate is held to nothing here: it holds the root key. What members and runners live by is
/// judged by who they are: see `speaks`.
pub fn may_write(tables: &Tables, granted: &[String], caller: &Principal, namespace: &str) -> Result<(), ErrorBody> {
    if only_reads(tables, caller) {
        return Err(ErrorBody::forbidden(format!(
            "{caller} only reads; to write in the namespace {namespace} it takes a user of that namespace: \
             `muster user create NAME --namespace {namespace}`"
        )));
    }
    let Principal::Node(id) = caller else { return Ok(()) };
    let allowed = super::speaks::is_reserved(namespace)
        || granted.iter().any(|grant| grant == namespace || grant == "*")
        || namespace == own_namespace(*id)
        || tables.nodes.get(id).is_some_and(|node| node.role == Role::Manager);
    if allowed {
        return Ok(());
    }
    let listed: Vec<String> = granted.iter().cloned().chain([own_namespace(*id)]).collect();
    Err(ErrorBody::new(
        ErrorCode::Forbidden,
        format!(
            "{caller} may not write in the namespace {namespace}, only in {}; use an identity (`muster user create NAME --namespace \
             {namespace}`), or grant the namespace to all nodes: `[api] node_namespaces` of every manager",
            listed.join(", ")
        ),
    ))
}

/// The names that Kubernetes allows: a DNS label for the namespace, a DNS subdomain for the lease (RFC 1123).
pub fn lease_name_is_sane(lease: &LeaseRef) -> Result<(), ErrorBody> {
    if !is_dns_label(&lease.namespace) {
        return Err(ErrorBody::invalid(format!("a namespace is {DNS_LABEL}")));
    }
    if !is_dns_subdomain(&lease.name) {
        return Err(ErrorBody::invalid(format!("a lease's name is up to 253 of {DNS_SUBDOMAIN}")));
    }
    Ok(())
}

#[cfg(test)]
#[path = "authorize_tests.rs"]
mod tests;
