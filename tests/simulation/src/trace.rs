//! The trace of a run: a hash of all events, for comparison of runs, and its last lines as text.

use std::collections::VecDeque;

use muster_messages::Moment;

/// Lines kept and printed by a failed seed: enough to show the last elections and role changes.
const KEPT_LINES: usize = 160;

/// See the module.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    lines: VecDeque<(Moment, String)>,
    /// Print every line at once (a replay).
    pub verbose: bool,
}

impl Default for Trace {
    fn default() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: VecDeque::new(), verbose: false }
    }
}

impl Trace {
    /// Adds values to the hash only.
    pub fn mix(&mut self, values: [u64; 4]) {
        for value in values {
            self.hash = (self.hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }
    /// Records a line.
    pub fn record(&mut self, at: Moment, line: String) {
        let bytes = line.as_bytes();
        let short = bytes.chunks(8).fold(0u64, |h, c| {
            let word = c.iter().fold(0u64, |w, b| (w << 8) | u64::from(*b));
            (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        self.mix([at.0, bytes.len() as u64, short, 1]);
        if self.verbose {
            println!("{:>10.3} ms  {line}", at.0 as f64 / 1000.0);
        }
        if self.lines.len() >= KEPT_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back((at, line));
    }
    /// Prints a line in a replay only.
    pub fn print_if_verbose(&self, at: Moment, line: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>10.3} ms    {}", at.0 as f64 / 1000.0, line());
        }
    }
    /// Equal for two runs of the same seed.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    pub fn tail(&self) -> String {
        let line = |(at, line): &(Moment, String)| format!("{:>10.3} ms  {line}\n", at.0 as f64 / 1000.0);
        self.lines.iter().map(line).collect()
    }
}
