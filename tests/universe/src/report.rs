//! What a run amounts to: totals, so that a universe in which nothing happens is noticed, and failures that say how to
//! see them again.

use std::collections::BTreeMap;
use std::fmt;

use crate::breaks::Break;
use crate::simulate::Kind;

/// What must have happened somewhere in a full run, or the run proves nothing about it.
pub const MUST_HAPPEN: [&str; 58] = [
    "elections",
    "leadership transfers",
    "membership changes",
    "role changes accepted",
    "removals done",
    "nodes joined",
    "certificates issued",
    "certificates rotated",
    "writes acknowledged",
    "writes with unknown outcome",
    "reads answered",
    "late retries that got the first outcome",
    "late retries whose outcome was forgotten",
    "snapshots taken",
    "snapshots installed",
    "seats given",
    "seats taken back",
    "addresses changed",
    "role manager restarted from its checkpoint",
    "waits for quorum",
    "sessions opened",
    "sessions refused",
    "sessions sent away",
    "nodes called down",
    "operations on registers judged",
    "registers read",
    "registers written",
    "registers given back",
    "sessions cut",
    "sweeps of the blocklist",
    "liars: request ids taken",
    "liars: request ids guessed",
    "liars: reports",
    "liars: former certificates shown",
    "liars: forged certificates shown",
    "fault: blocklist crashed",
    "fault: removed manager back with its log",
    "fault: removed manager back without its log",
    "fault: dispatcher crashed",
    "fault: packet lost",
    "fault: packet duplicated",
    "fault: packet out of order",
    "fault: partition",
    "fault: one-way cut",
    "fault: process killed",
    "fault: power lost",
    "fault: unsynced writes lost",
    "fault: node frozen",
    "fault: slow disk",
    "fault: hung disk",
    "fault: disk lost",
    "fault: role manager crashed",
    "fault: cert authority crashed",
    "fault: everybody down",
    "fault: outdated command",
    "fault: leader-loss hint",
    "fault: false leader-loss hint",
    "fault: sync failed",
];

/// What must have happened somewhere among the candidates of a run of leases.
pub const LEASES_MUST_SEE: [&str; 14] = [
    "leases acquired",
    "leases renewed",
    "leases expired",
    "leases given up",
    "fault: elections crashed",
    "backups made",
    "recoveries from a copy",
    "recoveries from a backup",
    "recoveries from a backup that was restored before",
    "recoveries after another one",
    "managers of before a recovery that came back",
    "changes watched",
    "watches that began anew",
    "late retries that got the first outcome",
];

/// What must have happened somewhere to followers that snapshots bring up.
pub const SNAPSHOTS_MUST_SEE: [&str; 5] = [
    "followers brought up while clients wrote",
    "snapshots installed",
    "snapshots refused",
    "fault: snapshots refused for a while",
    "fault: leader killed while it sent a snapshot",
];

/// And what must have happened somewhere to the fleets of a run of gates.
pub const GATES_MUST_SEE: [&str; 31] = [
    "actions begun",
    "admissions",
    "admissions refused by a gate",
    "elections",
    "fault: node frozen",
    "fault: partition",
    "fault: power lost",
    "fault: process of the fleet frozen",
    "fault: process of the fleet killed",
    "fault: request repeated",
    "gates completed",
    "gates restricted",
    "gates worked on",
    "members announced",
    "members that left",
    "members' leases lost",
    "objects refused",
    "objects written",
    "operator: changed an object",
    "operator: defined anew",
    "operator: deleted a gate",
    "operator: deleted an object",
    "operator: drained",
    "operator: finalized",
    "operator: forced a floor",
    "operator: paused or resumed",
    "operator: repaired a gate",
    "operator: retried",
    "runner's leases lost",
    "steps refused for who serves",
    "steps that were stale",
];

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals(BTreeMap<&'static str, u64>);

impl Totals {
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }
    pub fn add(&mut self, what: &'static str, n: u64) {
        if n > 0 {
            *self.0.entry(what).or_default() += n;
        }
    }
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }
    pub fn merge(&mut self, other: &Totals) {
        for (what, n) in &other.0 {
            self.add(what, *n);
        }
    }
    /// What should have happened and never did.
    pub fn missing(&self, must_happen: &[&'static str]) -> Vec<&'static str> {
        must_happen.iter().copied().filter(|what| self.of(what) == 0).collect()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, n) in &self.0 {
            writeln!(f, "  {n:>12}  {what}")?;
        }
        Ok(())
    }
}

/// A universe that ran to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub seed: u64,
    pub hash: u64,
    pub simulated_secs: f64,
    pub totals: Totals,
}

/// A run that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: Kind,
    /// The bug that was injected.
    pub bug: Option<Break>,
    pub seed: u64,
    /// The invariant's name, as in `docs/invariants.md`.
    pub name: String,
    pub detail: String,
    /// The last events before it.
    pub tail: String,
}

impl Failure {
    /// A failure of a run whose kind and bug [`crate::Run::execute`] fills in.
    pub(crate) fn new(seed: u64, name: &str, detail: String, tail: String) -> Self {
        Self { kind: Kind::default(), bug: None, seed, name: name.to_owned(), detail, tail }
    }
    /// It in one line.
    pub fn line(&self) -> String {
        format!("{} seed {}: {} is violated: {}", self.kind, self.seed, self.name, self.detail)
    }
    /// The command that runs it again, event by event.
    pub fn reproduce(&self) -> String {
        let bug = self.bug.map_or_else(String::new, |bug| format!(" --bug {bug:?}"));
        format!("cargo run -p muster-universe -- {} {}{bug} --trace", self.kind, self.seed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}{}", self.tail, self.line())?;
        write!(f, "reproduce: {}", self.reproduce())
    }
}
