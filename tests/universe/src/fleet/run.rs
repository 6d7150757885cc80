//! The random run of a fleet: managers and processes are hurt, operators meddle, and then all of it must come to rest.

use std::time::Duration;

use muster_messages::{Moment, Role};

use crate::breaks::Break;
use crate::checks::{CONVERGE_1, broken};
use crate::report::{Failure, Report};
use crate::world::{Event, Universe};

const SECOND: u64 = 1_000_000;
const PROCESSES: usize = 5;
/// When the hurting begins and ends.
const HURT: Moment = Moment(2 * SECOND);
const SPARED: Moment = Moment(12 * SECOND);
/// After that the gate says that the newest candidate's definition is done within this: an election of managers, leases of those who
/// are gone, pauses of runners that have failed often, the slowest repair.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

/// One seed with a fleet on three managers. `Err`: an invariant is broken.
pub fn run_gates(seed: u64, broken: Option<Break>, aloud: bool) -> Result<Report, Failure> {
    let mut universe = Universe::with_break(seed, broken);
    universe.trace.aloud = aloud;
    let outcome = universe.roll_out();
    Break::engage(None, &mut universe.settings);
    outcome
}

impl Universe {
    fn roll_out(&mut self) -> Result<Report, Failure> {
        self.found();
        for _ in 0..2 {
            self.join_machine(Role::Manager);
        }
        self.start_fleet(PROCESSES);
        self.run_to(HURT)?;
        self.faults.active = true;
        self.time.after(Duration::from_millis(1), Event::Fault);
        self.run_to(SPARED)?;
        self.heal();
        let live = self.fleet.processes.iter().filter(|process| process.up);
        let newest = live.map(|process| process.release.clone()).max_by_key(|release| release.triple);
        let target = newest.unwrap_or_else(|| self.next_release());
        self.say(format!("everybody who starts is {target} from now on"));
        self.fleet.target = Some(target);
        while let Some(why) = self.fleet_unsettled() {
            if self.now() >= SPARED + SETTLES_WITHIN {
                return Err(self.failure(&broken(CONVERGE_1, why)));
            }
            let next = self.now() + Duration::from_millis(100);
            self.run_to(next)?;
        }
        self.totals.add("ms until the fleet had settled", self.now().since(SPARED).as_millis() as u64);
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }
}
