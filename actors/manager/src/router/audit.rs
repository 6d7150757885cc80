//! Audit lines for calls that reach the leader outside the API: joins, and certificates of nodes.

use std::future::Future;

use muster_audit::{AuditLog, Class, Draft, Object, Origin, Outcome, Pending, Via};
use muster_messages::wire::PeerCall;
use muster_messages::{CertIdentity, ErrorBody, NodeId, Principal};

/// The audit line of a call. `forwarder`: the manager that answers the caller. `None`: the call changes nothing, another actor writes
/// its line, or there is no log.
pub fn begin(log: &AuditLog, forwarder: Option<NodeId>, call: &PeerCall) -> Option<Pending> {
    let via = |addr: &String| match forwarder {
        Some(_) => Via::Internal,
        None => Via::Addr(addr.clone()),
    };
    match call {
        PeerCall::Join { observed_addr, request } => {
            // A node whose certificate has expired must be able to return, whatever happens to the log.
            let (class, verb) = match &request.rekey {
                Some(_) => (Class::Vital, "node.rekey"),
                None => (Class::Change, "node.join"),
            };
            log.begin(class, || Draft {
                request: Some(request.request_id),
                by: Principal::Anonymous,
                origin: Origin { via: via(observed_addr), serial: None, forwarder },
                verb: verb.to_owned(),
                object: node(request.node, Some(request.name.to_string())),
            })
        }
        PeerCall::SignNode { identity, observed_addr, .. } | PeerCall::SignPinned { identity, observed_addr, .. } => {
            let CertIdentity { serial, .. } = identity;
            let id = identity.node().map(|(id, _)| id)?;
            log.begin(Class::Vital, || Draft {
                request: None,
                by: Principal::Node(id),
                origin: Origin { via: via(observed_addr), serial: Some(serial.clone()), forwarder },
                verb: "certificate.sign".to_owned(),
                object: node(id, None),
            })
        }
        PeerCall::SignWorkload { identity, request, .. } => {
            let CertIdentity { serial, .. } = identity;
            let id = identity.node().map(|(id, _)| id)?;
            // The host does not pass on from where the node connects to it.
            let (via, workload) = (Via::Internal, request.workload.to_string());
            log.begin(Class::Vital, || Draft {
                request: None,
                by: Principal::Node(id),
                origin: Origin { via, serial: Some(serial.clone()), forwarder },
                verb: if request.is_jwt() { "workload.jwt" } else { "workload.sign" }.to_owned(),
                object: Object { kind: "workload", id: None, name: Some(workload) },
            })
        }
        PeerCall::Api { .. }
        | PeerCall::Membership { .. }
        | PeerCall::ReportManager { .. }
        | PeerCall::TrustRoots { .. }
        | PeerCall::ReportSeal(_)
        | PeerCall::Sessions(_)
        | PeerCall::Actors(_)
        | PeerCall::Clock => None,
    }
}

/// Carries out the call, if the log permits it, and writes the line.
pub async fn close(
    line: Pending,
    work: impl Future<Output = Result<Vec<u8>, ErrorBody>>,
) -> Result<Vec<u8>, ErrorBody> {
    let result = match line.admit().await {
        Ok(()) => work.await,
        Err(unavailable) => Err(unavailable),
    };
    line.close(result, Ok(Outcome::Done), None).await
}

fn node(id: NodeId, name: Option<String>) -> Object {
    Object { kind: "node", id: Some(id.to_string()), name }
}
