//! Rate limits per source: a bounded number of token buckets.
//!
//! Owns        a bucket for each of the latest sources.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::Moment;

/// A refill rate and the bucket size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u32,
    pub burst: u32,
}

/// One bucket per source: an address or an authenticated principal.
#[derive(Clone, Debug)]
pub struct Buckets<K> {
    rate: Rate,
    most: usize,
    buckets: BTreeMap<K, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// When it will be full again; a take moves this into the future. No other state is needed.
    full_at: Moment,
}

impl<K: Ord> Buckets<K> {
    /// At most `most` sources are remembered; while that many lack tokens, unknown ones must wait.
    pub fn new(rate: Rate, most: usize) -> Self {
        Self { rate, most, buckets: BTreeMap::new() }
    }
    /// Whether [`Buckets::take`] would succeed now; otherwise, when.
    pub fn would_take(&self, now: Moment, source: K) -> Result<(), Duration> {
        self.would_take_many(now, &source, 1)
    }
    /// Whether [`Buckets::take_many`] would succeed now, if there is room for its source; otherwise, when.
    pub fn would_take_many(&self, now: Moment, source: &K, tokens: u32) -> Result<(), Duration> {
        self.full_after(now, source, tokens).map(drop)
    }
    /// Takes one token, or returns when there will be one.
    pub fn take(&mut self, now: Moment, source: K) -> Result<(), Duration> {
        self.take_many(now, source, 1)
    }
    /// Takes this many tokens, or none and returns when they will be available. More than a burst need a full bucket.
    pub fn take_many(&mut self, now: Moment, source: K, tokens: u32) -> Result<(), Duration> {
        if !self.buckets.contains_key(&source) && self.buckets.len() >= self.most {
            self.buckets.retain(|_, b| b.full_at > now);
            if self.buckets.len() >= self.most {
                return Err(Duration::from_secs(1));
            }
        }
        let full_at = self.full_after(now, &source, tokens)?;
        self.buckets.insert(source, Bucket { full_at });
        Ok(())
    }
    /// When the source's bucket would be full again after that take.
    fn full_after(&self, now: Moment, source: &K, tokens: u32) -> Result<Moment, Duration> {
        let cost = Duration::from_secs(1) / self.rate.per_second.max(1);
        let depth = cost * self.rate.burst.max(1);
        let full_at = self.buckets.get(source).map_or(now, |bucket| bucket.full_at.max(now));
        let full_at = full_at + (cost * tokens).min(depth);
        let deficit = full_at.since(now);
        if deficit > depth { Err(deficit - depth) } else { Ok(full_at) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const RATE: Rate = Rate { per_second: 10, burst: 3 };

    fn source(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn burst_then_rate_with_exact_wait() {
        let mut buckets = Buckets::new(RATE, 8);
        let t = Moment(1_000_000);
        assert!((0..3).all(|_| buckets.take(t, source(1)).is_ok()));
        let wait = buckets.take(t, source(1)).unwrap_err();
        assert_eq!(wait, Duration::from_millis(100));
        assert_eq!(buckets.take(t + wait, source(1)), Ok(()));
        assert!(buckets.take(t + wait, source(1)).is_err());
    }

    #[test]
    fn many_tokens_are_taken_whole_or_not_at_all() {
        let mut buckets = Buckets::new(RATE, 8);
        let t = Moment(1_000_000);
        assert_eq!(buckets.take_many(t, "a", 2), Ok(()));
        let wait = buckets.take_many(t, "a", 2).unwrap_err();
        assert_eq!(wait, Duration::from_millis(100));
        assert_eq!(buckets.would_take_many(t, &"a", 2), Err(wait));
        assert_eq!(buckets.would_take_many(t, &"a", 1), Ok(()));
        assert_eq!(buckets.take(t, "a"), Ok(()), "a refused take costs nothing");
        // A request above the bucket size takes a full bucket.
        assert_eq!(buckets.take_many(t, "b", 1_000), Ok(()));
        assert_eq!(buckets.take(t, "b"), Err(Duration::from_millis(100)));
    }

    #[test]
    fn one_source_does_not_use_up_anothers_tokens() {
        let mut buckets = Buckets::new(RATE, 8);
        while buckets.take(Moment(0), source(1)).is_ok() {}
        assert_eq!(buckets.take(Moment(0), source(2)), Ok(()));
    }

    #[test]
    fn the_number_of_remembered_sources_is_bounded() {
        let mut buckets = Buckets::new(RATE, 2);
        assert!(buckets.take(Moment(0), source(1)).is_ok());
        assert!(buckets.take(Moment(0), source(2)).is_ok());
        assert!(buckets.take(Moment(0), source(3)).is_err());
        let later = Moment(0) + Duration::from_secs(1);
        assert!(buckets.take(later, source(3)).is_ok());
        assert!(buckets.buckets.len() <= 2);
    }
}
