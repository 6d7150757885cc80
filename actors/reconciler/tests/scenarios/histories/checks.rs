//! What must hold of actions, steps and members, beyond what the store checks.

use muster_messages::{FencingToken, GatePath, ParticipantPhase};
use muster_reconciler::AdmissionState;

use super::machine::Member;
use super::{History, MAX_VIEW_LAG, STEPS};

impl History {
    /// RUN-2, as far as an observer can tell: the gate leads to what is begun, and no incompatible member serves.
    pub(super) fn check_action(&mut self, at: usize, term: FencingToken) {
        self.acts += 1;
        let (_, in_force) = self.judge.runner(self.reconciler).expect("a runner that acts holds the lease");
        assert_eq!(in_force, term, "a term that is valid by our clock is the current one");
        if self.wild {
            return; // an operator may have moved the gate since it was read
        }
        let all = &self.judge.tables.reconcilers;
        let view = self.judge.view(self.reconciler, self.machines[at].release.triple);
        let definition = view.definition.expect("definitions stay");
        if let Some(gate) = all.gates.get(self.reconciler) {
            let target = definition.target();
            let leads = gate.now.target.as_ref() == Some(&target) || gate.path_to(&target) == GatePath::Reached;
            assert!(leads, "the gate does not lead to the action: {gate:?}");
            assert_eq!(view.blockers, []);
        }
    }

    /// The steps before it are on record, in the view on which the runner acts: an operator may have paused the chain, or a member
    /// may block it, since. And it is not on record itself.
    pub(super) fn check_step(&self, at: usize) {
        let machine = &self.machines[at];
        let Some(step) = &machine.step else { return };
        let before = STEPS.iter().position(|name| name == step).unwrap();
        let seen = machine.view.as_ref().map_or(0, |view| view.steps_done);
        let lags = machine.recorded_at + MAX_VIEW_LAG <= self.now;
        assert!(seen >= before || lags, "step {step} begins by a view with {seen} steps on record");
        assert!(self.wild || !self.is_on_record(step), "step {step} is carried out again");
    }

    fn is_on_record(&self, step: &str) -> bool {
        let chain = self.judge.tables.records.chains.get(self.reconciler);
        chain.is_some_and(|chain| chain.steps.iter().any(|record| record.name == *step))
    }

    /// A term that is given up asks for the record of the step that it carried out: its successor would run it again.
    pub(super) fn check_last_record(&mut self, at: usize) {
        let machine = &self.machines[at];
        let Some((step, asked)) = &machine.carried_out else { return };
        let on_record = *asked || self.is_on_record(step);
        assert!(self.wild || on_record, "step {step} was carried out, and is not recorded at the end of the term");
        self.last_records += 1;
    }

    /// A member that believes it serves is known to serve.
    pub(super) fn check_serving(&self) {
        for machine in &self.machines {
            let Member { keeper, core, participant } = &machine.serving;
            if *core.admission_state() != AdmissionState::Serving || !keeper.is_good(self.now) {
                continue;
            }
            let record = self.judge.tables.reconcilers.participants.get(&participant.key);
            let phase = record.map(|record| record.phase);
            let known = matches!(phase, Some(ParticipantPhase::Serving | ParticipantPhase::Draining));
            assert!(known, "{} serves, but its record says {phase:?}", machine.name);
        }
    }
}
