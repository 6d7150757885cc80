//! The random run of a fleet: faults hit managers and processes, operators interfere, then the fleet must settle.

use std::time::Duration;

use muster_messages::{Moment, Role};

use super::Fleet;
use crate::checks::{CONVERGE_1, violation};
use crate::events::Event;
use crate::faults::Faults;
use crate::report::Failure;
use crate::simulation::Simulation;

const SECOND: u64 = 1_000_000;
const PROCESSES: usize = 5;
/// When fault injection begins and ends.
const FAULTS_BEGIN: Moment = Moment(2 * SECOND);
const FAULTS_END: Moment = Moment(12 * SECOND);
/// After faults end, the gate must be done for the newest candidate's definition within this: an election, the leases of dead
/// processes, pauses of runners that failed often, the slowest repair.
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(20);

/// A fleet on three managers. `Err`: an invariant is violated.
pub fn simulate(sim: &mut Simulation) -> Result<(), Failure> {
    sim.world.found();
    for _ in 0..2 {
        sim.world.join_machine(Role::Manager);
    }
    Fleet::start(&mut sim.world, PROCESSES);
    sim.run_to(FAULTS_BEGIN)?;
    sim.world.faults_active = true;
    sim.world.time.after(Duration::from_millis(1), Event::Fault);
    sim.run_to(FAULTS_END)?;
    Faults::clear(&mut sim.world);
    Fleet::choose_target(&mut sim.world);
    while let Some(why) = Fleet::unsettled(&sim.world) {
        if sim.world.now() >= FAULTS_END + CONVERGENCE_LIMIT {
            return Err(sim.world.failure(&violation(CONVERGE_1, why)));
        }
        let next = sim.world.now() + Duration::from_millis(100);
        sim.run_to(next)?;
    }
    sim.world.totals.add("fleet settle ms", sim.world.now().since(FAULTS_END).as_millis() as u64);
    Ok(())
}
