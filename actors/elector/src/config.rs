//! The configuration of an elector, and its validation.

use std::time::Duration;

use muster_messages::wire::LeaseRef;

/// Followers read a Kubernetes lease again after a period stretched by up to this factor; a renew deadline must allow one such
/// period.
pub const JITTER: f64 = 1.2;

/// client-go's configuration, under its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectorConfig {
    /// The lease that the candidates contend for.
    pub lease: LeaseRef,
    /// Our name in the lease. No two processes may share it.
    pub identity: String,
    /// Validity of the lease after a renewal: the longest wait after a holder's death.
    pub lease_duration: Duration,
    /// How long leadership lasts after the last confirmed renewal. The guarded work has the rest of the lease duration to end.
    /// The ratio of the two is the tolerated difference in clock rates.
    pub renew_deadline: Duration,
    /// The interval between renewals.
    pub retry_period: Duration,
    /// Whether the lease is released once the guarded work has ended. Otherwise it runs out.
    pub release_on_cancel: bool,
    /// Whether to campaign again after leadership was lost.
    pub campaign_again: bool,
    /// A coordinator chooses the holder among [candidates](crate::Candidacy): the lease is not taken unasked, in Kubernetes
    /// never. In a Muster cluster a lease without a coordinator must not stay empty: it is taken once it has been free for a
    /// lease duration, and for the 8 s that a coordinator may need.
    pub coordinated: bool,
}

impl ElectorConfig {
    /// 15 s, 10 s and 2 s, as in Kubernetes' components; releases the lease at the end and campaigns again after a loss.
    pub fn new(lease: LeaseRef, identity: impl Into<String>) -> Self {
        Self {
            lease,
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            release_on_cancel: true,
            campaign_again: true,
            coordinated: false,
        }
    }

    /// The first error, in client-go's order. Types rule out what client-go checks about callbacks and lock.
    pub fn validate(&self) -> Result<(), ConfigRefusal> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        if lease <= renew {
            return Err(ConfigRefusal::LeaseTooShort { lease, renew });
        }
        if renew <= retry.mul_f64(JITTER) {
            return Err(ConfigRefusal::RenewTooShort { renew, retry });
        }
        // The other two are known to be longer than this one.
        if retry.is_zero() {
            return Err(ConfigRefusal::ZeroRetry);
        }
        if self.identity.is_empty() {
            return Err(ConfigRefusal::NoIdentity);
        }
        Ok(())
    }

    /// [`ElectorConfig::validate`] for a Kubernetes lease, which counts whole seconds: others would wait less than the holder
    /// allows itself.
    pub fn validate_for_kubernetes(&self) -> Result<(), ConfigRefusal> {
        self.validate()?;
        if self.lease_duration.subsec_nanos() != 0 {
            return Err(ConfigRefusal::NotWholeSeconds { lease: self.lease_duration });
        }
        Ok(())
    }
}

/// A configuration that makes a safe election impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigRefusal {
    /// A holder would not notice in time that it lost the lease.
    #[error("the lease duration ({lease:?}) must be longer than the renew deadline ({renew:?})")]
    LeaseTooShort {
        /// The lease duration.
        lease: Duration,
        /// The renew deadline.
        renew: Duration,
    },
    /// A follower might not look at the lease within the deadline.
    #[error("the renew deadline ({renew:?}) must be longer than {JITTER} times the retry period ({retry:?})")]
    RenewTooShort {
        /// The renew deadline.
        renew: Duration,
        /// The retry period.
        retry: Duration,
    },
    /// It would ask without a pause.
    #[error("the retry period must be longer than zero")]
    ZeroRetry,
    /// An empty name in the lease means that it has no holder.
    #[error("the identity must not be empty")]
    NoIdentity,
    /// Kubernetes stores whole seconds.
    #[error("the duration of a Kubernetes lease must be whole seconds, not {lease:?}")]
    NotWholeSeconds {
        /// The lease duration.
        lease: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> ElectorConfig {
        ElectorConfig::new(LeaseRef { namespace: "foo".into(), name: "bar".into() }, "baz")
    }
    const ZERO: Duration = Duration::ZERO;

    /// Case 17.
    #[test]
    fn the_usual_configuration_is_accepted() {
        assert_eq!(valid().validate(), Ok(()));
        assert_eq!(valid().validate_for_kubernetes(), Ok(()));
    }

    /// Case 18.
    #[test]
    fn an_empty_identity_is_rejected() {
        assert_eq!(ElectorConfig { identity: String::new(), ..valid() }.validate(), Err(ConfigRefusal::NoIdentity));
    }

    #[test]
    fn configuration_errors_are_found_in_a_fixed_order() {
        // Everything is wrong at first; each step corrects one value.
        let mut config = ElectorConfig {
            identity: String::new(),
            lease_duration: ZERO,
            renew_deadline: ZERO,
            retry_period: ZERO,
            ..valid()
        };
        let (lease, renew, retry) = (ZERO, ZERO, ZERO);
        assert_eq!(config.validate(), Err(ConfigRefusal::LeaseTooShort { lease, renew }));
        config.lease_duration = Duration::from_secs(15);
        assert_eq!(config.validate(), Err(ConfigRefusal::RenewTooShort { renew, retry }));
        config.renew_deadline = Duration::from_secs(10);
        assert_eq!(config.validate(), Err(ConfigRefusal::ZeroRetry));
        config.retry_period = Duration::from_secs(2);
        assert_eq!(config.validate(), Err(ConfigRefusal::NoIdentity));
    }

    #[test]
    fn the_renew_deadline_leaves_room_for_a_stretched_period() {
        let at = |retry_ms| ElectorConfig { retry_period: Duration::from_millis(retry_ms), ..valid() };
        assert!(at(8333).validate().is_ok(), "10 s are more than 1.2 times this");
        assert!(at(8334).validate().is_err());
    }

    #[test]
    fn less_than_a_second_is_for_native_leases_alone() {
        let quick = ElectorConfig {
            lease_duration: Duration::from_millis(300),
            renew_deadline: Duration::from_millis(200),
            retry_period: Duration::from_millis(50),
            ..valid()
        };
        assert_eq!(quick.validate(), Ok(()));
        assert!(matches!(quick.validate_for_kubernetes(), Err(ConfigRefusal::NotWholeSeconds { .. })));
    }
}
