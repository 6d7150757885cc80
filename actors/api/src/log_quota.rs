//! LogQuota: how many bytes one caller may add to the Raft log.
//!
//! Owns        what each caller has written lately, on the leading manager. A new leader starts with full quotas.
//! Inputs      caller, size and time of a proposal.
//! Outputs     whether it may be proposed, otherwise when.
//! Invariants  API-6  a caller that is not an operator adds at most [`QUOTA`] to the log, in any number of requests. The rest
//!                    is refused before it is proposed.
//! The caller's share of requests in progress bounds many small writes instead.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use muster_gateway::{Buckets, Rate};
use muster_messages::{ErrorBody, ErrorCode, Moment, Principal};

/// In KiB. Per second: a twelfth of a 100 Mbit/s link, which may have to carry a snapshot as well. At once: thirty
/// config maps of the largest size.
const QUOTA: Rate = Rate { per_second: 1 << 10, burst: 8 << 10 };
/// Callers that are distinguished. While that many have written lately, others wait.
const MAX_CALLERS: usize = 16_384;

/// See the module.
pub(crate) struct LogQuota(Mutex<Buckets<Principal>>);

impl Default for LogQuota {
    fn default() -> Self {
        Self(Mutex::new(Buckets::new(QUOTA, MAX_CALLERS)))
    }
}

impl LogQuota {
    /// Takes this many bytes from the caller's quota.
    ///
    /// # Errors
    /// `too_many_requests` with the time after which they fit; nothing is taken.
    pub fn take(&self, now: Moment, caller: &Principal, bytes: usize) -> Result<(), ErrorBody> {
        self.with_buckets(caller, bytes, |buckets, account, kib| buckets.take_many(now, account, kib))
    }

    /// Whether they could be taken now. A write that has no room is refused before it costs anything: the text of a large object is
    /// read, compared and written several times.
    ///
    /// # Errors
    /// Those of [`take`](Self::take).
    pub fn check(&self, now: Moment, caller: &Principal, bytes: usize) -> Result<(), ErrorBody> {
        self.with_buckets(caller, bytes, |buckets, account, kib| buckets.would_take_many(now, &account, kib))
    }

    fn with_buckets(
        &self,
        caller: &Principal,
        bytes: usize,
        ask: impl FnOnce(&mut Buckets<Principal>, Principal, u32) -> Result<(), Duration>,
    ) -> Result<(), ErrorBody> {
        if caller.is_operator() || matches!(caller, Principal::Cluster) {
            return Ok(());
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ask(&mut buckets, caller.account(), kib).map_err(|wait| {
            let (burst, rate) = (QUOTA.burst / 1024, QUOTA.per_second / 1024);
            let text = format!(
                "{caller} has reached the per-client limit of bytes written ({burst} MiB at once, {rate} MiB per second after \
                 that): the change was not made; retry later"
            );
            // Rounded up to milliseconds, and at least a round trip.
            ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(wait.max(Duration::from_millis(50)) + Duration::from_millis(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE_WRITE_BYTES: usize = 250_000;

    fn user(name: &str) -> Principal {
        Principal::User(name.parse().unwrap())
    }

    /// Writes until one is refused.
    fn passed(quota: &LogQuota, now: Moment, caller: &Principal) -> usize {
        (0..1_000).take_while(|_| quota.take(now, caller, LARGE_WRITE_BYTES).is_ok()).count()
    }

    #[test]
    fn a_refused_caller_learns_when_to_retry() {
        let (quota, now, ann) = (LogQuota::default(), Moment(1), user("ann"));
        assert_eq!(quota.check(now, &ann, LARGE_WRITE_BYTES), Ok(()));
        assert_eq!(passed(&quota, now, &ann), 33, "a check takes nothing");
        let checked = quota.check(now, &ann, LARGE_WRITE_BYTES).unwrap_err();
        assert_eq!(checked, quota.take(now, &ann, LARGE_WRITE_BYTES).unwrap_err());
        let refused = quota.take(now, &ann, LARGE_WRITE_BYTES).unwrap_err();
        assert_eq!(refused.code, ErrorCode::TooManyRequests);
        let later = now + Duration::from_millis(refused.retry_after_ms.unwrap());
        assert_eq!(passed(&quota, later, &ann), 1);
        assert_eq!(passed(&quota, later + Duration::from_secs(1), &ann), 4);
    }

    #[test]
    fn tokens_share_their_users_quota_and_operators_have_none() {
        let (quota, now, ann) = (LogQuota::default(), Moment(1), user("ann"));
        passed(&quota, now, &ann);
        assert_eq!(passed(&quota, now, &user("bob")), 33);
        let token = Principal::Bearer { user: "ann".parse().unwrap(), token: "t1".to_owned() };
        assert_eq!(passed(&quota, now, &token), 0);
        for unbound in [Principal::Operator, Principal::Cluster] {
            assert_eq!(passed(&quota, now, &unbound), 1_000);
        }
    }
}
