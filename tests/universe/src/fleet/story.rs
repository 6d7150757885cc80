//! The verbs of told stories about gates.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{Gate, GateState, GateStep, ParticipantPhase, Triple};
use muster_reconciler::core::admission::Standing;

use super::operator::{release, sealed};
use super::{Question, RECONCILER, SCOPE, Timing};
use crate::world::{Event, Universe};

/// What is said between reading and writing, and can be held back there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// That a member wants to be admitted: it has read that nothing is in its way.
    Admission,
    /// That a gate shall be restricted: its runner has read that nobody is in the way.
    Restriction,
}

impl Said {
    pub(super) fn is(self, question: &Question) -> bool {
        use ReconcilerRequest as R;
        match (self, question) {
            (Said::Admission, Question::Of(_, R::Admit { .. })) => true,
            (Said::Restriction, Question::Of(_, R::Step { step, .. })) => *step == GateStep::Restrict,
            _ => false,
        }
    }
}

impl Universe {
    /// The definition of a release: objects that nobody below `floor` lives with.
    pub fn define(&mut self, of: &str, floor: &str) {
        let definition = sealed(of, release(floor).triple, false, |_| {});
        let (key, definitions) = (definition.key(), vec![definition]);
        self.operator_asks(ReconcilerRequest::Apply { definitions, replace: true });
        self.run_until("it is defined", |u| {
            u.checks.newest().is_some_and(|tables| tables.reconcilers.definitions.contains_key(&key))
        });
    }
    /// A member that wants to serve. It is found under the number.
    pub fn start_member(&mut self, runs: &str, needs: Option<&str>) -> usize {
        let needs = needs.map(|needs| (RECONCILER.to_owned(), release(needs).triple)).into_iter();
        let number = self.told_process(runs);
        let member = self.new_member(number, SCOPE, needs.collect::<BTreeMap<String, Triple>>());
        self.fleet.processes[number].serving = Some(member);
        number
    }
    /// A candidate for running the reconciler.
    pub fn start_candidate(&mut self, runs: &str) -> usize {
        let number = self.told_process(runs);
        let candidacy = self.new_candidacy(number);
        self.fleet.processes[number].candidacy = Some(candidacy);
        number
    }
    fn told_process(&mut self, runs: &str) -> usize {
        // As long as the real thing: no lease is lost to a change of leaders.
        self.fleet.timing = Timing::of(Duration::from_secs(15));
        let number = self.new_process(release(runs));
        let process = &mut self.fleet.processes[number];
        (process.up, process.returns) = (true, false);
        self.time.after(Duration::from_millis(1), Event::Process { process: number, life: 0 });
        number
    }
    /// It gives up what it has, and is gone.
    pub fn stop_process(&mut self, number: usize) {
        self.process_stops(number);
    }

    /// Whoever is about to say this has read what speaks for it, and does not get to say it.
    pub fn hold_back(&mut self, said: Said) {
        self.fleet.held_back.push(said);
    }
    /// How often it was held back.
    pub fn held_back(&self, said: Said) -> usize {
        self.fleet.parked.iter().filter(|asked| said.is(&asked.question)).count()
    }
    pub fn let_go(&mut self, said: Said) {
        self.fleet.held_back.retain(|held| *held != said);
        let (go, stay) = std::mem::take(&mut self.fleet.parked).into_iter().partition(|asked| said.is(&asked.question));
        self.fleet.parked = stay;
        let go: Vec<_> = go;
        for asked in go {
            if let Some((process, _)) = asked.by {
                self.fleet.processes[process].at = None; // to whoever leads by now
            }
            self.fleet_sends(asked);
        }
    }

    // ---- looking --------------------------------------------------------------------------------------------------

    /// In the newest state that anybody has applied.
    pub fn gate(&self) -> Option<&Gate> {
        self.checks.newest()?.reconcilers.gates.get(RECONCILER).map(AsRef::as_ref)
    }
    /// The gate says that this release is done.
    pub fn is_done(&self, of: &str) -> bool {
        self.gate().is_some_and(|gate| gate.now.state == GateState::Done && gate.now.reconciled == release(of))
    }
    pub fn phase_of(&self, member: usize) -> Option<ParticipantPhase> {
        let key = &self.fleet.processes[member].serving.as_ref()?.participant.key;
        self.checks.newest()?.reconcilers.participants.get(key).map(|record| record.phase)
    }
    /// It believes to serve.
    pub fn serves(&self, member: usize) -> bool {
        let member = self.fleet.processes[member].serving.as_ref();
        member.is_some_and(|member| *member.core.standing() == Standing::Serving)
    }
    pub fn happened(&self, what: &str) -> u64 {
        self.totals.of(what)
    }
}
