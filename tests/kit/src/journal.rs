//! A test's journal: what its probes received.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// What the probes of one test received, in one order of arrival.
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
    /// Text for a probe's failure.
    pub(crate) fn report(&self) -> String {
        const SHOWN_ENTRIES: usize = 50;
        let entries = locked(&self.entries);
        if entries.is_empty() {
            return "\n  nothing arrived at all".to_owned();
        }
        let mut text = "\n  what arrived, oldest first:".to_owned();
        let earlier = entries.len().saturating_sub(SHOWN_ENTRIES);
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

/// Locks even after a panic of a holder: the record is still worth showing.
pub(crate) fn locked<T: ?Sized>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
