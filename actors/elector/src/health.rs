//! Whether an elector still works, for a health endpoint.

use std::sync::OnceLock;
use std::time::Duration;

use muster_messages::Moment;
use muster_messages::wire::LeaseRef;

use crate::config::ElectorConfig;
use crate::core::ElectorView;
use crate::handle::LeaderElector;

/// An elector that considers itself the leader on a lease that ran out long ago: its process hangs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the election for {lease} hangs: held, but not renewed for {since:?}")]
pub struct Unhealthy {
    /// The lease.
    pub lease: LeaseRef,
    /// How long ago it ran out.
    pub since: Duration,
}

pub(crate) fn evaluate(
    view: &ElectorView,
    config: &ElectorConfig,
    now: Moment,
    tolerance: Duration,
) -> Result<(), Unhealthy> {
    let Some(since) = view.renewed.map(|renewed| now.since(renewed)) else {
        return Ok(()); // a follower holds no lease
    };
    if since <= config.lease_duration + tolerance {
        return Ok(());
    }
    Err(Unhealthy { lease: config.lease.clone(), since })
}

/// A health check that can be wired before the elector exists.
#[derive(Default)]
pub struct HealthCheck {
    elector: OnceLock<LeaderElector>,
    tolerance: Duration,
}

impl HealthCheck {
    /// Kubernetes' components tolerate 20 s.
    pub fn new(tolerance: Duration) -> Self {
        Self { elector: OnceLock::new(), tolerance }
    }
    /// Checks this elector from now on. Only the first one is used.
    pub fn attach(&self, elector: LeaderElector) {
        let _first = self.elector.set(elector);
    }
    /// Healthy while there is no elector.
    pub fn check(&self) -> Result<(), Unhealthy> {
        self.elector.get().map_or(Ok(()), |elector| elector.check(self.tolerance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Kubernetes' components tolerate.
    const TOLERANCE: Duration = Duration::from_secs(20);

    fn config() -> ElectorConfig {
        let lease = LeaseRef { namespace: "foo".into(), name: "bar".into() };
        let config = ElectorConfig::new(lease, "baz");
        ElectorConfig { lease_duration: Duration::from_secs(60), ..config }
    }
    /// A lease of a minute, last renewed this many seconds ago, by us or by another.
    fn after(secs: u64, ours: bool) -> Result<(), Unhealthy> {
        let renewed = Moment(3_600_000_000);
        let view = ElectorView {
            phase: "leading",
            leader: None,
            token: None,
            renewed: ours.then_some(renewed),
            blocked: None,
            terms: 1,
            renewals: 0,
            failures: 0,
            read_after_failed_renewal: 0,
        };
        evaluate(&view, &config(), renewed + Duration::from_secs(secs), TOLERANCE)
    }

    /// Case 22.
    #[test]
    fn health_check_without_an_elector_passes() {
        assert_eq!(HealthCheck::new(TOLERANCE).check(), Ok(()));
    }

    /// Case 23.
    #[test]
    fn own_lease_an_hour_old_is_an_error_that_names_it() {
        assert!(after(3600, true).unwrap_err().to_string().contains("foo/bar"));
    }

    /// Case 24.
    #[test]
    fn lease_of_another_an_hour_old_is_healthy() {
        assert_eq!(after(3600, false), Ok(()));
    }

    /// Case 25.
    #[test]
    fn a_fresh_lease_is_healthy() {
        assert_eq!(after(0, true), Ok(()));
    }

    /// Case 26.
    #[test]
    fn a_second_past_its_time_is_tolerated() {
        assert_eq!(after(61, true), Ok(()));
        assert_eq!(after(80, true), Ok(()));
        assert!(after(81, true).is_err());
    }
}
