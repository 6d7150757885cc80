//! Autolock: operators who change the unlock key at any time, the keyrings of managers, the actors that follow, and managers that are locked
//! when they start. Also the run about them, and its checks.
//!
//! Checked of every newest state: the key of every keyring that may have to be opened is on record (SEAL-9), and no manager is recorded as
//! following a later key than its keyring (SEAL-11). Operators also ask for two keys in one entry, which the store refuses (SEAL-10). In the
//! end every manager's keyring is at the newest version, and the state says so.
//! An operator reads a key from the newest state; in the product one manager has to run for that, or the operator has kept the key.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_autolock::core::{Autolock, Effect, Goal, Input};
use muster_autolock::{FollowFault, Followed};
use muster_manager::router::core::seals::command_of;
use muster_messages::wire::PeerCall;
use muster_messages::{
    AutoUnlock, AutolockChange, Change, Command, ErrorBody, ErrorCode, Moment, Principal, Revision, Role, Seal, Secret,
    Tables,
};
use muster_store::invariants::SEAL_9;

use crate::bugs::Bug;
use crate::checks::{CONVERGE_1, CheckResult, violation};
use crate::events::{Answered, Event, Question};
use crate::machine::{Agent, Asker, Caller, Machine, MachineIdx};
use crate::report::Failure;
use crate::schedule::keep_earlier;
use crate::simulation::Simulation;
use crate::world::World;

pub const SEAL_11: &str = "SEAL-11";

const SECOND: u64 = 1_000_000;
const CHANGES_BEGIN: Moment = Moment(2 * SECOND);
const FAULTS_END: Moment = Moment(28 * SECOND);
/// After faults end: a person who unlocks, several pauses after failed writes, and the last reports.
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(80);
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// A report without an answer has failed.
const REPORT_TIMEOUT: Duration = Duration::from_millis(2500);
/// Of writes of keyrings, while faults are injected.
const FAILED_WRITES_PER_1000: u32 = 80;

/// What is on disk: the version that the keyring follows, and the key that opens it.
type OnDisk = (Revision, Option<Secret>);

/// Autolock in a run.
#[derive(Clone, Debug, Default)]
pub struct Unlocking {
    pub active: bool,
    keys_made: u64,
}

/// A machine's keyring, and the actor that keeps it at the replicated version.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    /// `None`: there is none.
    disk: Option<OnDisk>,
    /// Being written, in order: after a crash each is on disk, or not.
    writing: BTreeMap<u64, OnDisk>,
    follower: Option<Follower>,
    /// A person has been asked for the key.
    waits: bool,
    /// The key was given for the start that follows.
    opened: bool,
    /// A worker's certificate was recorded for it before it wrote that: the state needs its key no longer (docs/gaps.md).
    abandoned: bool,
}

#[derive(Clone, Debug)]
struct Follower {
    runtime: u32,
    core: Autolock,
    shown: Option<Goal>,
    wakes: Option<Moment>,
    /// The report in flight.
    reports: Option<u64>,
}

impl Keyring {
    /// As the real one.
    fn follow(&mut self, (version, key): OnDisk, ignores_versions: bool) -> Result<Followed, FollowFault> {
        let (at, held) = self.disk.get_or_insert((Revision(0), None));
        if version < *at && !ignores_versions {
            return Ok(Followed::Later(*at));
        }
        if version == *at {
            return if *held == key { Ok(Followed::Already) } else { Err(FollowFault::OtherKey(version)) };
        }
        self.disk = Some((version, key));
        Ok(Followed::Written)
    }
}

/// The unlock key changes while managers join, leave, crash and return. `Err`: an invariant is violated.
pub fn simulate(sim: &mut Simulation) -> Result<(), Failure> {
    sim.world.unlocking.active = true;
    let (managers, workers) = (3 + sim.world.rng.below(2), 1 + sim.world.rng.below(2));
    sim.world.found();
    sim.clients.start(&mut sim.world, 1);
    for idx in 1..managers + workers {
        sim.world.join_machine(if idx < managers { Role::Manager } else { Role::Worker });
    }
    sim.run_to(CHANGES_BEGIN)?;
    sim.inject([Event::Fault, Event::Operator, Event::KeyOperator], 800, FAULTS_END)?;
    let limit = sim.world.now() + CONVERGENCE_LIMIT;
    sim.finish(limit, CONVERGE_1, |sim| sim.unsettled().or_else(|| unfinished(&sim.world)))
}

/// Why keyrings are not at the newest version.
fn unfinished(world: &World) -> Option<String> {
    let autolock = &world.checks.newest()?.autolock;
    for machine in &world.machines {
        if machine.keyring.waits {
            return Some(format!("{} is locked", machine.name));
        }
        if autolock.version == Revision(0) || machine.runtime.is_none() {
            continue;
        }
        let on_disk = machine.keyring.disk.as_ref().map(|(version, _)| *version);
        let on_record = autolock.seals.get(&machine.id).map(|report| report.seal);
        let wanted = Seal {
            version: autolock.version,
            sealed: autolock.is_on(),
            files_sealed: autolock.is_on() || on_record.is_some_and(|seal| seal.files_sealed),
            unlock: AutoUnlock::None,
        };
        if on_disk != Some(autolock.version) || on_record != Some(wanted) {
            return Some(format!(
                "{}: its keyring is at {on_disk:?} of {}, on record is {on_record:?}",
                machine.name, autolock.version
            ));
        }
    }
    None
}

impl Keyring {
    // ---- the actor ------------------------------------------------------------------------------------------------

    /// The member's replica changed.
    pub(crate) fn observe(world: &mut World, idx: MachineIdx) {
        if !world.unlocking.active {
            return;
        }
        let machine = &mut world.machines[idx];
        let Some(runtime) = &machine.runtime else { return };
        let (number, goal) = (runtime.number, Goal::of(&runtime.core.cluster_replica().tables, machine.id));
        if machine.keyring.follower.as_ref().is_none_or(|follower| follower.runtime != number) {
            machine.keyring.disk.get_or_insert((Revision(0), None));
            let core = Autolock::new(AutoUnlock::None);
            machine.keyring.follower =
                Some(Follower { runtime: number, core, shown: None, wakes: None, reports: None });
        }
        let follower = machine.keyring.follower.as_mut().expect("it was just made");
        if follower.shown.as_ref() != Some(&goal) {
            follower.shown = Some(goal.clone());
            Self::step(world, idx, Input::Replica(goal));
        }
    }

    fn step(world: &mut World, idx: MachineIdx, input: Input) {
        let now = world.clock(idx);
        let Some(follower) = world.machines[idx].keyring.follower.as_mut() else { return };
        let mut effects = Vec::new();
        follower.core.step(now, input, &mut effects);
        for effect in effects {
            Self::apply(world, idx, effect);
        }
    }

    fn apply(world: &mut World, idx: MachineIdx, effect: Effect) {
        let life = world.machines[idx].life;
        match effect {
            Effect::Follow { version, key } => {
                let number = world.number();
                let keyring = &mut world.machines[idx].keyring;
                keyring.writing.insert(number, (version, key));
                let runtime = keyring.follower.as_ref().map_or(0, |follower| follower.runtime);
                let slow = world.faults_active && world.rng.chance(150);
                let takes = if slow { world.rng.millis(100, 3000) } else { world.rng.millis(1, 40) };
                world.time.after(takes, Event::KeyringWritten { idx, life, runtime, number });
                if world.settings.bug == Some(Bug::ReportUnwrittenKey) {
                    Self::step(world, idx, Input::Followed(version, Ok(Followed::Written)));
                }
            }
            Effect::SealFiles(version) => {
                let takes = world.rng.micros(50, 2000);
                let runtime = world.machines[idx].keyring.follower.as_ref().map_or(0, |follower| follower.runtime);
                world.time.after(takes, Event::FilesSealed { idx, runtime, version });
            }
            Effect::Report(seal) => Self::report(world, idx, seal),
            Effect::Took { .. } => {}
            Effect::Failed { version, why } => world.log(format!("n{} cannot take version {version}: {why}", idx + 1)),
            Effect::WakeAt(at) => {
                let Some(follower) = world.machines[idx].keyring.follower.as_mut() else { return };
                let runtime = follower.runtime;
                if let Some(at) = keep_earlier(&mut follower.wakes, Some(at)) {
                    let at = world.moment(idx, at);
                    world.time.at(at, Event::KeyringWoke { idx, runtime });
                }
            }
        }
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, runtime: u32) {
        if let Some(follower) = Self::follower(world, idx, runtime) {
            follower.wakes = None;
            Self::step(world, idx, Input::Woke);
        }
    }

    /// The write ends also if its actor has ended meanwhile: it blocks a thread.
    pub(crate) fn written(world: &mut World, idx: MachineIdx, life: u32, runtime: u32, number: u64) {
        let failed = world.faults_active && world.rng.chance(FAILED_WRITES_PER_1000);
        let ignores_versions = world.settings.bug == Some(Bug::FollowOlderKey);
        let machine = &mut world.machines[idx];
        if !machine.up || machine.life != life {
            return;
        }
        // Its keyring was deleted meanwhile.
        let Some(wanted) = machine.keyring.writing.remove(&number) else { return };
        let version = wanted.0;
        let result = if failed {
            Err(FollowFault::Failed("no space left".to_owned()))
        } else {
            machine.keyring.follow(wanted, ignores_versions)
        };
        world.totals.count(match &result {
            Ok(Followed::Written) => "keyrings written",
            Ok(Followed::Already) => "keyrings compared",
            Ok(Followed::Later(_)) => "older versions left alone",
            Err(_) => "fault: keyring not written",
        });
        world.log(format!("n{}: version {version} of the unlock key: {result:?}", idx + 1));
        if Self::follower(world, idx, runtime).is_some() {
            Self::step(world, idx, Input::Followed(version, result));
        }
    }

    /// While faults are injected, a disk may be full, or a rewrite may take long.
    pub(crate) fn files_sealed(world: &mut World, idx: MachineIdx, runtime: u32, version: Revision) {
        let sealed = !world.faults_active || !world.rng.chance(300);
        if Self::follower(world, idx, runtime).is_some() {
            world.totals.count(if sealed { "files sealed" } else { "files not sealed yet" });
            Self::step(world, idx, Input::FilesSealed(version, sealed));
        }
    }

    /// The actor of this manager runtime, if it still runs.
    fn follower(world: &mut World, idx: MachineIdx, runtime: u32) -> Option<&mut Follower> {
        world.machines[idx].keyring.follower.as_mut().filter(|follower| follower.runtime == runtime)
    }

    // ---- reports to the leader ------------------------------------------------------------------------------------

    fn report(world: &mut World, idx: MachineIdx, seal: Seal) {
        let life = world.machines[idx].life;
        let ask = Agent::question(world, idx, Question::Call(PeerCall::ReportSeal(seal)));
        let ask = ask.unwrap_or_else(|| world.number());
        if let Some(follower) = world.machines[idx].keyring.follower.as_mut() {
            follower.reports = Some(ask);
        }
        let late = Err(ErrorBody::new(ErrorCode::Unreachable, "no answer"));
        world.time.after(REPORT_TIMEOUT, Event::SealReported { to: Caller { idx, life, ask }, result: late });
    }

    /// A report arrived at the node that its sender believes leads.
    pub(crate) fn report_arrives(world: &mut World, to: MachineIdx, caller: Caller, seal: Seal) {
        let (node, now) = (world.machines[caller.idx].id, world.wall(to));
        let leads = world.machines[to].runtime.as_ref().filter(|runtime| runtime.core.leads());
        let command = leads
            .ok_or_else(|| ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead"))
            .and_then(|runtime| command_of(&runtime.core.replica().tables, now, node, seal));
        match command {
            Ok(command) => world.propose(to, Asker::Seal(caller), command, PROPOSE_TIMEOUT),
            Err(refused) => world.reply(to, caller, Answered::Seal(Err(refused))),
        }
    }

    pub(crate) fn reported(world: &mut World, to: Caller, result: Result<(), ErrorBody>) {
        let machine = &mut world.machines[to.idx];
        if !machine.up || machine.life != to.life {
            return;
        }
        let follower = machine.keyring.follower.as_mut();
        if follower.and_then(|follower| follower.reports.take_if(|ask| *ask == to.ask)).is_some() {
            if result.is_err() {
                world.totals.count("reports of keyrings without success");
            }
            Self::step(world, to.idx, Input::Reported(result));
        }
    }

    // ---- the process ----------------------------------------------------------------------------------------------

    /// The manager runtime ends; its disk may still be writing.
    pub(crate) fn runtime_ends(world: &mut World, idx: MachineIdx) {
        world.machines[idx].keyring.follower = None;
    }

    /// The process ends. A write that it had begun either happened or did not.
    pub(crate) fn process_ends(world: &mut World, idx: MachineIdx) {
        let ignores_versions = world.settings.bug == Some(Bug::FollowOlderKey);
        for (_, writing) in std::mem::take(&mut world.machines[idx].keyring.writing) {
            if world.rng.chance(500) {
                let _unreported = world.machines[idx].keyring.follow(writing, ignores_versions);
            }
        }
    }

    /// SEAL-4. A worker's keyring is deleted, after a write that had begun.
    pub(crate) fn certified(world: &mut World, idx: MachineIdx) {
        let machine = &mut world.machines[idx];
        machine.keyring.abandoned &= machine.certified() == Some(Role::Manager);
        if machine.certified() == Some(Role::Worker) && machine.runtime.is_none() {
            machine.keyring.disk = None;
            machine.keyring.writing.clear();
        }
    }

    /// Whether the process that would start now is locked. Then a person is asked.
    pub(crate) fn is_locked(world: &mut World, idx: MachineIdx) -> bool {
        if !world.unlocking.active {
            return false;
        }
        Self::certified(world, idx);
        let keyring = &mut world.machines[idx].keyring;
        let sealed = keyring.disk.as_ref().is_some_and(|(_, key)| key.is_some());
        if !sealed || std::mem::take(&mut keyring.opened) {
            return false;
        }
        if !std::mem::replace(&mut keyring.waits, true) {
            world.totals.count("managers locked");
            world.log(format!("n{} is locked", idx + 1));
            let slow = world.faults_active && world.rng.chance(200);
            let comes = if slow { world.rng.millis(4000, 12_000) } else { world.rng.millis(50, 3000) };
            world.time.after(comes, Event::Unlock(idx));
        }
        true
    }

    /// An operator gives a locked manager its key.
    pub(crate) fn unlock(world: &mut World, idx: MachineIdx) {
        let tables = world.checks.newest().cloned().unwrap_or_default();
        let machine = &mut world.machines[idx];
        machine.keyring.waits = false;
        if machine.up || machine.gone {
            return;
        }
        let Some((version, Some(key))) = machine.keyring.disk.clone() else { return Machine::start(world, idx) };
        let may_be_sealed = tables.nodes.get(&machine.id).is_some_and(|node| node.may_be_sealed());
        let needs = may_be_sealed && !machine.keyring.abandoned;
        let found = tables.autolock.key_of(version).map(|(key, _)| key);
        match found {
            Some(found) if *found == key => {
                machine.keyring.opened = true;
                let former = version != tables.autolock.version;
                world.totals.count(if former { "managers unlocked with a former key" } else { "managers unlocked" });
                Machine::start(world, idx);
            }
            _ if needs => world.require(Self::locked_out(world, idx, version)),
            // It was removed, or its worker's certificate is on record: it joins again with an empty directory.
            _ => {
                world.totals.count("former managers whose key is gone");
                world.machines[idx].gone = true;
            }
        }
    }

    fn locked_out(world: &World, idx: MachineIdx, version: Revision) -> CheckResult {
        let name = &world.machines[idx].name;
        Err(violation(SEAL_9, format!("{name} needs version {version} of the unlock key, which is not on record")))
    }

    // ---- operators and checks -------------------------------------------------------------------------------------

    /// A change of the unlock key, at any time.
    pub(crate) fn operator(world: &mut World) {
        if world.resting {
            return;
        }
        let next = world.rng.millis(100, 2500);
        world.time.after(next, Event::KeyOperator);
        let Some(idx) = world.leading() else { return };
        world.unlocking.keys_made += 1;
        let key = Secret::new(format!("key {}", world.unlocking.keys_made));
        let (change, what) = match world.rng.below(10) {
            0..=3 => (AutolockChange::Enable { key }, "operator: switched autolock on"),
            4..=7 => (AutolockChange::Rotate { key }, "operator: rotated the unlock key"),
            _ => (AutolockChange::Disable, "operator: switched autolock off"),
        };
        world.totals.count(what);
        world.log(what);
        let mut changes = vec![change];
        // SEAL-10: an entry that changes the key twice is refused as a whole.
        if world.rng.chance(100) {
            world.unlocking.keys_made += 1;
            let key = Secret::new(format!("key {}", world.unlocking.keys_made));
            changes.push(AutolockChange::Rotate { key });
            world.totals.count("operator: another unlock key in the same entry");
        }
        let changes = changes.into_iter().map(|change| Change::Autolock(Box::new(change)));
        let command = Command::idempotent(world.wall(idx), Principal::Operator, what);
        world.propose(idx, Asker::Internal, changes.fold(command, Command::change), PROPOSE_TIMEOUT);
    }

    /// A member has applied this state.
    pub(crate) fn check(world: &mut World, tables: &Tables) {
        if world.checks.newest().is_none_or(|newest| newest.revision != tables.revision) {
            return;
        }
        for machine in &mut world.machines {
            let recorded = tables.nodes.get(&machine.id);
            let is_worker = recorded.is_some_and(|node| !node.may_be_sealed());
            machine.keyring.abandoned |= is_worker && machine.certified() == Some(Role::Manager);
        }
        let outcome = (0..world.machines.len()).try_for_each(|idx| Self::check_machine(world, idx, tables));
        world.require(outcome);
    }

    fn check_machine(world: &World, idx: MachineIdx, tables: &Tables) -> CheckResult {
        let machine = &world.machines[idx];
        let may_be_sealed = tables.nodes.get(&machine.id).is_some_and(|node| node.may_be_sealed());
        if !may_be_sealed || machine.keyring.abandoned || machine.certified() != Some(Role::Manager) {
            return Ok(());
        }
        let on_disk = machine.keyring.disk.as_ref().map(|(version, _)| *version);
        // What has begun may be on disk, unless the keyring leaves it alone.
        let writing = machine.keyring.writing.values().filter(|(version, _)| Some(*version) > on_disk);
        for (version, key) in machine.keyring.disk.iter().chain(writing) {
            let Some(key) = key else { continue };
            if tables.autolock.key_of(*version).is_none_or(|(found, _)| found != key) {
                return Self::locked_out(world, idx, *version);
            }
        }
        let reported = tables.autolock.seals.get(&machine.id).map(|report| report.seal.version);
        match (&machine.keyring.disk, reported) {
            (Some((version, _)), Some(reported)) if reported > *version => {
                let detail = format!("{} is recorded at version {reported}, its keyring is at {version}", machine.name);
                Err(violation(SEAL_11, detail))
            }
            _ => Ok(()),
        }
    }
}
