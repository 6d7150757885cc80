//! Simulated runs: one seed of one kind, or many seeds on all processors.

use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::bugs::Bug;
use crate::report::{
    AUTOLOCK_MUST_SEE, AUTOPILOT_MUST_SEE, Failure, GATES_MUST_SEE, LEASES_MUST_SEE, ROLES_MUST_SEE,
    ROTATIONS_MUST_SEE, Report, SNAPSHOTS_MUST_SEE, Totals, UPGRADES_MUST_SEE,
};
use crate::simulation::Simulation;
use crate::{fleet, keyrings, policies, rotations, run, snapshots, upgrades};

/// The subject of a simulated run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A cluster grows under load and faults, and must settle.
    #[default]
    Roles,
    /// Twenty candidates contend for two leases; in some runs all managers are lost and one recovers alone.
    Leases,
    /// A fleet of five processes under release gates.
    Gates,
    /// A follower must catch up by slow snapshots while clients write.
    Snapshots,
    /// Managers of two builds in one cluster: restarted with the newer one, and back, until all have it.
    Upgrades,
    /// The root is replaced again and again while the cluster changes under faults.
    Rotations,
    /// The unlock key changes again and again, and managers that return are locked.
    Autolock,
    /// Managers die for long and return under a declared number, or under none.
    Autopilot,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Roles,
        Kind::Leases,
        Kind::Gates,
        Kind::Snapshots,
        Kind::Upgrades,
        Kind::Rotations,
        Kind::Autolock,
        Kind::Autopilot,
    ];

    /// Events that the full tier must contain; otherwise it proves nothing about them.
    pub fn required_events(self) -> &'static [&'static str] {
        match self {
            Kind::Roles => &ROLES_MUST_SEE,
            Kind::Leases => &LEASES_MUST_SEE,
            Kind::Gates => &GATES_MUST_SEE,
            Kind::Snapshots => &SNAPSHOTS_MUST_SEE,
            Kind::Upgrades => &UPGRADES_MUST_SEE,
            Kind::Rotations => &ROTATIONS_MUST_SEE,
            Kind::Autolock => &AUTOLOCK_MUST_SEE,
            Kind::Autopilot => &AUTOPILOT_MUST_SEE,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Roles => "roles",
            Kind::Leases => "leases",
            Kind::Gates => "gates",
            Kind::Snapshots => "snapshots",
            Kind::Upgrades => "upgrades",
            Kind::Rotations => "rotations",
            Kind::Autolock => "autolock",
            Kind::Autopilot => "autopilot",
        })
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| {
            format!("unknown kind {text:?}: expected one of {}", Kind::ALL.map(|kind| kind.to_string()).join(", "))
        })
    }
}

/// One run; equal values give equal runs, event by event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub kind: Kind,
    pub seed: u64,
    /// The injected bug, if any.
    pub bug: Option<Bug>,
    /// Prints every event as it happens.
    pub trace: bool,
}

impl Run {
    pub fn new(kind: Kind, seed: u64) -> Self {
        Self { kind, seed, bug: None, trace: false }
    }

    /// Runs it to its end. A panic of a core is a failure.
    pub fn execute(self) -> Result<Report, Failure> {
        let simulate: fn(&mut Simulation) -> Result<(), Failure> = match self.kind {
            Kind::Roles => run::roles,
            Kind::Leases => run::leases,
            Kind::Gates => fleet::simulate,
            Kind::Snapshots => snapshots::simulate,
            Kind::Upgrades => upgrades::simulate,
            Kind::Rotations => rotations::simulate,
            Kind::Autolock => keyrings::simulate,
            Kind::Autopilot => policies::simulate,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut simulation = Simulation::with_bug(self.seed, self.bug);
            simulation.world.trace.verbose = self.trace;
            let outcome = simulate(&mut simulation);
            Bug::enable(None, &mut simulation.world.settings);
            outcome.map(|()| simulation.world.report())
        }));
        let outcome = outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let detail = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
            Err(Failure::new(self.seed, "PANIC", detail.to_owned(), String::new()))
        });
        outcome.map_err(|failure| Failure { kind: self.kind, bug: self.bug, ..failure })
    }
}

/// The result of many runs.
#[derive(Debug, Default)]
pub struct Summary {
    pub totals: Totals,
    pub passed: u64,
    pub simulated_secs: f64,
    /// Sorted by seed.
    pub failures: Vec<Failure>,
    pub took: Duration,
}

impl Summary {
    /// Prints the totals and the first failures in full.
    pub fn print(&self, kind: Kind) {
        let Self { totals, passed, simulated_secs, failures, took } = self;
        let (wall, failed) = (took.as_secs_f64(), failures.len());
        let speed = simulated_secs / wall;
        println!(
            "{kind}: {passed} runs passed, {failed} failed; {simulated_secs:.0} simulated seconds in {wall:.1} s ({speed:.0} times real time)"
        );
        println!("{totals}");
        for failure in failures.iter().take(3) {
            println!("{failure}\n");
        }
        for failure in failures.iter().skip(3) {
            println!("{}", failure.line());
        }
    }
}

/// Runs every seed of a range on all processors.
pub fn sweep(kind: Kind, seeds: RangeInclusive<u64>) -> Summary {
    let (began, next, all) = (Instant::now(), AtomicU64::new(*seeds.start()), Mutex::new(Summary::default()));
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > *seeds.end() {
                return;
            }
            let outcome = Run::new(kind, seed).execute();
            let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match outcome {
                Ok(report) => {
                    all.totals.merge(&report.totals);
                    all.simulated_secs += report.simulated_secs;
                    all.passed += 1;
                }
                Err(failure) => all.failures.push(failure),
            }
        }
    };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut summary = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    summary.failures.sort_by_key(|failure| failure.seed);
    summary.took = began.elapsed();
    summary
}
