//! Disasters: every manager is lost at once, and one recovers alone, from its own data or a backup, as the daemon does it
//! (`bins/src/daemon/recovery.rs`): the real survey of a disk, the real recovery of its state, the rewritten disk. It may
//! happen again later, from the same backup or from another former manager's data. Candidates, writers and watches
//! continue through it and are checked as if nothing had happened.
//!
//! The runs exclude what the product does not promise. A lease first acquired after the recovered state was saved is withheld by wall
//! clock: in some runs all wall clocks agree and the only backup is older than every lease; in the others, where some wall clocks are
//! wrong, the recovered state knows every lease. Recovering machines have right clocks, so that a later recovery
//! has a later time. Lost managers stay away, except for one that returns and is no majority.

use std::time::Duration;

use muster_messages::{Change, Command, Incarnation, IssuedCertificate, Moment, Principal, Role, Tables, WallTime};
use muster_raft_member::recovery::{Survey, replacement_write, survey_of};
use muster_store::recovery::{Recovery, next_incarnation, recover};
use muster_store::{apply_within, backup};

use crate::candidates::lease_key;
use crate::checks::violation;
use crate::events::Event;
use crate::machine::{Machine, MachineIdx};
use crate::world::World;

pub const RECOVER_3: &str = "RECOVER-3";

/// Minimum time between two recoveries, by the clocks of the recovering machines.
const MIN_RECOVERY_SPACING: Duration = Duration::from_secs(1);
/// Lifetime of the certificate that a recovering manager signs for itself.
const SELF_SIGNED_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
/// Delay before another search for recoverable data.
const RECOVERY_RETRY: Duration = Duration::from_millis(200);
/// Attempts to recover before the machines are restarted unchanged.
const MAX_RECOVERY_ATTEMPTS: u32 = 15;

/// The source of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This machine's disk.
    Disk(MachineIdx),
    Backup,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Recoveries {
    /// The file, as `muster backup` writes it.
    backup: Option<Vec<u8>>,
    /// Recoveries from it.
    restored: u32,
    /// How many leases the recovered state must hold.
    leases: usize,
    /// When the last recovery was made, by its machine's clock.
    last: Option<WallTime>,
    /// A manager from before a recovery has returned. A second one could complete a majority of the old cluster, which would
    /// continue (docs/gaps.md).
    one_is_back: bool,
}

impl Recoveries {
    /// Schedules one or two disasters. The recovered state must know this many leases.
    pub(crate) fn plan(&mut self, world: &mut World, leases: usize) {
        self.leases = leases;
        let first = world.rng.millis(3500, 8000);
        let backup = if leases == 0 { 2000 } else { 2500 };
        world.time.after(Duration::from_millis(backup), Event::Backup);
        world.time.after(first, Event::Disaster);
    }

    fn holds_all(&self, tables: &Tables) -> bool {
        tables.cluster.is_some() && (0..self.leases).all(|n| tables.objects.contains_key(&lease_key(n)))
    }

    /// Backs up the state that a random manager has applied.
    pub(crate) fn make_backup(&mut self, world: &mut World) {
        let too_late = self.leases == 0 && self.backup.is_some();
        if world.recoveries_done > 0 || too_late {
            return;
        }
        let again = world.rng.millis(300, 2500);
        world.time.after(again, Event::Backup);
        let Some(idx) = world.any_manager().filter(|p| world.machines[*p].runs()) else { return };
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        let replica = runtime.core.replica().clone();
        if !self.holds_all(&replica.tables) {
            return;
        }
        if let Ok(file) = backup::encode(&replica.tables, replica.raft.term, world.wall(idx)) {
            world.totals.count("backups created");
            world.log(format!("a backup of revision {}", replica.tables.revision));
            self.backup = Some(file);
        }
    }

    /// All managers are lost, or stopped by an operator who recovers one.
    pub(crate) fn disaster(&mut self, world: &mut World) {
        let ready = world.checks.newest().is_some_and(|tables| self.holds_all(tables));
        if !ready {
            return world.time.after(RECOVERY_RETRY, Event::Disaster);
        }
        world.log("a disaster");
        let power = world.rng.chance(500);
        for idx in 0..world.machines.len() {
            Machine::crash(world, idx, power);
            world.machines[idx].gone = true;
        }
        let soon = world.rng.millis(20, 900);
        world.time.after(soon, Event::Recover { attempt: 0 });
    }

    /// One machine recovers alone.
    pub(crate) fn recover_alone(&mut self, world: &mut World, attempt: u32) {
        let Some((idx, source, tables, term)) = self.recovery_source(world) else {
            if attempt < MAX_RECOVERY_ATTEMPTS {
                return world.time.after(RECOVERY_RETRY, Event::Recover { attempt: attempt + 1 });
            }
            world.totals.count("disasters without recoverable data");
            for idx in 0..world.machines.len() {
                world.machines[idx].gone = false;
                Machine::start(world, idx);
            }
            return;
        };
        if self.recover_at(world, idx, source, tables, term).is_none() {
            return;
        }
        for _ in 0..world.rng.below(3) {
            world.join_machine(Role::Manager);
        }
        if world.recoveries_done < 2 && world.rng.chance(600) {
            let next = MIN_RECOVERY_SPACING + world.rng.millis(1000, 3500);
            world.time.after(next, Event::Disaster);
        }
        let late = world.rng.millis(400, 2500);
        world.time.after(late, Event::Straggler);
    }

    /// Data that satisfy the plan, on a machine whose clock is right.
    fn recovery_source(&mut self, world: &mut World) -> Option<(MachineIdx, Source, Tables, u64)> {
        let again = self.restored > 0 && world.rng.chance(700);
        if let Some(file) = self.backup.clone().filter(|_| again || world.rng.chance(400)) {
            let (head, tables) = backup::decode(&file).ok()?;
            let idx = world.new_machine(Role::Manager);
            (world.machines[idx].up, world.machines[idx].gone) = (false, true);
            return self.clock_is_right(world, idx).then_some((idx, Source::Backup, tables, head.term.0));
        }
        let all: Vec<MachineIdx> = (0..world.machines.len()).collect();
        let idx = world.rng.pick(&all).filter(|p| self.clock_is_right(world, *p))?;
        let Survey { tables, term, .. } = Self::survey(world, idx)?;
        let id = world.machines[idx].id;
        let known = tables.nodes.contains_key(&id) && !tables.blocklist.contains_key(&id);
        (known && self.holds_all(&tables)).then_some((idx, Source::Disk(idx), tables, term))
    }

    fn clock_is_right(&self, world: &World, idx: MachineIdx) -> bool {
        self.last.is_none_or(|last| world.wall(idx) >= last.plus(MIN_RECOVERY_SPACING))
    }

    fn survey(world: &mut World, idx: MachineIdx) -> Option<Survey> {
        let disk = &mut world.machines[idx].disk;
        if disk.held.is_none() || disk.lost.is_some() {
            return None;
        }
        survey_of(&world.settings.raft.limits, disk.recover()).ok()
    }

    /// In the daemon's order.
    fn recover_at(
        &mut self,
        world: &mut World,
        idx: MachineIdx,
        source: Source,
        mut tables: Tables,
        term: u64,
    ) -> Option<()> {
        let at = world.wall(idx);
        let (node, name, addr) = {
            let machine = &world.machines[idx];
            (machine.id, machine.name.clone(), machine.addr.clone())
        };
        let cluster = tables.cluster.clone()?;
        let admit_as = (source == Source::Backup).then_some(name);
        let incarnation = next_incarnation(&cluster, at);
        let reason = "a disaster".to_owned();
        let recovery = Recovery { node, admit_as, addr, incarnation, at, reason };
        let done = match recover(&mut tables, &recovery) {
            Ok(done) => done,
            Err(why) => {
                world.require(Err(violation("FAULT", format!("n{} cannot recover: {why}", idx + 1))));
                return None;
            }
        };
        let certificate = Self::sign_for_itself(world, idx, &mut tables, incarnation, at)?;
        world.log(format!("n{} recovers alone from {source:?} at revision {}", idx + 1, tables.revision));
        let write = replacement_write(done.raft_id, term + 1, tables.clone());
        let machine = &mut world.machines[idx];
        machine.disk.rewrite(write);
        machine.disk.held = Some(done.raft_id);
        machine.agent.certificate = Some(certificate);
        machine.agent.issued_at = at;
        machine.agent.known.clear();
        (machine.agent.demotion_reported, machine.agent.ended) = (None, None);
        machine.gone = false;
        if source == Source::Backup {
            self.restored += 1;
            world.totals.add("recoveries from a backup restored before", u64::from(self.restored > 1));
            let open = world.now() + world.rng.millis(50, 700);
            world.machines[idx].closed_until = open;
        }
        world.totals.count(if source == Source::Backup {
            "recoveries from a backup"
        } else {
            "recoveries from a local replica"
        });
        world.totals.add("repeated recoveries", u64::from(world.recoveries_done > 0));
        world.recoveries_done += 1;
        self.last = Some(at);
        world.model.recovered(&tables);
        let outcome = world.checks.recovered(&tables);
        world.require(outcome);
        Machine::start(world, idx);
        Some(())
    }

    fn sign_for_itself(
        world: &mut World,
        idx: MachineIdx,
        tables: &mut Tables,
        incarnation: Incarnation,
        at: WallTime,
    ) -> Option<muster_messages::CertIdentity> {
        let node = world.machines[idx].id;
        let granted = tables.nodes.get(&node)?.granted;
        let (serial, not_after) = (format!("{:08x}", world.number()), at.plus(SELF_SIGNED_LIFETIME));
        let replaces = tables.certificates.get(&node).and_then(|row| Some(row.current.as_ref()?.serial.clone()));
        let issued = IssuedCertificate {
            serial: serial.clone(),
            role: Role::Manager,
            granted: Some(granted),
            not_after,
            pin: None,
            issuer: None,
        };
        let change = Change::IssueCertificate { node, certificate: Box::new(issued), held: None, replaces };
        let command = Command::idempotent(at, Principal::Operator, "a disaster").change(change);
        let next = tables.revision.next().into();
        if let Err(why) = apply_within(&world.settings.raft.limits, tables, next, &command) {
            world.require(Err(violation("FAULT", format!("the certificate of the recovery: {why}"))));
            return None;
        }
        Some(crate::agents::certificate(node, Role::Manager, Some(granted), (serial, incarnation), not_after))
    }

    /// One lost manager returns with its disk. It must not be a majority of its own configuration.
    pub(crate) fn straggler(&mut self, world: &mut World) {
        let gone: Vec<MachineIdx> = (0..world.machines.len()).filter(|p| world.machines[*p].gone).collect();
        let may = !self.one_is_back;
        let Some(idx) = world.rng.pick(&gone).filter(|_| may && world.rng.chance(500)) else { return };
        let few = |survey: &Survey| survey.tables.members.values().filter(|m| m.voter).count() < 3;
        if world.machines[idx].agent.certificate.is_none() || Self::survey(world, idx).as_ref().is_none_or(few) {
            return;
        }
        world.totals.count("managers returned from before a recovery");
        self.one_is_back = true;
        world.machines[idx].gone = false;
        Machine::start(world, idx);
    }
}

/// Never closed.
pub const NEVER_CLOSED: Moment = Moment(0);
