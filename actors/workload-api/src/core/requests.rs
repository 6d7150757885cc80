//! How many requests the processes of one user may make.
//!
//! Owns        a token bucket for each user.
//! Invariants  one user's requests are refused long before they are felt by others; a user that is quiet costs no memory.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::Moment;

/// Requests at once: the processes of one user that start together when a machine boots.
pub const REQUEST_BURST: u64 = 200;
/// Requests per second after that. A program asks when it starts, and after its stream has ended.
pub const REQUESTS_PER_SECOND: u64 = 50;

const SECOND: Duration = Duration::from_secs(1);

/// The buckets, by user. Each is the time at which it is full again: a full one is forgotten.
#[derive(Clone, Debug)]
pub struct Requests {
    full_at: BTreeMap<u32, Moment>,
    pruned: Moment,
    /// The time that one request costs.
    cost: Duration,
    /// The time that a full bucket is worth.
    full: Duration,
}

impl Default for Requests {
    fn default() -> Self {
        Self::limited(REQUEST_BURST, REQUESTS_PER_SECOND)
    }
}

impl Requests {
    /// So many of each user at once, and so many per second after that.
    pub fn limited(burst: u64, per_second: u64) -> Self {
        let cost = 1_000_000 / per_second.max(1);
        let (cost, full) = (Duration::from_micros(cost), Duration::from_micros(cost.saturating_mul(burst)));
        Self { full_at: BTreeMap::new(), pruned: Moment::default(), cost, full }
    }
    /// Counts a request, unless it is one too many.
    pub fn admit(&mut self, now: Moment, uid: u32) -> bool {
        if now.since(self.pruned) >= SECOND {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.pruned = now;
        }
        let full_at = self.full_at.get(&uid).copied().unwrap_or(now).max(now);
        let with_this = full_at + self.cost;
        let fits = with_this.since(now) <= self.full;
        if fits {
            self.full_at.insert(uid, with_this);
        }
        fits
    }
    /// Users that are remembered.
    pub fn users(&self) -> usize {
        self.full_at.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_flood_is_refused_and_others_are_served() {
        let mut requests = Requests::default();
        let mut now = Moment(1_000_000_000);
        let admitted = (0..300).filter(|_| requests.admit(now, 7)).count();
        assert_eq!(admitted as u64, REQUEST_BURST);
        assert!(requests.admit(now, 8));
        let mut served = 0;
        for _ in 0..300 {
            now = now + SECOND / 300;
            served += u64::from(requests.admit(now, 7));
        }
        assert!((REQUESTS_PER_SECOND - 1..=REQUESTS_PER_SECOND + 1).contains(&served), "{served}");
    }

    #[test]
    fn users_are_forgotten_once_they_are_quiet() {
        let mut requests = Requests::default();
        let now = Moment(1_000_000_000);
        for uid in 0..1000 {
            assert!(requests.admit(now, uid));
        }
        assert_eq!(requests.users(), 1000);
        assert!(requests.admit(now + 10 * SECOND, 5));
        assert_eq!(requests.users(), 1);
    }
}
