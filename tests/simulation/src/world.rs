//! The simulated world: machines with everything that runs on them, a network, and one virtual clock.
//!
//! Owns        time, randomness, machines and their connections, the processes of a fleet, and what is recorded of a run: trace,
//!             totals, the reference model, the checked states, the first violation.
//! Inputs      calls of its parts' functions, which all take the world: an actor's effects reach other actors, on other machines.
//! Outputs     events at later times.
//! Invariants  it holds no state of users or of faults, only whether they are active: clients, candidates, adversaries and
//!             faults are parts of [`Simulation`](crate::simulation::Simulation). They act on the world; an answer changes
//!             their state by an event.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_gateway::core::admission::LocalFacts;
use muster_messages::{Command, Incarnation, Moment, NodeId, RaftId, Replica, RequestId, Role, WallTime};
use muster_pki::CsrKey;
use muster_raft_member::core::Input;
use muster_store::invariants::Broken;

use crate::bugs::Bug;
use crate::checks::{Checks, violation};
use crate::connections::AgentConnections;
use crate::events::{Answered, Event};
use crate::fleet::Fleet;
use crate::keyrings::{Keyring, Unlocking};
use crate::machine::{Agent, Asker, Caller, Machine, MachineIdx, ManagerRuntime};
use crate::members::cluster;
use crate::model::Model;
use crate::network::Network;
use crate::policies::Policies;
use crate::recoveries::NEVER_CLOSED;
use crate::report::{Failure, Report, Totals};
use crate::rng::Rng;
use crate::roots::{FOUNDING, Trust, id_of};
use crate::rotations::Rotations;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::snapshots::Snapshots;
use crate::trace::Trace;
use crate::upgrades::{LEVEL_4, Levels, required_level};

/// Start of wall clocks; nothing depends on it.
const WALL_CLOCK_START: i64 = 1_767_225_600_000;

/// See the module.
pub struct World {
    pub seed: u64,
    pub rng: Rng,
    pub time: Schedule<Event>,
    pub settings: Settings,
    pub machines: Vec<Machine>,
    idx_by_node: BTreeMap<NodeId, MachineIdx>,
    pub net: Network,
    pub connections: AgentConnections,
    pub snapshots: Snapshots,
    pub fleet: Fleet,
    pub levels: Levels,
    pub rotations: Rotations,
    pub policies: Policies,
    pub unlocking: Unlocking,
    /// Members with a step due, in order.
    pub due: VecDeque<MachineIdx>,
    pub holds: crate::scenario::Holds,
    pub key: CsrKey,
    pub logger: slog::Logger,

    /// Faults are injected now: parts may fail at a step of their own.
    pub faults_active: bool,
    /// Time of the last fault or repair.
    pub last_fault_at: Moment,
    /// Users make no new requests; open ones are finished.
    pub resting: bool,
    /// The number of recoveries after disasters.
    pub recoveries_done: u32,
    /// Clocks run at different rates.
    pub clocks_drift: bool,
    /// All wall clocks show the same time.
    pub clocks_agree: bool,
    /// How far all calendars are ahead of the clocks.
    pub calendar: Duration,

    pub model: Model,
    pub checks: Checks,
    pub trace: Trace,
    pub totals: Totals,
    pub violation: Option<Broken>,

    pub runtimes: u32,
    pub incarnations: u32,
    numbers: u64,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64, rng: Rng, settings: Settings, snapshots: Snapshots) -> Self {
        let checks = Checks::new(settings.raft.limits.events);
        Self {
            seed,
            rng,
            time: Schedule::default(),
            settings,
            machines: Vec::new(),
            idx_by_node: BTreeMap::new(),
            net: Network::default(),
            connections: AgentConnections::default(),
            snapshots,
            fleet: Fleet::default(),
            levels: Levels::default(),
            rotations: Rotations::default(),
            policies: Policies::default(),
            unlocking: Unlocking::default(),
            due: VecDeque::new(),
            holds: crate::scenario::Holds::default(),
            key: CsrKey::parse(include_str!("request.pem")).expect("the signing request of the simulation is valid"),
            logger: slog::Logger::root(slog::Discard, slog::o!()),
            faults_active: false,
            last_fault_at: Moment(0),
            resting: false,
            recoveries_done: 0,
            clocks_drift: false,
            clocks_agree: false,
            calendar: Duration::ZERO,
            model: Model::default(),
            checks,
            trace: Trace::default(),
            totals: Totals::default(),
            violation: None,
            runtimes: 0,
            incarnations: 0,
            numbers: 0,
        }
    }

    pub fn now(&self) -> Moment {
        self.time.now()
    }
    /// The monotonic clock of a machine.
    pub(crate) fn clock(&self, idx: MachineIdx) -> Moment {
        self.machines[idx].clock_reading(self.now())
    }
    /// The reading of a right calendar.
    pub(crate) fn today(&self) -> WallTime {
        WallTime(WALL_CLOCK_START + (self.now().0 / 1000) as i64).plus(self.calendar)
    }
    pub(crate) fn wall(&self, idx: MachineIdx) -> WallTime {
        let skew = if self.clocks_agree { 0 } else { self.machines[idx].wall_skew };
        WallTime(self.today().0 + skew)
    }
    /// A machine's clock reading as simulation time.
    pub(crate) fn moment(&self, idx: MachineIdx, at: Moment) -> Moment {
        self.machines[idx].virtual_time_of(at)
    }
    /// A random clock rate deviation, in millionths.
    pub(crate) fn rate(&mut self) -> i64 {
        const MAX_DRIFT: u64 = 20_000;
        if self.clocks_drift { (self.rng.sample() % (2 * MAX_DRIFT + 1)) as i64 - MAX_DRIFT as i64 } else { 0 }
    }
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
    /// The id of a new request. Ids grow with time, as in the product.
    pub(crate) fn request(&mut self) -> RequestId {
        RequestId::fresh(self.today(), self.rng.next_u128())
    }
    pub(crate) fn log(&mut self, line: impl Into<String>) {
        let now = self.now();
        self.trace.record(now, line.into());
    }
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.idx_by_node.get(&node).map_or_else(|| node.to_string(), |p| self.machines[*p].name.to_string())
    }
    /// The first violated invariant ends the run.
    pub(crate) fn require(&mut self, outcome: Result<(), Broken>) {
        if let Err(violation) = outcome {
            self.violation.get_or_insert(violation);
        }
    }
    pub(crate) fn failure(&self, violation: &Broken) -> Failure {
        let Broken { name, detail } = violation;
        Failure::new(self.seed, name, detail.clone(), self.trace.tail())
    }

    /// What a run that has passed was.
    pub(crate) fn report(&self) -> Report {
        let simulated_secs = self.now().0 as f64 / 1e6;
        Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() }
    }

    // ---- machines ---------------------------------------------------------------------------------------------------

    /// The first machine founds the cluster. Its labels are the ledger, so it is never removed.
    pub(crate) fn found(&mut self) {
        let idx = self.new_machine(Role::Manager);
        let (id, wall) = (self.machines[idx].id, self.wall(idx));
        let later = wall.plus(Duration::from_secs(90 * 24 * 3600));
        let first = crate::agents::certificate(id, Role::Manager, None, ("founder".to_owned(), Incarnation(1)), later);
        self.machines[idx].agent.certificate = Some(first);
        self.machines[idx].agent.issued_at = wall;
        self.model.ledger = Some(id);
        ManagerRuntime::start(self, idx, true);
        Agent::start(self, idx);
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
        let cluster = self.checks.newest().and_then(|tables| tables.cluster.as_ref());
        let token = cluster.and_then(|cluster| id_of(&cluster.root_cert_pem)).unwrap_or(FOUNDING);
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
            thawed_at: None,
            clock: self.rng.sample() % 1_000_000_000_000,
            rate: self.rate(),
            wall_skew: (self.rng.sample() % 4000) as i64 - 2000,
            disk: crate::disk::Disk::default(),
            keyring: Keyring::default(),
            agent: Agent {
                core: None,
                certificate: None,
                issued_at: WallTime(0),
                former: Vec::new(),
                trust: Trust::in_root(token),
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

    /// The machine whose member leads with the highest term and may decide.
    pub(crate) fn leading(&self) -> Option<MachineIdx> {
        let leads = |idx: &MachineIdx| {
            let runtime = self.machines[*idx].runtime.as_ref()?;
            let raft = &runtime.core.replica().raft;
            raft.leading.then_some((raft.term, *idx))
        };
        (0..self.machines.len()).filter_map(|p| leads(&p)).max().map(|(_, idx)| idx)
    }

    /// A random machine with a manager runtime; it need not lead.
    pub(crate) fn any_manager(&mut self) -> Option<MachineIdx> {
        let managers: Vec<MachineIdx> =
            (0..self.machines.len()).filter(|p| self.machines[*p].runtime.is_some()).collect();
        self.rng.pick(&managers)
    }

    pub(crate) fn idx_of(&self, node: NodeId) -> Option<MachineIdx> {
        self.idx_by_node.get(&node).copied()
    }

    pub(crate) fn holder(&self, member_id: RaftId) -> Option<MachineIdx> {
        self.checks.owner(member_id).and_then(|node| self.idx_of(node))
    }

    /// The newest incarnation known to a machine.
    pub(crate) fn incarnation(&self, idx: MachineIdx) -> Incarnation {
        let machine = &self.machines[idx];
        machine.agent.certificate.as_ref().map_or(Incarnation(1), |certificate| certificate.incarnation)
    }

    /// The restored cluster is closed until its operator opens it.
    pub(crate) fn is_closed(&self, idx: MachineIdx) -> bool {
        self.now() < self.machines[idx].closed_until
    }

    /// A gateway's facts about its own machine.
    pub(crate) fn here(&self, idx: MachineIdx) -> LocalFacts {
        let machine = &self.machines[idx];
        LocalFacts {
            cluster: cluster(),
            incarnation: self.incarnation(idx),
            manager: machine.runtime.is_some(),
            closed_to_others: self.is_closed(idx),
            me: Some(machine.id),
        }
    }

    /// From this feature level on a client's request carries a digest of its content.
    pub(crate) fn digested(&self, idx: MachineIdx) -> bool {
        self.machines[idx].runtime.as_ref().is_some_and(|runtime| runtime.core.tables().remembers_callers())
    }

    /// Only with the injected bug.
    pub(crate) fn lets_stay(&self, local: &Replica, node: NodeId) -> bool {
        self.settings.bug == Some(Bug::AllowBlocked) && local.tables.blocklist.contains_key(&node)
    }

    // ---- calls between machines -------------------------------------------------------------------------------------

    /// Both ends learn of a session within a moment.
    pub(crate) fn session(&mut self, a: MachineIdx, b: MachineIdx, up: bool, within: Duration) {
        for (idx, other) in [(a, b), (b, a)] {
            let peer = self.machines[other].id;
            if let Some(runtime) = self.machines[idx].runtime.as_ref().map(|h| h.number) {
                let delay = self.rng.micros(100, 100 + u64::try_from(within.as_micros()).unwrap_or(0));
                self.time.after(delay, Event::Session { idx, runtime, peer, up });
            }
        }
    }

    /// Directly, or through a manager in between.
    pub(crate) fn reaches(&self, from: MachineIdx, to: MachineIdx) -> bool {
        let between = |via: &MachineIdx| {
            let machine = &self.machines[*via];
            machine.runs()
                && machine.runtime.is_some()
                && self.net.both_open(from, *via)
                && self.net.both_open(*via, to)
        };
        from == to || self.net.both_open(from, to) || (0..self.machines.len()).any(|via| between(&via))
    }

    /// Sends an answer back.
    pub(crate) fn reply(&mut self, from: MachineIdx, to: Caller, answer: Answered) {
        let lost = !self.reaches(from, to.idx) || self.rng.chance(self.net.conditions.loss);
        if !lost {
            let delay = self.net.conditions.slow + self.rng.micros(100, 1800);
            self.time.after(delay, Event::Answered { to, answer: Box::new(answer) });
        }
    }

    /// Whether `leader` can reach the member with this id, or could until a moment ago.
    pub(crate) fn recently_reachable(
        &self,
        leader: MachineIdx,
        member_id: muster_messages::RaftId,
        ago: Duration,
    ) -> bool {
        let Some(idx) = self.holder(member_id) else { return false };
        if idx == leader {
            return true;
        }
        let machine = &self.machines[idx];
        let recent = |since: Option<Moment>| since.is_none_or(|at| self.now().since(at) <= ago);
        let is_member =
            machine.runtime.is_none() || machine.member_id() == Some(member_id) || machine.silent_since.is_some();
        let links_down_since = [self.net.disconnected_since(leader, idx), self.net.disconnected_since(idx, leader)];
        is_member && recent(machine.silent_since) && links_down_since.into_iter().all(recent)
    }

    // ---- requests to a Raft member ----------------------------------------------------------------------------------

    pub(crate) fn deliver_if(&mut self, idx: MachineIdx, runtime: u32, input: Input) {
        if self.machines[idx].runtime(runtime).is_some() {
            self.deliver(idx, input);
        }
    }

    /// Passes input to the member and schedules its step.
    pub(crate) fn deliver(&mut self, idx: MachineIdx, input: Input) {
        let now = self.clock(idx);
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        runtime.core.step(now, input);
        if !runtime.step_due {
            runtime.step_due = true;
            self.due.push_back(idx);
        }
    }

    /// Registers the requester; the core knows only the number.
    pub(crate) fn await_answer(&mut self, idx: MachineIdx, asker: Asker) -> Option<muster_raft_member::core::AskId> {
        let ask = self.number();
        self.machines[idx].runtime.as_mut()?.asks.insert(ask, asker);
        Some(muster_raft_member::core::AskId(ask))
    }

    pub(crate) fn propose(&mut self, idx: MachineIdx, asker: Asker, command: Command, within: Duration) {
        self.check_encoding(idx, &command);
        let deadline = self.clock(idx) + within;
        if let Some(ask) = self.await_answer(idx, asker) {
            self.deliver(idx, Input::Propose { ask, command: Box::new(command), deadline });
        }
    }

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
}
