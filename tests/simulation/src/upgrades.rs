//! Two builds in one cluster: managers are restarted with a newer build, and back, in any order, while faults are injected and
//! clients write. The cluster's feature level rises once all of them support it; afterwards the older build must not continue.
//!
//! A build is the feature level that it supports: it announces that level, decodes no snapshot of a newer one, and refuses to
//! run beyond it. The entries that it could not decode are checked when they are proposed (LEVEL-4).

use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Change, Command, DefinitionKey, FEATURE_LEVEL, Guard, IDENTITY_LEVEL, Liveness, Moment, Role, Tables, level_release,
};
use muster_raft_member::core::Incompatible;
use muster_store::Limits;

use crate::bugs::Bug;
use crate::checks::{CONVERGE_1, violation};
use crate::fleet::LEVELS;
use crate::machine::MachineIdx;
use crate::report::{Failure, Report};
use crate::simulation::{Event, Simulation};

pub const LEVEL_1: &str = "LEVEL-1";
pub const LEVEL_2: &str = "LEVEL-2";
pub const LEVEL_3: &str = "LEVEL-3";
pub const LEVEL_4: &str = "LEVEL-4";

/// The older of the two builds.
const OLD_BUILD: u32 = FEATURE_LEVEL - 1;

const SECOND: u64 = 1_000_000;
const UPGRADES_BEGIN: Moment = Moment(3 * SECOND);
const FAULTS_END: Moment = Moment(20 * SECOND);
/// After faults end and every manager has the newer build, the level must be raised, and the cluster settled, within this: as
/// for gates, and the pauses of managers that asked too early.
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(40);
/// A build that started longer ago has announced its own level, or is not a member of the scope; what an earlier build announced has
/// ended with its lease.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(6);

/// A version of snapshots that no build of today can decode.
const NEWER_SNAPSHOT: u8 = 200;

/// The greatest feature level that any member has applied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Levels {
    raised: u32,
}

/// Runs one seed in which managers are upgraded one by one. `Err`: an invariant is violated.
pub fn run_upgrades(seed: u64, bug: Option<Bug>, verbose: bool) -> Result<Report, Failure> {
    let mut simulation = Simulation::with_bug(seed, bug);
    simulation.trace.verbose = verbose;
    let outcome = simulation.simulate_upgrades();
    Bug::enable(None, &mut simulation.settings);
    outcome
}

/// The feature level from which on every build can decode the command.
fn required_level(command: &Command) -> u32 {
    let change = |change: &Change| {
        matches!(
            change,
            Change::RenameNode { .. }
                | Change::IssueCertificate { .. }
                | Change::RevokeCertificates(_)
                | Change::CertificateSeen { .. }
                | Change::PinUser { .. }
        )
    };
    let guard = |guard: &Guard| matches!(guard, Guard::Request { .. });
    let newer = command.changes.iter().any(change) || command.guards.iter().any(guard);
    if newer { IDENTITY_LEVEL } else { 0 }
}

impl Simulation {
    fn simulate_upgrades(&mut self) -> Result<Report, Failure> {
        self.settings.raft.feature_level = OLD_BUILD;
        // The shipped bounds: level 2 forgets outcomes in the order of their requests, whatever their age.
        self.settings.raft.limits = Limits::DEFAULT;
        self.found();
        self.start_clients(2);
        self.start_candidates(3, 1, Duration::ZERO);
        for _ in 0..2 + self.rng.below(2) {
            self.join_machine(Role::Manager);
        }
        self.join_machine(Role::Worker);
        self.start_level_parts();
        self.run_to(UPGRADES_BEGIN)?;
        self.faults.active = true;
        self.time.after(Duration::from_millis(1), Event::Fault);
        self.time.after(Duration::from_millis(1), Event::Upgrade);
        self.run_to(FAULTS_END)?;
        self.clear_faults();
        for idx in 0..self.machines.len() {
            if self.machines[idx].build < FEATURE_LEVEL {
                self.restart_as(idx, FEATURE_LEVEL);
                let next = self.now() + self.rng.millis(50, 3000);
                self.run_to(next)?;
            }
        }
        let limit = self.now() + CONVERGENCE_LIMIT;
        while let Some(why) = self.upgrade_unsettled() {
            if self.now() >= limit {
                return Err(self.failure(&violation(CONVERGE_1, why)));
            }
            let next = self.now() + Duration::from_millis(100);
            self.run_to(next)?;
        }
        self.clients.resting = true;
        self.settle_within(CONVERGENCE_LIMIT)?;
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }

    fn upgrade_unsettled(&self) -> Option<String> {
        let level = self.checks.newest().map_or(0, Tables::feature_level);
        if level != FEATURE_LEVEL {
            return Some(format!("the feature level is {level}, although every manager supports {FEATURE_LEVEL}"));
        }
        let outdated = self.machines.iter().find(|machine| machine.incompatible);
        outdated.map(|machine| format!("{} counts as incompatible", machine.name))
    }

    // ---- the operator ---------------------------------------------------------------------------------------------

    pub(crate) fn upgrade(&mut self) {
        if !self.faults.active {
            return;
        }
        let next = self.rng.millis(300, 2500);
        self.time.after(next, Event::Upgrade);
        let idx = self.rng.below(self.machines.len());
        // Before the raise nearly all restarts lead to it; after it the older build is what is to be refused.
        let newer = if self.levels.raised < FEATURE_LEVEL { 930 } else { 500 };
        let build = if self.rng.chance(newer) { FEATURE_LEVEL } else { OLD_BUILD };
        if self.machines[idx].build != build {
            self.totals.count(match build {
                FEATURE_LEVEL => "fault: manager restarted with the newer build",
                _ => "fault: manager restarted with the older build",
            });
            self.restart_as(idx, build);
        }
    }

    fn restart_as(&mut self, idx: MachineIdx, build: u32) {
        self.log(format!("n{} gets the build of feature level {build}", idx + 1));
        self.crash(idx, false);
        self.machines[idx].build = build;
        self.start(idx);
    }

    /// At the worst moment: the runner has seen that every manager supports the level, and its request is on the way.
    pub(crate) fn roll_back_beside(&mut self, runner: usize) {
        let runs = self.runtime_of(runner);
        let others: Vec<MachineIdx> = (0..self.machines.len())
            .filter(|idx| Some(*idx) != runs && self.machines[*idx].up && self.machines[*idx].build == FEATURE_LEVEL)
            .collect();
        let chosen = self.rng.pick(&others).filter(|_| self.faults.active && self.rng.chance(200));
        if let Some(idx) = chosen {
            self.totals.count("fault: manager restarted with the older build while a gate is restricted");
            self.restart_as(idx, OLD_BUILD);
        }
    }

    // ---- an incompatible build ------------------------------------------------------------------------------------

    /// The manager runtime knows its node.
    pub(crate) fn knows_itself(&self, idx: MachineIdx) -> bool {
        let machine = &self.machines[idx];
        let knows = |tables: &Tables| tables.cluster.is_some() && tables.nodes.contains_key(&machine.id);
        machine.up && machine.runtime.as_ref().is_some_and(|runtime| knows(runtime.core.tables()))
    }

    /// A build decodes no snapshot of a later level.
    pub(crate) fn as_read_by(&mut self, idx: MachineIdx, mut data: Vec<u8>) -> Vec<u8> {
        let level = muster_store::snapshot::decode(&data).map_or(0, |tables| tables.feature_level());
        if level > self.machines[idx].build {
            self.totals.count("snapshots too new for the older build");
            data[1] = NEWER_SNAPSHOT; // behind the version of the wire
        }
        data
    }

    pub(crate) fn found_incompatible(&mut self, idx: MachineIdx, what: Incompatible) {
        match what {
            Incompatible::Level(level) => self.stop_incompatible(idx, &format!("feature level {level}")),
            // One peer's claim: the leader is asked.
            Incompatible::Snapshot(_) => {
                if let Some(runtime) = self.machines[idx].runtime.as_ref().map(|runtime| runtime.number) {
                    self.time.after(Duration::ZERO, Event::AskMembership { idx, runtime, unanswered: None });
                }
            }
        }
    }

    /// The manager runtime ends for this process; its data stays.
    pub(crate) fn stop_incompatible(&mut self, idx: MachineIdx, why: &str) {
        self.totals.count("incompatible managers stopped");
        self.log(format!("n{} stops its manager runtime: incompatible: {why}", idx + 1));
        self.machines[idx].incompatible = true;
        self.stop_runtime(idx, true);
    }

    // ---- invariants -----------------------------------------------------------------------------------------------

    /// LEVEL-4.
    pub(crate) fn check_encoding(&mut self, idx: MachineIdx, command: &Command) {
        let Some(runtime) = &self.machines[idx].runtime else { return };
        let (needs, level) = (required_level(command), runtime.core.tables().feature_level());
        if needs > level && level > 0 {
            let detail =
                format!("n{} proposes at feature level {level} what level {needs} introduces: {command:?}", idx + 1);
            self.require(Err(violation(LEVEL_4, detail)));
        }
    }

    /// LEVEL-1, LEVEL-2 and LEVEL-3, seen from outside, after a member has applied entries.
    pub(crate) fn check_level(&mut self, idx: MachineIdx) {
        let machine = &self.machines[idx];
        let Some(tables) = machine.runtime.as_ref().map(|runtime| runtime.core.tables().clone()) else { return };
        let Some(cluster) = tables.cluster.as_ref() else { return };
        let level = cluster.feature_level;
        let opened_at = machine.runtime.as_ref().map_or(cluster.revision, |runtime| runtime.opened_at);
        if level > machine.build && tables.revision > cluster.revision.max(opened_at) {
            let detail =
                format!("n{}, of level {}, applies {} at level {level}", idx + 1, machine.build, tables.revision);
            return self.require(Err(violation(LEVEL_2, detail)));
        }
        if self.levels.raised >= level {
            return;
        }
        self.levels.raised = level;
        let now = self.now();
        for (idx, machine) in self.machines.iter().enumerate() {
            let behind = machine.build < level && machine.up;
            if behind && self.level_part_serves(idx) {
                let detail = format!("level {level} while n{} takes part at level {}", idx + 1, machine.build);
                return self.require(Err(violation(LEVEL_1, detail)));
            }
            let ready = tables.nodes.get(&machine.id).is_some_and(|record| record.liveness == Liveness::Ready);
            let votes = tables.member_of(machine.id).is_some_and(|member| member.voter);
            if behind && ready && votes && now.since(machine.started_at) >= ANNOUNCED_AFTER {
                let detail = format!("level {level} takes the vote from n{}, of level {}", idx + 1, machine.build);
                return self.require(Err(violation(LEVEL_3, detail)));
            }
        }
    }

    // ---- parts of the managers in their scope ---------------------------------------------------------------------

    /// Registers the definition of each level, as managers do for their own.
    pub(crate) fn register_levels(&mut self) {
        let all = self.checks.newest().map(|tables| tables.reconcilers.clone()).unwrap_or_default();
        let mut builds: Vec<u32> = self.machines.iter().filter(|m| m.up).map(|m| m.build).collect();
        builds.sort_unstable();
        builds.dedup();
        for build in builds {
            let key = DefinitionKey { reconciler: LEVELS.reconciler.to_owned(), release: level_release(build) };
            if !all.definitions.contains_key(&key) {
                let definitions = vec![muster_manager::feature_level::definition(build)];
                self.operator_asks(ReconcilerRequest::Apply { definitions, replace: false });
            }
        }
    }
}
