//! Hello: who may hold a mesh session, and which seat it may speak for.
//!
//! Hears  a peer's hello, its certificate, and what the local copy knows.     Says  the seat to believe, or a refusal.
//! Keeps  MESH-7  a session's node is its certificate's, and that certificate says manager.
//!        MESH-8  no session speaks for a seat that the local copy knows to be another node's.
//!        MESH-17  certificate and copy must both say manager, as far as the copy can know.
//! Why an old seat of its own is no refusal: a manager that was restored from an older disk must be able to ask for a
//! seat again. It gets a session that speaks for no seat, so its Raft messages are dropped.

use muster_messages::wire::{MESH_PROTOCOL, MeshHello, Refusal, Starts};
use muster_messages::{
    CertIdentity, ClusterId, Incarnation, NodeId, RaftId, RefusalReason, Replica, Revision, Role, Tables,
};

/// What this side says of itself in every hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    pub node: NodeId,
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    pub seat: Option<RaftId>,
    pub door_pid: u64,
}

impl Own {
    /// The hello of one session.
    pub fn hello(&self, tag: u128, probe: bool) -> MeshHello {
        MeshHello {
            protocol: MESH_PROTOCOL,
            cluster: self.cluster,
            incarnation: self.incarnation,
            node: self.node,
            raft_id: self.seat,
            door_pid: self.door_pid,
            tag,
            probe,
            // Whoever sends it fills in which process it is.
            starts: Starts::first(0),
            advertise: String::new(),
        }
    }

    /// Judges a peer's hello. The seat that its messages may come from, or why it gets no session.
    pub fn judge(
        &self,
        hello: &MeshHello,
        certificate: &CertIdentity,
        replica: &Replica,
    ) -> Result<Option<RaftId>, Refusal> {
        let subject = certificate.node();
        if hello.protocol != MESH_PROTOCOL {
            return Err(no(
                RefusalReason::Protocol,
                format!("mesh protocol {} is not {MESH_PROTOCOL}", hello.protocol),
            ));
        }
        if hello.cluster != self.cluster || certificate.cluster != self.cluster {
            return Err(no(RefusalReason::Forbidden, "another cluster"));
        }
        if subject.is_none_or(|(node, _)| node != hello.node) {
            return Err(no(RefusalReason::Forbidden, "the hello names another node than the certificate"));
        }
        if subject.is_none_or(|(_, role)| role != Role::Manager) {
            return Err(no(RefusalReason::NotAManager, "the certificate is no manager's"));
        }
        if hello.incarnation < self.incarnation {
            return Err(no(RefusalReason::OldIncarnation, "an older incarnation of the cluster"));
        }
        if hello.incarnation != self.incarnation || certificate.incarnation != self.incarnation {
            return Err(no(RefusalReason::Protocol, "another incarnation of the cluster"));
        }
        if hello.starts.this().is_none() {
            return Err(no(RefusalReason::Protocol, "the hello names no start of its process"));
        }
        if hello.node == self.node {
            return Err(no(RefusalReason::Protocol, "this node itself"));
        }
        current(certificate, hello.node, replica)?;
        self.seat(hello, &replica.tables)
    }

    fn seat(&self, hello: &MeshHello, copy: &Tables) -> Result<Option<RaftId>, Refusal> {
        let Some(claimed) = hello.raft_id else { return Ok(None) };
        believed(claimed, hello.node, self.seat, copy).map_err(|why| no(RefusalReason::Forbidden, why.to_string()))
    }
}

/// A seat that is another node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seat {0} is another node's")]
pub struct Foreign(pub RaftId);

/// The seat to believe when `node` claims one. A newer seat than the copy knows is believed, for the copy may be old; an
/// older one is not. `own` is this manager's.
pub fn believed(claimed: RaftId, node: NodeId, own: Option<RaftId>, copy: &Tables) -> Result<Option<RaftId>, Foreign> {
    if !may_be_of(node, claimed, own, copy) {
        return Err(Foreign(claimed));
    }
    let newer = copy.seat_of(node).is_none_or(|m| m.raft_id <= claimed);
    let removed = copy.removed_raft_ids.contains(&claimed);
    Ok((newer && !removed).then_some(claimed))
}

/// Whether `node` may speak of `seat` and be honest. A seat that this copy does not know was given a moment ago, or is gone;
/// seats change hands faster than copies hear of it. One that the copy knows to be another's cannot be an honest mistake:
/// no seat is given twice.
pub fn may_be_of(node: NodeId, seat: RaftId, own: Option<RaftId>, copy: &Tables) -> bool {
    let holder = copy.members.get(&seat).map(|m| m.node);
    seat != RaftId(0) && Some(seat) != own && holder.is_none_or(|n| n == node)
}

/// Whether the node is a current manager. The gateway has judged whoever dialled us; whom we dialled is judged here, by
/// the same rule: a copy that has applied the certificate's grant decides, an older one believes the certificate.
fn current(certificate: &CertIdentity, node: NodeId, replica: &Replica) -> Result<(), Refusal> {
    let (copy, raft) = (&replica.tables, &replica.raft);
    if copy.blocklist.contains_key(&node) {
        return Err(no(RefusalReason::Blocked, format!("{node} is blocked")));
    }
    // Without a leader the copy may be too old to know it, and by the leader itself it is brought up to date (ADMIT-3,
    // ADMIT-7). Otherwise the next attempt finds the copy caught up.
    let may_be_newer = !raft.leading && (raft.leader.is_none() || raft.leader_node == Some(node));
    let applied = match certificate.granted {
        Some(granted) => copy.revision >= granted,
        None => copy.nodes.contains_key(&node),
    };
    if !applied {
        let text = format!("this manager does not know the grant of {node}; it may be newer than its copy");
        let empty = copy.revision == Revision(0) && !raft.leading;
        return if may_be_newer || empty { Ok(()) } else { Err(no(RefusalReason::NotKnownHereYet, text)) };
    }
    match copy.nodes.get(&node) {
        None => Err(no(RefusalReason::Removed, format!("{node} was removed"))),
        Some(record) if record.role != Role::Manager => {
            Err(no(RefusalReason::Demoted, format!("{node} is no manager any more")))
        }
        Some(_) if copy.certificate_counts(node, certificate) => Ok(()),
        Some(_) if raft.leading => {
            let text = format!("this certificate of {node} does not count: it was superseded, or was never recorded");
            Err(no(RefusalReason::Unauthenticated, text))
        }
        Some(_) if may_be_newer => Ok(()),
        Some(_) => {
            let text = format!("this manager does not know this certificate of {node}; it may be newer than its copy");
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
            seat: Some(RaftId(1)),
            door_pid: 5,
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
        }
    }
    fn theirs(seat: Option<RaftId>) -> MeshHello {
        Own { node: node(2), seat, ..own() }.hello(9, false)
    }
    fn copy() -> Tables {
        let mut tables = Tables::default();
        for (seat, of) in [(1, 1), (4, 2), (5, 3)] {
            let member = Member { node: node(of), raft_id: RaftId(seat), addr: String::new(), voter: true };
            tables.members.insert(RaftId(seat), member);
        }
        tables.removed_raft_ids.insert(RaftId(9));
        tables
    }
    fn replica(tables: Tables) -> Replica {
        Replica { tables, ..Replica::default() }
    }
    fn check(hello: &MeshHello, of: NodeId, role: Role, expect: Result<Option<RaftId>, RefusalReason>) {
        let got = own().judge(hello, &certificate(of, role), &replica(copy())).map_err(|r| r.reason);
        assert_eq!(got, expect);
    }

    #[test]
    fn a_seat_is_believed_unless_the_copy_knows_better() {
        for (claimed, expect) in [
            (None, Ok(None)),
            (Some(4), Ok(Some(4))),
            (Some(6), Ok(Some(6))), // given a moment ago, the copy is old
            (Some(3), Ok(None)),    // an older one of its own
            (Some(9), Ok(None)),    // removed
            (Some(5), Err(RefusalReason::Forbidden)),
            (Some(1), Err(RefusalReason::Forbidden)), // ours
            (Some(0), Err(RefusalReason::Forbidden)),
        ] {
            check(&theirs(claimed.map(RaftId)), node(2), Role::Manager, expect.map(|s: Option<u64>| s.map(RaftId)));
        }
    }

    #[test]
    fn a_copy_that_has_applied_the_grant_decides_who_is_a_manager() {
        let mut copy = copy();
        copy.revision = Revision(50);
        let judge = |granted, copy: &Tables| {
            let certificate = CertIdentity { granted, ..certificate(node(2), Role::Manager) };
            own().judge(&theirs(None), &certificate, &replica(copy.clone())).map_err(|r| r.reason)
        };
        assert_eq!(judge(Some(Revision(51)), &copy), Ok(None), "the copy is too old to know");
        assert_eq!(judge(None, &copy), Ok(None), "a founder's first certificate");
        assert_eq!(judge(Some(Revision(50)), &copy), Err(RefusalReason::Removed));
        copy.nodes.insert(node(2), Arc::new(record(Role::Worker)));
        assert_eq!(judge(Some(Revision(50)), &copy), Err(RefusalReason::Demoted));
        copy.nodes.insert(node(2), Arc::new(record(Role::Manager)));
        assert_eq!(judge(Some(Revision(50)), &copy), Ok(None));
        let blocked =
            Blocked { node: node(2), by: Principal::Operator, blocked_at: WallTime(0), expires_at: WallTime(0) };
        copy.blocklist.insert(node(2), blocked);
        assert_eq!(judge(Some(Revision(51)), &copy), Err(RefusalReason::Blocked));
    }

    #[test]
    fn a_dialled_manager_must_show_a_certificate_on_record() {
        let mut tables = copy();
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
        let judge = |serial: &str, replica: &Replica| {
            let granted = Some(Revision(50));
            let certificate = CertIdentity { serial: serial.into(), granted, ..certificate(node(2), Role::Manager) };
            own().judge(&theirs(None), &certificate, replica).map_err(|r| r.reason)
        };
        let mut copy = replica(tables);
        assert_eq!(judge("02", &copy), Ok(None), "without a leader this copy may be too old");
        copy.raft.leader = Some(RaftId(5));
        assert_eq!(judge("01", &copy), Ok(None));
        assert_eq!(judge("02", &copy), Err(RefusalReason::NotKnownHereYet));
        copy.raft.leader_node = Some(node(2));
        assert_eq!(judge("02", &copy), Ok(None), "the leader brings this copy up to date");
        (copy.raft.leading, copy.raft.leader_node) = (true, Some(node(1)));
        assert_eq!(judge("02", &copy), Err(RefusalReason::Unauthenticated));
    }

    /// Whoever has the root key signs any grant, or none.
    #[test]
    fn a_dialled_manager_shows_no_grant_that_is_not_known() {
        let mut copy = replica(copy());
        copy.tables.revision = Revision(60);
        for granted in [None, Some(Revision(61))] {
            let judge = |replica: &Replica| {
                let certificate = CertIdentity { granted, ..certificate(node(2), Role::Manager) };
                own().judge(&theirs(None), &certificate, replica).map_err(|r| r.reason)
            };
            let mut copy = copy.clone();
            assert_eq!(judge(&copy), Ok(None), "without a leader this copy may be too old");
            copy.raft.leader = Some(RaftId(5));
            assert_eq!(judge(&copy), Err(RefusalReason::NotKnownHereYet));
            copy.raft.leader_node = Some(node(2));
            assert_eq!(judge(&copy), Ok(None), "the leader brings this copy up to date");
            copy.raft.leading = true;
            assert_eq!(judge(&copy), Err(RefusalReason::NotKnownHereYet));
            copy.tables.revision = Revision(0);
            copy.raft.leading = false;
            copy.raft.leader_node = None;
            assert_eq!(judge(&copy), Ok(None), "an empty copy knows nobody");
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
    fn a_hello_in_another_name_or_of_a_worker_is_refused() {
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
