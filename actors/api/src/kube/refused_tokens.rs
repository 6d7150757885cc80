//! Bearer tokens that managers have refused, on a worker that passes them on.
//!
//! Owns   how many tokens of each address managers have refused lately, and which tokens they have accepted.
//! Keeps  KUBE-3  a client without a good token costs the managers a bounded number of connections: after
//!                [`REFUSALS`] refused tokens of one address its further ones are refused here, but for those that a manager has
//!                accepted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use muster_gateway::{Buckets, Rate, source_of};
use muster_messages::Moment;

/// A person who pastes the wrong token, or a client that still has its old one, needs a few. Then one each second.
const REFUSALS: Rate = Rate { per_second: 1, burst: 20 };
/// How many addresses are distinguished.
const MAX_SOURCES: usize = 4_096;
/// Tokens that are remembered as good: the clients of one worker. Older ones go first.
const MAX_GOOD: usize = 1_024;
/// How long a token counts as good that a manager has accepted. Only its way to the managers hangs on it, never an answer.
const GOOD_FOR: Duration = Duration::from_secs(600);

/// See the module. A token is known by its digest.
#[derive(Debug)]
pub(crate) struct RefusedTokens {
    refusals: Buckets<IpAddr>,
    good: BTreeMap<[u8; 32], Moment>,
}

impl RefusedTokens {
    pub(crate) fn new() -> Self {
        Self { refusals: Buckets::new(REFUSALS, MAX_SOURCES), good: BTreeMap::new() }
    }

    /// Whether a request may travel on; else when it may be tried again.
    pub(crate) fn may_pass(&self, now: Moment, source: IpAddr, token: &[u8; 32]) -> Result<(), Duration> {
        match self.good.get(token) {
            Some(at) if now.since(*at) < GOOD_FOR => Ok(()),
            _ => self.refusals.would_take(now, source_of(source)),
        }
    }

    /// What a manager has said of a token.
    pub(crate) fn judged(&mut self, now: Moment, source: IpAddr, token: [u8; 32], accepted: bool) {
        if !accepted {
            self.good.remove(&token);
            let _used_up = self.refusals.take(now, source_of(source));
            return;
        }
        if self.good.len() >= MAX_GOOD
            && !self.good.contains_key(&token)
            && let Some(oldest) = self.good.iter().min_by_key(|(_, at)| **at).map(|(token, _)| *token)
        {
            self.good.remove(&oldest);
        }
        self.good.insert(token, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOISY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn token(n: u32) -> [u8; 32] {
        let mut token = [0; 32];
        token[..4].copy_from_slice(&n.to_be_bytes());
        token
    }

    #[test]
    fn an_address_whose_tokens_are_refused_waits_and_others_do_not() {
        let (mut tokens, now) = (RefusedTokens::new(), Moment(1_000_000));
        let mut passed = 0;
        for n in 0..400 {
            if tokens.may_pass(now, NOISY, &token(n)).is_ok() {
                passed += 1;
                tokens.judged(now, NOISY, token(n), false);
            }
        }
        assert_eq!(passed, REFUSALS.burst);
        assert_eq!(tokens.may_pass(now, IpAddr::from([10, 0, 0, 2]), &token(1)), Ok(()));
        let wait = tokens.may_pass(now, NOISY, &token(1)).unwrap_err();
        assert_eq!(tokens.may_pass(now + wait, NOISY, &token(1)), Ok(()));
    }

    #[test]
    fn an_accepted_token_passes_from_a_noisy_address() {
        let (mut tokens, now) = (RefusedTokens::new(), Moment(1_000_000));
        tokens.judged(now, NOISY, token(7), true);
        for n in 100..200 {
            tokens.judged(now, NOISY, token(n), false);
        }
        assert_eq!(tokens.may_pass(now, NOISY, &token(7)), Ok(()));
        tokens.judged(now, NOISY, token(7), false);
        assert!(tokens.may_pass(now, NOISY, &token(7)).is_err());
    }

    #[test]
    fn the_number_of_good_tokens_is_bounded() {
        let mut tokens = RefusedTokens::new();
        for n in 0..2 * u32::try_from(MAX_GOOD).unwrap() {
            tokens.judged(Moment(u64::from(n)), NOISY, token(n), true);
        }
        assert_eq!(tokens.good.len(), MAX_GOOD);
        assert!(tokens.good.contains_key(&token(2 * u32::try_from(MAX_GOOD).unwrap() - 1)));
    }
}
