//! Who is current: the decision between the handshake and the first byte of a service.
//!
//! Keeps  ADMIT-1  a copy that has applied the certificate's grant decides; a certificate never overrules it.
//!        ADMIT-2  only such a copy says `demoted` or `removed`; `blocked` is said by any copy that holds the block.
//!                 These words end a manager half, so a copy that may be too old must not use them.
//!        ADMIT-3  a manager with an empty copy, or with an old one and no leader, still hears the others: mesh and agent
//!                 connections are accepted on the certificate, because refusing them could lose quorum for good. With a
//!                 leader it waits for the grant as long as it may, then refuses: but for the leader itself. Nothing is
//!                 decided by it: whatever changes state is judged again by the leader on its own applied copy, and so is
//!                 whoever forwards it.
//!        ADMIT-4  the mesh needs both: certificate and copy say manager.
//!        ADMIT-5  a certificate of an older incarnation opens nothing but the agent session of a node that the new
//!                 incarnation knows, which brings it a certificate of today. What the old one says of role and grant
//!                 counts for nothing: it speaks of another history.
//!        ADMIT-6  a leader refuses a certificate whose grant it has not applied, or which names none and is of a node that
//!                 it does not know. Every grant was in the log before a certificate named it, so this one is a forgery.
//!        ADMIT-7  from feature level 3 on, a certificate of a node opens nothing unless it is one of the two on record
//!                 (CERT-6). A leader knows all that were handed out; a follower that does not know one waits for it as long
//!                 as it may, then refuses. A follower without a leader may lack it, and falls back to ADMIT-3.
//!        ADMIT-8  a restored cluster admits only its own manager until the operator opens it: the backup may hold
//!                 nodes, users and tokens that were removed after it was made.

use std::time::Duration;

use muster_messages::protocol::Service;
use muster_messages::{
    CertIdentity, ClusterId, Incarnation, Name, NodeId, RefusalReason, Replica, Revision, Role, Subject, Tables, User,
    UserKind, WallTime,
};

use crate::sabotage::Sabotage;
use crate::sabotaged;

/// What the deciding process is itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HereIs {
    pub cluster: ClusterId,
    /// The newest incarnation that this process knows of.
    pub incarnation: Incarnation,
    /// The manager half runs.
    pub manager: bool,
    /// A backup was restored here, and the operator has not opened the cluster to others yet (ADMIT-8).
    pub closed_to_others: bool,
    /// The node itself.
    pub me: Option<NodeId>,
}

/// What becomes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The local copy says so, or nothing needs to be known.
    Accept,
    /// The local copy is too old to know; the certificate is good.
    AcceptOnCertificate,
    /// The local copy is too old, and there is a leader to hear from: decide again when the copy changes, and when it
    /// stays too old, do this instead.
    CatchUp {
        otherwise: Box<Admission>,
    },
    Refuse(RefusalReason, String),
}

/// What becomes of a connection that was accepted earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It stays. `by_copy`: a copy has confirmed it at least once.
    Stays {
        by_copy: bool,
    },
    Ends(RefusalReason),
}

const CLOSED: &str =
    "this cluster was restored from a backup and is closed until its operator runs `muster recovery open`";

/// Decides about a connection to `service`. `replica`: the local copy, on a manager.
pub fn admit(
    identity: Option<&CertIdentity>,
    service: Service,
    replica: Option<&Replica>,
    here: &HereIs,
    now: WallTime,
) -> Admission {
    if here.closed_to_others && identity.and_then(|i| i.node()).map(|(node, _)| node) != here.me {
        return refuse(RefusalReason::NotKnownHereYet, CLOSED);
    }
    let for_managers = matches!(service, Service::Mesh | Service::Agent | Service::Join);
    if for_managers && !here.manager {
        return refuse(RefusalReason::NotAManager, "this node is not a manager; ask one");
    }
    if service == Service::Join {
        return Admission::Accept; // a stranger's business: its token is judged, not its certificate
    }
    let Some(identity) = identity else {
        return without_identity(service);
    };
    if let Some(refusal) = unusable(identity, here, now) {
        return refusal;
    }
    if identity.incarnation < here.incarnation {
        return outlived(identity, service, replica, here);
    }
    if let Some(refusal) = blocked(identity, replica) {
        return refusal;
    }
    match &identity.subject {
        Subject::Node { node, role } => node_admission(identity, *node, *role, service, replica),
        Subject::User(name) => user_admission(identity, name, UserKind::User, service, replica, here),
        Subject::Admin(name) => user_admission(identity, name, UserKind::Operator, service, replica, here),
        Subject::Reader(name) => user_admission(identity, name, UserKind::ReadOnly, service, replica, here),
    }
}

/// How long a connection may live on its certificate alone once there is a leader: a follower that hears one has applied what
/// was recorded before in far less, and a node that is refused finds another manager.
pub const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// Decides about a connection that lives, on a copy that is newer than any it was judged by. `since`: how long it has been
/// there; `by_copy`: a copy has confirmed it at least once.
pub fn standing(
    identity: &CertIdentity,
    service: Service,
    (by_copy, since): (bool, Duration),
    replica: &Replica,
    here: &HereIs,
    now: WallTime,
) -> Standing {
    use RefusalReason as R;
    match admit(Some(identity), service, Some(replica), here, now) {
        Admission::Accept => Standing::Stays { by_copy: true },
        Admission::Refuse(
            reason @ (R::Blocked | R::Demoted | R::Removed | R::OldIncarnation | R::Unauthenticated),
            _,
        ) => Standing::Ends(reason),
        Admission::Refuse(reason, _) if replica.raft.leading && identity.node().is_some() => Standing::Ends(reason),
        // What a copy has known and a newer one does not was revoked or superseded. It is not "not known yet".
        _ if by_copy && !counts(identity, replica) => Standing::Ends(R::Unauthenticated),
        Admission::CatchUp { otherwise } if since >= CONFIRMED_WITHIN => match *otherwise {
            Admission::Refuse(reason, _) => Standing::Ends(reason),
            _ => Standing::Stays { by_copy },
        },
        _ => Standing::Stays { by_copy },
    }
}

/// ADMIT-7. Users are judged by their records alone.
fn counts(identity: &CertIdentity, replica: &Replica) -> bool {
    sabotaged(Sabotage::AdmitFormer)
        || identity.node().is_some_and(|(node, _)| replica.tables.certificate_counts(node, identity))
}

fn refuse(reason: RefusalReason, sentence: impl Into<String>) -> Admission {
    Admission::Refuse(reason, sentence.into())
}

fn without_identity(service: Service) -> Admission {
    match service {
        Service::Join | Service::Http => Admission::Accept,
        Service::Mesh | Service::Agent => refuse(
            RefusalReason::Unauthenticated,
            "no certificate was presented; only nodes of the cluster may come here",
        ),
        Service::Api => refuse(
            RefusalReason::Unauthenticated,
            "no certificate was presented; use a node's, a user's or an operator's",
        ),
    }
}

/// What is wrong with the certificate itself, whoever holds it.
fn unusable(identity: &CertIdentity, here: &HereIs, now: WallTime) -> Option<Admission> {
    let (theirs, ours) = (identity.incarnation, here.incarnation);
    if identity.cluster != here.cluster {
        let sentence = format!("the certificate is of cluster {}", identity.cluster);
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

/// ADMIT-5. A copy of the new incarnation holds every node that the recovery found: whom it lacks is gone for good.
fn outlived(identity: &CertIdentity, service: Service, replica: Option<&Replica>, here: &HereIs) -> Admission {
    let (theirs, ours) = (identity.incarnation, here.incarnation);
    let new = |replica: &&Replica| replica.tables.cluster.as_ref().is_some_and(|cluster| cluster.incarnation > theirs);
    if let (Some((node, _)), Some(copy)) = (identity.node(), replica.filter(new)) {
        if let Some(refusal) = blocked(identity, replica) {
            return refusal;
        }
        if !copy.tables.nodes.contains_key(&node) {
            let sentence = format!(
                "the cluster was recovered without node {node}, or it was removed since (incarnation {ours}, its certificate: {theirs})"
            );
            return refuse(RefusalReason::Removed, sentence);
        }
        if service == Service::Agent {
            return if counts(identity, copy) { Admission::Accept } else { unlisted(node, service, copy) };
        }
    }
    let sentence = format!(
        "the certificate is of incarnation {theirs} of the cluster, which was recovered and is now in {ours}; \
         {}",
        if identity.node().is_some() { "an agent session brings another" } else { "ask an operator for another" }
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
        Some(replica) if has_applied(&replica.tables, identity, node) => by_copy(replica, identity, node, service),
        _ => by_certificate(identity, node, service, replica),
    }
}

/// Whether the copy is new enough to decide about this certificate.
fn has_applied(tables: &Tables, identity: &CertIdentity, node: NodeId) -> bool {
    match identity.granted {
        Some(granted) => tables.revision >= granted,
        // The founder's first certificate names no grant, so it never counts as applied by number. Its grant is the
        // first entry, which also wrote its record: a copy that holds the record knows better than the certificate.
        // (Otherwise a demoted founder could use that certificate until it expires.)
        None => tables.nodes.contains_key(&node),
    }
}

fn by_copy(replica: &Replica, identity: &CertIdentity, node: NodeId, service: Service) -> Admission {
    let Some(record) = replica.tables.nodes.get(&node) else {
        let sentence = format!("node {node} was removed from the cluster");
        return refuse(RefusalReason::Removed, sentence);
    };
    if service == Service::Mesh && record.role != Role::Manager {
        let sentence = format!("node {node} was demoted and is a {} now", record.role);
        return refuse(RefusalReason::Demoted, sentence);
    }
    if !counts(identity, replica) {
        return unlisted(node, service, replica);
    }
    if service != Service::Mesh {
        return Admission::Accept;
    }
    // A certificate from before a demotion and another promotion is as good as today's: the copy says manager.
    if identity.granted.is_some_and(|g| g > record.granted) {
        let sentence = format!("node {node} holds a grant that this copy has never seen");
        return refuse(RefusalReason::NotKnownHereYet, sentence);
    }
    Admission::Accept
}

/// ADMIT-7. A certificate is recorded before it is handed out (CERT-2), so only a copy that lags can lack one that counts.
fn unlisted(node: NodeId, service: Service, replica: &Replica) -> Admission {
    if replica.raft.leading {
        return refuse(
            RefusalReason::Unauthenticated,
            format!(
                "this certificate of node {node} does not count: it was superseded or revoked, or was never recorded; to let the \
                 node in again, restart it with --join and a token of its role"
            ),
        );
    }
    let native = matches!(service, Service::Mesh | Service::Agent);
    let unknown = || {
        let sentence = format!(
            "this manager does not know this certificate of node {node}: it was superseded, or is newer than this manager's \
             copy; ask another"
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

/// The local replica does not know the grant. Whoever has the root key signs any grant for any node, and so only a replica that
/// cannot learn it believes the certificate (ADMIT-3).
fn by_certificate(identity: &CertIdentity, node: NodeId, service: Service, replica: Option<&Replica>) -> Admission {
    // Without a copy this is a worker, which passes requests on and decides nothing, or a manager that begins.
    let Some(replica) = replica.filter(|_| !sabotaged(Sabotage::AdmitForged)) else {
        return Admission::AcceptOnCertificate;
    };
    if replica.raft.leading {
        let grant = identity.granted.map_or("no grant".to_owned(), |granted| format!("a grant, {granted},"));
        let sentence = format!("node {node} names {grant} that the cluster has never made"); // ADMIT-6
        return refuse(RefusalReason::NotKnownHereYet, sentence);
    }
    let unknown = || {
        let sentence = format!("this manager's copy is too old to know node {node}; ask another");
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

/// The leader is heard in any case: by whom else could the copy catch up?
fn leads(node: NodeId, service: Service, replica: &Replica) -> bool {
    service == Service::Mesh && replica.raft.leader_node == Some(node)
}

/// Somebody else leads: what is missing here may arrive any moment.
fn can_catch_up(replica: &Replica) -> bool {
    replica.raft.leader.is_some() && !replica.raft.leading
}

fn user_admission(
    identity: &CertIdentity,
    name: &Name,
    kind: UserKind,
    service: Service,
    replica: Option<&Replica>,
    here: &HereIs,
) -> Admission {
    if matches!(service, Service::Mesh | Service::Agent) {
        let sentence = format!("only nodes may come here, {name} is a user");
        return refuse(RefusalReason::Forbidden, sentence);
    }
    let Some(replica) = replica else {
        return if here.manager {
            refuse(RefusalReason::NotKnownHereYet, "this manager has no copy of the state yet")
        } else {
            Admission::AcceptOnCertificate
        };
    };
    let record = replica.tables.users.get(name);
    let pin = replica.tables.user_pins.get(name).map(|pinned| pinned.pin);
    let is_pinned = pin.is_none() || identity.pin.is_none() || pin == identity.pin;
    if is_pinned && record.is_some_and(|user| in_force(user, identity, kind)) {
        return Admission::Accept;
    }
    let not_in_force = refuse(
        RefusalReason::Unauthenticated,
        format!("this certificate of {name} is not in force: it was revoked or replaced"),
    );
    if replica.raft.leading {
        return not_in_force;
    }
    if can_catch_up(replica) {
        let otherwise = Box::new(not_in_force);
        return Admission::CatchUp { otherwise };
    }
    let sentence = format!("this manager's copy may be too old to know this certificate of {name}");
    refuse(RefusalReason::NotKnownHereYet, sentence)
}

fn in_force(user: &User, identity: &CertIdentity, kind: UserKind) -> bool {
    user.serial == identity.serial && user.kind == kind
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
