//! Early renewals: certificates that no change requires. Each writes an event beside those of roles and users, and a stolen certificate
//! could request them until those events are forgotten. A node has a small budget of them, and one more each minute.
//!
//! Owns        how many each node has used, in the leader's memory: the next leader counts anew.
//! Invariants  CERT-10  a node is signed certificates that it does not need only within [`EARLY_RENEWAL_BUDGET`]. After a role change, a
//!                      requested rotation, or half of a certificate's life a renewal is not early.
//! Not zero: a lost answer leaves the node without the certificate that the cluster has recorded for it.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{CertificateState, Moment, NodeId, NodeRecord, WallTime};

use super::budget::{Budget, Used};

/// Answers that may be lost in a row: more than any fault is known to take. One more each minute: the 10,000 events that are kept then
/// cover a week.
pub(super) const EARLY_RENEWAL_BUDGET: Budget = Budget { burst: 30, interval: Duration::from_secs(60) };

#[derive(Clone, Debug, Default)]
pub(super) struct EarlyRenewals(BTreeMap<NodeId, Used>);

impl EarlyRenewals {
    /// Uses one. `Err`: none is available before this time has passed.
    pub(super) fn take(&mut self, node: NodeId, now: Moment) -> Result<(), Duration> {
        self.0.retain(|_, used| !EARLY_RENEWAL_BUDGET.returned(*used, now).is_nothing());
        let used = self.0.get(&node).copied().unwrap_or_default();
        EARLY_RENEWAL_BUDGET.check(used, now)?;
        self.0.insert(node, EARLY_RENEWAL_BUDGET.one_more(used, now));
        Ok(())
    }
}

/// Whether the cluster has a reason to sign another certificate for this node.
pub(super) fn is_due(record: &NodeRecord, lifetime: Duration, wall: WallTime) -> bool {
    record.certificate.as_ref().is_none_or(|newest| {
        let of_the_grant = newest.role == record.role && newest.granted == Some(record.granted);
        !of_the_grant || newest.state != CertificateState::Issued || wall.plus(lifetime / 2) >= newest.not_after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = EARLY_RENEWAL_BUDGET.interval;

    #[test]
    fn early_renewals_are_limited_and_return_one_by_one() {
        let mut early = EarlyRenewals::default();
        let (node, other) = (NodeId::from_entropy(1), NodeId::from_entropy(2));
        let begin = Moment(0) + Duration::from_secs(3600);
        for _ in 0..EARLY_RENEWAL_BUDGET.burst {
            assert_eq!(early.take(node, begin), Ok(()));
        }
        assert_eq!(early.take(node, begin), Err(INTERVAL));
        assert_eq!(early.take(other, begin), Ok(()), "each node has its own budget");
        assert_eq!(early.take(node, begin + INTERVAL / 4), Err(INTERVAL * 3 / 4));
        assert_eq!(early.take(node, begin + INTERVAL), Ok(()));
        assert_eq!(early.take(node, begin + INTERVAL), Err(INTERVAL));
        let later = begin + INTERVAL * 1000;
        for _ in 0..EARLY_RENEWAL_BUDGET.burst {
            assert_eq!(early.take(node, later), Ok(()));
        }
        assert!(early.take(node, later).is_err(), "the budget does not grow further");
        assert_eq!(early.0.len(), 1, "a node with a full budget is forgotten");
    }
}
