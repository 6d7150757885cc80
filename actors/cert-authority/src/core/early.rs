//! Early renewals: certificates that no change requires. Each writes an event beside those of roles and users, and a stolen certificate
//! could request them until those events are forgotten. A node has a small budget of them, and one more each minute.
//!
//! Owns        how many each node has used, in the leader's memory: the next leader counts anew.
//! Invariants  CERT-10  a node is signed at most [`MAX_EARLY_RENEWALS`] certificates that it does not need, and one more a minute. After a
//!                      role change, a requested rotation, or half of a certificate's life a renewal is not early.
//! Not zero: a lost answer leaves the node without the certificate that the cluster has recorded for it.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{CertificateState, Moment, NodeId, NodeRecord, WallTime};

/// Answers that may be lost in a row: more than any fault is known to take.
pub(super) const MAX_EARLY_RENEWALS: u32 = 30;
/// One more after this time: the 10,000 events that are kept then cover a week.
pub(super) const EARLY_RENEWAL_INTERVAL: Duration = Duration::from_secs(60);

/// Used and not yet returned, counted from this moment on.
#[derive(Clone, Copy, Debug)]
struct Used {
    count: u32,
    since: Moment,
}

#[derive(Clone, Debug, Default)]
pub(super) struct EarlyRenewals(BTreeMap<NodeId, Used>);

impl EarlyRenewals {
    /// Uses one. `Err`: none is available before this time has passed.
    pub(super) fn take(&mut self, node: NodeId, now: Moment) -> Result<(), Duration> {
        self.0.retain(|_, used| used.used_at(now).count > 0);
        let used = self.0.get(&node).map_or(Used { count: 0, since: now }, |used| used.used_at(now));
        if used.count >= MAX_EARLY_RENEWALS {
            return Err(EARLY_RENEWAL_INTERVAL.saturating_sub(now.since(used.since)));
        }
        self.0.insert(node, Used { count: used.count + 1, ..used });
        Ok(())
    }
}

impl Used {
    fn used_at(self, now: Moment) -> Self {
        let back = now.since(self.since).as_secs() / EARLY_RENEWAL_INTERVAL.as_secs();
        match u32::try_from(back).ok().filter(|back| *back < self.count) {
            Some(back) => Self { count: self.count - back, since: self.since + EARLY_RENEWAL_INTERVAL * back },
            None => Self { count: 0, since: now },
        }
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

    #[test]
    fn early_renewals_are_limited_and_return_one_by_one() {
        let mut early = EarlyRenewals::default();
        let (node, other) = (NodeId::from_entropy(1), NodeId::from_entropy(2));
        let begin = Moment(0) + Duration::from_secs(3600);
        for _ in 0..MAX_EARLY_RENEWALS {
            assert_eq!(early.take(node, begin), Ok(()));
        }
        assert_eq!(early.take(node, begin), Err(EARLY_RENEWAL_INTERVAL));
        assert_eq!(early.take(other, begin), Ok(()), "each node has its own budget");
        assert_eq!(early.take(node, begin + EARLY_RENEWAL_INTERVAL / 4), Err(EARLY_RENEWAL_INTERVAL * 3 / 4));
        assert_eq!(early.take(node, begin + EARLY_RENEWAL_INTERVAL), Ok(()));
        assert_eq!(early.take(node, begin + EARLY_RENEWAL_INTERVAL), Err(EARLY_RENEWAL_INTERVAL));
        let later = begin + EARLY_RENEWAL_INTERVAL * 1000;
        for _ in 0..MAX_EARLY_RENEWALS {
            assert_eq!(early.take(node, later), Ok(()));
        }
        assert!(early.take(node, later).is_err(), "the budget does not grow further");
        assert_eq!(early.0.len(), 1, "a node with a full budget is forgotten");
    }
}
