//! Seeded random numbers for cores and simulations: the shell passes the seed in, so that a test can replay every choice.

use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014). Good enough to spread load;
/// never used for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same choices.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number of the sequence.
    pub fn sample(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`; 0 when there is nothing to choose from.
    pub fn below(&mut self, n: u64) -> u64 {
        self.sample() % n.max(1)
    }
    /// An index into a slice of this length; 0 for an empty one.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.sample().is_multiple_of(n)
    }
    /// One of the elements; `None` of an empty slice.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { of.get(self.index(of.len())).copied() }
    }

    /// A number from 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        (self.sample() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// At most `longest`.
    pub fn up_to(&mut self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.sample() % (micros + 1))
    }
    /// `d`, up to `part` of it more or less.
    pub fn around(&mut self, d: Duration, part: f64) -> Duration {
        d.mul_f64(1.0 - part + 2.0 * part * self.fraction())
    }
    /// From `period` to `1 + stretch` times as long.
    pub fn stretched(&mut self, period: Duration, stretch: f64) -> Duration {
        period.mul_f64(1.0 + stretch * self.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_choices_are_bounded_and_reproducible() {
        let (mut rng, mut replay) = (Rng::seeded(3), Rng::seeded(3));
        let second = Duration::from_secs(1);
        for _ in 0..1000 {
            assert!(rng.below(7) < 7);
            assert!((0.0..1.0).contains(&rng.fraction()));
            assert!(rng.up_to(second) <= second);
            assert!((second * 9 / 10..=second * 11 / 10).contains(&rng.around(second, 0.1)));
            assert!((second..second * 22 / 10).contains(&rng.stretched(second, 1.2)));
        }
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.pick::<u8>(&[]), None);
        let mut sampled = 0;
        while replay != rng {
            replay.sample();
            sampled += 1;
            assert!(sampled < 10_000);
        }
    }
}
