//! Two builds in one cluster: managers are restarted with a newer build, and back, in any order, while faults are injected and
//! clients write. The cluster's feature level rises once all of them support it; afterwards the older build must not continue.
//!
//! A build is the feature level that it supports: it announces that level, decodes no snapshot of a newer one, and refuses to
//! run beyond it. The entries that it could not decode are checked when they are proposed (LEVEL-4).

use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    AUTOPILOT_LEVEL, Change, Command, DefinitionKey, FEATURE_LEVEL, Guard, IDENTITY_LEVEL, Liveness, Moment, Role,
    Tables, level_release,
};
use muster_raft_member::core::Incompatible;
use muster_store::Limits;

use crate::checks::{CONVERGE_1, violation};
use crate::events::Event;
use crate::faults::Faults;
use crate::fleet::{Fleet, LEVELS};
use crate::machine::{Machine, MachineIdx, ManagerRuntime};
use crate::report::Failure;
use crate::simulation::Simulation;
use crate::world::World;

pub const LEVEL_1: &str = "LEVEL-1";
pub const LEVEL_2: &str = "LEVEL-2";
pub const LEVEL_3: &str = "LEVEL-3";
pub const LEVEL_4: &str = "LEVEL-4";

/// The older of the two builds is one of these: the last one, the one before, or the last one before certificates were recorded,
/// whose encoding differs most.
const OLD_BUILDS: [u32; 3] = [FEATURE_LEVEL - 1, FEATURE_LEVEL - 2, IDENTITY_LEVEL - 1];

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

/// The feature level from which on every build can decode the command.
pub(crate) fn required_level(command: &Command) -> u32 {
    let change = |change: &Change| match change {
        Change::RenameNode { .. }
        | Change::IssueCertificate { .. }
        | Change::RevokeCertificates(_)
        | Change::CertificateSeen { .. }
        | Change::PinUser { .. }
        | Change::Authority(_)
        | Change::Autolock(_)
        | Change::Workload(_)
        | Change::Autopilot(_) => true,
        Change::Found { .. }
        | Change::CreateNode(_)
        | Change::SetDesiredRole { .. }
        | Change::GrantRole { .. }
        | Change::SetRemoving { .. }
        | Change::DeleteNode(_)
        | Change::Block(_)
        | Change::Unblock(_)
        | Change::UpdateLabels { .. }
        | Change::Report { .. }
        | Change::SetLiveness { .. }
        | Change::RecordCertificate { .. }
        | Change::AskRotate(_)
        | Change::CertificateFailed(_)
        | Change::PutToken(_)
        | Change::UseToken(_)
        | Change::DeleteToken(_)
        | Change::PutUser(_)
        | Change::DeleteUser(_)
        | Change::SetFeatureLevel(_)
        | Change::CreateObject(_)
        | Change::UpdateObject { .. }
        | Change::DeleteObject { .. }
        | Change::AcquireLease { .. }
        | Change::ReleaseLease { .. }
        | Change::ExpireLease(_)
        | Change::SetGuard { .. }
        | Change::PutAccessToken(_)
        | Change::DeleteAccessToken(_)
        | Change::Reconciler(_)
        | Change::RecordDuplicate { .. } => false,
    };
    let guard = |guard: &Guard| matches!(guard, Guard::Request { .. });
    let newer = command.changes.iter().any(change) || command.guards.iter().any(guard);
    let of_reconciler = |change: &Change| match change {
        Change::Reconciler(change) => change.needs_level(),
        Change::Autopilot(_) => AUTOPILOT_LEVEL,
        _ => 0,
    };
    let of_reconcilers = command.changes.iter().map(of_reconciler).max().unwrap_or_default();
    of_reconcilers.max(if newer { IDENTITY_LEVEL } else { 0 })
}

/// Managers are upgraded one by one. `Err`: an invariant is violated.
pub fn simulate(sim: &mut Simulation) -> Result<(), Failure> {
    sim.world.settings.raft.feature_level = OLD_BUILDS[sim.world.rng.below(OLD_BUILDS.len())];
    // The shipped bounds: level 2 forgets outcomes in the order of their requests, whatever their age.
    sim.world.settings.raft.limits = Limits::DEFAULT;
    sim.world.found();
    sim.clients.start(&mut sim.world, 2);
    sim.candidates.start(&mut sim.world, 3, 1, Duration::ZERO);
    for _ in 0..2 + sim.world.rng.below(2) {
        sim.world.join_machine(Role::Manager);
    }
    sim.world.join_machine(Role::Worker);
    Fleet::start_level_parts(&mut sim.world);
    sim.run_to(UPGRADES_BEGIN)?;
    sim.world.faults_active = true;
    sim.world.time.after(Duration::from_millis(1), Event::Fault);
    sim.world.time.after(Duration::from_millis(1), Event::Upgrade);
    sim.run_to(FAULTS_END)?;
    Faults::clear(&mut sim.world);
    for idx in 0..sim.world.machines.len() {
        if sim.world.machines[idx].build < FEATURE_LEVEL {
            Levels::restart_as(&mut sim.world, idx, FEATURE_LEVEL);
            let next = sim.world.now() + sim.world.rng.millis(50, 3000);
            sim.run_to(next)?;
        }
    }
    let limit = sim.world.now() + CONVERGENCE_LIMIT;
    while let Some(why) = unsettled(sim) {
        if sim.world.now() >= limit {
            return Err(sim.world.failure(&violation(CONVERGE_1, why)));
        }
        let next = sim.world.now() + Duration::from_millis(100);
        sim.run_to(next)?;
    }
    sim.world.resting = true;
    sim.settle_within(limit.since(sim.world.now()))
}

fn unsettled(sim: &Simulation) -> Option<String> {
    let level = sim.world.checks.newest().map_or(0, Tables::feature_level);
    if level != FEATURE_LEVEL {
        return Some(format!("the feature level is {level}, although every manager supports {FEATURE_LEVEL}"));
    }
    let outdated = sim.world.machines.iter().find(|machine| machine.incompatible);
    outdated.map(|machine| format!("{} counts as incompatible", machine.name))
}

impl Levels {
    // ---- the operator ---------------------------------------------------------------------------------------------

    pub(crate) fn upgrade(world: &mut World) {
        if !world.faults_active {
            return;
        }
        let next = world.rng.millis(300, 2500);
        world.time.after(next, Event::Upgrade);
        let idx = world.rng.below(world.machines.len());
        // Before the raise nearly all restarts lead to it; after it the older build is what is to be refused.
        let newer = if world.levels.raised < FEATURE_LEVEL { 930 } else { 500 };
        let build = if world.rng.chance(newer) { FEATURE_LEVEL } else { world.settings.raft.feature_level };
        if world.machines[idx].build != build {
            world.totals.count(match build {
                FEATURE_LEVEL => "fault: manager restarted with the newer build",
                _ => "fault: manager restarted with the older build",
            });
            Self::restart_as(world, idx, build);
        }
    }

    fn restart_as(world: &mut World, idx: MachineIdx, build: u32) {
        world.log(format!("n{} gets the build of feature level {build}", idx + 1));
        Machine::crash(world, idx, false);
        world.machines[idx].build = build;
        Machine::start(world, idx);
    }

    /// At the worst moment: the runner has seen that every manager supports the level, and its request is on the way.
    pub(crate) fn roll_back_beside(world: &mut World, runner: usize) {
        let runs = Fleet::runtime_of(world, runner);
        let others: Vec<MachineIdx> = (0..world.machines.len())
            .filter(|idx| Some(*idx) != runs && world.machines[*idx].up && world.machines[*idx].build == FEATURE_LEVEL)
            .collect();
        let chosen = world.rng.pick(&others).filter(|_| world.faults_active && world.rng.chance(200));
        if let Some(idx) = chosen {
            world.totals.count("fault: manager restarted with the older build while a gate is restricted");
            Self::restart_as(world, idx, world.settings.raft.feature_level);
        }
    }

    // ---- an incompatible build ------------------------------------------------------------------------------------

    /// The manager runtime knows its node.
    pub(crate) fn knows_itself(world: &World, idx: MachineIdx) -> bool {
        let machine = &world.machines[idx];
        let knows = |tables: &Tables| tables.cluster.is_some() && tables.nodes.contains_key(&machine.id);
        machine.up && machine.runtime.as_ref().is_some_and(|runtime| knows(runtime.core.tables()))
    }

    /// A build decodes no snapshot of a later level.
    pub(crate) fn as_read_by(world: &mut World, idx: MachineIdx, mut data: Vec<u8>) -> Vec<u8> {
        let level = muster_store::snapshot::decode(&data).map_or(0, |tables| tables.feature_level());
        if level > world.machines[idx].build {
            world.totals.count("snapshots too new for the older build");
            data[1] = NEWER_SNAPSHOT; // behind the version of the wire
        }
        data
    }

    pub(crate) fn found_incompatible(world: &mut World, idx: MachineIdx, what: Incompatible) {
        match what {
            Incompatible::Level(level) => Self::stop_incompatible(world, idx, &format!("feature level {level}")),
            // One peer's claim: the leader is asked.
            Incompatible::Snapshot(_) => {
                if let Some(runtime) = world.machines[idx].runtime.as_ref().map(|runtime| runtime.number) {
                    world.time.after(Duration::ZERO, Event::AskMembership { idx, runtime, unanswered: None });
                }
            }
        }
    }

    /// The manager runtime ends for this process; its data stays.
    pub(crate) fn stop_incompatible(world: &mut World, idx: MachineIdx, why: &str) {
        world.totals.count("incompatible managers stopped");
        world.log(format!("n{} stops its manager runtime: incompatible: {why}", idx + 1));
        world.machines[idx].incompatible = true;
        ManagerRuntime::stop(world, idx, true);
    }

    /// LEVEL-1, LEVEL-2 and LEVEL-3, seen from outside, after a member has applied entries.
    pub(crate) fn check(world: &mut World, idx: MachineIdx) {
        let machine = &world.machines[idx];
        let Some(tables) = machine.runtime.as_ref().map(|runtime| runtime.core.tables().clone()) else { return };
        let Some(cluster) = tables.cluster.as_ref() else { return };
        let level = cluster.feature_level;
        let opened_at = machine.runtime.as_ref().map_or(cluster.revision, |runtime| runtime.opened_at);
        if level > machine.build && tables.revision > cluster.revision.max(opened_at) {
            let detail =
                format!("n{}, of level {}, applies {} at level {level}", idx + 1, machine.build, tables.revision);
            return world.require(Err(violation(LEVEL_2, detail)));
        }
        if world.levels.raised >= level {
            return;
        }
        world.levels.raised = level;
        let now = world.now();
        for (idx, machine) in world.machines.iter().enumerate() {
            let behind = machine.build < level && machine.up;
            if behind && Fleet::level_part_serves(world, idx) {
                let detail = format!("level {level} while n{} takes part at level {}", idx + 1, machine.build);
                return world.require(Err(violation(LEVEL_1, detail)));
            }
            let ready = tables.nodes.get(&machine.id).is_some_and(|record| record.liveness == Liveness::Ready);
            let votes = tables.member_of(machine.id).is_some_and(|member| member.voter);
            if behind && ready && votes && now.since(machine.started_at) >= ANNOUNCED_AFTER {
                let detail = format!("level {level} takes the vote from n{}, of level {}", idx + 1, machine.build);
                return world.require(Err(violation(LEVEL_3, detail)));
            }
        }
    }

    // ---- parts of the managers in their scope ---------------------------------------------------------------------

    /// Registers the definition of each level, as managers do for their own.
    pub(crate) fn register_levels(world: &mut World) {
        let all = world.checks.newest().map(|tables| tables.reconcilers.clone()).unwrap_or_default();
        let mut builds: Vec<u32> = world.machines.iter().filter(|m| m.up).map(|m| m.build).collect();
        builds.sort_unstable();
        builds.dedup();
        for build in builds {
            let key = DefinitionKey { reconciler: LEVELS.reconciler.to_owned(), release: level_release(build) };
            if !all.definitions.contains_key(&key) {
                let definitions = vec![muster_manager::feature_level::definition(build)];
                Fleet::operator_asks(world, ReconcilerRequest::Apply { definitions, replace: false });
            }
        }
    }
}
