//! The journal of a test: what its probes heard.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// What the probes of one test heard, in the one order in which it arrived.
#[derive(Clone)]
pub(crate) struct Journal {
    entries: Arc<Mutex<Vec<Entry>>>,
    began: Instant,
}

struct Entry {
    probe: Arc<str>,
    message: String,
    at: Instant,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self { entries: Arc::default(), began: Instant::now() }
    }
    pub(crate) fn add(&self, probe: &Arc<str>, message: String) {
        locked(&self.entries).push(Entry { probe: Arc::clone(probe), message, at: Instant::now() });
    }
    /// `probe: message`, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        locked(&self.entries).iter().map(|entry| format!("{}: {}", entry.probe, entry.message)).collect()
    }
    /// For the failure of a probe.
    pub(crate) fn told(&self) -> String {
        const SHOWN: usize = 50;
        let entries = locked(&self.entries);
        if entries.is_empty() {
            return "\n  nothing arrived at all".to_owned();
        }
        let mut text = "\n  what arrived, oldest first:".to_owned();
        let earlier = entries.len().saturating_sub(SHOWN);
        if earlier > 0 {
            let _infallible = write!(text, "\n    ({earlier} earlier ones)");
        }
        for entry in &entries[earlier..] {
            let after = entry.at.saturating_duration_since(self.began).as_secs_f64();
            let _infallible = write!(text, "\n    {after:>8.3} s  {}: {}", entry.probe, entry.message);
        }
        text
    }
}

/// A guard even after a panic with it in hand: what was recorded is worth showing.
pub(crate) fn locked<T: ?Sized>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
