//! Seeded randomness: the shell hands in the seed, so that a test can replay every choice.

use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014). Good enough to
/// spread load; never used for secrets.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`; 0 when there is nothing to choose from.
    pub fn below(&mut self, n: usize) -> usize {
        (self.roll() % (n.max(1) as u64)) as usize
    }

    /// A number from 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `d`, up to `part` of it more or less.
    pub fn around(&mut self, d: Duration, part: f64) -> Duration {
        d.mul_f64(1.0 - part + 2.0 * part * self.fraction())
    }
}

/// Exponential pause: `first`, doubled with each failure up to `cap`, then between half and all of it.
pub fn pause(dice: &mut Dice, first: Duration, cap: Duration, failures: u32) -> Duration {
    let grown = first.saturating_mul(1u32 << failures.min(20));
    grown.min(cap).mul_f64(0.5 + 0.5 * dice.fraction())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_stays_within_its_bounds() {
        let mut dice = Dice::seeded(3);
        let (low, high) = (Duration::from_millis(4500), Duration::from_millis(5500));
        for _ in 0..1000 {
            let d = dice.around(Duration::from_secs(5), 0.1);
            assert!(d >= low && d <= high, "{d:?}");
        }
    }

    #[test]
    fn a_pause_grows_and_never_passes_its_cap() {
        let mut dice = Dice::seeded(3);
        let (first, cap) = (Duration::from_millis(20), Duration::from_secs(2));
        assert!(pause(&mut dice, first, cap, 0) <= first);
        for failures in 0..64 {
            assert!(pause(&mut dice, first, cap, failures) <= cap);
        }
        assert!(pause(&mut dice, first, cap, 30) >= cap / 2);
    }
}
