//! Bearer tokens that managers have refused, on a worker that forwards them.
//!
//! Owns        how many tokens of each address managers have refused lately, and which tokens they have accepted.
//! Invariants  KUBE-3  a client without a valid token costs the managers a bounded number of connections: after [`REFUSALS`]
//!                     refused tokens of one address its further ones are refused here, except those that a manager has
//!                     accepted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use muster_gateway::{Buckets, Rate, source_of};
use muster_messages::Moment;

/// A person who pastes the wrong token, or a client with an old one, needs a few attempts. Afterwards one per second.
const REFUSALS: Rate = Rate { per_second: 1, burst: 20 };
/// The number of addresses that are distinguished.
const MAX_SOURCES: usize = 4_096;
/// Tokens remembered as valid: the clients of one worker. The oldest are evicted first.
const MAX_ACCEPTED_TOKENS: usize = 1_024;
/// How long a token that a manager accepted counts as valid. This decides only whether it is forwarded, never an
/// answer.
const ACCEPTED_TOKEN_TTL: Duration = Duration::from_secs(600);

/// See the module. A token is identified by its digest.
#[derive(Debug)]
pub(crate) struct RefusedTokens {
    refusals: Buckets<IpAddr>,
    accepted_tokens: BTreeMap<[u8; 32], Moment>,
}

impl RefusedTokens {
    pub(crate) fn new() -> Self {
        Self { refusals: Buckets::new(REFUSALS, MAX_SOURCES), accepted_tokens: BTreeMap::new() }
    }

    /// Whether a request may be forwarded; otherwise when to try again.
    pub(crate) fn may_pass(&self, now: Moment, source: IpAddr, token: &[u8; 32]) -> Result<(), Duration> {
        match self.accepted_tokens.get(token) {
            Some(at) if now.since(*at) < ACCEPTED_TOKEN_TTL => Ok(()),
            _ => self.refusals.would_take(now, source_of(source)),
        }
    }

    /// Records a manager's decision about a token.
    pub(crate) fn record_decision(&mut self, now: Moment, source: IpAddr, token: [u8; 32], accepted: bool) {
        if !accepted {
            self.accepted_tokens.remove(&token);
            let _used_up = self.refusals.take(now, source_of(source));
            return;
        }
        if self.accepted_tokens.len() >= MAX_ACCEPTED_TOKENS
            && !self.accepted_tokens.contains_key(&token)
            && let Some(oldest) = self.accepted_tokens.iter().min_by_key(|(_, at)| **at).map(|(token, _)| *token)
        {
            self.accepted_tokens.remove(&oldest);
        }
        self.accepted_tokens.insert(token, now);
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
    fn only_the_address_of_refused_tokens_is_delayed() {
        let (mut tokens, now) = (RefusedTokens::new(), Moment(1_000_000));
        let mut passed = 0;
        for n in 0..400 {
            if tokens.may_pass(now, NOISY, &token(n)).is_ok() {
                passed += 1;
                tokens.record_decision(now, NOISY, token(n), false);
            }
        }
        assert_eq!(passed, REFUSALS.burst);
        assert_eq!(tokens.may_pass(now, IpAddr::from([10, 0, 0, 2]), &token(1)), Ok(()));
        let wait = tokens.may_pass(now, NOISY, &token(1)).unwrap_err();
        assert_eq!(tokens.may_pass(now + wait, NOISY, &token(1)), Ok(()));
    }

    #[test]
    fn accepted_token_passes_from_an_address_with_refusals() {
        let (mut tokens, now) = (RefusedTokens::new(), Moment(1_000_000));
        tokens.record_decision(now, NOISY, token(7), true);
        for n in 100..200 {
            tokens.record_decision(now, NOISY, token(n), false);
        }
        assert_eq!(tokens.may_pass(now, NOISY, &token(7)), Ok(()));
        tokens.record_decision(now, NOISY, token(7), false);
        assert!(tokens.may_pass(now, NOISY, &token(7)).is_err());
    }

    #[test]
    fn the_number_of_good_tokens_is_bounded() {
        let mut tokens = RefusedTokens::new();
        for n in 0..2 * u32::try_from(MAX_ACCEPTED_TOKENS).unwrap() {
            tokens.record_decision(Moment(u64::from(n)), NOISY, token(n), true);
        }
        assert_eq!(tokens.accepted_tokens.len(), MAX_ACCEPTED_TOKENS);
        assert!(tokens.accepted_tokens.contains_key(&token(2 * u32::try_from(MAX_ACCEPTED_TOKENS).unwrap() - 1)));
    }
}
