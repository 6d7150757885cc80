//! Faults, and operators who interfere.

use std::time::Duration;

use muster_messages::{GateState, ReconcilerChange};

use super::{History, RELEASES};
use crate::judge::release;

impl History {
    /// A fault, or an operator's change.
    pub(super) fn disturb(&mut self) {
        let at = usize::try_from(self.rng.below(3)).unwrap();
        let for_a_while = Duration::from_millis(self.rng.below(30_000));
        let name = || self.reconciler.to_owned();
        let change = match self.rng.below(13) {
            0 => return self.machines[at].frozen = self.now + for_a_while,
            1 => return self.machines[at].cut = self.now + for_a_while,
            2..=4 => {
                let (member, start) = (self.machines[at].name, self.machines[at].start + 1);
                let of = self.rng.pick(&RELEASES).unwrap();
                self.machines[at] = self.boot(member, of, start);
                return;
            }
            5 => ReconcilerChange::Pause { reconciler: name(), paused: self.rng.one_in(3) },
            6 => {
                let scope: Vec<_> = self.judge.serving("db").iter().map(|p| p.key.clone()).collect();
                let Some(key) = scope.into_iter().next() else { return };
                ReconcilerChange::Drain(key)
            }
            7 => ReconcilerChange::Retry { reconciler: name(), digest: None },
            _ if !self.wild => return,
            11 if self.is_chain => return self.delete_and_apply(),
            8 => ReconcilerChange::DeleteGate { reconciler: name() },
            9 => {
                let Some(gate) = self.judge.gate(self.reconciler) else { return };
                let epochs: Vec<_> = gate.history.iter().map(|entry| entry.epoch).collect();
                if epochs.is_empty() {
                    return;
                }
                ReconcilerChange::Repair { reconciler: name(), epoch: self.rng.pick(&epochs).unwrap() }
            }
            10 => {
                let floor = release(self.rng.pick(&RELEASES).unwrap()).triple;
                ReconcilerChange::ForceFloor { reconciler: name(), floor }
            }
            _ => return,
        };
        let _refused_perhaps = self.judge.change(change);
    }

    /// The chain begins again.
    fn delete_and_apply(&mut self) {
        let definitions: Vec<_> = self.judge.tables.reconcilers.definitions_of(self.reconciler).cloned().collect();
        self.judge.change(ReconcilerChange::Forget { reconciler: self.reconciler.to_owned() }).unwrap();
        for definition in definitions {
            self.judge.define((*definition).clone());
        }
        self.deletions += 1;
    }

    /// Disturbances end: every machine gets the newest release, and the system must converge.
    pub(super) fn clear_faults(&mut self) {
        for at in 0..3 {
            let (member, start) = (self.machines[at].name, self.machines[at].start + 1);
            self.machines[at] = self.boot(member, "3.0.0", start);
        }
        let reconciler = self.reconciler.to_owned();
        let digest = self.judge.view(&reconciler, release("3.0.0").triple).definition.map(|d| d.digest);
        let _unpaused = self.judge.change(ReconcilerChange::Pause { reconciler: reconciler.clone(), paused: false });
        let _retried = self.judge.change(ReconcilerChange::Retry { reconciler, digest });
        for _ in 0..(240_000 / 50) {
            self.tick();
        }
        let gate = self.judge.gate(self.reconciler);
        let gate = gate.unwrap_or_else(|| panic!("no gate exists; {:#?}", self.judge.progress));
        let done = gate.now.state == GateState::Done && gate.now.reconciled == release("3.0.0");
        assert!(done, "{:?} {:#?}", gate.now, self.judge.progress);
        let serving = self.judge.serving("db").len();
        assert_eq!(serving, 3, "{:#?}", self.judge.tables.reconcilers.participants);
    }
}
