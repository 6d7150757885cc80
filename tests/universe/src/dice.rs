//! The one source of chance of a universe (Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators").

use std::time::Duration;

/// Seeded, so that a universe can be had again.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn seeded(seed: u64) -> Self {
        let mut dice = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        dice.roll();
        dice
    }
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn wide(&mut self) -> u128 {
        (u128::from(self.roll()) << 64) | u128::from(self.roll())
    }
    /// One of `0..n`; 0 when there is nothing to choose from.
    pub fn below(&mut self, n: usize) -> usize {
        (self.roll() % n.max(1) as u64) as usize
    }
    /// True this often in a thousand.
    pub fn chance(&mut self, permille: u32) -> bool {
        permille > 0 && self.roll() % 1000 < u64::from(permille)
    }
    /// In `low..=high`, both in microseconds.
    pub fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(low + self.roll() % (high - low + 1))
    }
    /// In `low..=high`, both in milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        self.micros(low * 1000, high * 1000)
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len())]) }
    }
}
