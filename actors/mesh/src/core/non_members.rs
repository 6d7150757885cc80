//! Non-members: sessions that this manager dialled to nodes that are not members in its replica. A new member is one for a moment: the
//! stream of its dial-back stays.
//!
//! Owns        the certificate that each showed.
//! Inputs      sessions that were opened; the replica, and which sessions remain.
//! Outputs     sessions to end, each with the refusal.
//! Invariants  MESH-26  a session dialled to a node that is not a member ends within [`CHECK_EVERY`] of a replica that blocks, removes
//!                      or demotes the node, or replaces its certificate. The gateway ends accepted sessions, and a change of
//!                      members those of members; neither sees these.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::Refusal;
use muster_messages::{CertIdentity, NodeId, RefusalReason, Replica};

use super::hello;
use super::links::SessionNumber;

/// As often as the gateway checks live connections at the latest.
pub const CHECK_EVERY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug, Default)]
pub struct NonMembers(BTreeMap<SessionNumber, (NodeId, CertIdentity)>);

impl NonMembers {
    /// A session with this node was opened. True: it is the first that is watched, and checks must begin. The gateway watches one
    /// that was accepted, and the links one with a member.
    pub fn opened(
        &mut self,
        (number, dialed): (SessionNumber, bool),
        (node, is_member): (NodeId, bool),
        certificate: CertIdentity,
    ) -> bool {
        let watched = dialed && !is_member;
        if watched {
            self.0.insert(number, (node, certificate));
        }
        watched && self.0.len() == 1
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sessions that must end, and why. `remains`: whether it exists and its node is still not a member; another one is
    /// forgotten.
    pub fn refused(
        &mut self,
        replica: &Replica,
        remains: impl Fn(SessionNumber, NodeId) -> bool,
    ) -> Vec<(SessionNumber, Refusal)> {
        self.0.retain(|number, (node, _)| remains(*number, *node));
        let refused = |(number, (node, certificate)): (&SessionNumber, &(NodeId, CertIdentity))| {
            let refusal = hello::current(certificate, *node, replica).err()?;
            // A replica that is too old to decide ends no session.
            (refusal.reason != RefusalReason::NotKnownHereYet).then_some((*number, refusal))
        };
        self.0.iter().filter_map(refused).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_messages::{
        Blocked, ClusterId, Incarnation, Liveness, Name, NodeRecord, Principal, Revision, Role, Subject, WallTime,
    };

    use super::*;

    const GRANTED: Revision = Revision(50);

    fn node() -> NodeId {
        NodeId::from_entropy(2)
    }
    fn certificate() -> CertIdentity {
        CertIdentity {
            cluster: ClusterId::from_entropy(1),
            subject: Subject::Node { node: node(), role: Role::Manager },
            serial: "01".into(),
            granted: Some(GRANTED),
            incarnation: Incarnation(0),
            not_after: WallTime(0),
            pin: None,
            issuer: None,
        }
    }
    fn record(role: Role) -> Arc<NodeRecord> {
        Arc::new(NodeRecord {
            granted: GRANTED,
            liveness: Liveness::Ready,
            revision: GRANTED,
            ..NodeRecord::new(node(), Name::sanitized("n2"), role, WallTime(0))
        })
    }

    #[test]
    fn demoted_removed_or_blocked_node_loses_its_session() {
        let mut replica = Replica::default();
        replica.tables.revision = GRANTED;
        replica.tables.nodes.insert(node(), record(Role::Manager));
        let mut non_members = NonMembers::default();
        assert!(non_members.opened((7, true), (node(), false), certificate()), "the first");
        assert!(!non_members.opened((8, true), (node(), false), certificate()));
        let refused = |non_members: &mut NonMembers, replica: &Replica| {
            let refused = non_members.refused(replica, |number, _| number == 7);
            refused.into_iter().map(|(number, refusal)| (number, refusal.reason)).collect::<Vec<_>>()
        };
        assert_eq!(refused(&mut non_members, &replica), []);
        replica.tables.nodes.insert(node(), record(Role::Worker));
        assert_eq!(refused(&mut non_members, &replica), [(7, RefusalReason::Demoted)]);
        replica.tables.nodes.remove(&node());
        assert_eq!(refused(&mut non_members, &replica), [(7, RefusalReason::Removed)]);
        let (by, at) = (Principal::Operator, WallTime(0));
        replica.tables.blocklist.insert(node(), Blocked { node: node(), by, blocked_at: at, expires_at: at });
        assert_eq!(refused(&mut non_members, &replica), [(7, RefusalReason::Blocked)]);
        assert!(
            non_members.refused(&replica, |_, _| false).is_empty() && non_members.is_empty(),
            "it has become a member"
        );
    }

    #[test]
    fn accepted_sessions_and_those_of_members_are_not_watched() {
        let mut non_members = NonMembers::default();
        for (dialed, is_member) in [(false, false), (false, true), (true, true)] {
            assert!(!non_members.opened((7, dialed), (node(), is_member), certificate()));
            assert!(non_members.is_empty(), "{dialed} {is_member}");
        }
        assert!(non_members.opened((8, true), (node(), false), certificate()));
        assert!(!non_members.opened((9, false), (node(), false), certificate()), "checks have begun");
        let remaining = |number, _| number == 8;
        assert!(non_members.refused(&Replica::default(), remaining).is_empty() && !non_members.is_empty());
    }
}
