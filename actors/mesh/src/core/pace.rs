//! How many pieces of a snapshot may be on their way at once.
//!
//! Owns        the window, and the shortest round trip of a piece that was seen.
//! Inputs      the round trip of each piece.     Outputs  the window.
//! Invariants  PACE-1  on a slow link the pieces keep what follows them on the stream waiting for half an election timeout at
//!                     most, or for one piece: a heartbeat that waits for an election timeout costs the leader its office.
//! Why by waiting time and not by round trip: on a long fat link a round trip is long and more pieces help. What a piece waits
//! beyond the shortest round trip, it waits behind other pieces.

use std::time::Duration;

/// One mebibyte on its way.
const MOST: usize = 16;
/// Half a heartbeat.
const LONG_WAIT: Duration = Duration::from_millis(50);
/// Less than what a busy machine takes now and then.
const SHORT_WAIT: Duration = Duration::from_millis(20);
/// Two pieces that take this long each are too much, whatever they would tell.
const SLOW: Duration = Duration::from_millis(200);
/// Pieces after which a window that was too large is tried again: 16 MiB.
const AGAIN_AFTER: usize = 256;

#[derive(Clone, Debug)]
pub struct Pace {
    window: usize,
    shortest: Option<Duration>,
    /// Pieces answered since the window changed.
    answered: usize,
    /// It was too much with more than this.
    ceiling: usize,
    since_ceiling: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { window: 1, shortest: None, answered: 0, ceiling: MOST, since_ceiling: 0 }
    }
}

impl Pace {
    pub fn window(&self) -> usize {
        self.window
    }

    /// A piece was answered after this long.
    pub fn answered(&mut self, round_trip: Duration) {
        let shortest = self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip));
        self.shortest = Some(shortest);
        self.answered += 1;
        self.since_ceiling += 1;
        if self.since_ceiling >= AGAIN_AFTER {
            (self.ceiling, self.since_ceiling) = (MOST, 0);
        }
        let waited = round_trip - shortest;
        if waited > LONG_WAIT || shortest > SLOW {
            (self.ceiling, self.since_ceiling) = ((self.window / 2).max(1), 0);
            self.set(self.window / 2);
        } else if waited < SHORT_WAIT && self.answered >= self.window && self.window < self.ceiling {
            self.set(self.window * 2);
        }
    }

    fn set(&mut self, window: usize) {
        (self.window, self.answered) = (window.clamp(1, MOST), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use muster_messages::wire::CHUNK;

    use super::*;

    /// Sends pieces through a link for ten seconds: the longest wait of a message behind them, and bytes per second.
    fn through(bytes_per_sec: u64, latency: Duration) -> (Duration, u64) {
        let (mut pace, mut now, mut free) = (Pace::default(), Duration::ZERO, Duration::ZERO);
        let mut on_its_way: VecDeque<(Duration, Duration)> = VecDeque::new();
        let takes = Duration::from_micros(CHUNK as u64 * 1_000_000 / bytes_per_sec);
        let (mut longest, mut bytes) = (Duration::ZERO, 0u64);
        while now < Duration::from_secs(10) {
            while on_its_way.len() < pace.window() {
                free = free.max(now) + takes;
                on_its_way.push_back((now, free + latency));
                longest = longest.max(free - now);
            }
            let (sent, arrived) = on_its_way.pop_front().expect("the window is not zero");
            now = arrived;
            bytes += CHUNK as u64;
            pace.answered(now - sent);
        }
        (longest, bytes / 10)
    }

    /// PACE-1.
    #[test]
    fn a_slow_link_is_left_to_heartbeats() {
        for kib in [200, 450, 900, 1500, 3000] {
            let (wait, rate) = through(kib << 10, Duration::from_millis(10));
            let one = Duration::from_millis(64_000 / kib);
            assert!(wait <= one.max(Duration::from_millis(300)), "{kib} KiB/s: {wait:?}");
            assert!(rate > (kib << 10) / 2, "{kib} KiB/s: {rate}");
        }
    }

    #[test]
    fn a_fast_link_is_used_near_or_far() {
        let (_, near) = through(1 << 30, Duration::from_micros(200));
        assert!(near > 100 << 20, "{near}");
        let (_, far) = through(1 << 30, Duration::from_millis(100));
        assert!(far > 8 << 20, "{far}");
    }
}
