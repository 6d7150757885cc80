//! Histories of writes and reads as clients saw them, and whether one register per key can have given those answers. Who the
//! clients are is the caller's: threads that speak to daemons, or the clients of a simulated universe.

mod register;

pub use self::register::Value;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::register::{MOST_OPEN, OpId, Step, check};

/// Keys that are written and read at a time.
const KEYS: usize = 3;
/// As many outcomes of a key may be unknown before another takes its place. They stay open in its history for ever: together
/// with those that all clients may have open at that moment they are fewer than what can be checked.
const MOST_UNKNOWN: usize = 4;
/// As many clients may share a history.
pub const MOST_CLIENTS: usize = MOST_OPEN - MOST_UNKNOWN;

/// What all clients together have seen. Clones are the same history.
#[derive(Clone)]
pub struct History(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    name: String,
    /// Per key what was seen of it.
    steps: BTreeMap<String, Vec<Step>>,
    unknown: BTreeMap<String, usize>,
    places: Vec<String>,
    keys: u64,
    ops: OpId,
    acknowledged: u64,
}

/// One operation that has begun.
#[derive(Clone, Debug)]
pub struct Begun {
    pub key: String,
    /// What it writes; nothing is written by a read.
    pub writes: Option<Value>,
    op: OpId,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Wrote,
    Saw(Value),
    /// It was never sent.
    Nothing,
    /// It may have been done, or may still be.
    Unknown,
}

impl History {
    /// Its keys begin with this: whatever is done under one history shows in no other.
    pub fn new(name: &str) -> Self {
        let mut recorded = Recorded { name: name.to_owned(), ..Recorded::default() };
        recorded.places = (0..KEYS).map(|_| recorded.fresh()).collect();
        Self(Arc::new(Mutex::new(recorded)))
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is about to be written to the key in this place, a number that nobody else writes.
    pub fn begin_write(&self, place: usize) -> Begun {
        let mut recorded = self.recorded();
        let (key, value) = (recorded.places[place % KEYS].clone(), recorded.ops + 1);
        recorded.begin(key, Some(Some(value)))
    }

    /// A key that is used no more is about to be removed, which is a write like any other.
    pub fn begin_removal(&self, key: &str) -> Begun {
        self.recorded().begin(key.to_owned(), Some(None))
    }

    /// The key in this place is about to be read.
    pub fn begin_read(&self, place: usize) -> Begun {
        let mut recorded = self.recorded();
        let key = recorded.places[place % KEYS].clone();
        recorded.begin(key, None)
    }

    /// How it ended. A key of which too much is unknown by now is used no more, and given back.
    pub fn end(&self, begun: &Begun, end: End) -> Option<String> {
        let mut recorded = self.recorded();
        let steps = recorded.steps.get_mut(&begun.key).expect("it began in this history");
        let op = begun.op;
        match end {
            End::Wrote => steps.push(Step::Wrote { op }),
            End::Saw(value) => steps.push(Step::Saw { op, value }),
            End::Nothing => steps.retain(|step| !matches!(step, Step::Writes { op: o, .. } if *o == op)),
            End::Unknown => {}
        }
        recorded.acknowledged += u64::from(end == End::Wrote);
        // Of a read without an answer nothing is left.
        (end == End::Unknown && begun.writes.is_some()).then(|| recorded.note_unknown(&begun.key))?
    }

    /// How many writes were acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.recorded().acknowledged
    }

    /// The keys that are in use.
    pub fn keys(&self) -> Vec<String> {
        self.recorded().places.clone()
    }

    /// What one client sees of all keys, once the others have stopped: what was acknowledged must be there.
    pub fn read_all(&self, mut read: impl FnMut(&str) -> Value) {
        for place in 0..KEYS {
            let begun = self.begin_read(place);
            let value = read(&begun.key);
            self.end(&begun, End::Saw(value));
        }
    }

    /// How many operations there were, if there can be a register for each key that gave these answers; otherwise the first
    /// answer that none can have given, with what was seen before it.
    pub fn judge(&self) -> Result<u64, String> {
        let recorded = self.recorded();
        for (key, steps) in &recorded.steps {
            if let Err(violation) = check(steps) {
                let from = violation.at.saturating_sub(40);
                return Err(format!("{key} is not one register: {violation:?}\n{:#?}", &steps[from..=violation.at]));
            }
        }
        Ok(recorded.ops)
    }

    /// Fails unless there can be a register for each key that gave these answers; how many operations there were.
    #[track_caller]
    pub fn assert_linearizable(&self) -> u64 {
        self.judge().unwrap_or_else(|why| panic!("{why}"))
    }
}

impl Recorded {
    fn fresh(&mut self) -> String {
        self.keys += 1;
        let key = format!("{}-{}", self.name, self.keys);
        self.steps.insert(key.clone(), Vec::new());
        key
    }

    fn begin(&mut self, key: String, writes: Option<Value>) -> Begun {
        self.ops += 1;
        let op = self.ops;
        let step = writes.map_or(Step::Reads { op }, |value| Step::Writes { op, value });
        self.steps.entry(key.clone()).or_default().push(step);
        Begun { key, writes, op }
    }

    fn note_unknown(&mut self, key: &str) -> Option<String> {
        let unknown = self.unknown.entry(key.to_owned()).or_default();
        *unknown += 1;
        let full = *unknown >= MOST_UNKNOWN;
        let place = self.places.iter().position(|used| full && used == key)?;
        self.places[place] = self.fresh();
        Some(key.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_too_much_unknown_is_given_back_and_another_takes_its_place() {
        let history = History::new("r");
        let before = history.keys();
        let given_back: Vec<String> =
            (0..MOST_UNKNOWN).filter_map(|_| history.end(&history.begin_write(1), End::Unknown)).collect();
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
    fn an_acknowledged_write_that_is_gone_is_found() {
        let history = History::new("r");
        history.end(&history.begin_write(0), End::Wrote);
        history.read_all(|_| None);
        history.assert_linearizable();
    }
}
