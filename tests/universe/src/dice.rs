//! The one source of chance of a universe.

use std::time::Duration;

/// Seeded, so that a universe can be had again.
#[derive(Clone, Debug)]
pub struct Dice(muster_messages::Dice);

impl Dice {
    pub fn seeded(seed: u64) -> Self {
        let mut dice = Self(muster_messages::Dice::seeded(seed ^ 0x5851_f42d_4c95_7f2d));
        dice.roll();
        dice
    }
    pub fn roll(&mut self) -> u64 {
        self.0.roll()
    }
    pub fn wide(&mut self) -> u128 {
        (u128::from(self.roll()) << 64) | u128::from(self.roll())
    }
    /// One of `0..n`; 0 when there is nothing to choose from.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.index(n)
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
        self.0.pick(from)
    }
}
