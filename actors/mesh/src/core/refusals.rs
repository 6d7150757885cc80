//! Refusals: what is done about a manager that refuses this one.
//!
//! Owns        the managers that accept another process of this node.
//! Inputs      the reasons of refusals; sessions that are up; this side's hello and certificate.
//! Outputs     whether the agent is informed, or the log; the certificate that a refusal concerns.
//! Why the agent: a refusal may concern the whole node, not only its mesh, and the agent decides about that.

use std::collections::BTreeSet;

use muster_messages::{CertIdentity, NodeId, RefusalReason};

use super::hello::Own;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// It may concern the whole node.
    InformAgent,
    /// The manager accepts another process of this node, and did not before.
    LogDuplicate,
    Ignore,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Managers that accept another process of this node.
    refused_by: BTreeSet<NodeId>,
}

impl Refusals {
    /// The manager `by` refused a session. A second process with this node's identity does not concern the agent: this node's
    /// certificate is valid.
    pub fn of_session(&mut self, by: NodeId, reason: RefusalReason) -> Reaction {
        match reason {
            // Each dial is refused again: one log line.
            RefusalReason::Duplicate if self.refused_by.insert(by) => Reaction::LogDuplicate,
            RefusalReason::Duplicate => Reaction::Ignore,
            _ => Reaction::InformAgent,
        }
    }

    /// The manager at a hinted address refused to answer. This may be how the node learns that the cluster continues without it.
    /// Other refusals, such as that the address is its own, do not concern the agent.
    pub fn at_hinted_address(reason: RefusalReason) -> Reaction {
        use RefusalReason as R;
        match reason {
            R::Blocked | R::Removed | R::Demoted | R::OldIncarnation => Reaction::InformAgent,
            _ => Reaction::Ignore,
        }
    }

    /// The manager accepts this process, or is gone.
    pub fn forget(&mut self, node: NodeId) {
        self.refused_by.remove(&node);
    }
}

/// The serial of the certificate that a refusal of this hello concerns. While the hello lags behind the certificate, refusals
/// concern no certificate.
pub fn refused_serial(own: Option<&Own>, certificate: &CertIdentity) -> String {
    let lags = own.is_some_and(|own| own.incarnation != certificate.incarnation);
    if lags { String::new() } else { certificate.serial.clone() }
}

#[cfg(test)]
mod tests {
    use muster_messages::{ClusterId, Incarnation, Role, Subject, WallTime};

    use super::*;

    const ALL: [RefusalReason; 11] = [
        RefusalReason::Blocked,
        RefusalReason::Demoted,
        RefusalReason::Removed,
        RefusalReason::NotKnownHereYet,
        RefusalReason::NotAManager,
        RefusalReason::Unauthenticated,
        RefusalReason::Forbidden,
        RefusalReason::OldIncarnation,
        RefusalReason::TooManyRequests,
        RefusalReason::Protocol,
        RefusalReason::ShuttingDown,
    ];

    fn node(n: u128) -> NodeId {
        NodeId::from_entropy(n)
    }

    #[test]
    fn agent_decides_about_every_refused_session_but_duplicates() {
        let mut refusals = Refusals::default();
        for reason in ALL {
            assert_eq!(refusals.of_session(node(2), reason), Reaction::InformAgent, "{reason}");
        }
        assert_eq!(refusals, Refusals::default());
    }

    #[test]
    fn duplicate_is_logged_once_until_a_session_is_up() {
        let mut refusals = Refusals::default();
        let mut refused = |by| refusals.of_session(node(by), RefusalReason::Duplicate);
        assert_eq!((refused(2), refused(2)), (Reaction::LogDuplicate, Reaction::Ignore));
        assert_eq!((refused(3), refused(3)), (Reaction::LogDuplicate, Reaction::Ignore), "each manager by itself");
        refusals.forget(node(2));
        assert_eq!(refusals.of_session(node(2), RefusalReason::Duplicate), Reaction::LogDuplicate);
        assert_eq!(refusals.of_session(node(3), RefusalReason::Duplicate), Reaction::Ignore);
    }

    #[test]
    fn hinted_address_informs_the_agent_of_final_refusals_only() {
        let informed: Vec<RefusalReason> = (ALL.into_iter().chain([RefusalReason::Duplicate]))
            .filter(|reason| Refusals::at_hinted_address(*reason) == Reaction::InformAgent)
            .collect();
        use RefusalReason as R;
        assert_eq!(informed, [R::Blocked, R::Demoted, R::Removed, R::OldIncarnation]);
    }

    #[test]
    fn refusal_of_an_older_hello_concerns_no_certificate() {
        let certificate = CertIdentity {
            cluster: ClusterId::from_entropy(1),
            subject: Subject::Node { node: node(1), role: Role::Manager },
            serial: "05".into(),
            granted: None,
            incarnation: Incarnation(3),
            not_after: WallTime(0),
            pin: None,
            issuer: None,
        };
        let own = |incarnation| Own {
            node: node(1),
            cluster: ClusterId::from_entropy(1),
            incarnation: Incarnation(incarnation),
            member_id: None,
            endpoint_pid: 7,
        };
        assert_eq!(refused_serial(None, &certificate), "05");
        assert_eq!(refused_serial(Some(&own(3)), &certificate), "05");
        assert_eq!(refused_serial(Some(&own(2)), &certificate), "");
    }
}
