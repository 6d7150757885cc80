//! Who may ask what.
//!
//! Keeps  API-1  what changes the cluster needs an operator: the admin socket of a manager, or an operator's certificate.
//!        RIGHTS-1  an access token allows what its user could do when it was made and can still do, no more (from
//!               `IDENTITY_LEVEL` on).
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
    use ReconcilerRequest as R;
    matches!(
        request,
        R::List
            | R::Status { .. }
            | R::Plan { .. }
            | R::History { .. }
            | R::MemberList { .. }
            | R::ObjectList { .. }
            | R::ObjectGet { .. }
            | R::Admission { .. }
            | R::Definitions { .. }
            | R::View { .. }
    )
}

/// What a participant, candidate or runner asks on its own behalf: which of them it may speak for is judged where the
/// state is, by the leases they hold.
pub(super) fn takes_part(request: &ReconcilerRequest) -> bool {
    use ReconcilerRequest as R;
    match request {
        R::Announce { .. } | R::Admit { .. } | R::Leave { .. } | R::Step { .. } | R::Wave { .. } => true,
        R::Progress { .. } | R::RaiseLevel { .. } => true,
        // Managers bring the built-in ones; which node is a manager is judged where the state is: see `reserved`.
        R::Apply { definitions, .. } => definitions.iter().all(|d| d.reconciler == LEVEL_RECONCILER),
        _ => false,
    }
}

/// What somebody without identity is told.
pub const NO_IDENTITY: &str = "this needs a certificate: see `muster user create`";

/// Refuses what this caller may not ask. `managers` are named in the refusal.
pub fn authorize(caller: &Principal, request: &Request, managers: &[String]) -> Result<(), ErrorBody> {
    let kind = kind_of(request);
    // Whose leases a user may touch is judged where the state is: see `may_touch`. Guards are the operator's.
    let leases = match request {
        Request::Lease(request) => !matches!(request, LeaseRequest::SetGuard { .. }),
        Request::Kube(_) => true,
        _ => false,
    };
    let takes_part = matches!(request, Request::Reconciler(request) if takes_part(request));
    let allowed = match caller {
        Principal::Operator | Principal::Admin(_) => true,
        Principal::Node(_) => leases || takes_part || matches!(kind, Kind::StaleableRead | Kind::Read | Kind::Actors),
        Principal::User(_) | Principal::Bearer { .. } => {
            leases || matches!(request, Request::Status { .. } | Request::Contact)
        }
        Principal::Anonymous | Principal::Cluster => false,
    };
    if allowed {
        return Ok(());
    }
    if *caller == Principal::Anonymous {
        return Err(ErrorBody::new(ErrorCode::Unauthenticated, NO_IDENTITY));
    }
    let details = serde_json::json!({"managers": managers});
    let near = managers.first().map(|m| format!(" (one is {m})")).unwrap_or_default();
    Err(ErrorBody::new(
        ErrorCode::Forbidden,
        format!(
            "{caller} may not do this: it needs an operator's credential; run it on a manager{near}, or pass --identity with \
             a file from `muster user create NAME --admin`"
        ),
    )
    .with_details(&details))
}

/// Whether this caller may touch the leases, candidates and locks of a namespace.
pub fn may_touch(tables: &Tables, caller: &Principal, namespace: &str) -> Result<(), ErrorBody> {
    let allowed = match caller {
        Principal::Operator | Principal::Admin(_) | Principal::Node(_) => true,
        // A user that was revoked since the connection was made has no namespace any more.
        Principal::User(name) => user_may_touch(tables, name, namespace),
        // RIGHTS-1. Neither what its user was given since the token was made, nor what its user has lost.
        Principal::Bearer { user, token } => {
            let rights = tables.token_rights.get(token);
            rights.is_some_and(|rights| rights.admin || names(&rights.namespaces, namespace))
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
    tables.users.get(name).is_some_and(|user| user.admin || names(&user.namespaces, namespace))
}

fn names(namespaces: &[String], namespace: &str) -> bool {
    namespaces.iter().any(|own| own == namespace || own == "*")
}

/// The namespace that a node writes in whatever was granted.
pub fn own_namespace(node: NodeId) -> String {
    format!("node-{node}")
}

/// API-2. Whether this caller may write in a namespace that it may touch. `granted`: the namespaces that all nodes write in, `*`
/// for all of them. A manager's certificate is held to nothing here: it holds the root key. What members and runners live by is
/// judged by who they are: see `speaks`.
pub fn may_write(tables: &Tables, granted: &[String], caller: &Principal, namespace: &str) -> Result<(), ErrorBody> {
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
mod tests {
    use super::*;

    #[test]
    fn a_node_reads_and_changes_nothing() {
        let node = Principal::Node(NodeId::from_entropy(1));
        assert!(authorize(&node, &Request::NodeList { fresh: false }, &[]).is_ok());
        let refused = authorize(&node, &Request::TokenShow { role: Role::Manager }, &["m:1".into()]).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
        assert!(refused.message.contains("m:1"));
        for request in [
            Request::SetRole { node: "x".into(), role: Role::Manager },
            Request::NodeRemove { node: "x".into(), force: true },
            Request::TokenRotate { role: Role::Worker },
        ] {
            assert!(authorize(&node, &request, &[]).is_err());
            assert!(authorize(&Principal::Operator, &request, &[]).is_ok());
        }
    }

    #[test]
    fn a_node_writes_in_its_own_namespace_and_in_those_granted() {
        use muster_messages::{MEMBERS_NAMESPACE, Name, NodeRecord, WallTime};
        let (worker, manager) = (NodeId::from_entropy(1), NodeId::from_entropy(2));
        let mut tables = Tables::default();
        for (id, role) in [(worker, Role::Worker), (manager, Role::Manager)] {
            let record = NodeRecord::new(id, Name::sanitized("n"), role, WallTime(0));
            tables.nodes.insert(id, std::sync::Arc::new(record));
        }
        let granted = vec!["default".to_owned()];
        let may = |caller: &Principal, namespace: &str| may_write(&tables, &granted, caller, namespace).is_ok();
        let node = Principal::Node(worker);
        for (namespace, allowed) in [
            ("default", true),
            (own_namespace(worker).as_str(), true),
            (MEMBERS_NAMESPACE, true),
            ("team-a", false),
            ("kube-system", false),
            (own_namespace(manager).as_str(), false),
        ] {
            assert_eq!(may(&node, namespace), allowed, "{namespace}");
            assert!(may(&Principal::Node(manager), namespace) && may(&Principal::Operator, namespace));
        }
        assert!(!may(&Principal::Node(NodeId::from_entropy(3)), "team-a"), "of which this copy knows nothing");
        assert!(may_write(&tables, &["*".to_owned()], &node, "team-a").is_ok());
        let refused = may_write(&tables, &granted, &node, "team-a").unwrap_err();
        assert!(refused.code == ErrorCode::Forbidden && refused.message.contains("node_namespaces"), "{refused}");
    }

    #[test]
    fn nobody_without_identity_asks_anything() {
        let refused = authorize(&Principal::Anonymous, &Request::Contact, &[]).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unauthenticated);
    }
}
