//! Renewals that nothing requires: each writes an event beside those of roles and users, and a stolen certificate could ask for
//! them until these are forgotten. A node has a few of them, and one more each minute.
//!
//! Owns   how many each node has used. In the memory of the leader: the next leader counts anew.
//! Keeps  CERT-10  a node is signed at most [`MOST_EARLY`] certificates that it does not need, and one more a minute. A role that
//!                 changed, a rotation that was asked for, and a certificate past half of its life are no early renewals.
//! Why not none: an answer that is lost leaves the node without the certificate that the cluster has recorded for it.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{CertificateState, Moment, NodeId, NodeRecord, WallTime};

/// Answers that may be lost in a row: more than any fault is known to take.
pub(super) const MOST_EARLY: u32 = 30;
/// One more after this: the 10,000 events that are kept are those of a week then.
pub(super) const EARLY_AGAIN: Duration = Duration::from_secs(60);

/// Used and not yet given back, counted from this moment on.
#[derive(Clone, Copy, Debug)]
struct Used {
    count: u32,
    since: Moment,
}

#[derive(Clone, Debug, Default)]
pub(super) struct EarlyRenewals(BTreeMap<NodeId, Used>);

impl EarlyRenewals {
    /// Uses one. `Err`: there is none before this time has passed.
    pub(super) fn take(&mut self, node: NodeId, now: Moment) -> Result<(), Duration> {
        self.0.retain(|_, used| used.left_at(now).count > 0);
        let used = self.0.get(&node).map_or(Used { count: 0, since: now }, |used| used.left_at(now));
        if used.count >= MOST_EARLY {
            return Err(EARLY_AGAIN.saturating_sub(now.since(used.since)));
        }
        self.0.insert(node, Used { count: used.count + 1, ..used });
        Ok(())
    }
}

impl Used {
    fn left_at(self, now: Moment) -> Self {
        let back = now.since(self.since).as_secs() / EARLY_AGAIN.as_secs();
        match u32::try_from(back).ok().filter(|back| *back < self.count) {
            Some(back) => Self { count: self.count - back, since: self.since + EARLY_AGAIN * back },
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
    fn early_renewals_are_used_up_and_come_back_one_by_one() {
        let mut early = EarlyRenewals::default();
        let (node, other) = (NodeId::from_entropy(1), NodeId::from_entropy(2));
        let begin = Moment(0) + Duration::from_secs(3600);
        for _ in 0..MOST_EARLY {
            assert_eq!(early.take(node, begin), Ok(()));
        }
        assert_eq!(early.take(node, begin), Err(EARLY_AGAIN));
        assert_eq!(early.take(other, begin), Ok(()), "each node has its own");
        assert_eq!(early.take(node, begin + EARLY_AGAIN / 4), Err(EARLY_AGAIN * 3 / 4));
        assert_eq!(early.take(node, begin + EARLY_AGAIN), Ok(()));
        assert_eq!(early.take(node, begin + EARLY_AGAIN), Err(EARLY_AGAIN));
        let later = begin + EARLY_AGAIN * 1000;
        for _ in 0..MOST_EARLY {
            assert_eq!(early.take(node, later), Ok(()));
        }
        assert!(early.take(node, later).is_err(), "no more than that are saved up");
        assert_eq!(early.0.len(), 1, "who has all of them again is forgotten");
    }
}
