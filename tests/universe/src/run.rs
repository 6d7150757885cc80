//! The random run: a cluster grows, is used and hurt for most of a minute, is healed, and must settle.

use std::time::Duration;

use muster_messages::{Incarnation, Liveness, Membership, Moment, NodeId, NodeRecord, Role, WallTime};

use crate::breaks::Break;
use crate::checks::{CONVERGE_1, PROPOSE_1, READ_1, WRITE_1, broken};
use crate::machine::{Agent, Machine, Place};
use crate::recoveries::NEVER_CLOSED;
use crate::report::{Failure, Report};
use crate::world::{Event, Universe};

const SECOND: u64 = 1_000_000;
/// When the hurting ends.
const HURT: Moment = Moment(46 * SECOND);
/// No run is shorter.
const LEAST: Moment = Moment(60 * SECOND);
/// By then everything has settled, or it never will: several retries of the role manager, and a learner's silence.
const SETTLED: Moment = Moment(130 * SECOND);
/// Role changes that each run has at least.
pub const ROLE_CHANGES: usize = 3;

/// One seed, from nothing to the end. `Err`: an invariant is broken.
pub fn run(seed: u64, broken: Option<Break>, aloud: bool) -> Result<Report, Failure> {
    let mut universe = Universe::with_break(seed, broken);
    universe.trace.aloud = aloud;
    let outcome = universe.live();
    Break::engage(None, &mut universe.settings);
    outcome
}

/// One seed with many candidates for few leases on three managers that are hurt all the time. `Err`: an invariant is
/// broken.
pub fn run_leases(seed: u64, broken: Option<Break>, aloud: bool) -> Result<Report, Failure> {
    let mut universe = Universe::with_break(seed, broken);
    universe.trace.aloud = aloud;
    let outcome = universe.contend();
    Break::engage(None, &mut universe.settings);
    outcome
}

/// How many candidates there are for how many leases.
const CANDIDATES: usize = 20;
const LEASES: usize = 2;
/// When the hurting of candidates and managers begins and ends, and by when every lease has a holder again.
const CONTENDED: Moment = Moment(2 * SECOND);
const SPARED: Moment = Moment(14 * SECOND);
const HELD_AGAIN: Moment = Moment(40 * SECOND);

impl Universe {
    fn contend(&mut self) -> Result<Report, Failure> {
        self.drifts = true;
        let disasters = self.dice.chance(400);
        let young_leases = disasters && self.dice.chance(400);
        if young_leases {
            self.clocks_agree();
        }
        self.found();
        self.start_clients(1);
        for _ in 0..2 {
            self.join_machine(Role::Manager);
        }
        let first_ask = if young_leases { Duration::from_millis(2500) } else { Duration::ZERO };
        self.start_candidates(CANDIDATES, LEASES, first_ask);
        self.start_watchers(2);
        if disasters {
            self.plan_disasters(if young_leases { 0 } else { LEASES });
        }
        self.run_to(CONTENDED)?;
        self.faults.active = true;
        self.time.after(Duration::from_millis(1), Event::Fault);
        let soon = self.dice.millis(500, 8000);
        self.time.after(soon, Event::CutOffTheLeader);
        self.run_to(SPARED)?;
        self.heal();
        while let Some(lease) = (0..LEASES).find(|lease| self.holder_of(*lease).is_none()) {
            if self.now() >= HELD_AGAIN {
                return Err(self.failure(&broken(CONVERGE_1, format!("nobody takes lease {lease}"))));
            }
            let next = self.now() + Duration::from_millis(100);
            self.run_to(next)?;
        }
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }

    fn live(&mut self) -> Result<Report, Failure> {
        let managers = 3 + self.dice.below(3);
        let workers = (5usize.saturating_sub(managers)).max(1 + self.dice.below(2));
        self.found();
        self.start_clients(2);
        self.start_registers(3);
        self.start_candidates(3, 1, Duration::ZERO);
        self.start_liars();
        for place in 1..managers + workers {
            let role = if place < managers { Role::Manager } else { Role::Worker };
            self.join_machine(role);
        }
        // Faults begin while the cluster still grows.
        let quiet = self.dice.millis(300, 3500);
        self.faults.active = true;
        self.time.after(quiet, Event::Fault);
        self.time.after(Duration::from_millis(1500), Event::Operator);
        self.run_to(HURT)?;
        self.heal();
        while self.clients.accepted() < ROLE_CHANGES && self.now() < LEAST {
            let next = self.now() + Duration::from_millis(500);
            self.run_to(next)?;
        }
        self.clients.resting = true;
        let mut unsettled = Some(String::new());
        while unsettled.is_some() || self.now() < LEAST {
            if self.now() >= SETTLED {
                let detail = unsettled.unwrap_or_default();
                return Err(self.failure(&broken(CONVERGE_1, detail)));
            }
            let next = self.now() + Duration::from_millis(200);
            self.run_to(next)?;
            unsettled = self.unsettled();
        }
        self.survive()?;
        self.seasons_pass()?;
        self.settle_within(Duration::from_secs(10))?;
        self.judge_the_end()?;
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }

    /// The settled cluster loses as many managers as it can bear, and goes on.
    fn survive(&mut self) -> Result<(), Failure> {
        let seats: Vec<Place> = (0..self.machines.len()).filter(|p| self.machines[*p].seat().is_some()).collect();
        let bears = (seats.len() - 1) / 2;
        let leader = self.leading();
        let mut victims = seats;
        victims.sort_by_key(|p| Some(*p) != leader);
        victims.truncate(bears);
        for place in &victims {
            self.crash(*place, false);
        }
        let before = self.totals.of("writes acknowledged");
        self.clients.resting = false;
        let limit = self.now() + Duration::from_secs(8);
        while self.totals.of("writes acknowledged") < before + 3 {
            if self.now() >= limit {
                let detail = format!("no write got through with {} of the voters down", victims.len());
                return Err(self.failure(&broken(CONVERGE_1, detail)));
            }
            let next = self.now() + Duration::from_millis(50);
            self.run_to(next)?;
        }
        self.clients.resting = true;
        self.clients.reading = false;
        for place in victims {
            self.start(place);
        }
        self.settle_within(Duration::from_secs(40))
    }

    fn settle_within(&mut self, patience: Duration) -> Result<(), Failure> {
        let limit = self.now() + patience;
        while let Some(detail) = self.unsettled() {
            if self.now() >= limit {
                return Err(self.failure(&broken(CONVERGE_1, detail)));
            }
            let next = self.now() + Duration::from_millis(100);
            self.run_to(next)?;
        }
        Ok(())
    }

    fn judge_the_end(&mut self) -> Result<(), Failure> {
        // Every deadline has passed by then.
        self.run_to(self.now() + Duration::from_secs(6))?;
        let tables = self.checks.newest().cloned().unwrap_or_default();
        if let Err(why) = self.model.judge(&self.model.floor(), &tables) {
            let name = if why.starts_with('k') { WRITE_1 } else { READ_1 };
            return Err(self.failure(&broken(name, format!("at the end: {why}"))));
        }
        self.judge_registers();
        if let Some(broken) = self.broken.clone() {
            return Err(self.failure(&broken));
        }
        // One each, and as many again on their way out.
        if self.lines.len() > 2 * self.machines.len() {
            let detail = format!("{} agents have {} lines", self.machines.len(), self.lines.len());
            return Err(self.failure(&broken(CONVERGE_1, detail)));
        }
        for machine in &self.machines {
            let Some(half) = &machine.half else { continue };
            let (proposals, reads, _) = half.core.in_flight();
            if !half.asks.is_empty() || proposals + reads > 0 {
                let n = half.asks.len();
                let detail =
                    format!("{n} asks of {} were never answered; {proposals} proposals are in flight", machine.name);
                return Err(self.failure(&broken(PROPOSE_1, detail)));
            }
        }
        Ok(())
    }

    // ---- machines -------------------------------------------------------------------------------------------------

    /// The first machine founds the cluster. Its labels are the ledger, so it is never removed.
    pub(crate) fn found(&mut self) {
        let place = self.new_machine(Role::Manager);
        let (id, wall) = (self.machines[place].id, self.wall(place));
        let later = wall.plus(Duration::from_secs(90 * 24 * 3600));
        let first = crate::agents::certificate(id, Role::Manager, None, ("founder".to_owned(), Incarnation(1)), later);
        self.machines[place].agent.certificate = Some(first);
        self.machines[place].agent.issued_at = wall;
        self.model.ledger = Some(id);
        self.start_half(place, true);
        self.start_agent(place);
        self.time.after(Duration::from_millis(5), Event::Agent { place, life: 0 });
    }

    /// A new machine that joins with a token for this role.
    pub(crate) fn join_machine(&mut self, role: Role) -> Place {
        let place = self.new_machine(role);
        self.say(format!("n{} wants to join as {role}", place + 1));
        let soon = self.dice.millis(1, 50);
        self.time.after(soon, Event::Agent { place, life: 0 });
        place
    }

    pub(crate) fn new_machine(&mut self, joins_as: Role) -> Place {
        let place = self.machines.len();
        let id = NodeId::from_entropy(self.dice.wide());
        let name = muster_messages::Name::sanitized(&format!("n{}", place + 1));
        let machine = Machine {
            id,
            name,
            addr: format!("10.0.0.{}:4400", place + 1),
            up: true,
            life: 0,
            thaws: None,
            clock: self.dice.roll() % 1_000_000_000_000,
            rate: self.rate(),
            wall_skew: (self.dice.roll() % 4000) as i64 - 2000,
            disk: crate::disk::Disk::default(),
            agent: Agent {
                core: None,
                certificate: None,
                issued_at: WallTime(0),
                former: Vec::new(),
                told_demoted: None,
                ended: None,
                known: Vec::new(),
                wanted: false,
                wakes: None,
                asking: None,
                joins_as,
                request: muster_messages::RequestId(self.dice.wide() | 1),
            },
            half: None,
            silent_since: Some(Moment(0)),
            takes_at_most: None,
            gone: false,
            closed_until: NEVER_CLOSED,
        };
        self.machines.push(machine);
        self.places.insert(id, place);
        self.net.grow(self.machines.len());
        place
    }

    /// Why a node may not be ready, for people.
    fn session_of(&self, place: Place, leader: Place, record: &NodeRecord) -> String {
        let machine = &self.machines[place];
        let core = machine.agent.core.as_ref();
        let session = core.and_then(|c| c.session()).map(|s| self.name(s.host));
        let (at, why) = (core.and_then(|c| c.connecting_to()), core.and_then(|c| c.last_loss()));
        let hosts = self.machines[leader].half.as_ref().and_then(|h| h.leader.as_ref()?.dispatch.as_ref());
        let hosts: Vec<_> = hosts.into_iter().flat_map(|d| d.core.hosts()).map(|(h, ..)| self.name(h)).collect();
        let (name, is) = (&machine.name, record.liveness);
        format!("{name} is {is:?}; in session with {session:?}; it dials {at:?} after {why:?}; heard of are {hosts:?}")
    }

    // ---- settled --------------------------------------------------------------------------------------------------

    /// What keeps the cluster from being settled; `None` when nothing does.
    pub fn unsettled(&self) -> Option<String> {
        let Some(leader) = self.leading() else { return Some("nobody leads".to_owned()) };
        let half = self.machines[leader].half.as_ref()?;
        let tables = half.core.tables();
        for record in tables.nodes.values() {
            let Some(place) = self.place_of(record.id) else { continue };
            let machine = &self.machines[place];
            if !machine.up {
                continue;
            }
            if record.liveness != Liveness::Ready || machine.agent.core.as_ref().is_none_or(|a| a.session().is_none()) {
                return Some(self.session_of(place, leader, record));
            }
            let membership = tables.membership_of(record.id);
            let wanted = if record.role == Role::Manager { Membership::Voter } else { Membership::None };
            let seat = tables.seat_of(record.id).map(|m| m.raft_id);
            let facts = (record.desired_role, record.role, machine.certified(), membership);
            let agree = record.desired_role == record.role
                && machine.certified() == Some(record.role)
                && membership == wanted
                && machine.seat() == seat
                && machine.half.is_some() == (wanted == Membership::Voter)
                && record.removing.is_none();
            if !agree {
                return Some(format!(
                    "{}: {facts:?}, seat {:?}, removing {:?}",
                    machine.name,
                    machine.seat(),
                    record.removing
                ));
            }
        }
        for machine in self.machines.iter().filter(|m| m.up) {
            let known = tables.nodes.contains_key(&machine.id);
            if !known && machine.half.is_some() {
                return Some(format!("{} was removed and still runs its manager half", machine.name));
            }
            let waits = machine.agent.certificate.is_none() && machine.agent.ended.is_none();
            if !known && waits && !tables.blocklist.contains_key(&machine.id) {
                return Some(format!("{} has not joined", machine.name));
            }
            let joined = machine.agent.certificate.is_some();
            if !known && joined && machine.agent.ended.is_none() {
                return Some(format!("{} was removed and has not been told", machine.name));
            }
            let Some(other) = &machine.half else { continue };
            if other.core.tables().revision != tables.revision || other.core.tables() != tables {
                return Some(format!("{} has not caught up", machine.name));
            }
        }
        let pending = half.leader.as_ref().and_then(|l| l.roles.as_ref()).map(|r| r.core.view().pending);
        match pending {
            None => return Some("the role manager is down".to_owned()),
            Some(pending) => {
                let up = |node| self.place_of(node).is_some_and(|p| self.machines[p].up);
                if let Some(p) = pending.iter().find(|p| up(p.node)) {
                    return Some(format!("pending: {p:?}"));
                }
            }
        }
        if let Some((op, asked)) = self.clients.open_ops().next() {
            return Some(format!("{op:?} is not answered: {asked:?}"));
        }
        if self.clients.resting && self.registers.open() {
            return Some("a register's client waits".to_owned());
        }
        self.clients.writes_open().then(|| {
            let (name, flight) = (&self.machines[leader].name, half.core.in_flight());
            format!("a write is on its way: {:?}; leader {name}: {flight:?}", self.clients.writers)
        })
    }
}
