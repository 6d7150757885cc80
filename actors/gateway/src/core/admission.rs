//! Which principals are current: the decision between the handshake and the first byte of a service.
//!
//! Invariants  ADMIT-1  a replica that has applied the certificate's grant decides; a certificate never overrules it.
//!             ADMIT-2  only such a replica answers `demoted` or `removed`; any replica that contains the block answers
//!                      `blocked`. These answers end a manager runtime, so a replica that may be too old must not give them.
//!             ADMIT-3  a manager with an empty replica, or with an old one and no leader, still accepts the others: mesh and
//!                      agent connections are accepted on the certificate, because refusing them could lose the quorum
//!                      permanently. With a leader it waits for the grant as long as it may, then refuses, unless the peer is
//!                      the leader itself. This decides nothing else: the leader checks every state change, and the manager
//!                      that forwards it, again in its own applied state.
//!             ADMIT-4  the mesh requires both: certificate and replica say manager.
//!             ADMIT-5  a certificate of an older incarnation opens only the agent session of a node that the new incarnation
//!                      knows, which brings it a current certificate. Its role and grant are ignored: they belong to another
//!                      history.
//!             ADMIT-6  a leader refuses a certificate whose grant it has not applied, or which names none and is of a node
//!                      that it does not know. Every grant was in the log before a certificate named it, so this one is a
//!                      forgery.
//!             ADMIT-7  from feature level 3 on, a certificate of a node opens nothing unless it is one of the two on record
//!                      (CERT-6). A leader knows all that were handed out; a follower that does not know one waits for it as
//!                      long as it may, then refuses. A follower without a leader may be behind, and falls back to ADMIT-3.
//!             SPIFFE-3  the certificate of a workload opens nothing, whatever the replica says.
//!             ADMIT-8  a restored cluster admits only its own manager until the operator opens it: the backup may hold nodes,
//!                      users and tokens that were removed after it was made.

use std::time::Duration;

use muster_messages::protocol::Service;
use muster_messages::{
    CertIdentity, ClusterId, Incarnation, Name, NodeId, RefusalReason, Replica, Revision, Role, Subject, Tables, User,
    UserKind, WallTime, WorkloadName,
};

use super::roots;
use crate::bug_injected;
use crate::bugs::BugInjection;

/// The facts about the deciding process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalFacts {
    pub cluster: ClusterId,
    /// The newest incarnation that this process knows of.
    pub incarnation: Incarnation,
    /// The manager runtime runs.
    pub manager: bool,
    /// This node restored a backup, and the operator has not yet opened the cluster to others (ADMIT-8).
    pub closed_to_others: bool,
    /// This node.
    pub me: Option<NodeId>,
}

/// The decision about a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The local replica confirms it, or no state is needed.
    Accept,
    /// The local replica is too old to decide; the certificate is valid.
    AcceptOnCertificate,
    /// The local replica is too old, but follows a leader: decide again when it changes, and do this instead if it stays
    /// too old.
    CatchUp {
        otherwise: Box<Admission>,
    },
    Refuse(RefusalReason, String),
}

/// The decision about a live connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveDecision {
    /// It stays. `by_replica`: a replica has confirmed it at least once.
    Stays {
        by_replica: bool,
    },
    Ends(RefusalReason),
}

const CLOSED_MESSAGE: &str =
    "this cluster was restored from a backup and is closed until its operator runs `muster recovery open`";

/// Decides about a connection to `service`. `replica`: the local replica, on a manager.
pub fn admit(
    identity: Option<&CertIdentity>,
    service: Service,
    replica: Option<&Replica>,
    here: &LocalFacts,
    now: WallTime,
) -> Admission {
    if here.closed_to_others && identity.and_then(|i| i.node()).map(|(node, _)| node) != here.me {
        return refuse(RefusalReason::NotKnownHereYet, CLOSED_MESSAGE);
    }
    let for_managers = matches!(service, Service::Mesh | Service::Agent | Service::Join);
    if for_managers && !here.manager {
        return refuse(RefusalReason::NotAManager, "this node is not a manager; ask a manager");
    }
    // Before all else: not even a service that asks for no certificate.
    if let Some(Subject::Workload(name)) = identity.map(|identity| &identity.subject) {
        return of_workload(name);
    }
    if service == Service::Join {
        return Admission::Accept; // its token decides, not its certificate
    }
    let Some(identity) = identity else {
        return without_certificate(service);
    };
    if let Some(refusal) = unusable(identity, here, now) {
        return refusal;
    }
    let decision = of_any_root(identity, service, replica, here);
    roots::restricted(decision, identity, service, replica.map(|replica| &replica.tables))
}

fn of_any_root(identity: &CertIdentity, service: Service, replica: Option<&Replica>, here: &LocalFacts) -> Admission {
    if identity.incarnation < here.incarnation {
        return old_incarnation(identity, service, replica, here);
    }
    if let Some(refusal) = blocked(identity, replica) {
        return refusal;
    }
    match &identity.subject {
        Subject::Node { node, role } => node_admission(identity, *node, *role, service, replica),
        Subject::User(name) => user_admission(identity, name, UserKind::User, service, replica, here),
        Subject::Admin(name) => user_admission(identity, name, UserKind::Operator, service, replica, here),
        Subject::Reader(name) => user_admission(identity, name, UserKind::ReadOnly, service, replica, here),
        Subject::Workload(name) => of_workload(name),
    }
}

/// SPIFFE-3.
fn of_workload(name: &WorkloadName) -> Admission {
    let sentence = format!("workload {name} may not use the cluster: its certificate is for other workloads");
    refuse(RefusalReason::Forbidden, sentence)
}

/// How long a connection may live on its certificate alone while there is a leader: a follower with a leader applies earlier
/// entries in far less time, and a refused node finds another manager.
pub const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Decides about a live connection, with a newer replica than before. `since`: how long it has been open; `by_replica`: a replica
/// has confirmed it at least once.
pub fn evaluate_live(
    identity: &CertIdentity,
    service: Service,
    (by_replica, since): (bool, Duration),
    replica: &Replica,
    here: &LocalFacts,
    now: WallTime,
) -> LiveDecision {
    use RefusalReason as R;
    match admit(Some(identity), service, Some(replica), here, now) {
        Admission::Accept => LiveDecision::Stays { by_replica: true },
        Admission::Refuse(
            reason @ (R::Blocked | R::Demoted | R::Removed | R::OldIncarnation | R::Unauthenticated),
            _,
        ) => LiveDecision::Ends(reason),
        Admission::Refuse(reason, _) if replica.raft.leading && identity.node().is_some() => LiveDecision::Ends(reason),
        // Known to an older replica but not to a newer one: revoked or superseded, not "not known yet".
        _ if by_replica && !is_on_record(identity, replica) => LiveDecision::Ends(R::Unauthenticated),
        Admission::CatchUp { otherwise } if since >= CONFIRMATION_TIMEOUT => match *otherwise {
            Admission::Refuse(reason, _) => LiveDecision::Ends(reason),
            _ => LiveDecision::Stays { by_replica },
        },
        _ => LiveDecision::Stays { by_replica },
    }
}

/// ADMIT-7. For users only the record counts.
fn is_on_record(identity: &CertIdentity, replica: &Replica) -> bool {
    identity.node().is_some() && bug_injected(BugInjection::AdmitSuperseded) || roots::counts(identity, &replica.tables)
}

fn refuse(reason: RefusalReason, sentence: impl Into<String>) -> Admission {
    Admission::Refuse(reason, sentence.into())
}

fn without_certificate(service: Service) -> Admission {
    match service {
        Service::Join | Service::Http => Admission::Accept,
        Service::Mesh | Service::Agent => refuse(
            RefusalReason::Unauthenticated,
            "no certificate was presented; only nodes of the cluster may use this service",
        ),
        Service::Api => refuse(
            RefusalReason::Unauthenticated,
            "no certificate was presented; use that of a node, a user or an operator",
        ),
    }
}

/// The fault of the certificate itself, for any holder.
fn unusable(identity: &CertIdentity, here: &LocalFacts, now: WallTime) -> Option<Admission> {
    let (theirs, ours) = (identity.incarnation, here.incarnation);
    if identity.cluster != here.cluster {
        let sentence = format!("the certificate belongs to cluster {}", identity.cluster);
        Some(refuse(RefusalReason::Unauthenticated, sentence))
    } else if identity.not_after <= now {
        let sentence = format!("the certificate expired at {}", identity.not_after);
        Some(refuse(RefusalReason::Unauthenticated, sentence))
    } else if theirs > ours {
        let sentence = format!("this node is still in incarnation {ours} of the cluster, not {theirs}");
        Some(refuse(RefusalReason::NotKnownHereYet, sentence))
    } else {
        None
    }
}

/// ADMIT-5. A replica of the new incarnation has every node that the recovery found: others are permanently gone.
fn old_incarnation(
    identity: &CertIdentity,
    service: Service,
    replica: Option<&Replica>,
    here: &LocalFacts,
) -> Admission {
    let (theirs, ours) = (identity.incarnation, here.incarnation);
    let new = |replica: &&Replica| replica.tables.cluster.as_ref().is_some_and(|cluster| cluster.incarnation > theirs);
    if let (Some((node, _)), Some(local_replica)) = (identity.node(), replica.filter(new)) {
        if let Some(refusal) = blocked(identity, replica) {
            return refusal;
        }
        if !local_replica.tables.nodes.contains_key(&node) {
            let sentence = format!(
                "the cluster was recovered without node {node}, or it was removed since (incarnation {ours}, its certificate: {theirs})"
            );
            return refuse(RefusalReason::Removed, sentence);
        }
        if service == Service::Agent {
            return if is_on_record(identity, local_replica) {
                Admission::Accept
            } else {
                not_on_record(node, service, local_replica)
            };
        }
    }
    let sentence = format!(
        "the certificate belongs to incarnation {theirs} of the cluster, which was recovered and is now in {ours}; \
         {}",
        if identity.node().is_some() { "an agent session brings a new one" } else { "ask an operator for a new one" }
    );
    refuse(RefusalReason::OldIncarnation, sentence)
}

fn blocked(identity: &CertIdentity, replica: Option<&Replica>) -> Option<Admission> {
    let (node, _) = identity.node()?;
    let block = replica?.tables.blocklist.get(&node)?;
    let sentence = format!("node {node} was removed from the cluster and is blocked until {}", block.expires_at);
    Some(refuse(RefusalReason::Blocked, sentence))
}

fn node_admission(
    identity: &CertIdentity,
    node: NodeId,
    certified: Role,
    service: Service,
    replica: Option<&Replica>,
) -> Admission {
    if service == Service::Mesh && certified != Role::Manager {
        return refuse(
            RefusalReason::Forbidden,
            format!("the mesh is for managers; the certificate of node {node} says {certified}"),
        );
    }
    match replica {
        Some(replica) if has_applied(&replica.tables, identity, node) => by_replica(replica, identity, node, service),
        _ => by_certificate(identity, node, service, replica),
    }
}

/// Whether the replica is new enough to decide about this certificate.
fn has_applied(tables: &Tables, identity: &CertIdentity, node: NodeId) -> bool {
    match identity.granted {
        Some(granted) => tables.revision >= granted,
        // The founder's first certificate names no grant, so no revision confirms it. Its grant is the first entry, which
        // also wrote its record: a replica with the record overrules the certificate. (Otherwise a demoted founder could use
        // it until it expires.)
        None => tables.nodes.contains_key(&node),
    }
}

fn by_replica(replica: &Replica, identity: &CertIdentity, node: NodeId, service: Service) -> Admission {
    let Some(record) = replica.tables.nodes.get(&node) else {
        let sentence = format!("node {node} was removed from the cluster");
        return refuse(RefusalReason::Removed, sentence);
    };
    if service == Service::Mesh && record.role != Role::Manager {
        let sentence = format!("node {node} was demoted and is now a {}", record.role);
        return refuse(RefusalReason::Demoted, sentence);
    }
    if !is_on_record(identity, replica) {
        return not_on_record(node, service, replica);
    }
    if service != Service::Mesh {
        return Admission::Accept;
    }
    // A certificate from before a demotion and another promotion is as good as the current one: the replica says manager.
    if identity.granted.is_some_and(|g| g > record.granted) {
        let sentence = format!("node {node} has a grant that this manager's replica does not contain");
        return refuse(RefusalReason::NotKnownHereYet, sentence);
    }
    Admission::Accept
}

/// ADMIT-7. A certificate is recorded before it is handed out (CERT-2), so only a lagging replica can lack a valid one.
fn not_on_record(node: NodeId, service: Service, replica: &Replica) -> Admission {
    if replica.raft.leading {
        return refuse(
            RefusalReason::Unauthenticated,
            format!(
                "this certificate of node {node} is not valid: it was superseded, revoked or never recorded; to readmit the node, \
                 restart it with --join and a token of its role"
            ),
        );
    }
    let native = matches!(service, Service::Mesh | Service::Agent);
    let unknown = || {
        let sentence = format!(
            "this manager does not know this certificate of node {node}: it was superseded, or is newer than this manager's \
             replica; ask another manager"
        );
        refuse(RefusalReason::NotKnownHereYet, sentence)
    };
    if !can_catch_up(replica) {
        return if native { Admission::AcceptOnCertificate } else { unknown() };
    }
    let otherwise = if leads(node, service, replica) { Admission::AcceptOnCertificate } else { unknown() };
    let otherwise = Box::new(otherwise);
    Admission::CatchUp { otherwise }
}

/// The local replica does not know the grant. A holder of the root key can sign any grant for any node, so only a replica that
/// cannot learn it accepts the certificate (ADMIT-3).
fn by_certificate(identity: &CertIdentity, node: NodeId, service: Service, replica: Option<&Replica>) -> Admission {
    // Without a replica this is a worker, which only forwards requests, or a manager that is starting.
    let Some(replica) = replica.filter(|_| !bug_injected(BugInjection::AdmitForged)) else {
        return Admission::AcceptOnCertificate;
    };
    if replica.raft.leading {
        let grant = identity.granted.map_or("no grant".to_owned(), |granted| format!("grant {granted}"));
        let sentence = format!("the certificate of node {node} names {grant}: the cluster never issued it"); // ADMIT-6
        return refuse(RefusalReason::NotKnownHereYet, sentence);
    }
    let unknown = || {
        let sentence = format!("this manager's replica is too old to know node {node}; ask another manager");
        refuse(RefusalReason::NotKnownHereYet, sentence)
    };
    if !can_catch_up(replica) || replica.tables.revision == Revision(0) {
        let native = matches!(service, Service::Mesh | Service::Agent);
        return if native { Admission::AcceptOnCertificate } else { unknown() };
    }
    Admission::CatchUp {
        otherwise: Box::new(if leads(node, service, replica) { Admission::AcceptOnCertificate } else { unknown() }),
    }
}

/// The leader is always accepted: without it the replica could not catch up.
fn leads(node: NodeId, service: Service, replica: &Replica) -> bool {
    service == Service::Mesh && replica.raft.leader_node == Some(node)
}

/// Another member leads: missing entries may arrive at any moment.
fn can_catch_up(replica: &Replica) -> bool {
    replica.raft.leader.is_some() && !replica.raft.leading
}

fn user_admission(
    identity: &CertIdentity,
    name: &Name,
    kind: UserKind,
    service: Service,
    replica: Option<&Replica>,
    here: &LocalFacts,
) -> Admission {
    if matches!(service, Service::Mesh | Service::Agent) {
        let sentence = format!("only nodes may use this service; {name} is a user");
        return refuse(RefusalReason::Forbidden, sentence);
    }
    let Some(replica) = replica else {
        return if here.manager {
            refuse(RefusalReason::NotKnownHereYet, "this manager has no replica of the state yet")
        } else {
            Admission::AcceptOnCertificate
        };
    };
    let record = replica.tables.users.get(name);
    let pin = replica.tables.user_pins.get(name).map(|pinned| pinned.pin);
    let is_pinned = pin.is_none() || identity.pin.is_none() || pin == identity.pin;
    if is_pinned
        && roots::serial_suffices(identity, &replica.tables)
        && record.is_some_and(|user| in_force(user, identity, kind))
    {
        return Admission::Accept;
    }
    let not_in_force = refuse(
        RefusalReason::Unauthenticated,
        format!("this certificate of {name} is not valid: it was revoked or replaced"),
    );
    if replica.raft.leading {
        return not_in_force;
    }
    if can_catch_up(replica) {
        let otherwise = Box::new(not_in_force);
        return Admission::CatchUp { otherwise };
    }
    let sentence = format!("this manager's replica may be too old to know this certificate of {name}");
    refuse(RefusalReason::NotKnownHereYet, sentence)
}

fn in_force(user: &User, identity: &CertIdentity, kind: UserKind) -> bool {
    user.serial == identity.serial && user.kind == kind
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
