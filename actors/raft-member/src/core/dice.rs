//! Seeded randomness: the same seed, the same member (Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators").

use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

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
    /// In `low..high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.roll() % (high - low).max(1) as u64) as usize
    }
    /// In `0..=at_most`.
    pub fn delay(&mut self, at_most: Duration) -> Duration {
        let micros = u64::try_from(at_most.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.roll() % (micros + 1))
    }
    #[cfg(test)]
    pub fn one_in(&mut self, n: u64) -> bool {
        self.roll().is_multiple_of(n)
    }
}
