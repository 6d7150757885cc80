//! What happened: a hash over everything, so that two runs can be compared, and the last lines of the story in words.

use std::collections::VecDeque;

use muster_messages::Moment;

/// The lines kept. A seed that fails prints them: enough to see the last elections and role changes before it.
const KEPT: usize = 160;

/// See the module.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    lines: VecDeque<(Moment, String)>,
    /// Print every line as it comes (a replay).
    pub aloud: bool,
}

impl Default for Trace {
    fn default() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: VecDeque::new(), aloud: false }
    }
}

impl Trace {
    /// Counts for the hash only.
    pub fn mix(&mut self, values: [u64; 4]) {
        for value in values {
            self.hash = (self.hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }
    /// A line of the story.
    pub fn tell(&mut self, at: Moment, line: String) {
        let bytes = line.as_bytes();
        let short = bytes.chunks(8).fold(0u64, |h, c| {
            let word = c.iter().fold(0u64, |w, b| (w << 8) | u64::from(*b));
            (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        self.mix([at.0, bytes.len() as u64, short, 1]);
        if self.aloud {
            println!("{:>10.3} ms  {line}", at.0 as f64 / 1000.0);
        }
        if self.lines.len() >= KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back((at, line));
    }
    /// A line that only a replay prints.
    pub fn whisper(&self, at: Moment, line: impl FnOnce() -> String) {
        if self.aloud {
            println!("{:>10.3} ms    {}", at.0 as f64 / 1000.0, line());
        }
    }
    /// The same for two runs of the same universe.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    pub fn tail(&self) -> String {
        let line = |(at, line): &(Moment, String)| format!("{:>10.3} ms  {line}\n", at.0 as f64 / 1000.0);
        self.lines.iter().map(line).collect()
    }
}
