//! The only source of randomness in a simulation.

use std::time::Duration;

/// Seeded, so that a run can be repeated.
#[derive(Clone, Debug)]
pub struct Rng(muster_messages::Rng);

impl Rng {
    pub fn seeded(seed: u64) -> Self {
        let mut rng = Self(muster_messages::Rng::seeded(seed ^ 0x5851_f42d_4c95_7f2d));
        rng.sample();
        rng
    }
    pub fn sample(&mut self) -> u64 {
        self.0.sample()
    }
    pub fn next_u128(&mut self) -> u128 {
        (u128::from(self.sample()) << 64) | u128::from(self.sample())
    }
    /// One of `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.index(n)
    }
    /// True with this probability per thousand.
    pub fn chance(&mut self, permille: u32) -> bool {
        permille > 0 && self.sample() % 1000 < u64::from(permille)
    }
    /// In `low..=high`, in microseconds.
    pub fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(low + self.sample() % (high - low + 1))
    }
    /// In `low..=high`, in milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        self.micros(low * 1000, high * 1000)
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        self.0.pick(from)
    }
}
