//! Runs that were left behind, until they end after all.

use std::collections::BTreeMap;

/// By child, each run with its incarnation. Also those of children that were removed: whoever is started again under such a
/// name is likely to hold its thread as they do.
#[derive(Clone, Debug, Default)]
pub(super) struct LeftBehind(BTreeMap<String, BTreeMap<u64, u64>>);

impl LeftBehind {
    /// So many of a child are enough.
    const ENOUGH: usize = 2;

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
    /// Incarnations of a child are counted on from here: each that was left behind is shown at a path of its own.
    pub fn newest(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|runs| runs.values().max().copied()).unwrap_or(0)
    }
    /// SUP-7: those that a child waits for, as they are shown.
    pub fn in_the_way(&self, name: &str) -> Vec<String> {
        let enough = self.0.get(name).filter(|runs| runs.len() >= Self::ENOUGH);
        enough.into_iter().flat_map(BTreeMap::values).map(|incarnation| format!("{name}@{incarnation}")).collect()
    }
}
