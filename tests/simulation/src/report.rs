//! Results of a run: totals, which reveal a simulation without events, and failures with their
//! replay command.

use std::collections::BTreeMap;
use std::fmt;

use crate::bugs::Bug;
use crate::simulate::Kind;

/// Events that a full run of roles must contain; otherwise it proves nothing about them.
pub const ROLES_MUST_SEE: [&str; 58] = [
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
    "members added",
    "members removed",
    "addresses changed",
    "role manager restarted from its checkpoint",
    "waits for quorum",
    "sessions opened",
    "sessions refused",
    "sessions moved to another host",
    "nodes declared down",
    "register operations checked",
    "registers read",
    "registers written",
    "register keys retired",
    "sessions disconnected",
    "blocklist sweeps",
    "adversary: request ids taken",
    "adversary: request ids guessed",
    "adversary: false reports",
    "adversary: superseded certificates presented",
    "adversary: forged certificates presented",
    "fault: blocklist crashed",
    "fault: removed manager back with its log",
    "fault: removed manager back without its log",
    "fault: dispatcher crashed",
    "fault: packet lost",
    "fault: packet duplicated",
    "fault: packet out of order",
    "fault: partition",
    "fault: one-way partition",
    "fault: process killed",
    "fault: power lost",
    "fault: unsynced writes lost",
    "fault: node frozen",
    "fault: slow disk",
    "fault: hung disk",
    "fault: disk lost",
    "fault: role manager crashed",
    "fault: cert authority crashed",
    "fault: all machines down",
    "fault: outdated command",
    "fault: leader-loss hint",
    "fault: false leader-loss hint",
    "fault: sync failed",
];

/// Events that a full run of leases must contain.
pub const LEASES_MUST_SEE: [&str; 14] = [
    "leases acquired",
    "leases renewed",
    "leases expired",
    "leases released",
    "fault: elections crashed",
    "backups created",
    "recoveries from a local replica",
    "recoveries from a backup",
    "recoveries from a backup restored before",
    "repeated recoveries",
    "managers returned from before a recovery",
    "changes watched",
    "watches restarted",
    "late retries that got the first outcome",
];

/// Events that a full run of snapshots must contain.
pub const SNAPSHOTS_MUST_SEE: [&str; 5] = [
    "followers caught up during writes",
    "snapshots installed",
    "snapshots refused",
    "fault: snapshots refused for a while",
    "fault: leader killed while it sent a snapshot",
];

/// Events that a full run of upgrades must contain.
pub const UPGRADES_MUST_SEE: [&str; 10] = [
    "feature level raises applied",
    "feature level raises refused",
    "fault: manager restarted with the newer build",
    "fault: manager restarted with the older build",
    "fault: manager restarted with the older build while a gate is restricted",
    "incompatible managers stopped",
    "certificates rotated",
    "members announced",
    "steps refused because of blockers",
    "writes acknowledged",
];

/// Events that a full run of the autopilot must contain.
pub const AUTOPILOT_MUST_SEE: [&str; 16] = [
    "promotions begun",
    "promotions begun in place of another manager",
    "dead managers demoted",
    "surplus managers demoted",
    "changes of the autopilot settled",
    "changes of the autopilot refused",
    "changes of the autopilot dropped",
    "promotions taken back",
    "autopilot gave up",
    "nodes drained",
    "drains over",
    "leadership offered by a drained node",
    "role changes accepted",
    "elections",
    "fault: autopilot crashed",
    "fault: node lost for long",
];

/// Events that a full run of rotations must contain.
pub const ROTATIONS_MUST_SEE: [&str; 33] = [
    "roots prepared",
    "roots activated",
    "roots activated again",
    "roots retiring",
    "roots retired",
    "roots revoked",
    "voters asked before a revocation",
    "former roots deleted",
    "bundles of roots written",
    "bundles of roots refused",
    "certificates of a root that is not trusted",
    "dials without a path to a trusted root",
    "nodes joined",
    "nodes started with a new token after a revocation",
    "join tokens replaced",
    "membership changes",
    "role changes accepted",
    "removals done",
    "operator: rotated the root",
    "operator: rotated a compromised root",
    "operator: prepared a root",
    "operator: aborted a rotation",
    "operator: activated a root",
    "operator: retired a root",
    "operator: forced a retirement",
    "operator: revoked a root",
    "operator: asked an authority above",
    "operator: passed an answer from above",
    "operators' steps refused",
    "adversary: unvouched roots offered",
    "adversary: stolen keys used",
    "fault: root rotation crashed",
    "fault: node away for long",
];

/// Events that a full run of autolock must contain.
pub const AUTOLOCK_MUST_SEE: [&str; 18] = [
    "operator: switched autolock on",
    "operator: rotated the unlock key",
    "operator: switched autolock off",
    "keyrings written",
    "keyrings compared",
    "files sealed",
    "files not sealed yet",
    "older versions left alone",
    "reports of keyrings without success",
    "managers locked",
    "managers unlocked",
    "managers unlocked with a former key",
    "former managers whose key is gone",
    "membership changes",
    "role changes accepted",
    "removals done",
    "fault: keyring not written",
    "fault: power lost",
];

/// Events that a full run of gates must contain.
pub const GATES_MUST_SEE: [&str; 34] = [
    "actions begun",
    "actions of a later release",
    "admissions",
    "admissions refused by a gate",
    "elections",
    "fault: node frozen",
    "fault: partition",
    "fault: power lost",
    "fault: fleet process frozen",
    "fault: fleet process killed",
    "fault: request repeated",
    "gates completed",
    "gates restricted",
    "gate work started",
    "members announced",
    "members left",
    "member leases lost",
    "objects refused",
    "objects written",
    "operator: changed an object",
    "operator: replaced a definition",
    "operator: deleted a gate",
    "operator: deleted an object",
    "operator: deleted a reconciler",
    "operator: drained",
    "operator: finalized",
    "operator: forced a floor",
    "operator: paused or resumed",
    "operator: repaired a gate",
    "operator: retried",
    "runner leases lost",
    "steps of chains recorded",
    "steps refused because of blockers",
    "stale steps",
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
    /// Required events that never happened.
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

/// A completed run.
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
    /// The injected bug.
    pub bug: Option<Bug>,
    pub seed: u64,
    /// The invariant's name, as in `docs/invariants.md`.
    pub name: String,
    pub detail: String,
    /// The last events before the failure.
    pub tail: String,
}

impl Failure {
    /// A failure of a run whose kind and bug [`crate::Run::execute`] fills in.
    pub(crate) fn new(seed: u64, name: &str, detail: String, tail: String) -> Self {
        Self { kind: Kind::default(), bug: None, seed, name: name.to_owned(), detail, tail }
    }
    /// The failure in one line.
    pub fn line(&self) -> String {
        format!("{} seed {}: {} is violated: {}", self.kind, self.seed, self.name, self.detail)
    }
    /// The command that replays it, event by event.
    pub fn reproduce(&self) -> String {
        let bug = self.bug.map_or_else(String::new, |bug| format!(" --bug {bug:?}"));
        format!("cargo run -p muster-simulation -- {} {}{bug} --trace", self.kind, self.seed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}{}", self.tail, self.line())?;
        write!(f, "reproduce: {}", self.reproduce())
    }
}
