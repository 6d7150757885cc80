//! The random run: a cluster grows under load and faults for most of a minute, then the faults end and it must settle.

use std::time::Duration;

use muster_messages::{Incarnation, Liveness, Membership, Moment, NodeId, NodeRecord, Role, WallTime};

use crate::bugs::Bug;
use crate::checks::{CONVERGE_1, PROPOSE_1, READ_1, WRITE_1, violation};
use crate::machine::{Agent, Machine, MachineIdx};
use crate::recoveries::NEVER_CLOSED;
use crate::report::{Failure, Report};
use crate::simulation::{Event, Simulation};

const SECOND: u64 = 1_000_000;
/// When fault injection ends.
const FAULTS_END: Moment = Moment(46 * SECOND);
/// Minimum length of a run.
const MIN_RUN_TIME: Moment = Moment(60 * SECOND);
/// Deadline for settling: several retries of the role manager, and a learner's silence.
const SETTLE_DEADLINE: Moment = Moment(130 * SECOND);
/// Minimum number of role changes in a run.
pub const ROLE_CHANGES: usize = 3;

/// Runs one seed. `Err`: an invariant is violated.
pub fn run(seed: u64, bug: Option<Bug>, verbose: bool) -> Result<Report, Failure> {
    let mut simulation = Simulation::with_bug(seed, bug);
    simulation.trace.verbose = verbose;
    let outcome = simulation.simulate_roles();
    Bug::enable(None, &mut simulation.settings);
    outcome
}

/// Runs one seed with many candidates for few leases on three managers under continuous faults. `Err`: an invariant is
/// violated.
pub fn run_leases(seed: u64, bug: Option<Bug>, verbose: bool) -> Result<Report, Failure> {
    let mut simulation = Simulation::with_bug(seed, bug);
    simulation.trace.verbose = verbose;
    let outcome = simulation.simulate_leases();
    Bug::enable(None, &mut simulation.settings);
    outcome
}

/// Candidates and leases.
const CANDIDATES: usize = 20;
const LEASES: usize = 2;
/// When fault injection begins and ends, and the deadline for every lease to have a holder.
const LEASE_FAULTS_BEGIN: Moment = Moment(2 * SECOND);
const LEASE_FAULTS_END: Moment = Moment(14 * SECOND);
const LEASES_HELD_DEADLINE: Moment = Moment(40 * SECOND);

impl Simulation {
    fn simulate_leases(&mut self) -> Result<Report, Failure> {
        self.clocks_drift = true;
        let disasters = self.rng.chance(400);
        let young_leases = disasters && self.rng.chance(400);
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
        self.run_to(LEASE_FAULTS_BEGIN)?;
        self.faults.active = true;
        self.time.after(Duration::from_millis(1), Event::Fault);
        let soon = self.rng.millis(500, 8000);
        self.time.after(soon, Event::DisconnectLeader);
        self.run_to(LEASE_FAULTS_END)?;
        self.clear_faults();
        while let Some(lease) = (0..LEASES).find(|lease| self.holder_of(*lease).is_none()) {
            if self.now() >= LEASES_HELD_DEADLINE {
                return Err(self.failure(&violation(CONVERGE_1, format!("lease {lease} is not acquired"))));
            }
            let next = self.now() + Duration::from_millis(100);
            self.run_to(next)?;
        }
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }

    fn simulate_roles(&mut self) -> Result<Report, Failure> {
        let managers = 3 + self.rng.below(3);
        let workers = (5usize.saturating_sub(managers)).max(1 + self.rng.below(2));
        self.found();
        self.start_clients(2);
        self.start_registers(3);
        self.start_candidates(3, 1, Duration::ZERO);
        self.start_adversaries();
        for idx in 1..managers + workers {
            let role = if idx < managers { Role::Manager } else { Role::Worker };
            self.join_machine(role);
        }
        // Faults begin while the cluster still grows.
        let quiet = self.rng.millis(300, 3500);
        self.faults.active = true;
        self.time.after(quiet, Event::Fault);
        self.time.after(Duration::from_millis(1500), Event::Operator);
        self.run_to(FAULTS_END)?;
        self.clear_faults();
        while self.clients.accepted() < ROLE_CHANGES && self.now() < MIN_RUN_TIME {
            let next = self.now() + Duration::from_millis(500);
            self.run_to(next)?;
        }
        self.clients.resting = true;
        let mut unsettled = Some(String::new());
        while unsettled.is_some() || self.now() < MIN_RUN_TIME {
            if self.now() >= SETTLE_DEADLINE {
                let detail = unsettled.unwrap_or_default();
                return Err(self.failure(&violation(CONVERGE_1, detail)));
            }
            let next = self.now() + Duration::from_millis(200);
            self.run_to(next)?;
            unsettled = self.unsettled();
        }
        self.lose_minority()?;
        self.expire_certificates()?;
        self.settle_within(Duration::from_secs(10))?;
        self.check_final_state()?;
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }

    /// The settled cluster loses as many managers as it tolerates, and must keep working.
    fn lose_minority(&mut self) -> Result<(), Failure> {
        let members: Vec<MachineIdx> =
            (0..self.machines.len()).filter(|p| self.machines[*p].member_id().is_some()).collect();
        let bears = (members.len() - 1) / 2;
        let leader = self.leading();
        let mut victims = members;
        victims.sort_by_key(|p| Some(*p) != leader);
        victims.truncate(bears);
        for idx in &victims {
            self.crash(*idx, false);
        }
        let before = self.totals.of("writes acknowledged");
        self.clients.resting = false;
        let limit = self.now() + Duration::from_secs(8);
        while self.totals.of("writes acknowledged") < before + 3 {
            if self.now() >= limit {
                let detail = format!("no write is acknowledged with {} voters down", victims.len());
                return Err(self.failure(&violation(CONVERGE_1, detail)));
            }
            let next = self.now() + Duration::from_millis(50);
            self.run_to(next)?;
        }
        self.clients.resting = true;
        self.clients.reading = false;
        for idx in victims {
            self.start(idx);
        }
        self.settle_within(Duration::from_secs(40))
    }

    pub(crate) fn settle_within(&mut self, limit_after: Duration) -> Result<(), Failure> {
        let limit = self.now() + limit_after;
        while let Some(detail) = self.unsettled() {
            if self.now() >= limit {
                return Err(self.failure(&violation(CONVERGE_1, detail)));
            }
            let next = self.now() + Duration::from_millis(100);
            self.run_to(next)?;
        }
        Ok(())
    }

    fn check_final_state(&mut self) -> Result<(), Failure> {
        // Every deadline has passed by then.
        self.run_to(self.now() + Duration::from_secs(6))?;
        let tables = self.checks.newest().cloned().unwrap_or_default();
        if let Err(why) = self.model.check(&self.model.floor(), &tables) {
            let name = if why.starts_with('k') { WRITE_1 } else { READ_1 };
            return Err(self.failure(&violation(name, format!("at the end: {why}"))));
        }
        self.check_registers();
        if let Some(violation) = self.violation.clone() {
            return Err(self.failure(&violation));
        }
        // One per agent, and as many that are closing.
        if self.connections.len() > 2 * self.machines.len() {
            let detail = format!("{} agents have {} connections", self.machines.len(), self.connections.len());
            return Err(self.failure(&violation(CONVERGE_1, detail)));
        }
        for machine in &self.machines {
            let Some(runtime) = &machine.runtime else { continue };
            let (proposals, reads, _) = runtime.core.in_flight();
            if !runtime.asks.is_empty() || proposals + reads > 0 {
                let n = runtime.asks.len();
                let detail = format!(
                    "{n} requests to {} were never answered; {proposals} proposals are in flight",
                    machine.name
                );
                return Err(self.failure(&violation(PROPOSE_1, detail)));
            }
        }
        Ok(())
    }

    // ---- machines -------------------------------------------------------------------------------------------------

    /// The first machine founds the cluster. Its labels are the ledger, so it is never removed.
    pub(crate) fn found(&mut self) {
        let idx = self.new_machine(Role::Manager);
        let (id, wall) = (self.machines[idx].id, self.wall(idx));
        let later = wall.plus(Duration::from_secs(90 * 24 * 3600));
        let first = crate::agents::certificate(id, Role::Manager, None, ("founder".to_owned(), Incarnation(1)), later);
        self.machines[idx].agent.certificate = Some(first);
        self.machines[idx].agent.issued_at = wall;
        self.model.ledger = Some(id);
        self.start_runtime(idx, true);
        self.start_agent(idx);
        self.time.after(Duration::from_millis(5), Event::Agent { idx, life: 0 });
    }

    /// Adds a machine that joins with a token for this role.
    pub(crate) fn join_machine(&mut self, role: Role) -> MachineIdx {
        let idx = self.new_machine(role);
        self.log(format!("n{} wants to join as {role}", idx + 1));
        let soon = self.rng.millis(1, 50);
        self.time.after(soon, Event::Agent { idx, life: 0 });
        idx
    }

    pub(crate) fn new_machine(&mut self, joins_as: Role) -> MachineIdx {
        let idx = self.machines.len();
        let id = NodeId::from_entropy(self.rng.next_u128());
        let name = muster_messages::Name::sanitized(&format!("n{}", idx + 1));
        let machine = Machine {
            id,
            name,
            addr: format!("10.0.0.{}:4400", idx + 1),
            up: true,
            build: self.settings.raft.feature_level,
            started_at: self.now(),
            incompatible: false,
            life: 0,
            thaws: None,
            clock: self.rng.sample() % 1_000_000_000_000,
            rate: self.rate(),
            wall_skew: (self.rng.sample() % 4000) as i64 - 2000,
            disk: crate::disk::Disk::default(),
            agent: Agent {
                core: None,
                certificate: None,
                issued_at: WallTime(0),
                former: Vec::new(),
                demotion_reported: None,
                ended: None,
                known: Vec::new(),
                wanted: false,
                wakes: None,
                asking: None,
                joins_as,
                request: muster_messages::RequestId(self.rng.next_u128() | 1),
            },
            runtime: None,
            silent_since: Some(Moment(0)),
            max_snapshot_bytes: None,
            gone: false,
            closed_until: NEVER_CLOSED,
        };
        self.machines.push(machine);
        self.idx_by_node.insert(id, idx);
        self.net.grow(self.machines.len());
        idx
    }

    /// Describes why a node may not be ready.
    fn describe_session(&self, idx: MachineIdx, leader: MachineIdx, record: &NodeRecord) -> String {
        let machine = &self.machines[idx];
        let core = machine.agent.core.as_ref();
        let session = core.and_then(|c| c.session()).map(|s| self.name(s.host));
        let (at, why) = (core.and_then(|c| c.connecting_to()), core.and_then(|c| c.last_loss()));
        let hosts = self.machines[leader].runtime.as_ref().and_then(|h| h.leader.as_ref()?.dispatch.as_ref());
        let hosts: Vec<_> = hosts.into_iter().flat_map(|d| d.core.hosts()).map(|(h, ..)| self.name(h)).collect();
        let (name, is) = (&machine.name, record.liveness);
        format!("{name} is {is:?}; session={session:?} dialling={at:?} last_loss={why:?} hosts={hosts:?}")
    }

    // ---- settled --------------------------------------------------------------------------------------------------

    /// Why the cluster is not settled; `None` if it is.
    pub fn unsettled(&self) -> Option<String> {
        let Some(leader) = self.leading() else { return Some("no leader".to_owned()) };
        let runtime = self.machines[leader].runtime.as_ref()?;
        let tables = runtime.core.tables();
        for record in tables.nodes.values() {
            let Some(idx) = self.idx_of(record.id) else { continue };
            let machine = &self.machines[idx];
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
        for machine in self.machines.iter().filter(|m| m.up) {
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
                let up = |node| self.idx_of(node).is_some_and(|p| self.machines[p].up);
                if let Some(p) = pending.iter().find(|p| up(p.node)) {
                    return Some(format!("pending: {p:?}"));
                }
            }
        }
        if let Some((op, asked)) = self.clients.open_ops().next() {
            return Some(format!("{op:?} is unanswered: {asked:?}"));
        }
        if self.clients.resting && self.registers.open() {
            return Some("a register operation is open".to_owned());
        }
        self.clients.writes_open().then(|| {
            let (name, flight) = (&self.machines[leader].name, runtime.core.in_flight());
            format!("a write is in flight: {:?}; leader {name}: {flight:?}", self.clients.writers)
        })
    }
}
