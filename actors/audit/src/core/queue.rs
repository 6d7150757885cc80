//! The lines that wait for the file, and what happens while it cannot be written.
//!
//! Owns        the lines that are not in the file yet, the state of the file, the counters.
//! Inputs      lines, checks whether lines can be written, results of writes, a tick each second.
//! Outputs     one job for the file at a time, answers, one log line per minute while it fails.
//! Invariants  AUDIT-3  waiting lines are bounded; a line that finds no room is counted, never dropped silently.
//!             AUDIT-4  a file that fails or hangs is known as such within two ticks, and known as sound only after a write.
//! Why one job at a time: lines are in the order of their answers, and a hung disk blocks one thread instead of one per line.

use std::sync::Arc;
use std::time::Duration;

use imbl::Vector;
pub use muster_messages::AskId;
use muster_messages::Moment;

/// Lines that may wait for the file: those of a few seconds of a busy API, in a few MB.
pub const MAX_WAITING: usize = 8192;
/// And their bytes.
pub const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of one write.
const MAX_BATCH_BYTES: usize = 1024 * 1024;
/// A write that takes longer hangs.
const HUNG_AFTER: Duration = Duration::from_millis(1500);
/// The interval of log lines about a failing file.
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// Lines about refused callers without identity: the burst, and the rate per second. Such a refusal costs its caller a
/// connection, and must not fill the disk.
const UNAUTHENTICATED_BURST: u32 = 100;
const UNAUTHENTICATED_PER_TICK: u32 = 10;

#[derive(Debug)]
pub enum Input {
    Record { line: String, ask: Option<AskId>, unauthenticated: bool },
    Check(AskId),
    Reopen,
    Ended(Result<(), String>),
    Tick,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    Run(Job),
    Answer(AskId, Result<(), String>),
    /// For the log.
    Failing {
        why: String,
        waiting: usize,
        dropped: u64,
    },
    Recovered {
        dropped: u64,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Whole lines with their line breaks, or nothing.
    pub text: String,
    pub sync: bool,
    pub reopen: bool,
}

/// The published state of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditState {
    pub failing: Option<String>,
    pub written: u64,
    /// Lines that could not be written at first, and those that found no room.
    pub failed: u64,
    /// Of these: lines that are in no file.
    pub dropped: u64,
    /// Refusals of callers without identity that were only counted.
    pub suppressed: u64,
    pub waiting: usize,
}

#[derive(Clone, Debug)]
struct Waiting {
    /// `None`: a check.
    line: Option<Arc<str>>,
    ask: Option<AskId>,
    /// Counted as failed already.
    counted: bool,
}

/// The queue. The cost of a clone does not depend on its length: the shell keeps one that outlives a crash.
#[derive(Clone, Debug)]
pub struct Queue {
    waiting: Vector<Waiting>,
    waiting_bytes: usize,
    in_flight: Option<(Moment, Vector<Waiting>)>,
    state: AuditState,
    warned: Option<Moment>,
    /// Dropped lines that were already reported in the daemon's log.
    reported: u64,
    unsynced: bool,
    reopen: bool,
    allowance: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            waiting: Vector::new(),
            waiting_bytes: 0,
            in_flight: None,
            state: AuditState::default(),
            warned: None,
            reported: 0,
            unsynced: false,
            reopen: false,
            allowance: UNAUTHENTICATED_BURST,
        }
    }
}

impl Queue {
    /// The queue of the next incarnation. Its callers are gone, and lines in flight may or may not be in the file: they are written
    /// again.
    pub fn resume(mut self) -> Self {
        if let Some((_, lines)) = self.in_flight.take() {
            self.requeue(lines);
        }
        self.waiting =
            self.waiting.into_iter().filter(|w| w.line.is_some()).map(|w| Waiting { ask: None, ..w }).collect();
        self
    }

    pub fn state(&self) -> AuditState {
        let in_flight = self.in_flight.iter().flat_map(|(_, lines)| lines).filter(|w| w.line.is_some()).count();
        let waiting = self.waiting.iter().filter(|w| w.line.is_some()).count() + in_flight;
        AuditState { waiting, ..self.state.clone() }
    }

    /// Takes all waiting lines for a last write.
    pub fn rest(&mut self) -> Job {
        let text = joined(&std::mem::take(&mut self.waiting));
        self.waiting_bytes = 0;
        Job { text, sync: true, reopen: false }
    }

    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Record { line, ask, unauthenticated } => self.record(line, ask, unauthenticated, out),
            Input::Check(ask) => match &self.state.failing {
                // The next tick retries the file; waiting for it would only delay the caller.
                Some(why) => out.push(Effect::Answer(ask, Err(why.clone()))),
                None => self.waiting.push_back(Waiting { line: None, ask: Some(ask), counted: false }),
            },
            Input::Reopen => self.reopen = true,
            Input::Ended(result) => self.ended(now, result, out),
            Input::Tick => self.tick(now, out),
        }
        // While the file fails, only a tick retries it.
        if self.state.failing.is_none() {
            self.run(now, out);
        }
    }

    fn record(&mut self, line: String, ask: Option<AskId>, unauthenticated: bool, out: &mut Vec<Effect>) {
        if unauthenticated {
            if self.allowance == 0 {
                self.state.suppressed += 1;
                return;
            }
            self.allowance -= 1;
        }
        let full =
            self.waiting.len() >= MAX_WAITING || self.waiting_bytes.saturating_add(line.len()) > MAX_WAITING_BYTES;
        let failing = self.state.failing.clone();
        if full {
            self.state.failed += 1;
            self.state.dropped += 1;
            let why = failing.unwrap_or_else(|| "too many lines are waiting".to_owned());
            out.extend(ask.map(|ask| Effect::Answer(ask, Err(why))));
            return;
        }
        self.waiting_bytes += line.len();
        let counted = failing.is_some();
        if counted {
            self.state.failed += 1;
        }
        // The line is written once the file recovers, but the caller does not wait for that.
        let ask = match (ask, failing) {
            (Some(ask), Some(why)) => {
                out.push(Effect::Answer(ask, Err(why)));
                None
            }
            (ask, _) => ask,
        };
        self.waiting.push_back(Waiting { line: Some(line.into()), ask, counted });
    }

    fn ended(&mut self, now: Moment, result: Result<(), String>, out: &mut Vec<Effect>) {
        let Some((_, lines)) = self.in_flight.take() else { return };
        match result {
            Ok(()) => {
                self.state.written += lines.iter().filter(|w| w.line.is_some()).count() as u64;
                out.extend(lines.iter().filter_map(|w| w.ask).map(|ask| Effect::Answer(ask, Ok(()))));
                if self.state.failing.take().is_some() {
                    self.warned = None;
                    self.reported = self.state.dropped;
                    out.push(Effect::Recovered { dropped: self.state.dropped });
                }
            }
            Err(why) => {
                self.requeue(lines);
                self.fail(now, &why, out);
            }
        }
    }

    /// Puts unwritten lines back at the front of the queue.
    fn requeue(&mut self, lines: Vector<Waiting>) {
        self.waiting_bytes += bytes(&lines);
        let mut all = lines;
        all.append(std::mem::take(&mut self.waiting));
        self.waiting = all;
        self.unsynced = true;
    }

    /// Answers every waiting caller; the lines stay.
    fn fail(&mut self, now: Moment, why: &str, out: &mut Vec<Effect>) {
        let in_flight = self.in_flight.iter_mut().flat_map(|(_, lines)| lines.iter_mut());
        for waiting in self.waiting.iter_mut().chain(in_flight) {
            out.extend(waiting.ask.take().map(|ask| Effect::Answer(ask, Err(why.to_owned()))));
            if waiting.line.is_some() && !std::mem::replace(&mut waiting.counted, true) {
                self.state.failed += 1;
            }
        }
        self.waiting.retain(|w| w.line.is_some());
        self.state.failing = Some(why.to_owned());
        self.warn(now, out);
    }

    fn warn(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.warned.is_some_and(|at| now.since(at) < WARN_INTERVAL) {
            return;
        }
        if let Some(why) = &self.state.failing {
            let why = why.clone();
            out.push(Effect::Failing { why, waiting: self.state().waiting, dropped: self.state.dropped });
        } else if self.state.dropped > self.reported {
            let why = "lines arrive faster than they can be written".to_owned();
            out.push(Effect::Failing { why, waiting: self.state().waiting, dropped: self.state.dropped });
        } else {
            return;
        }
        self.reported = self.state.dropped;
        self.warned = Some(now);
    }

    fn tick(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.allowance = self.allowance.saturating_add(UNAUTHENTICATED_PER_TICK).min(UNAUTHENTICATED_BURST);
        self.warn(now, out);
        if let Some((since, _)) = &self.in_flight {
            let at_it = now.since(*since);
            if at_it >= HUNG_AFTER {
                self.fail(now, &format!("a write to the file has not finished for {} s", at_it.as_secs().max(1)), out);
            }
            return;
        }
        if self.state.failing.is_some() {
            // Even without waiting lines: a check must be able to succeed again.
            let job = Job { text: self.take_batch(now), sync: true, reopen: true };
            out.push(Effect::Run(job));
        } else if self.unsynced && self.waiting.is_empty() {
            self.in_flight = Some((now, Vector::new()));
            self.unsynced = false;
            out.push(Effect::Run(Job { sync: true, ..Job::default() }));
        } else if self.unsynced {
            self.unsynced = false;
            let job = Job { text: self.take_batch(now), sync: true, reopen: std::mem::take(&mut self.reopen) };
            out.push(Effect::Run(job));
        }
    }

    /// The next write, if the file is free.
    fn run(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.in_flight.is_some() || self.waiting.is_empty() && !self.reopen {
            return;
        }
        let job = Job { text: self.take_batch(now), sync: false, reopen: std::mem::take(&mut self.reopen) };
        self.unsynced |= !job.text.is_empty();
        out.push(Effect::Run(job));
    }

    fn take_batch(&mut self, now: Moment) -> String {
        let mut batch = Vector::new();
        let mut size = 0;
        while size < MAX_BATCH_BYTES
            && let Some(next) = self.waiting.pop_front()
        {
            let len = next.line.as_ref().map_or(0, |line| line.len());
            size += len;
            self.waiting_bytes = self.waiting_bytes.saturating_sub(len);
            batch.push_back(next);
        }
        let text = joined(&batch);
        self.in_flight = Some((now, batch));
        text
    }
}

fn bytes(lines: &Vector<Waiting>) -> usize {
    lines.iter().filter_map(|w| w.line.as_ref()).map(|line| line.len()).sum()
}

fn joined(lines: &Vector<Waiting>) -> String {
    let mut text = String::with_capacity(bytes(lines) + lines.len());
    for line in lines.iter().filter_map(|w| w.line.as_ref()) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
