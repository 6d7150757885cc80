//! Authorization of requests.
//!
//! Invariants  API-1  a change of the cluster needs an operator: the admin socket of a manager, or an operator's certificate.
//!             RIGHTS-1  an access token allows only what its user could do when it was created and can still do (from
//!                    `IDENTITY_LEVEL` on).
//!             RIGHTS-2  a read-only operator reads what an operator reads except secrets, and changes nothing.
//!             API-2  a node reads; it changes only its own session's state, which does not pass through here, and leases,
//!                    locks and config maps of the namespaces that nodes were granted.

use muster_messages::wire::{ActorsAsk, AutopilotRequest, LeaseRef, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{
    DNS_LABEL, DNS_SUBDOMAIN, Details, ErrorBody, ErrorCode, LEVEL_RECONCILER, Name, NodeId, Principal, Role, Tables,
    detail, is_dns_label, is_dns_subdomain,
};

/// What a request does. Decides who may send it and where it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads that the local replica may answer without quorum, marked stale.
    StaleableRead,
    /// Reads that need a quorum.
    Read,
    /// Changes of the cluster.
    Write,
    /// Reads of secrets (join tokens, the unlock key).
    SecretRead,
    /// Reads that only the leader can answer, by its clock.
    LeaderRead,
    /// Reads of processes.
    Actors,
    /// Restarts or crashes actors.
    ActorsAdmin,
}

/// The kind of a request.
pub fn kind_of(request: &Request) -> Kind {
    match request {
        Request::Page { of, fresh, .. } => kind_of(&of.whole(*fresh)),
        Request::Status { .. }
        | Request::NodeList { .. }
        | Request::NodeInspect { .. }
        | Request::NodeWatch { .. }
        | Request::BlocklistList { .. }
        | Request::RaftStatus { .. } => Kind::StaleableRead,
        Request::NodeMayStop { .. }
        | Request::Autopilot(AutopilotRequest::State | AutopilotRequest::Preview { .. }) => Kind::LeaderRead,
        Request::Lease(LeaseRequest::Watch { .. }) => Kind::Read,
        // Only the leader knows who holds certificates.
        Request::Lease(LeaseRequest::Renew { .. }) | Request::WorkloadShow { .. } => Kind::LeaderRead,
        Request::Actors { ask: ActorsAsk::Tree | ActorsAsk::Inspect { .. } | ActorsAsk::RunLog(_), .. } => Kind::Actors,
        Request::Actors { .. } => Kind::ActorsAdmin,
        other => match right_to(other) {
            Right::Identity | Right::Read => Kind::Read,
            Right::OperatorRead | Right::Secrets => Kind::SecretRead,
            Right::LeaseRead => Kind::LeaderRead,
            Right::LeaseWrite | Right::Participate | Right::Change => Kind::Write,
        },
    }
}

/// Requests that a participant, candidate or runner makes on its own behalf. `on_behalf` checks which of them the caller
/// may act for, by the leases they hold.
pub(super) fn participates(request: &ReconcilerRequest) -> bool {
    right_to_reconcile(request) == Right::Participate
}

/// The right that a request needs. A new kind of request gets its right here; no other match hides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Requests open to every identity.
    Identity,
    /// Reads of the cluster, for operators and nodes.
    Read,
    /// Reads that no node needs.
    OperatorRead,
    /// Reads of what grants access (join tokens, the unlock key), and the backup, which holds everything.
    Secrets,
    /// Reads of leases; [`may_access`] checks which ones.
    LeaseRead,
    /// Writes of leases and objects: see [`may_access`] and [`may_write`].
    LeaseWrite,
    /// Requests that a participant, candidate or runner makes on its own behalf; `on_behalf` checks for whom the caller
    /// may act, by the leases it holds.
    Participate,
    /// Changes the cluster or a process.
    Change,
}

/// The right that a request needs.
pub fn right_to(request: &Request) -> Right {
    match request {
        // Of `Unlock`, every identity may learn that this process is not locked.
        Request::Status { .. } | Request::Contact | Request::Unlock { .. } => Right::Identity,
        Request::Page { of, fresh, .. } => right_to(&of.whole(*fresh)),
        Request::NodeList { .. }
        | Request::NodeInspect { .. }
        | Request::NodeWatch { .. }
        | Request::NodeMayStop { .. }
        | Request::BlocklistList { .. }
        | Request::RaftStatus { .. }
        | Request::CertList
        | Request::CaShow
        | Request::RootList
        | Request::AutolockStatus
        | Request::WorkloadList
        | Request::WorkloadShow { .. }
        | Request::WorkloadExplain { .. }
        | Request::UserList
        | Request::Events { .. } => Right::Read,
        Request::TokenList => Right::OperatorRead,
        Request::TokenShow { .. } | Request::AutolockKey { .. } => Right::Secrets,
        Request::Actors { ask, .. } => match ask {
            ActorsAsk::Tree | ActorsAsk::Inspect { .. } | ActorsAsk::RunLog(_) => Right::Read,
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
        // Only writes are forwarded as this request.
        Request::Kube(_) => Right::LeaseWrite,
        Request::Reconciler(request) => right_to_reconcile(request),
        Request::Autopilot(request) => match request {
            AutopilotRequest::State | AutopilotRequest::Preview { .. } => Right::Read,
            AutopilotRequest::Set { .. }
            | AutopilotRequest::Withdraw { .. }
            | AutopilotRequest::Pause { .. }
            | AutopilotRequest::Resume
            | AutopilotRequest::Prefer { .. }
            | AutopilotRequest::Drain { .. }
            | AutopilotRequest::Undrain { .. } => Right::Change,
        },
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
        | Request::RootRotate { .. }
        | Request::RootActivate { .. }
        | Request::RootAbort
        | Request::RootRetire { .. }
        | Request::RootRevoke { .. }
        | Request::AutolockOn
        | Request::AutolockOff
        | Request::AutolockRotate
        | Request::RootRequest { .. }
        | Request::RootIssued { .. }
        | Request::WorkloadSet { .. }
        | Request::WorkloadRemove { .. }
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
        | R::Runs { .. }
        | R::Log { .. }
        | R::MemberList { .. }
        | R::ObjectList { .. }
        | R::ObjectGet { .. }
        | R::ObjectChanges { .. }
        | R::Admission { .. }
        | R::Definitions { .. }
        | R::View { .. } => Right::Read,
        R::Announce { .. }
        | R::Admit { .. }
        | R::Leave { .. }
        | R::Step { .. }
        | R::Wave { .. }
        | R::Progress { .. }
        | R::StepDone { .. }
        | R::RecordRun { .. }
        | R::RaiseLevel { .. } => Right::Participate,
        // Managers supply the built-in definitions; `reserved` checks which node is a manager.
        R::Apply { definitions, .. } if definitions.iter().all(|d| d.reconciler == LEVEL_RECONCILER) => {
            Right::Participate
        }
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
        | R::MemberAnnounce { .. }
        | R::ObjectPut { .. }
        | R::ObjectDelete { .. } => Right::Change,
    }
}

/// Whether a caller has a right.
pub(super) fn has_right(caller: &Principal, right: Right) -> bool {
    use Right as R;
    match caller {
        Principal::Operator | Principal::Admin(_) => true,
        Principal::Reader(_) => matches!(right, R::Identity | R::Read | R::OperatorRead | R::LeaseRead),
        Principal::Node(_) => matches!(right, R::Identity | R::Read | R::LeaseRead | R::LeaseWrite | R::Participate),
        Principal::User(_) | Principal::Bearer { .. } => matches!(right, R::Identity | R::LeaseRead | R::LeaseWrite),
        Principal::Anonymous | Principal::Cluster | Principal::Workload(_) => false,
    }
}

/// The answer to a caller without an identity.
pub const NO_IDENTITY: &str = "this request needs a certificate; see `muster user create`";

/// Refuses a request that this caller may not make. The refusal names `managers`.
pub fn authorize(
    caller: &Principal,
    request: &Request,
    managers: impl FnOnce() -> Vec<String>,
) -> Result<(), ErrorBody> {
    let right = right_to(request);
    if has_right(caller, right) {
        return Ok(());
    }
    if *caller == Principal::Anonymous {
        return Err(ErrorBody::new(ErrorCode::Unauthenticated, NO_IDENTITY));
    }
    let why = match (caller, right) {
        (Principal::Reader(_), Right::Secrets) => "may not read this: it contains secrets",
        (Principal::Reader(_), _) => "may not do this: it is read-only",
        _ => "may not do this",
    };
    let managers = managers();
    let details = Details::default().with(detail::MANAGERS, &managers);
    let manager_hint = managers.first().map(|m| format!(" (one is {m})")).unwrap_or_default();
    Err(ErrorBody::new(
        ErrorCode::Forbidden,
        format!(
            "{caller} {why}; an operator's credential is needed: run it on a manager{manager_hint}, or pass --identity with \
             a file from `muster user create NAME --admin`"
        ),
    )
    .with_details(&details))
}

/// Whether this caller may access the leases, candidates and locks of a namespace.
pub fn may_access(tables: &Tables, caller: &Principal, namespace: &str) -> Result<(), ErrorBody> {
    let allowed = match caller {
        Principal::Operator | Principal::Admin(_) | Principal::Node(_) => true,
        Principal::Reader(name) => tables.users.get(name).is_some_and(|user| user.kind.reads_everything()),
        // A user that was revoked after the connection was made has no namespace left.
        Principal::User(name) => user_may_access(tables, name, namespace),
        // RIGHTS-1. Excludes namespaces that the user was given after the token was created, and those the user has
        // lost.
        Principal::Bearer { user, token } => {
            let rights = tables.token_rights.get(token);
            rights.is_some_and(|rights| rights.kind.reads_everything() || names(&rights.namespaces, namespace))
                && user_may_access(tables, user, namespace)
        }
        Principal::Anonymous | Principal::Cluster | Principal::Workload(_) => false,
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
            "{caller} may not access the namespace {namespace}; `muster user create NAME --namespace {namespace}` grants it"
        ),
    ))
}

fn user_may_access(tables: &Tables, name: &Name, namespace: &str) -> bool {
    tables.users.get(name).is_some_and(|user| user.kind.reads_everything() || names(&user.namespaces, namespace))
}

/// Whether this caller is read-only everywhere. A token is read-only if its user is now, or was when the token was
/// created.
pub fn caller_is_read_only(tables: &Tables, caller: &Principal) -> bool {
    let user_reads = |name: &Name| tables.users.get(name).is_some_and(|user| user.kind.is_read_only());
    match caller {
        Principal::Reader(_) => true,
        Principal::User(name) => user_reads(name),
        Principal::Bearer { user, token } => {
            user_reads(user) || tables.token_rights.get(token).is_some_and(|rights| rights.kind.is_read_only())
        }
        Principal::Operator
        | Principal::Admin(_)
        | Principal::Node(_)
        | Principal::Anonymous
        | Principal::Cluster
        | Principal::Workload(_) => false,
    }
}

fn names(namespaces: &[String], namespace: &str) -> bool {
    namespaces.iter().any(|own| own == namespace || own == "*")
}

/// The namespace in which a node may write regardless of grants.
pub fn own_namespace(node: NodeId) -> String {
    format!("node-{node}")
}

/// API-2, RIGHTS-2. Whether this caller may write in a namespace that it may access. `granted`: the namespaces in which
/// all nodes may write, `*` for all of them. A manager's certificate is not restricted here: a manager holds the root
/// key. For the leases and records of members and runners, `on_behalf` checks the caller's identity.
pub fn may_write(tables: &Tables, granted: &[String], caller: &Principal, namespace: &str) -> Result<(), ErrorBody> {
    if caller_is_read_only(tables, caller) {
        return Err(ErrorBody::forbidden(format!(
            "{caller} is read-only; writing in the namespace {namespace} needs a user of that namespace: \
             `muster user create NAME --namespace {namespace}`"
        )));
    }
    let Principal::Node(id) = caller else { return Ok(()) };
    let allowed = super::on_behalf::is_reserved(namespace)
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

/// Names that Kubernetes allows: a DNS label for the namespace, a DNS subdomain for the lease (RFC 1123).
pub fn check_lease_name(lease: &LeaseRef) -> Result<(), ErrorBody> {
    if !is_dns_label(&lease.namespace) {
        return Err(ErrorBody::invalid(format!("a namespace must be {DNS_LABEL}")));
    }
    if !is_dns_subdomain(&lease.name) {
        return Err(ErrorBody::invalid(format!("a lease name must be at most 253 of {DNS_SUBDOMAIN}")));
    }
    Ok(())
}

#[cfg(test)]
#[path = "authorize_tests.rs"]
mod tests;
