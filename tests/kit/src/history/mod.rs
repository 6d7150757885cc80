//! Histories of writes and reads as clients saw them, and whether one register per key can have given those answers. The
//! caller provides the clients: threads with daemons, or clients of a simulation.

mod register;

pub use self::register::Value;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::register::{MAX_OPEN, OpId, Step, check};

/// Keys in use at a time.
const KEYS: usize = 3;
/// Unknown outcomes of a key after which it is replaced. They stay open in its history: together
/// with the operations that all clients may have open they stay below the checker's limit.
const MAX_UNKNOWN: usize = 4;
/// Maximum number of clients of a history.
pub const MAX_CLIENTS: usize = MAX_OPEN - MAX_UNKNOWN;

/// What all clients together have seen. Clones share the history.
#[derive(Clone)]
pub struct History(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    name: String,
    /// The observed steps per key.
    steps: BTreeMap<String, Vec<Step>>,
    unknown: BTreeMap<String, usize>,
    slots: Vec<String>,
    keys: u64,
    ops: OpId,
    acknowledged: u64,
}

/// One operation that has begun.
#[derive(Clone, Debug)]
pub struct StartedOp {
    /// The register.
    pub key: String,
    /// What it writes; `None` for a read.
    pub writes: Option<Value>,
    op: OpId,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was written.
    Wrote,
    /// It was read, with this value.
    ReadValue(Value),
    /// It was never sent.
    Nothing,
    /// It may have taken effect, or may still do so.
    Unknown,
}

impl History {
    /// The name prefixes its keys, so that no two histories share one.
    pub fn new(name: &str) -> Self {
        let mut recorded = Recorded { name: name.to_owned(), ..Recorded::default() };
        recorded.slots = (0..KEYS).map(|_| recorded.fresh()).collect();
        Self(Arc::new(Mutex::new(recorded)))
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a write to the key in this slot, of a number written by no other operation.
    pub fn begin_write(&self, slot: usize) -> StartedOp {
        let mut recorded = self.recorded();
        let (key, value) = (recorded.slots[slot % KEYS].clone(), recorded.ops + 1);
        recorded.begin(key, Some(Some(value)))
    }

    /// Begins the removal of a retired key, which is a write like any other.
    pub fn begin_removal(&self, key: &str) -> StartedOp {
        self.recorded().begin(key.to_owned(), Some(None))
    }

    /// Begins a read of the key in this slot.
    pub fn begin_read(&self, slot: usize) -> StartedOp {
        let mut recorded = self.recorded();
        let key = recorded.slots[slot % KEYS].clone();
        recorded.begin(key, None)
    }

    /// Ends an operation. A key with too many unknown outcomes is retired and returned.
    pub fn end(&self, begun: &StartedOp, end: End) -> Option<String> {
        let mut recorded = self.recorded();
        let steps = recorded.steps.get_mut(&begun.key).expect("the operation began in this history");
        let op = begun.op;
        match end {
            End::Wrote => steps.push(Step::Wrote { op }),
            End::ReadValue(value) => steps.push(Step::ReadValue { op, value }),
            End::Nothing => steps.retain(|step| !matches!(step, Step::Writes { op: o, .. } if *o == op)),
            End::Unknown => {}
        }
        recorded.acknowledged += u64::from(end == End::Wrote);
        // A read without an answer leaves no trace.
        (end == End::Unknown && begun.writes.is_some()).then(|| recorded.count_unknown(&begun.key))?
    }

    /// The number of acknowledged writes.
    pub fn acknowledged(&self) -> u64 {
        self.recorded().acknowledged
    }

    /// The keys that are in use.
    pub fn keys(&self) -> Vec<String> {
        self.recorded().slots.clone()
    }

    /// One client reads all keys after the others have stopped: acknowledged values must be there.
    pub fn read_all(&self, mut read: impl FnMut(&str) -> Value) {
        for slot in 0..KEYS {
            let begun = self.begin_read(slot);
            let value = read(&begun.key);
            self.end(&begun, End::ReadValue(value));
        }
    }

    /// The number of operations, if some register per key can have given all answers; otherwise the first
    /// impossible answer, with what was seen before it.
    pub fn check(&self) -> Result<u64, String> {
        let recorded = self.recorded();
        for (key, steps) in &recorded.steps {
            if let Err(violation) = check(steps) {
                let from = violation.at.saturating_sub(40);
                return Err(format!("{key} is not one register: {violation:?}\n{:#?}", &steps[from..=violation.at]));
            }
        }
        Ok(recorded.ops)
    }

    /// Fails unless some register per key can have given all answers; returns the number of operations.
    #[track_caller]
    pub fn assert_linearizable(&self) -> u64 {
        self.check().unwrap_or_else(|why| panic!("{why}"))
    }
}

impl Recorded {
    fn fresh(&mut self) -> String {
        self.keys += 1;
        let key = format!("{}-{}", self.name, self.keys);
        self.steps.insert(key.clone(), Vec::new());
        key
    }

    fn begin(&mut self, key: String, writes: Option<Value>) -> StartedOp {
        self.ops += 1;
        let op = self.ops;
        let step = writes.map_or(Step::Reads { op }, |value| Step::Writes { op, value });
        self.steps.entry(key.clone()).or_default().push(step);
        StartedOp { key, writes, op }
    }

    fn count_unknown(&mut self, key: &str) -> Option<String> {
        let unknown = self.unknown.entry(key.to_owned()).or_default();
        *unknown += 1;
        let full = *unknown >= MAX_UNKNOWN;
        let slot = self.slots.iter().position(|used| full && used == key)?;
        self.slots[slot] = self.fresh();
        Some(key.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_with_many_unknown_outcomes_is_replaced() {
        let history = History::new("r");
        let before = history.keys();
        let given_back: Vec<String> =
            (0..MAX_UNKNOWN).filter_map(|_| history.end(&history.begin_write(1), End::Unknown)).collect();
        assert_eq!(given_back, [before[1].clone()]);
        assert_ne!(history.keys()[1], before[1]);
        assert_eq!(history.end(&history.begin_removal(&before[1]), End::Wrote), None);
        let write = history.begin_write(0);
        history.end(&write, End::Wrote);
        history.end(&history.begin_write(0), End::Nothing);
        history.read_all(|key| if key == write.key { write.writes.flatten() } else { None });
        assert_eq!(history.assert_linearizable(), 10);
    }

    #[test]
    #[should_panic(expected = "is not one register")]
    fn lost_acknowledged_write_is_detected() {
        let history = History::new("r");
        history.end(&history.begin_write(0), End::Wrote);
        history.read_all(|_| None);
        history.assert_linearizable();
    }
}
