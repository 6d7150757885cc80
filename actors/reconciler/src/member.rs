//! A member of a scope as its program describes and sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_elector::{ElectorConfig, Term, Timekeeper};
use muster_messages::wire::LeaseRef;
use muster_messages::{DefinitionTiming, NodeId, Release, SessionId, Triple};
use tokio_util::sync::CancellationToken;

use crate::core::admission::AdmissionState;
use crate::ports::Cluster;

/// The identity that a member announces.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub scope: String,
    pub member: String,
    pub node: Option<NodeId>,
    pub release: Release,
    pub needs: BTreeMap<String, Triple>,
    /// Whether it wants to serve, or only to be known.
    pub serves: bool,
    /// Whether it serves under its lease, and must have stopped before the lease is over.
    pub relies_on_lease: bool,
}

impl Member {
    /// A member that wants to serve.
    pub fn new(scope: &str, member: &str, release: Release) -> Self {
        let (scope, member) = (scope.to_owned(), member.to_owned());
        Self { scope, member, node: None, release, needs: BTreeMap::new(), serves: true, relies_on_lease: true }
    }
    /// Other means make its work safe: it may still serve when its lease is over.
    #[must_use]
    pub fn safe_without_lease(mut self) -> Self {
        self.relies_on_lease = false;
        self
    }
    /// It cannot serve before at least this release of the reconciler has been applied.
    #[must_use]
    pub fn needs(mut self, reconciler: &str, release: Triple) -> Self {
        self.needs.insert(reconciler.to_owned(), release);
        self
    }
    #[must_use]
    pub fn on(mut self, node: NodeId) -> Self {
        self.node = Some(node);
        self
    }
}

/// What a member is made of.
#[derive(Clone)]
pub struct MemberSetup {
    pub cluster: Arc<dyn Cluster>,
    pub clock: Arc<dyn Timekeeper>,
    pub lease: LeaseTiming,
    pub member: Member,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    /// How long others wait for a holder that died.
    pub lease: Duration,
    /// When to stop after the last confirmed renewal; the rest of the lease is the margin.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaseTiming {
    /// For a lease of this duration: in the ratio of the default durations.
    pub fn of(lease: Duration) -> Self {
        Self { lease, renew_deadline: lease * 2 / 3, retry_period: lease * 2 / 15 }
    }
    /// The same, unless the definition says otherwise.
    #[must_use]
    pub fn with(self, of: &DefinitionTiming) -> Self {
        of.lease_ms.map_or(self, |ms| Self::of(Duration::from_millis(ms)))
    }
    pub(crate) fn config(&self, lease: LeaseRef, identity: &str) -> ElectorConfig {
        ElectorConfig {
            lease_duration: self.lease,
            renew_deadline: self.renew_deadline,
            retry_period: self.retry_period,
            ..ElectorConfig::new(lease, identity)
        }
    }
}

#[derive(Clone)]
pub struct MemberView {
    pub admission_state: AdmissionState,
    pub announced: bool,
    pub incarnation: SessionId,
    /// The term of its lease. While the member serves it must stop when this ends.
    pub term: Option<Term>,
    /// Its lease has been released, as far as that was possible.
    pub gone: bool,
}

/// Handle to make a member leave.
#[derive(Clone, Default)]
pub struct Leave {
    /// The member was asked to leave.
    pub(crate) asked: CancellationToken,
}

impl Leave {
    /// Gives up the membership: the program must have stopped serving. Does not wait.
    pub fn leave(&self) {
        self.asked.cancel();
    }
}

#[cfg(test)]
mod tests {
    use muster_gates::{MAX_LEASE_MS, MIN_LEASE_MS};

    use super::*;

    /// HOLD-1, for every lease that a definition may ask for: a runner stops before its lease is over, with a third of it as the
    /// margin, and tries at least four times before it must.
    #[test]
    fn a_runner_stops_in_time_with_every_accepted_lease() {
        assert_eq!(LeaseTiming::of(Duration::from_secs(15)), LeaseTiming::default());
        for ms in (MIN_LEASE_MS..=MAX_LEASE_MS).step_by(7).chain([MAX_LEASE_MS]) {
            let timing =
                LeaseTiming::default().with(&DefinitionTiming { lease_ms: Some(ms), ..DefinitionTiming::default() });
            let lease = LeaseRef { namespace: "a".to_owned(), name: "b".to_owned() };
            assert_eq!(timing.config(lease, "n1").validate(), Ok(()));
            assert_eq!(timing.lease, Duration::from_millis(ms));
            assert!(timing.renew_deadline <= timing.lease * 2 / 3 && timing.retry_period * 4 < timing.renew_deadline);
        }
    }
}
