//! How many pieces of a snapshot may be in flight.
//!
//! Owns        the window, and the shortest observed round trip of a piece.
//! Inputs      the round trip of each piece.  Outputs  the window.
//! Invariants  PACE-1  on a slow link the pieces delay what follows them on the stream by half an election timeout at most, or
//!                     by one piece: a heartbeat delayed by an election timeout costs the leader its leadership.
//! Why by waiting time and not by round trip: on a long fat link a round trip is long and more pieces help. The time beyond the
//! shortest round trip is spent waiting behind other pieces.

use std::time::Duration;

/// One mebibyte in flight.
const MAX_WINDOW: usize = 16;
/// Half a heartbeat.
const HIGH_QUEUE_WAIT: Duration = Duration::from_millis(50);
/// Below the occasional delays of a busy machine.
const LOW_QUEUE_WAIT: Duration = Duration::from_millis(20);
/// Two pieces that take this long each are too much, whatever their waiting time.
const SLOW_ROUND_TRIP: Duration = Duration::from_millis(200);
/// Pieces after which a window that was too large is retried: 16 MiB.
const CEILING_RESET_PIECES: usize = 256;

#[derive(Clone, Debug)]
pub struct Pace {
    window: usize,
    shortest: Option<Duration>,
    /// Pieces answered since the window changed.
    answered: usize,
    /// Larger windows were too much.
    ceiling: usize,
    since_ceiling: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { window: 1, shortest: None, answered: 0, ceiling: MAX_WINDOW, since_ceiling: 0 }
    }
}

impl Pace {
    pub fn window(&self) -> usize {
        self.window
    }

    pub fn answered(&mut self, round_trip: Duration) {
        let shortest = self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip));
        self.shortest = Some(shortest);
        self.answered += 1;
        self.since_ceiling += 1;
        if self.since_ceiling >= CEILING_RESET_PIECES {
            (self.ceiling, self.since_ceiling) = (MAX_WINDOW, 0);
        }
        let waited = round_trip - shortest;
        if waited > HIGH_QUEUE_WAIT || shortest > SLOW_ROUND_TRIP {
            (self.ceiling, self.since_ceiling) = ((self.window / 2).max(1), 0);
            self.set(self.window / 2);
        } else if waited < LOW_QUEUE_WAIT && self.answered >= self.window && self.window < self.ceiling {
            self.set(self.window * 2);
        }
    }

    fn set(&mut self, window: usize) {
        (self.window, self.answered) = (window.clamp(1, MAX_WINDOW), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use muster_messages::wire::CHUNK;

    use super::*;

    /// Sends pieces through a link for ten seconds. Returns the longest wait of a message behind them, and bytes per second.
    fn through(bytes_per_sec: u64, latency: Duration) -> (Duration, u64) {
        let (mut pace, mut now, mut free) = (Pace::default(), Duration::ZERO, Duration::ZERO);
        let mut in_flight: VecDeque<(Duration, Duration)> = VecDeque::new();
        let takes = Duration::from_micros(CHUNK as u64 * 1_000_000 / bytes_per_sec);
        let (mut longest, mut bytes) = (Duration::ZERO, 0u64);
        while now < Duration::from_secs(10) {
            while in_flight.len() < pace.window() {
                free = free.max(now) + takes;
                in_flight.push_back((now, free + latency));
                longest = longest.max(free - now);
            }
            let (sent, arrived) = in_flight.pop_front().expect("the window is not zero");
            now = arrived;
            bytes += CHUNK as u64;
            pace.answered(now - sent);
        }
        (longest, bytes / 10)
    }

    /// PACE-1.
    #[test]
    fn snapshot_leaves_room_for_heartbeats_on_slow_link() {
        for kib in [200, 450, 900, 1500, 3000] {
            let (wait, rate) = through(kib << 10, Duration::from_millis(10));
            let one = Duration::from_millis(64_000 / kib);
            assert!(wait <= one.max(Duration::from_millis(300)), "{kib} KiB/s: {wait:?}");
            assert!(rate > (kib << 10) / 2, "{kib} KiB/s: {rate}");
        }
    }

    #[test]
    fn snapshot_uses_fast_link_at_any_latency() {
        let (_, near) = through(1 << 30, Duration::from_micros(200));
        assert!(near > 100 << 20, "{near}");
        let (_, far) = through(1 << 30, Duration::from_millis(100));
        assert!(far > 8 << 20, "{far}");
    }
}
