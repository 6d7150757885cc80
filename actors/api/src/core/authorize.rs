//! Who may ask what.
//!
//! Keeps  API-1  what changes the cluster needs an operator: the admin socket of a manager, or an operator's certificate.
//!        API-2  a node reads; it changes nothing but its own session's affairs, which do not pass here.

use muster_messages::wire::{ActorsAsk, Request};
use muster_messages::{ErrorBody, ErrorCode, Principal};

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
    /// Looks into or pokes processes.
    Actors,
    /// Restarts or crashes actors.
    ActorsPoke,
}

/// The kind of a request.
pub fn kind_of(request: &Request) -> Kind {
    match request {
        Request::Status { .. }
        | Request::NodeList { .. }
        | Request::NodeInspect { .. }
        | Request::BlocklistList { .. }
        | Request::RaftStatus { .. } => Kind::StaleableRead,
        Request::CertList | Request::CaShow | Request::UserList | Request::Events { .. } | Request::Contact => {
            Kind::Read
        }
        Request::TokenList | Request::TokenShow { .. } => Kind::SecretRead,
        Request::Actors { ask: ActorsAsk::Tree | ActorsAsk::Inspect { .. }, .. } => Kind::Actors,
        Request::Actors { .. } => Kind::ActorsPoke,
        Request::SetRole { .. }
        | Request::NodeRemove { .. }
        | Request::NodeUpdate { .. }
        | Request::TokenCreate { .. }
        | Request::TokenRevoke { .. }
        | Request::TokenRotate { .. }
        | Request::CertRotate { .. }
        | Request::UserCreate { .. }
        | Request::UserRevoke { .. }
        | Request::TransferLeader { .. } => Kind::Write,
    }
}

/// What somebody without identity is told.
pub const NO_IDENTITY: &str = "this needs a certificate: see `muster user create`";

/// Refuses what this caller may not ask. `managers` are named in the refusal.
pub fn authorize(caller: &Principal, request: &Request, managers: &[String]) -> Result<(), ErrorBody> {
    let kind = kind_of(request);
    let allowed = match caller {
        Principal::Operator | Principal::Admin(_) => true,
        Principal::Node(_) => matches!(kind, Kind::StaleableRead | Kind::Read | Kind::Actors),
        Principal::User(_) => matches!(request, Request::Status { .. } | Request::Contact),
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

#[cfg(test)]
mod tests {
    use muster_messages::{NodeId, Role};

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
    fn nobody_without_identity_asks_anything() {
        let refused = authorize(&Principal::Anonymous, &Request::Contact, &[]).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unauthenticated);
    }
}
