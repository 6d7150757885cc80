//! Scenario steps for gates.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{Gate, GateState, GateStep, ParticipantPhase, Triple};
use muster_reconciler::core::admission::AdmissionState;

use super::operator::{ActionKind, release, sealed};
use super::{Fleet, PendingRequest, Process, Question, SCHEMA, Timing};
use crate::events::Event;
use crate::simulation::Simulation;

/// A request between its read and its write, which a scenario can hold back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldPoint {
    /// A member's admission: it has read that no gate blocks it.
    Admission,
    /// A gate's restriction: its runner has read that no member blocks it.
    Restriction,
}

impl HoldPoint {
    pub(super) fn is(self, question: &Question) -> bool {
        use ReconcilerRequest as R;
        match (self, question) {
            (HoldPoint::Admission, Question::Reconciler(_, R::Admit { .. })) => true,
            (HoldPoint::Restriction, Question::Reconciler(_, R::Step { step, .. })) => *step == GateStep::Restrict,
            _ => false,
        }
    }
}

impl Simulation {
    /// Defines a release whose objects are incompatible with members below `floor`.
    pub fn define(&mut self, of: &str, floor: &str) {
        let definition = sealed(of, release(floor).triple, ActionKind::Objects, |_| {});
        let (key, definitions) = (definition.key(), vec![definition]);
        Fleet::operator_asks(&mut self.world, ReconcilerRequest::Apply { definitions, replace: true });
        self.run_until("it is defined", |u| {
            u.world.checks.newest().is_some_and(|tables| tables.reconcilers.definitions.contains_key(&key))
        });
    }
    /// Starts a serving member; returns its number.
    pub fn start_member(&mut self, runs: &str, needs: Option<&str>) -> usize {
        let needs = needs.map(|needs| (SCHEMA.reconciler.to_owned(), release(needs).triple)).into_iter();
        let number = self.scripted_process(runs);
        let member =
            Process::new_member(&mut self.world, number, SCHEMA.scope, needs.collect::<BTreeMap<String, Triple>>());
        self.world.fleet.processes[number].serving = Some(member);
        number
    }
    /// Starts a candidate for the reconciler; returns its number.
    pub fn start_candidate(&mut self, runs: &str) -> usize {
        let number = self.scripted_process(runs);
        let candidacy = Process::new_candidacy(&mut self.world, number);
        self.world.fleet.processes[number].candidacy = Some(candidacy);
        number
    }
    fn scripted_process(&mut self, runs: &str) -> usize {
        // As long as shipped leases: none is lost to a change of leaders.
        self.world.fleet.timing = Timing::of(Duration::from_secs(15));
        let number = Process::add(&mut self.world, release(runs));
        let process = &mut self.world.fleet.processes[number];
        (process.up, process.returns) = (true, false);
        self.world.time.after(Duration::from_millis(1), Event::Process { process: number, life: 0 });
        number
    }
    /// Releases its leases and ends.
    pub fn stop_process(&mut self, number: usize) {
        Process::stop(&mut self.world, number);
    }

    /// Holds back this request of every process that has read in its favour.
    pub fn hold_back(&mut self, point: HoldPoint) {
        self.world.fleet.held_back.push(point);
    }
    /// How many requests are held back.
    pub fn held_back(&self, point: HoldPoint) -> usize {
        self.world.fleet.parked.iter().filter(|pending| point.is(&pending.question)).count()
    }
    pub fn release_held(&mut self, point: HoldPoint) {
        self.world.fleet.held_back.retain(|held| *held != point);
        let (go, stay) =
            std::mem::take(&mut self.world.fleet.parked).into_iter().partition(|pending| point.is(&pending.question));
        self.world.fleet.parked = stay;
        let go: Vec<_> = go;
        for pending in go {
            if let Some((process, _)) = pending.by {
                self.world.fleet.processes[process].at = None; // to the current leader
            }
            PendingRequest::send(&mut self.world, pending);
        }
    }

    // ---- queries --------------------------------------------------------------------------------------------------

    /// In the newest state that any member has applied.
    pub fn gate(&self) -> Option<&Gate> {
        self.world.checks.newest()?.reconcilers.gates.get(SCHEMA.reconciler).map(AsRef::as_ref)
    }
    /// The gate is done for this release.
    pub fn is_done(&self, of: &str) -> bool {
        self.gate().is_some_and(|gate| gate.now.state == GateState::Done && gate.now.reconciled == release(of))
    }
    pub fn phase_of(&self, member: usize) -> Option<ParticipantPhase> {
        let key = &self.world.fleet.processes[member].serving.as_ref()?.participant.key;
        self.world.checks.newest()?.reconcilers.participants.get(key).map(|record| record.phase)
    }
    /// It believes to serve.
    pub fn serves(&self, member: usize) -> bool {
        let member = self.world.fleet.processes[member].serving.as_ref();
        member.is_some_and(|member| *member.core.admission_state() == AdmissionState::Serving)
    }
    pub fn happened(&self, what: &str) -> u64 {
        self.world.totals.of(what)
    }
}
