//! Hello: which nodes may have a mesh session, and for which member id.
//!
//! Inputs      a peer's hello and certificate, and the local replica.
//! Outputs     the accepted member id, or a refusal; whether the stream becomes a session.
//! Invariants  MESH-7  a session's node is its certificate's, and that certificate says manager.
//!             MESH-8  no session speaks for a member id that the local replica assigns to another node.
//!             MESH-17  certificate and replica must both say manager, as far as the replica can know.
//! Why a node's own former member id is not refused: a manager that was restored from an older disk must be able to request a
//! new one. It gets a session without a member id, so its Raft messages are dropped.

use muster_gateway::core::roots;
use muster_messages::protocol::Service;
use muster_messages::wire::{MESH_PROTOCOL, MeshHello, Refusal, Starts};
use muster_messages::{
    CertIdentity, ClusterId, Incarnation, NodeId, RaftId, RefusalReason, Replica, Revision, Role, Tables,
};

/// This side's part of every hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    pub node: NodeId,
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    pub member_id: Option<RaftId>,
    pub endpoint_pid: u64,
}

impl Own {
    pub fn hello(&self, tag: u128, probe: bool) -> MeshHello {
        MeshHello {
            protocol: MESH_PROTOCOL,
            cluster: self.cluster,
            incarnation: self.incarnation,
            node: self.node,
            raft_id: self.member_id,
            endpoint_pid: self.endpoint_pid,
            tag,
            probe,
            // The sender fills in its process.
            starts: Starts::first(0),
            advertise: String::new(),
        }
    }

    /// Checks a peer's hello. Returns the member id that it may speak for, or why it gets no session.
    pub fn decide(
        &self,
        hello: &MeshHello,
        certificate: &CertIdentity,
        replica: &Replica,
    ) -> Result<Option<RaftId>, Refusal> {
        let subject = certificate.node();
        if hello.protocol != MESH_PROTOCOL {
            return Err(no(
                RefusalReason::Protocol,
                format!("mesh protocol {} is not supported, only {MESH_PROTOCOL}", hello.protocol),
            ));
        }
        if hello.cluster != self.cluster || certificate.cluster != self.cluster {
            return Err(no(RefusalReason::Forbidden, "the peer belongs to another cluster"));
        }
        if subject.is_none_or(|(node, _)| node != hello.node) {
            return Err(no(RefusalReason::Forbidden, "the hello and the certificate name different nodes"));
        }
        if subject.is_none_or(|(_, role)| role != Role::Manager) {
            return Err(no(RefusalReason::NotAManager, "the certificate is not a manager's"));
        }
        if hello.incarnation < self.incarnation {
            return Err(no(RefusalReason::OldIncarnation, "the peer belongs to an older incarnation of the cluster"));
        }
        if hello.incarnation != self.incarnation || certificate.incarnation != self.incarnation {
            return Err(no(RefusalReason::Protocol, "the peer belongs to another incarnation of the cluster"));
        }
        if hello.starts.this().is_none() {
            return Err(no(RefusalReason::Protocol, "the hello does not identify its process"));
        }
        if hello.node == self.node {
            return Err(no(RefusalReason::Protocol, "the hello names this node itself"));
        }
        current(certificate, hello.node, replica)?;
        self.member_id(hello, &replica.tables)
    }

    /// What the stream is for, after both sides accepted the hello. `endpoint`: this side's open RPC endpoint. `probe`: either side
    /// sent a probe.
    pub fn stream_use(&self, endpoint: Option<u64>, probe: bool) -> StreamUse {
        if Some(self.endpoint_pid) != endpoint {
            StreamUse::Outdated
        } else if probe {
            StreamUse::Probe
        } else {
            StreamUse::Session
        }
    }

    fn member_id(&self, hello: &MeshHello, local_replica: &Tables) -> Result<Option<RaftId>, Refusal> {
        let Some(claimed) = hello.raft_id else { return Ok(None) };
        accepted_member_id(claimed, hello.node, self.member_id, local_replica)
            .map_err(|why| no(RefusalReason::Forbidden, why.to_string()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUse {
    Session,
    /// It has shown that the peer listens.
    Probe,
    /// The RPC endpoint that this side's hello named is closed: the peer could not reach the present one.
    Outdated,
}

/// A member id of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("member id {0} belongs to another node")]
pub struct ForeignMemberId(pub RaftId);

/// The accepted member id when `node` claims one. A newer one than the replica knows is accepted, since the replica may be old;
/// an older one is not. `own`: this manager's.
pub fn accepted_member_id(
    claimed: RaftId,
    node: NodeId,
    own: Option<RaftId>,
    local_replica: &Tables,
) -> Result<Option<RaftId>, ForeignMemberId> {
    if !may_belong_to(node, claimed, own, local_replica) {
        return Err(ForeignMemberId(claimed));
    }
    let newer = local_replica.member_of(node).is_none_or(|m| m.raft_id <= claimed);
    let removed = local_replica.removed_raft_ids.contains(&claimed);
    Ok((newer && !removed).then_some(claimed))
}

/// Whether an honest `node` may use this member id. One that this replica does not know was assigned a moment ago, or is gone:
/// membership may change faster than replicas follow. One that the replica assigns to another node cannot be an honest
/// mistake: no member id is assigned twice.
pub fn may_belong_to(node: NodeId, member_id: RaftId, own: Option<RaftId>, local_replica: &Tables) -> bool {
    let holder = local_replica.members.get(&member_id).map(|m| m.node);
    member_id != RaftId(0) && Some(member_id) != own && holder.is_none_or(|n| n == node)
}

/// Whether the node is a current manager. The gateway has checked nodes that dialled us; nodes that we dialled are checked here,
/// by the same rule: a replica that has applied the certificate's grant decides, an older one accepts the certificate.
pub(crate) fn current(certificate: &CertIdentity, node: NodeId, replica: &Replica) -> Result<(), Refusal> {
    let (local_replica, raft) = (&replica.tables, &replica.raft);
    if local_replica.blocklist.contains_key(&node) {
        return Err(no(RefusalReason::Blocked, format!("{node} is blocked")));
    }
    if let Some((reason, why)) = roots::refusal(certificate, Service::Mesh, local_replica) {
        return Err(no(reason, why));
    }
    // Without a leader the replica may be too old, and the leader itself updates it (ADMIT-3, ADMIT-7). Otherwise the replica
    // has caught up by the next attempt.
    let may_be_newer = !raft.leading && (raft.leader.is_none() || raft.leader_node == Some(node));
    let applied = match certificate.granted {
        Some(granted) => local_replica.revision >= granted,
        None => local_replica.nodes.contains_key(&node),
    };
    if !applied {
        let text = format!("this manager does not know the grant of {node}, which may be newer than its replica");
        let empty = local_replica.revision == Revision(0) && !raft.leading;
        return if may_be_newer || empty { Ok(()) } else { Err(no(RefusalReason::NotKnownHereYet, text)) };
    }
    match local_replica.nodes.get(&node) {
        None => Err(no(RefusalReason::Removed, format!("{node} was removed"))),
        Some(record) if record.role != Role::Manager => {
            Err(no(RefusalReason::Demoted, format!("{node} is no longer a manager")))
        }
        Some(_) if roots::counts(certificate, local_replica) => Ok(()),
        Some(_) if raft.leading => {
            let text = format!("this certificate of {node} is not valid: it was superseded or never recorded");
            Err(no(RefusalReason::Unauthenticated, text))
        }
        Some(_) if may_be_newer => Ok(()),
        Some(_) => {
            let text =
                format!("this manager does not know this certificate of {node}, which may be newer than its replica");
            Err(no(RefusalReason::NotKnownHereYet, text))
        }
    }
}

fn no(reason: RefusalReason, message: impl Into<String>) -> Refusal {
    Refusal { reason, message: message.into(), managers: Vec::new(), retry_after_ms: None }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_messages::{Blocked, Liveness, Member, Name, NodeRecord, Principal, Revision, Subject, WallTime};

    use super::*;

    fn node(n: u128) -> NodeId {
        NodeId::from_entropy(n)
    }
    fn own() -> Own {
        Own {
            node: node(1),
            cluster: ClusterId::from_entropy(1),
            incarnation: Incarnation(2),
            member_id: Some(RaftId(1)),
            endpoint_pid: 5,
        }
    }
    fn certificate(of: NodeId, role: Role) -> CertIdentity {
        CertIdentity {
            cluster: ClusterId::from_entropy(1),
            subject: Subject::Node { node: of, role },
            serial: "01".into(),
            granted: None,
            incarnation: Incarnation(2),
            not_after: WallTime(0),
            pin: None,
            issuer: None,
        }
    }
    fn theirs(member_id: Option<RaftId>) -> MeshHello {
        Own { node: node(2), member_id, ..own() }.hello(9, false)
    }
    fn local_replica() -> Tables {
        let mut tables = Tables::default();
        for (member_id, of) in [(1, 1), (4, 2), (5, 3)] {
            let member = Member { node: node(of), raft_id: RaftId(member_id), addr: String::new(), voter: true };
            tables.members.insert(RaftId(member_id), member);
        }
        tables.removed_raft_ids.insert(RaftId(9));
        tables
    }
    fn replica(tables: Tables) -> Replica {
        Replica { tables, ..Replica::default() }
    }
    fn check(hello: &MeshHello, of: NodeId, role: Role, expect: Result<Option<RaftId>, RefusalReason>) {
        let got = own().decide(hello, &certificate(of, role), &replica(local_replica())).map_err(|r| r.reason);
        assert_eq!(got, expect);
    }

    #[test]
    fn member_id_is_accepted_unless_replica_contradicts() {
        for (claimed, expect) in [
            (None, Ok(None)),
            (Some(4), Ok(Some(4))),
            (Some(6), Ok(Some(6))), // assigned a moment ago: the replica is old
            (Some(3), Ok(None)),    // its own former one
            (Some(9), Ok(None)),    // removed
            (Some(5), Err(RefusalReason::Forbidden)),
            (Some(1), Err(RefusalReason::Forbidden)), // ours
            (Some(0), Err(RefusalReason::Forbidden)),
        ] {
            check(&theirs(claimed.map(RaftId)), node(2), Role::Manager, expect.map(|s: Option<u64>| s.map(RaftId)));
        }
    }

    #[test]
    fn replica_with_the_grant_decides_who_is_manager() {
        let mut local_replica = local_replica();
        local_replica.revision = Revision(50);
        let decide = |granted, local_replica: &Tables| {
            let certificate = CertIdentity { granted, ..certificate(node(2), Role::Manager) };
            own().decide(&theirs(None), &certificate, &replica(local_replica.clone())).map_err(|r| r.reason)
        };
        assert_eq!(decide(Some(Revision(51)), &local_replica), Ok(None), "the replica is too old to know");
        assert_eq!(decide(None, &local_replica), Ok(None), "a founder's first certificate");
        assert_eq!(decide(Some(Revision(50)), &local_replica), Err(RefusalReason::Removed));
        local_replica.nodes.insert(node(2), Arc::new(record(Role::Worker)));
        assert_eq!(decide(Some(Revision(50)), &local_replica), Err(RefusalReason::Demoted));
        local_replica.nodes.insert(node(2), Arc::new(record(Role::Manager)));
        assert_eq!(decide(Some(Revision(50)), &local_replica), Ok(None));
        let blocked =
            Blocked { node: node(2), by: Principal::Operator, blocked_at: WallTime(0), expires_at: WallTime(0) };
        local_replica.blocklist.insert(node(2), blocked);
        assert_eq!(decide(Some(Revision(51)), &local_replica), Err(RefusalReason::Blocked));
    }

    #[test]
    fn stream_stays_while_the_hello_names_the_open_endpoint() {
        let used = |endpoint, probe| own().stream_use(endpoint, probe);
        assert_eq!((used(Some(5), false), used(Some(5), true)), (StreamUse::Session, StreamUse::Probe));
        for endpoint in [None, Some(6)] {
            assert_eq!((used(endpoint, false), used(endpoint, true)), (StreamUse::Outdated, StreamUse::Outdated));
        }
    }

    #[test]
    fn a_dialled_manager_must_show_a_certificate_on_record() {
        let mut tables = local_replica();
        tables.revision = Revision(60);
        let cluster = muster_messages::ClusterRecord {
            id: ClusterId::from_entropy(1),
            name: Name::sanitized("default"),
            incarnation: Incarnation(2),
            feature_level: 3,
            root_cert_pem: String::new(),
            root_key_pem: muster_messages::Secret::new(""),
            founded_at: WallTime(0),
            revision: Revision(0),
        };
        tables.cluster = Some(Arc::new(cluster));
        tables.nodes.insert(node(2), Arc::new(record(Role::Manager)));
        let current = muster_messages::IssuedCertificate {
            serial: "01".into(),
            role: Role::Manager,
            granted: Some(Revision(50)),
            not_after: WallTime(0),
            pin: None,
            issuer: None,
        };
        let row = muster_messages::NodeCertificates { current: Some(current), ..Default::default() };
        tables.certificates.insert(node(2), Arc::new(row));
        let decide = |serial: &str, replica: &Replica| {
            let granted = Some(Revision(50));
            let certificate = CertIdentity { serial: serial.into(), granted, ..certificate(node(2), Role::Manager) };
            own().decide(&theirs(None), &certificate, replica).map_err(|r| r.reason)
        };
        let mut local_replica = replica(tables);
        assert_eq!(decide("02", &local_replica), Ok(None), "without a leader this replica may be too old");
        local_replica.raft.leader = Some(RaftId(5));
        assert_eq!(decide("01", &local_replica), Ok(None));
        assert_eq!(decide("02", &local_replica), Err(RefusalReason::NotKnownHereYet));
        local_replica.raft.leader_node = Some(node(2));
        assert_eq!(decide("02", &local_replica), Ok(None), "the leader updates this replica");
        (local_replica.raft.leading, local_replica.raft.leader_node) = (true, Some(node(1)));
        assert_eq!(decide("02", &local_replica), Err(RefusalReason::Unauthenticated));
    }

    /// A holder of the root key can sign any grant, or none.
    #[test]
    fn dialled_manager_must_present_a_known_grant() {
        let mut local_replica = replica(local_replica());
        local_replica.tables.revision = Revision(60);
        for granted in [None, Some(Revision(61))] {
            let decide = |replica: &Replica| {
                let certificate = CertIdentity { granted, ..certificate(node(2), Role::Manager) };
                own().decide(&theirs(None), &certificate, replica).map_err(|r| r.reason)
            };
            let mut local_replica = local_replica.clone();
            assert_eq!(decide(&local_replica), Ok(None), "without a leader this replica may be too old");
            local_replica.raft.leader = Some(RaftId(5));
            assert_eq!(decide(&local_replica), Err(RefusalReason::NotKnownHereYet));
            local_replica.raft.leader_node = Some(node(2));
            assert_eq!(decide(&local_replica), Ok(None), "the leader updates this replica");
            local_replica.raft.leading = true;
            assert_eq!(decide(&local_replica), Err(RefusalReason::NotKnownHereYet));
            local_replica.tables.revision = Revision(0);
            local_replica.raft.leading = false;
            local_replica.raft.leader_node = None;
            assert_eq!(decide(&local_replica), Ok(None), "an empty replica knows no node");
        }
    }

    fn record(role: Role) -> NodeRecord {
        NodeRecord {
            granted: Revision(50),
            liveness: Liveness::Ready,
            revision: Revision(50),
            ..NodeRecord::new(node(2), Name::sanitized("n2"), role, WallTime(0))
        }
    }

    #[test]
    fn hello_with_foreign_name_or_worker_role_is_refused() {
        check(&theirs(None), node(3), Role::Manager, Err(RefusalReason::Forbidden));
        check(&theirs(None), node(2), Role::Worker, Err(RefusalReason::NotAManager));
        let itself = MeshHello { node: node(1), ..theirs(None) };
        check(&itself, node(1), Role::Manager, Err(RefusalReason::Protocol));
    }

    #[test]
    fn another_cluster_incarnation_or_protocol_is_refused() {
        let hello = MeshHello { cluster: ClusterId::from_entropy(2), ..theirs(None) };
        check(&hello, node(2), Role::Manager, Err(RefusalReason::Forbidden));
        let hello = MeshHello { incarnation: Incarnation(1), ..theirs(None) };
        check(&hello, node(2), Role::Manager, Err(RefusalReason::OldIncarnation));
        let hello = MeshHello { incarnation: Incarnation(3), ..theirs(None) };
        check(&hello, node(2), Role::Manager, Err(RefusalReason::Protocol));
        let hello = MeshHello { protocol: MESH_PROTOCOL + 1, ..theirs(None) };
        check(&hello, node(2), Role::Manager, Err(RefusalReason::Protocol));
    }
}
