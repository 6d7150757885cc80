//! Managers as processes of their own scope: each takes part at the feature level of its build while its manager runtime runs.

use std::time::Duration;

use muster_messages::level_release;
use muster_reconciler::core::admission::AdmissionState;

use super::LEVELS;
use crate::machine::MachineIdx;
use crate::simulation::{Event, Simulation};

impl Simulation {
    /// One part for each machine.
    pub(crate) fn start_level_parts(&mut self) {
        self.fleet.subject = LEVELS;
        for idx in 0..self.machines.len() {
            let number = self.new_process(level_release(self.machines[idx].build).into());
            let node = self.machines[idx].id;
            let process = &mut self.fleet.processes[number];
            (process.name, process.node, process.runtime_of) = (node.to_string(), node, Some(idx));
            let soon = self.rng.millis(1, 50);
            self.time.after(soon, Event::Process { process: number, life: 0 });
        }
        self.time.after(Duration::from_millis(1), Event::FleetOperator);
    }

    fn level_part(&self, idx: MachineIdx) -> Option<usize> {
        self.fleet.processes.iter().position(|process| process.runtime_of == Some(idx))
    }

    /// The machine of a process.
    pub(crate) fn runtime_of(&self, number: usize) -> Option<MachineIdx> {
        self.fleet.processes[number].runtime_of
    }

    /// The manager runtime has ended, and its part with it. Its lease ends by itself.
    pub(crate) fn level_part_ends(&mut self, idx: MachineIdx) {
        if let Some(number) = self.level_part(idx).filter(|number| self.fleet.processes[*number].up) {
            let soon = self.rng.millis(1, 50);
            self.process_ends(number, soon);
        }
    }

    /// It believes that it serves.
    pub(crate) fn level_part_serves(&self, idx: MachineIdx) -> bool {
        let (now, timing) = (self.now(), self.fleet.timing);
        let serving = self.level_part(idx).and_then(|number| self.fleet.processes[number].serving.as_ref());
        serving.is_some_and(|member| {
            *member.core.admission_state() == AdmissionState::Serving && member.keeper.is_good(now, timing)
        })
    }
}
