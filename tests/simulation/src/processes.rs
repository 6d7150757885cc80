//! Processes of machines: killed and started, frozen and thawed.

use std::time::Duration;

use muster_messages::Role;

use crate::connections::AgentConnections;
use crate::disk::DiskSpeed;
use crate::events::Event;
use crate::faults::TimedFault;
use crate::keyrings::Keyring;
use crate::machine::{Agent, Machine, MachineIdx, ManagerRuntime};
use crate::world::World;

impl Machine {
    /// Ends the process. A power loss also loses unsynced writes, and closes no connection.
    pub(crate) fn crash(world: &mut World, idx: MachineIdx, power: bool) {
        if !world.machines[idx].up {
            return;
        }
        world.last_fault_at = world.now();
        let name = world.machines[idx].name.clone();
        world.log(format!("{name} {}", if power { "loses its power" } else { "is killed" }));
        world.totals.count(if power { "fault: power lost" } else { "fault: process killed" });
        let now = world.now();
        ManagerRuntime::stop(world, idx, !power);
        AgentConnections::process_ends(world, idx, false, !power);
        Keyring::process_ends(world, idx);
        let machine = &mut world.machines[idx];
        machine.up = false;
        machine.agent.core = None;
        machine.agent.wanted = false;
        machine.thaws = None;
        machine.life += 1;
        machine.silent_since.get_or_insert(now);
        if power {
            let lost = machine.disk.power_lost(&mut world.rng);
            world.totals.add("fault: unsynced writes lost", u64::from(lost));
        } else {
            machine.disk.killed();
        }
    }

    pub(crate) fn start(world: &mut World, idx: MachineIdx) {
        if world.machines[idx].up || world.machines[idx].gone || Keyring::is_locked(world, idx) {
            return;
        }
        world.last_fault_at = world.now();
        let now = world.now();
        // A monotonic clock belongs to one start of the machine.
        let clock = world.rng.sample() % 1_000_000_000_000;
        let moves = world.faults_active && world.rng.chance(120);
        let machine = &mut world.machines[idx];
        machine.up = true;
        machine.started_at = now;
        machine.incompatible = false;
        machine.clock = clock;
        machine.agent.asking = None;
        machine.disk.speed = DiskSpeed::Good;
        if moves {
            let port = 4401 + world.rng.below(200);
            machine.addr = format!("10.0.0.{}:{port}", idx + 1);
        }
        Self::returns(world, idx);
        let machine = &world.machines[idx];
        let life = machine.life;
        let name = machine.name.clone();
        world.log(format!("{name} starts{}", if moves { " at another address" } else { "" }));
        let soon = world.rng.millis(1, 30);
        world.time.after(soon, Event::Agent { idx, life });
        Agent::start(world, idx);
    }

    /// E23: a machine that was removed meanwhile returns, with its log or with an empty directory.
    fn returns(world: &mut World, idx: MachineIdx) {
        let machine = &world.machines[idx];
        let removed = world.checks.newest().is_some_and(|t| t.cluster.is_some() && !t.nodes.contains_key(&machine.id));
        let manager = machine.certified() == Some(Role::Manager) && machine.disk.held.is_some();
        if !removed || !manager || machine.agent.ended.is_some() {
            return;
        }
        if world.rng.chance(500) {
            world.machines[idx].disk.replace(false);
            world.log(format!("n{} returns with an empty Raft directory", idx + 1));
            world.totals.count("fault: removed manager back without its log");
        } else {
            world.totals.count("fault: removed manager back with its log");
        }
    }

    pub(crate) fn freeze(world: &mut World, idx: MachineIdx, takes: Duration) {
        let now = world.now();
        let machine = &mut world.machines[idx];
        if machine.runs() {
            machine.thaws = Some(now + takes);
            machine.silent_since.get_or_insert(now);
            world.totals.count("fault: node frozen");
            world.log(format!("n{} freezes for {} ms", idx + 1, takes.as_millis()));
            // Before every event that waited for the thaw.
            world.time.at(now + takes, Event::TimedFaultEnds(TimedFault::Frozen(idx)));
        }
    }

    pub(crate) fn thaw(world: &mut World, idx: MachineIdx) {
        let now = world.now();
        let machine = &mut world.machines[idx];
        if machine.thaws.take().is_some() {
            world.last_fault_at = now;
            machine.thawed_at = Some(now);
            if machine.member_id().is_some() {
                machine.silent_since = None;
            }
        }
    }

    pub(crate) fn repair_disk(world: &mut World, idx: MachineIdx) {
        world.machines[idx].disk.speed = DiskSpeed::Good;
        ManagerRuntime::begin_disk(world, idx);
    }
}
