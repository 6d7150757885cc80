//! The random run: a cluster grows under load and faults for most of a minute, then the faults end and it must settle.

use std::time::Duration;

use muster_messages::{Liveness, Membership, Moment, NodeRecord, Role, Tables};

use crate::blocks::SWEEP_INTERVAL;
use crate::checks::{CONVERGE_1, PROPOSE_1, READ_1, WRITE_1, violation};
use crate::events::Event;
use crate::faults::Faults;
use crate::machine::{Machine, MachineIdx};
use crate::report::Failure;
use crate::simulation::Simulation;

const SECOND: u64 = 1_000_000;
/// When fault injection ends.
const FAULTS_END: Moment = Moment(46 * SECOND);
/// Minimum length of a run.
const MIN_RUN_TIME: Moment = Moment(60 * SECOND);
/// Deadline for settling: several retries of the role manager, and a learner's silence.
const SETTLE_DEADLINE: Moment = Moment(130 * SECOND);
/// Minimum number of role changes in a run.
pub const ROLE_CHANGES: usize = 3;

/// Candidates and leases.
const CANDIDATES: usize = 20;
const LEASES: usize = 2;
/// When fault injection begins and ends, and the deadline for every lease to have a holder.
const LEASE_FAULTS_BEGIN: Moment = Moment(2 * SECOND);
const LEASE_FAULTS_END: Moment = Moment(14 * SECOND);
const LEASES_HELD_DEADLINE: Moment = Moment(40 * SECOND);

/// Many candidates for few leases on three managers under continuous faults. `Err`: an invariant is violated.
pub fn leases(sim: &mut Simulation) -> Result<(), Failure> {
    sim.world.clocks_drift = true;
    let disasters = sim.world.rng.chance(400);
    let young_leases = disasters && sim.world.rng.chance(400);
    if young_leases {
        sim.world.clocks_agree = true;
    }
    sim.world.found();
    sim.clients.start(&mut sim.world, 1);
    for _ in 0..2 {
        sim.world.join_machine(Role::Manager);
    }
    let first_ask = if young_leases { Duration::from_millis(2500) } else { Duration::ZERO };
    sim.candidates.start(&mut sim.world, CANDIDATES, LEASES, first_ask);
    sim.watchers.start(&mut sim.world, 2);
    if disasters {
        sim.recoveries.plan(&mut sim.world, if young_leases { 0 } else { LEASES });
    }
    sim.run_to(LEASE_FAULTS_BEGIN)?;
    sim.world.faults_active = true;
    sim.world.time.after(Duration::from_millis(1), Event::Fault);
    let soon = sim.world.rng.millis(500, 8000);
    sim.world.time.after(soon, Event::DisconnectLeader);
    sim.run_to(LEASE_FAULTS_END)?;
    Faults::clear(&mut sim.world);
    while let Some(lease) = (0..LEASES).find(|lease| sim.candidates.holder_of(&sim.world, *lease).is_none()) {
        if sim.world.now() >= LEASES_HELD_DEADLINE {
            return Err(sim.world.failure(&violation(CONVERGE_1, format!("lease {lease} is not acquired"))));
        }
        let next = sim.world.now() + Duration::from_millis(100);
        sim.run_to(next)?;
    }
    Ok(())
}

/// A growing cluster under load and faults, with callers that lie. `Err`: an invariant is violated.
pub fn roles(sim: &mut Simulation) -> Result<(), Failure> {
    let managers = 3 + sim.world.rng.below(3);
    let workers = (5usize.saturating_sub(managers)).max(1 + sim.world.rng.below(2));
    sim.world.found();
    sim.clients.start(&mut sim.world, 2);
    sim.registers.start(&mut sim.world, 3);
    sim.candidates.start(&mut sim.world, 3, 1, Duration::ZERO);
    sim.adversaries.start(&mut sim.world);
    for idx in 1..managers + workers {
        let role = if idx < managers { Role::Manager } else { Role::Worker };
        sim.world.join_machine(role);
    }
    // Faults begin while the cluster still grows.
    let quiet = sim.world.rng.millis(300, 3500);
    sim.world.faults_active = true;
    sim.world.time.after(quiet, Event::Fault);
    sim.world.time.after(Duration::from_millis(1500), Event::Operator);
    sim.run_to(FAULTS_END)?;
    Faults::clear(&mut sim.world);
    while sim.clients.accepted() < ROLE_CHANGES && sim.world.now() < MIN_RUN_TIME {
        let next = sim.world.now() + Duration::from_millis(500);
        sim.run_to(next)?;
    }
    sim.world.resting = true;
    let mut unsettled = Some(String::new());
    while unsettled.is_some() || sim.world.now() < MIN_RUN_TIME {
        if sim.world.now() >= SETTLE_DEADLINE {
            let detail = unsettled.unwrap_or_default();
            return Err(sim.world.failure(&violation(CONVERGE_1, detail)));
        }
        let next = sim.world.now() + Duration::from_millis(200);
        sim.run_to(next)?;
        unsettled = sim.unsettled();
    }
    lose_minority(sim)?;
    expire_certificates(sim)?;
    sim.settle_within(Duration::from_secs(10))?;
    check_final_state(sim)?;
    Ok(())
}

/// The settled cluster loses as many managers as it tolerates, and must keep working.
fn lose_minority(sim: &mut Simulation) -> Result<(), Failure> {
    let members: Vec<MachineIdx> =
        (0..sim.world.machines.len()).filter(|p| sim.world.machines[*p].member_id().is_some()).collect();
    let bears = (members.len() - 1) / 2;
    let leader = sim.world.leading();
    let mut victims = members;
    victims.sort_by_key(|p| Some(*p) != leader);
    victims.truncate(bears);
    for idx in &victims {
        Machine::crash(&mut sim.world, *idx, false);
    }
    let before = sim.world.totals.of("writes acknowledged");
    sim.world.resting = false;
    let limit = sim.world.now() + Duration::from_secs(8);
    while sim.world.totals.of("writes acknowledged") < before + 3 {
        if sim.world.now() >= limit {
            let detail = format!("no write is acknowledged with {} voters down", victims.len());
            return Err(sim.world.failure(&violation(CONVERGE_1, detail)));
        }
        let next = sim.world.now() + Duration::from_millis(50);
        sim.run_to(next)?;
    }
    sim.world.resting = true;
    sim.clients.reading = false;
    for idx in victims {
        Machine::start(&mut sim.world, idx);
    }
    sim.settle_within(Duration::from_secs(40))
}

impl Simulation {
    /// Injects faults until then: each of these events happens within `first_ms`, and causes the next one of its kind.
    pub(crate) fn inject(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        first_ms: u64,
        until: Moment,
    ) -> Result<(), Failure> {
        self.world.faults_active = true;
        for event in events {
            let soon = self.world.rng.millis(1, first_ms);
            self.world.time.after(soon, event);
        }
        self.run_to(until)?;
        Faults::clear(&mut self.world);
        self.world.resting = true;
        Ok(())
    }

    /// Runs until nothing is unfinished. `Err`: at the limit something is, which violates `invariant`.
    pub(crate) fn finish(
        &mut self,
        limit: Moment,
        invariant: &'static str,
        mut unfinished: impl FnMut(&mut Simulation) -> Option<String>,
    ) -> Result<(), Failure> {
        while let Some(why) = unfinished(self) {
            if self.world.now() >= limit {
                return Err(self.world.failure(&violation(invariant, why)));
            }
            let next = self.world.now() + Duration::from_millis(200);
            self.run_to(next)?;
        }
        Ok(())
    }

    pub(crate) fn settle_within(&mut self, limit_after: Duration) -> Result<(), Failure> {
        let limit = self.world.now() + limit_after;
        while let Some(detail) = self.unsettled() {
            if self.world.now() >= limit {
                return Err(self.world.failure(&violation(CONVERGE_1, detail)));
            }
            let next = self.world.now() + Duration::from_millis(100);
            self.run_to(next)?;
        }
        Ok(())
    }
}

fn check_final_state(sim: &mut Simulation) -> Result<(), Failure> {
    // Every deadline has passed by then.
    sim.run_to(sim.world.now() + Duration::from_secs(6))?;
    let tables = sim.world.checks.newest().cloned().unwrap_or_default();
    if let Err(why) = sim.world.model.check(&sim.world.model.floor(), &tables) {
        let name = if why.starts_with('k') { WRITE_1 } else { READ_1 };
        return Err(sim.world.failure(&violation(name, format!("at the end: {why}"))));
    }
    sim.registers.check(&mut sim.world);
    if let Some(violation) = sim.world.violation.clone() {
        return Err(sim.world.failure(&violation));
    }
    // One per agent, and as many that are closing.
    if sim.world.connections.len() > 2 * sim.world.machines.len() {
        let detail = format!("{} agents have {} connections", sim.world.machines.len(), sim.world.connections.len());
        return Err(sim.world.failure(&violation(CONVERGE_1, detail)));
    }
    for machine in &sim.world.machines {
        let Some(runtime) = &machine.runtime else { continue };
        let (proposals, reads, _) = runtime.core.in_flight();
        if !runtime.asks.is_empty() || proposals + reads > 0 {
            let n = runtime.asks.len();
            let detail =
                format!("{n} requests to {} were never answered; {proposals} proposals are in flight", machine.name);
            return Err(sim.world.failure(&violation(PROPOSE_1, detail)));
        }
    }
    Ok(())
}

impl Simulation {
    /// Describes why a node may not be ready.
    fn describe_session(&self, idx: MachineIdx, leader: MachineIdx, record: &NodeRecord) -> String {
        let machine = &self.world.machines[idx];
        let core = machine.agent.core.as_ref();
        let session = core.and_then(|c| c.session()).map(|s| self.world.name(s.host));
        let (at, why) = (core.and_then(|c| c.connecting_to()), core.and_then(|c| c.last_loss()));
        let hosts = self.world.machines[leader].runtime.as_ref().and_then(|h| h.leader.as_ref()?.dispatch.as_ref());
        let hosts: Vec<_> = hosts.into_iter().flat_map(|d| d.core.hosts()).map(|(h, ..)| self.world.name(h)).collect();
        let (name, is) = (&machine.name, record.liveness);
        format!("{name} is {is:?}; session={session:?} dialling={at:?} last_loss={why:?} hosts={hosts:?}")
    }

    // ---- settled --------------------------------------------------------------------------------------------------

    /// Why the cluster is not settled; `None` if it is.
    pub fn unsettled(&self) -> Option<String> {
        let Some(leader) = self.world.leading() else { return Some("no leader".to_owned()) };
        let runtime = self.world.machines[leader].runtime.as_ref()?;
        let tables = runtime.core.tables();
        for record in tables.nodes.values() {
            let Some(idx) = self.world.idx_of(record.id) else { continue };
            let machine = &self.world.machines[idx];
            if !machine.up {
                continue;
            }
            if record.liveness != Liveness::Ready || machine.agent.core.as_ref().is_none_or(|a| a.session().is_none()) {
                return Some(self.describe_session(idx, leader, record));
            }
            let membership = tables.membership_of(record.id);
            let wanted = if record.role == Role::Manager { Membership::Voter } else { Membership::None };
            let member_id = tables.member_of(record.id).map(|m| m.raft_id);
            let facts = (record.desired_role, record.role, machine.certified(), membership);
            let agree = record.desired_role == record.role
                && machine.certified() == Some(record.role)
                && membership == wanted
                && machine.member_id() == member_id
                && machine.runtime.is_some() == (wanted == Membership::Voter)
                && record.removing.is_none();
            if !agree {
                return Some(format!(
                    "{}: {facts:?}, member id {:?}, removing {:?}",
                    machine.name,
                    machine.member_id(),
                    record.removing
                ));
            }
        }
        for machine in self.world.machines.iter().filter(|m| m.up) {
            let known = tables.nodes.contains_key(&machine.id);
            if !known && machine.runtime.is_some() {
                return Some(format!("{} was removed and still runs its manager runtime", machine.name));
            }
            let waits = machine.agent.certificate.is_none() && machine.agent.ended.is_none();
            if !known && waits && !tables.blocklist.contains_key(&machine.id) {
                return Some(format!("{} has not joined", machine.name));
            }
            let joined = machine.agent.certificate.is_some();
            if !known && joined && machine.agent.ended.is_none() {
                return Some(format!("{} was removed and has not learned it", machine.name));
            }
            let Some(other) = &machine.runtime else { continue };
            if other.core.tables().revision != tables.revision || other.core.tables() != tables {
                return Some(format!("{} has not caught up", machine.name));
            }
        }
        let pending = runtime.leader.as_ref().and_then(|l| l.roles.as_ref()).map(|r| r.core.view().pending);
        match pending {
            None => return Some("the role manager is down".to_owned()),
            Some(pending) => {
                let up = |node| self.world.idx_of(node).is_some_and(|p| self.world.machines[p].up);
                if let Some(p) = pending.iter().find(|p| up(p.node)) {
                    return Some(format!("pending: {p:?}"));
                }
            }
        }
        if let Some((op, asked)) = self.clients.open_ops().next() {
            return Some(format!("{op:?} is unanswered: {asked:?}"));
        }
        if self.world.resting && self.registers.open() {
            return Some("a register operation is open".to_owned());
        }
        self.clients.writes_open().then(|| {
            let (name, flight) = (&self.world.machines[leader].name, runtime.core.in_flight());
            format!("a write is in flight: {:?}; leader {name}: {flight:?}", self.clients.writers)
        })
    }
}

/// Advances all calendars by more than a certificate lifetime, a day at a time: certificates are renewed and blocks expire.
pub(crate) fn expire_certificates(sim: &mut Simulation) -> Result<(), Failure> {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    // A certificate issued today, plus the margin of its block.
    let lifetime = sim.world.settings.authority.node_lifetime + DAY * 3;
    sim.world.log("calendars advance by a certificate lifetime");
    sim.world.model.swept = true;
    for _ in 0..lifetime.as_secs().div_ceil(DAY.as_secs()) {
        sim.world.calendar = sim.world.calendar.saturating_add(DAY);
        sim.run_to(sim.world.now() + Duration::from_millis(60))?;
    }
    sim.run_to(sim.world.now() + SWEEP_INTERVAL + Duration::from_secs(1))?;
    let now = sim.world.today();
    let over = |t: &Tables| t.blocklist.values().find(|b| b.expires_at.plus(DAY) < now).map(|b| b.node);
    if let Some(node) = sim.world.checks.newest().and_then(over) {
        let detail = format!("the block of {node} expired and was not deleted");
        return Err(sim.world.failure(&violation(CONVERGE_1, detail)));
    }
    Ok(())
}
