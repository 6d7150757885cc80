//! Pauses between attempts.

use std::time::Duration;

use muster_messages::Rng;

use crate::config::AgentConfig;

/// Exponential pause: `first`, doubled with each failure up to `cap`, then between half and all of it.
pub fn pause(rng: &mut Rng, first: Duration, cap: Duration, failures: u32) -> Duration {
    let grown = first.saturating_mul(1u32 << failures.min(20));
    grown.min(cap).mul_f64(0.5 + 0.5 * rng.fraction())
}

/// The pause before a request to the leader is repeated, at least as long as its answer asked for.
pub(super) fn before_repeat(
    retry_after: Option<Duration>,
    failures: u32,
    config: &AgentConfig,
    rng: &mut Rng,
) -> Duration {
    let own = pause(rng, config.sign_retry_first, config.sign_retry_cap, failures);
    retry_after.unwrap_or_default().max(own).min(config.sign_retry_cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_grows_and_never_passes_its_cap() {
        let mut rng = Rng::seeded(3);
        let (first, cap) = (Duration::from_millis(20), Duration::from_secs(2));
        assert!(pause(&mut rng, first, cap, 0) <= first);
        for failures in 0..64 {
            assert!(pause(&mut rng, first, cap, failures) <= cap);
        }
        assert!(pause(&mut rng, first, cap, 30) >= cap / 2);
    }
}
