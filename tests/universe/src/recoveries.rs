//! Disasters: every manager is lost at once, and one goes on alone, from its own copy or from a backup, as the daemon does it
//! (`bins/src/daemon/recovery.rs`): the real survey of a disk, the real recovery of its state, the disk written anew. Some time
//! later it may happen again, from the same backup or from the copy of another manager of before. Candidates, writers and watches
//! live on through all of it, and are judged as if nothing had happened.
//!
//! What the product does not promise is not asked for. A lease that was first acquired after the copy was made is withheld by the wall
//! clock: in some runs all wall clocks agree and the only backup is older than every lease, in the others, where some wall clocks are
//! wrong, a copy knows every lease. The clocks of the machines that recover are right, so that the
//! later recovery has the later time; the managers that are lost stay away, but for one that comes back and is no majority.

use std::time::Duration;

use muster_messages::{Change, Command, Incarnation, IssuedCertificate, Moment, Principal, Role, Tables, WallTime};
use muster_raft_member::recovery::{Survey, survey_of, written_anew};
use muster_store::recovery::{Recovery, next_incarnation, recover};
use muster_store::{Place as LogPlace, apply_within, backup};

use crate::candidates::lease_key;
use crate::checks::broken;
use crate::machine::Place;
use crate::world::{Event, Universe};

pub const RECOVER_3: &str = "RECOVER-3";

/// Of two recoveries the later one has the later time, by the clock of whoever makes it: so much later at least.
const APART: Duration = Duration::from_secs(1);
/// Of the certificate that a manager signs for itself.
const LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
/// How often somebody looks whether there is a copy to go on with.
const LOOK: Duration = Duration::from_millis(200);
/// Attempts to recover, before the machines are started again as they are.
const PATIENCE: u32 = 15;

/// What a recovery starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This machine's disk.
    Copy(Place),
    Backup,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Recoveries {
    /// The file, as `muster backup` writes it.
    backup: Option<Vec<u8>>,
    /// Recoveries from it.
    restored: u32,
    /// How many leases a copy must hold.
    leases: usize,
    done: u32,
    /// When the last one was made, by its clock.
    last: Option<WallTime>,
    /// A manager of before a recovery is back. A second one could make a majority of the old cluster, which goes on then
    /// (docs/gaps.md).
    one_is_back: bool,
    /// All wall clocks show the same time, so that leases may be younger than the backup.
    clocks_agree: bool,
}

impl Recoveries {
    /// Whether all wall clocks show the same time.
    pub fn clocks_agree(&self) -> bool {
        self.clocks_agree
    }
    /// How many there were.
    pub fn done(&self) -> u32 {
        self.done
    }
}

impl Universe {
    /// From now on all wall clocks show the same time.
    pub(crate) fn clocks_agree(&mut self) {
        self.recoveries.clocks_agree = true;
    }

    /// In this run there will be a disaster, or two. A copy that is recovered from must know this many leases.
    pub(crate) fn plan_disasters(&mut self, leases: usize) {
        self.recoveries.leases = leases;
        let first = self.dice.millis(3500, 8000);
        let backup = if leases == 0 { 2000 } else { 2500 };
        self.time.after(Duration::from_millis(backup), Event::Backup);
        self.time.after(first, Event::Disaster);
    }

    fn holds_all(&self, tables: &Tables) -> bool {
        tables.cluster.is_some() && (0..self.recoveries.leases).all(|n| tables.objects.contains_key(&lease_key(n)))
    }

    /// An operator makes a backup, of whatever the manager that is asked has applied.
    pub(crate) fn make_backup(&mut self) {
        let too_late = self.recoveries.leases == 0 && self.recoveries.backup.is_some();
        if self.recoveries.done > 0 || too_late {
            return;
        }
        let again = self.dice.millis(300, 2500);
        self.time.after(again, Event::Backup);
        let Some(place) = self.some_manager().filter(|p| self.machines[*p].runs()) else { return };
        let Some(half) = self.machines[place].half.as_ref() else { return };
        let replica = half.core.replica().clone();
        if !self.holds_all(&replica.tables) {
            return;
        }
        if let Ok(file) = backup::encode(&replica.tables, replica.raft.term, self.wall(place)) {
            self.totals.count("backups made");
            self.say(format!("a backup of revision {}", replica.tables.revision));
            self.recoveries.backup = Some(file);
        }
    }

    /// All managers are lost, or stopped by somebody who has decided to go on with one.
    pub(crate) fn disaster(&mut self) {
        let ready = self.checks.newest().is_some_and(|tables| self.holds_all(tables));
        if !ready {
            return self.time.after(LOOK, Event::Disaster);
        }
        self.say("a disaster");
        let power = self.dice.chance(500);
        for place in 0..self.machines.len() {
            self.crash(place, power);
            self.machines[place].gone = true;
        }
        let soon = self.dice.millis(20, 900);
        self.time.after(soon, Event::Recover { attempt: 0 });
    }

    /// Somebody goes on alone.
    pub(crate) fn go_on_alone(&mut self, attempt: u32) {
        let Some((place, source, tables, term)) = self.something_to_go_on_with() else {
            if attempt < PATIENCE {
                return self.time.after(LOOK, Event::Recover { attempt: attempt + 1 });
            }
            self.totals.count("disasters that left no copy to go on with");
            for place in 0..self.machines.len() {
                self.machines[place].gone = false;
                self.start(place);
            }
            return;
        };
        if self.recover_at(place, source, tables, term).is_none() {
            return;
        }
        for _ in 0..self.dice.below(3) {
            self.join_machine(Role::Manager);
        }
        if self.recoveries.done < 2 && self.dice.chance(600) {
            let next = APART + self.dice.millis(1000, 3500);
            self.time.after(next, Event::Disaster);
        }
        let late = self.dice.millis(400, 2500);
        self.time.after(late, Event::Straggler);
    }

    /// A copy that holds what is asked of it, on a machine whose clock is right.
    fn something_to_go_on_with(&mut self) -> Option<(Place, Source, Tables, u64)> {
        let again = self.recoveries.restored > 0 && self.dice.chance(700);
        if let Some(file) = self.recoveries.backup.clone().filter(|_| again || self.dice.chance(400)) {
            let (head, tables) = backup::decode(&file).ok()?;
            let place = self.new_machine(Role::Manager);
            (self.machines[place].up, self.machines[place].gone) = (false, true);
            return self.clock_is_right(place).then_some((place, Source::Backup, tables, head.term.0));
        }
        let all: Vec<Place> = (0..self.machines.len()).collect();
        let place = self.dice.pick(&all).filter(|p| self.clock_is_right(*p))?;
        let Survey { tables, term, .. } = self.survey(place)?;
        let id = self.machines[place].id;
        let known = tables.nodes.contains_key(&id) && !tables.blocklist.contains_key(&id);
        (known && self.holds_all(&tables)).then_some((place, Source::Copy(place), tables, term))
    }

    fn clock_is_right(&self, place: Place) -> bool {
        self.recoveries.last.is_none_or(|last| self.wall(place) >= last.plus(APART))
    }

    fn survey(&mut self, place: Place) -> Option<Survey> {
        let disk = &mut self.machines[place].disk;
        if disk.held.is_none() || disk.lost.is_some() {
            return None;
        }
        survey_of(&self.settings.raft.limits, disk.recover()).ok()
    }

    /// As the daemon does it, in the same order.
    fn recover_at(&mut self, place: Place, source: Source, mut tables: Tables, term: u64) -> Option<()> {
        let at = self.wall(place);
        let (node, name, addr) = {
            let machine = &self.machines[place];
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
                self.hold_to(Err(broken("FAULT", format!("n{} cannot recover: {why}", place + 1))));
                return None;
            }
        };
        let certificate = self.sign_for_itself(place, &mut tables, incarnation, at)?;
        self.say(format!("n{} goes on alone from {source:?} at revision {}", place + 1, tables.revision));
        let write = written_anew(done.raft_id, term + 1, tables.clone());
        let machine = &mut self.machines[place];
        machine.disk.write_anew(write);
        machine.disk.held = Some(done.raft_id);
        machine.agent.certificate = Some(certificate);
        machine.agent.issued_at = at;
        machine.agent.known.clear();
        (machine.agent.told_demoted, machine.agent.ended) = (None, None);
        machine.gone = false;
        if source == Source::Backup {
            self.recoveries.restored += 1;
            self.totals
                .add("recoveries from a backup that was restored before", u64::from(self.recoveries.restored > 1));
            let open = self.now() + self.dice.millis(50, 700);
            self.machines[place].closed_until = open;
        }
        self.totals.count(if source == Source::Backup { "recoveries from a backup" } else { "recoveries from a copy" });
        self.totals.add("recoveries after another one", u64::from(self.recoveries.done > 0));
        self.recoveries.done += 1;
        self.recoveries.last = Some(at);
        self.model.recovered(&tables);
        let verdict = self.checks.recovered(&tables);
        self.hold_to(verdict);
        self.start(place);
        Some(())
    }

    fn sign_for_itself(
        &mut self,
        place: Place,
        tables: &mut Tables,
        incarnation: Incarnation,
        at: WallTime,
    ) -> Option<muster_messages::CertIdentity> {
        let node = self.machines[place].id;
        let granted = tables.nodes.get(&node)?.granted;
        let (serial, not_after) = (format!("{:08x}", self.number()), at.plus(LIFETIME));
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
        let next = LogPlace::from(tables.revision.next());
        if let Err(why) = apply_within(&self.settings.raft.limits, tables, next, &command) {
            self.hold_to(Err(broken("FAULT", format!("the certificate of the recovery: {why}"))));
            return None;
        }
        Some(crate::agents::certificate(node, Role::Manager, Some(granted), (serial, incarnation), not_after))
    }

    /// One of those who were lost comes back, with what its disk has. It is no majority of what it remembers.
    pub(crate) fn straggler(&mut self) {
        let gone: Vec<Place> = (0..self.machines.len()).filter(|p| self.machines[*p].gone).collect();
        let may = !self.recoveries.one_is_back;
        let Some(place) = self.dice.pick(&gone).filter(|_| may && self.dice.chance(500)) else { return };
        let few = |survey: &Survey| survey.tables.members.values().filter(|m| m.voter).count() < 3;
        if self.machines[place].agent.certificate.is_none() || self.survey(place).as_ref().is_none_or(few) {
            return;
        }
        self.totals.count("managers of before a recovery that came back");
        self.recoveries.one_is_back = true;
        self.machines[place].gone = false;
        self.start(place);
    }

    /// The cluster is closed until its operator has opened it.
    pub(crate) fn is_closed(&self, place: Place) -> bool {
        self.now() < self.machines[place].closed_until
    }

    /// The newest incarnation that a machine knows of.
    pub(crate) fn incarnation(&self, place: Place) -> Incarnation {
        let machine = &self.machines[place];
        machine.agent.certificate.as_ref().map_or(Incarnation(1), |certificate| certificate.incarnation)
    }
}

/// Nothing has happened yet.
pub const NEVER_CLOSED: Moment = Moment(0);
