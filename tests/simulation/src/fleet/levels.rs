//! Managers as processes of their own scope: each takes part at the feature level of its build while its manager runtime runs.

use std::time::Duration;

use muster_messages::level_release;
use muster_reconciler::core::admission::AdmissionState;

use super::{Fleet, LEVELS, Process};
use crate::events::Event;
use crate::machine::MachineIdx;
use crate::world::World;

impl Fleet {
    /// One part for each machine.
    pub(crate) fn start_level_parts(world: &mut World) {
        world.fleet.subject = LEVELS;
        for idx in 0..world.machines.len() {
            let build = world.machines[idx].build;
            let number = Process::add(world, level_release(build).into());
            let node = world.machines[idx].id;
            let process = &mut world.fleet.processes[number];
            (process.name, process.node, process.runtime_of) = (node.to_string(), node, Some(idx));
            let soon = world.rng.millis(1, 50);
            world.time.after(soon, Event::Process { process: number, life: 0 });
        }
        world.time.after(Duration::from_millis(1), Event::FleetOperator);
    }

    fn level_part(world: &World, idx: MachineIdx) -> Option<usize> {
        world.fleet.processes.iter().position(|process| process.runtime_of == Some(idx))
    }

    /// The machine of a process.
    pub(crate) fn runtime_of(world: &World, number: usize) -> Option<MachineIdx> {
        world.fleet.processes[number].runtime_of
    }

    /// The manager runtime has ended, and its part with it. Its lease ends by itself.
    pub(crate) fn level_part_ends(world: &mut World, idx: MachineIdx) {
        if let Some(number) = Self::level_part(world, idx).filter(|number| world.fleet.processes[*number].up) {
            let soon = world.rng.millis(1, 50);
            Process::end(world, number, soon);
        }
    }

    /// It believes that it serves.
    pub(crate) fn level_part_serves(world: &World, idx: MachineIdx) -> bool {
        let (now, timing) = (world.now(), world.fleet.timing);
        let serving = Self::level_part(world, idx).and_then(|number| world.fleet.processes[number].serving.as_ref());
        serving.is_some_and(|member| {
            *member.core.admission_state() == AdmissionState::Serving && member.keeper.is_good(now, timing)
        })
    }
}
