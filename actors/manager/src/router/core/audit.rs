//! The audit lines of calls that reach the leader outside the API: joins, and certificates of nodes.

use muster_audit::{Class, Draft, Object, Origin, Via};
use muster_messages::wire::PeerCall;
use muster_messages::{NodeId, Principal};

/// A line to begin: how the log treats the call, and what it says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub class: Class,
    pub draft: Draft,
}

/// The line of a call to the leader that this node answers to its caller.
pub fn of_own_call(call: &PeerCall) -> Option<Line> {
    line_of(None, call)
}

/// The leader's line of a call that another manager forwards, beside that manager's. A follower refuses the call and writes none.
pub fn of_forwarded_call(leading: bool, forwarder: NodeId, call: &PeerCall) -> Option<Line> {
    if leading { line_of(Some(forwarder), call) } else { None }
}

/// `forwarder`: the manager that answers the caller. `None`: the call changes nothing, or another actor writes its line.
fn line_of(forwarder: Option<NodeId>, call: &PeerCall) -> Option<Line> {
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
            let draft = Draft {
                request: Some(request.request_id),
                by: Principal::Anonymous,
                origin: Origin { via: via(observed_addr), serial: None, forwarder },
                verb: verb.to_owned(),
                object: node(request.node, Some(request.name.to_string())),
            };
            Some(Line { class, draft })
        }
        PeerCall::SignNode { identity, observed_addr, .. } | PeerCall::SignPinned { identity, observed_addr, .. } => {
            let id = identity.node().map(|(id, _)| id)?;
            let origin = Origin { via: via(observed_addr), serial: Some(identity.serial.clone()), forwarder };
            Some(signature((id, origin), "certificate.sign", node(id, None)))
        }
        PeerCall::SignWorkload { identity, request, .. } => {
            let id = identity.node().map(|(id, _)| id)?;
            // The host does not pass on from where the node connects to it.
            let origin = Origin { via: Via::Internal, serial: Some(identity.serial.clone()), forwarder };
            let verb = if request.is_jwt() { "workload.jwt" } else { "workload.sign" };
            let workload = Object { kind: "workload", id: None, name: Some(request.workload.to_string()) };
            Some(signature((id, origin), verb, workload))
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

/// Something that the cluster signs for a node: never refused for lack of a log.
fn signature((by, origin): (NodeId, Origin), verb: &str, object: Object) -> Line {
    let draft = Draft { request: None, by: Principal::Node(by), origin, verb: verb.to_owned(), object };
    Line { class: Class::Vital, draft }
}

fn node(id: NodeId, name: Option<String>) -> Object {
    Object { kind: "node", id: Some(id.to_string()), name }
}
