//! Abandoned runs, until they end.
//!
//! Owns        the runs that ignored stop and kill, by child.

use std::collections::BTreeMap;

/// By child, each run with its incarnation. Includes those of removed children: a new child of that name is likely to block
/// its thread in the same way.
#[derive(Clone, Debug, Default)]
pub(super) struct AbandonedRuns(BTreeMap<String, BTreeMap<u64, u64>>);

impl AbandonedRuns {
    /// The largest number of abandoned runs of a child.
    const MAX_ABANDONED_RUNS: usize = 2;

    pub fn add(&mut self, name: &str, run: u64, incarnation: u64) {
        self.0.entry(name.to_owned()).or_default().insert(run, incarnation);
    }
    pub fn ended(&mut self, name: &str, run: u64) {
        let Some(runs) = self.0.get_mut(name) else { return };
        runs.remove(&run);
        if runs.is_empty() {
            self.0.remove(name);
        }
    }
    /// The child's newest incarnation number here: counting continues from it, because each abandoned run is shown at its
    /// own path.
    pub fn newest(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|runs| runs.values().max().copied()).unwrap_or(0)
    }
    /// SUP-7: the abandoned runs that a child waits for, as they are shown.
    pub fn blockers(&self, name: &str) -> Vec<String> {
        let enough = self.0.get(name).filter(|runs| runs.len() >= Self::MAX_ABANDONED_RUNS);
        enough.into_iter().flat_map(BTreeMap::values).map(|incarnation| format!("{name}@{incarnation}")).collect()
    }
}
