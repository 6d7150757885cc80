//! The random run of a fleet: faults hit managers and processes, operators interfere, then the fleet must settle.

use std::time::Duration;

use muster_messages::{Moment, Role};

use crate::bugs::Bug;
use crate::checks::{CONVERGE_1, violation};
use crate::report::{Failure, Report};
use crate::simulation::{Event, Simulation};

const SECOND: u64 = 1_000_000;
const PROCESSES: usize = 5;
/// When fault injection begins and ends.
const FAULTS_BEGIN: Moment = Moment(2 * SECOND);
const FAULTS_END: Moment = Moment(12 * SECOND);
/// After faults end, the gate must be done for the newest candidate's definition within this: an election, the leases of dead
/// processes, pauses of runners that failed often, the slowest repair.
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(20);

/// One seed with a fleet on three managers. `Err`: an invariant is violated.
pub fn run_gates(seed: u64, bug: Option<Bug>, verbose: bool) -> Result<Report, Failure> {
    let mut simulation = Simulation::with_bug(seed, bug);
    simulation.trace.verbose = verbose;
    let outcome = simulation.simulate_gates();
    Bug::enable(None, &mut simulation.settings);
    outcome
}

impl Simulation {
    fn simulate_gates(&mut self) -> Result<Report, Failure> {
        self.found();
        for _ in 0..2 {
            self.join_machine(Role::Manager);
        }
        self.start_fleet(PROCESSES);
        self.run_to(FAULTS_BEGIN)?;
        self.faults.active = true;
        self.time.after(Duration::from_millis(1), Event::Fault);
        self.run_to(FAULTS_END)?;
        self.clear_faults();
        let live = self.fleet.processes.iter().filter(|process| process.up);
        let newest = live.map(|process| process.release.clone()).max_by_key(|release| release.triple);
        let target = newest.unwrap_or_else(|| self.next_release());
        self.log(format!("every later start is of release {target}"));
        self.fleet.target = Some(target);
        while let Some(why) = self.fleet_unsettled() {
            if self.now() >= FAULTS_END + CONVERGENCE_LIMIT {
                return Err(self.failure(&violation(CONVERGE_1, why)));
            }
            let next = self.now() + Duration::from_millis(100);
            self.run_to(next)?;
        }
        self.totals.add("fleet settle ms", self.now().since(FAULTS_END).as_millis() as u64);
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }
}
