//! The simulation: machines, a network, clients, faults, and one virtual clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_agent::AgentConfig;
use muster_messages::{Moment, NodeId, RaftId, RequestId, WallTime};
use muster_pki::CsrKey;
use muster_raft_member::core::{Input, RaftConfig};
use muster_role_manager::core::DesiredChange;
use muster_sessions::{DispatcherConfig, SessionsConfig};
use muster_store::Limits;
use muster_store::invariants::Broken;

use crate::adversaries::Adversaries;
use crate::bugs::Bug;
use crate::candidates::Candidates;
use crate::checks::Checks;
use crate::clients::Clients;
use crate::connections::AgentConnections;
pub use crate::events::{Answered, Event, Mail, Question};
use crate::faults::Faults;
use crate::fleet::Fleet;
use crate::machine::{Machine, MachineIdx};
use crate::model::Model;
use crate::network::Network;
use crate::recoveries::Recoveries;
use crate::registers::Registers;
use crate::report::{Failure, Totals};
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::snapshots::Snapshots;
use crate::trace::Trace;
use crate::upgrades::Levels;
use crate::watchers::Watcher;

/// Start of wall clocks; nothing depends on it.
const WALL_CLOCK_START: i64 = 1_767_225_600_000;

/// Configuration of the cores in a simulation.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub raft: RaftConfig,
    pub roles: muster_role_manager::core::Config,
    pub authority: muster_cert_authority::Config,
    pub agent: AgentConfig,
    pub sessions: SessionsConfig,
    pub dispatcher: DispatcherConfig,
    pub bug: Option<Bug>,
}

impl Settings {
    /// Time after the last fault by which all its silences are over: the grace for a silent host, in which its
    /// agents find another.
    pub fn quiet_after(&self) -> Duration {
        self.sessions.down_after() + self.dispatcher.grace
    }

    /// Sets the heartbeat interval, and shorter timeouts than the product's, as a simulated minute needs.
    pub fn shorten_timeouts(&mut self, heartbeat: Duration) {
        const SILENCE_LIMIT: Duration = Duration::from_secs(3);
        let beats = u32::try_from(SILENCE_LIMIT.as_micros() / heartbeat.as_micros().max(1)).unwrap_or(1);
        self.agent = AgentConfig {
            heartbeat,
            silent_beats: beats,
            forgive: Duration::from_secs(2),
            first_view: Duration::from_secs(2),
            sign_deadline: Duration::from_millis(2500),
            sign_retry_cap: Duration::from_secs(2),
            ..AgentConfig::default()
        };
        self.sessions = SessionsConfig {
            heartbeat,
            missed: beats,
            hello_deadline: Duration::from_secs(2),
            remember_down: Duration::from_secs(8),
            leaderless_after: Duration::from_secs(2),
            leaderless_retry: Duration::from_secs(1),
            digest_every: Duration::from_secs(1),
            ..SessionsConfig::default()
        };
        self.dispatcher = DispatcherConfig {
            grace: SILENCE_LIMIT * 2,
            stood_still: Duration::from_secs(2),
            overlap: SILENCE_LIMIT * 3,
            ..DispatcherConfig::default()
        };
    }
}

/// See the module. `scenario` has the scenario steps, `run` the random run.
pub struct Simulation {
    pub(crate) seed: u64,
    pub(crate) rng: Rng,
    pub(crate) time: Schedule<Event>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) idx_by_node: BTreeMap<NodeId, MachineIdx>,
    pub(crate) net: Network,
    pub(crate) connections: AgentConnections,
    /// Time of the last fault or repair.
    pub(crate) last_fault_at: Moment,
    /// Clocks run at different rates.
    pub(crate) clocks_drift: bool,
    /// How far all calendars are ahead of the clocks.
    pub(crate) calendar: Duration,
    pub(crate) settings: Settings,
    pub(crate) clients: Clients,
    pub(crate) candidates: Candidates,
    pub(crate) registers: Registers,
    pub(crate) recoveries: Recoveries,
    pub(crate) watchers: Vec<Watcher>,
    pub(crate) adversaries: Adversaries,
    pub(crate) snapshots: Snapshots,
    pub(crate) fleet: Fleet,
    pub(crate) levels: Levels,
    pub(crate) faults: Faults,
    pub(crate) model: Model,
    pub(crate) checks: Checks,
    pub(crate) trace: Trace,
    pub(crate) totals: Totals,
    pub(crate) key: CsrKey,
    pub(crate) logger: slog::Logger,
    /// Members with a step due, in order.
    pub(crate) due: VecDeque<MachineIdx>,
    pub(crate) runtimes: u32,
    pub(crate) incarnations: u32,
    pub(crate) numbers: u64,
    pub(crate) violation: Option<Broken>,
    pub(crate) holds: crate::scenario::Holds,
}

impl Simulation {
    /// An empty simulation.
    pub fn seeded(seed: u64) -> Self {
        Self::with_bug(seed, None)
    }
    /// An empty simulation with an injected bug.
    pub fn with_bug(seed: u64, bug: Option<Bug>) -> Self {
        let mut settings = Settings { bug, ..Settings::default() };
        // By default snapshots are too rare for a minute.
        let mut rng = Rng::seeded(seed);
        settings.raft.snapshot_entries = 40 + rng.sample() % 160;
        settings.raft.keep_entries = rng.sample() % 24;
        settings.raft.keep_time = Duration::ZERO;
        settings.raft.snapshot_limit = Duration::from_secs(6);
        // Small limits, so that outcomes are forgotten within a minute.
        settings.raft.limits = Limits { outcomes: 96 + rng.below(160), callers: 64, events: 24 + rng.below(60) };
        let snapshots = Snapshots::at([40_000, 200_000, 2_000_000][rng.below(3)]);
        settings.roles.learner_silence = Duration::from_secs(8);
        settings.shorten_timeouts(Duration::from_millis(500));
        Bug::enable(bug, &mut settings);
        let checks = Checks::new(settings.raft.limits.events);
        Self {
            seed,
            rng,
            time: Schedule::default(),
            machines: Vec::new(),
            idx_by_node: BTreeMap::new(),
            net: Network::default(),
            connections: AgentConnections::default(),
            last_fault_at: Moment(0),
            clocks_drift: false,
            calendar: Duration::ZERO,
            settings,
            clients: Clients::default(),
            candidates: Candidates::default(),
            registers: Registers::default(),
            recoveries: Recoveries::default(),
            watchers: Vec::new(),
            adversaries: Adversaries::default(),
            snapshots,
            fleet: Fleet::default(),
            levels: Levels::default(),
            faults: Faults::default(),
            model: Model::default(),
            checks,
            trace: Trace::default(),
            totals: Totals::default(),
            key: CsrKey::parse(include_str!("request.pem")).expect("the signing request of the simulation is valid"),
            logger: slog::Logger::root(slog::Discard, slog::o!()),
            due: VecDeque::new(),
            runtimes: 0,
            incarnations: 0,
            numbers: 0,
            violation: None,
            holds: crate::scenario::Holds::default(),
        }
    }

    /// Prints the trace as it happens.
    #[must_use]
    pub fn verbose(mut self) -> Self {
        self.trace.verbose = true;
        self
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
        let skew = if self.recoveries.clocks_agree() { 0 } else { self.machines[idx].wall_skew };
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

    /// Runs events until this time, or until a violation.
    pub fn run_to(&mut self, until: Moment) -> Result<(), Failure> {
        loop {
            while let Some(idx) = self.due.pop_front() {
                self.run_member(idx);
            }
            if let Some(violation) = &self.violation {
                return Err(self.failure(&violation.clone()));
            }
            match self.time.next(until) {
                Some(event) => self.handle(event),
                None => return Ok(()),
            }
        }
    }

    /// When the event's machine thaws, if that is frozen.
    fn thaws(&self, event: &Event) -> Option<Moment> {
        self.machines[event.idx()?].thaws
    }

    fn handle(&mut self, event: Event) {
        use Event as E;
        if let Some(thaws) = self.thaws(&event) {
            self.time.at(thaws, event);
            return;
        }
        match event {
            E::Tick { idx, runtime } => self.tick(idx, runtime),
            E::Woke { idx, runtime } => self.deliver_if(idx, runtime, Input::Woke),
            E::Synced { idx, runtime, number } => self.synced(idx, runtime, number),
            E::Local { idx, runtime, input } => self.deliver_if(idx, runtime, *input),
            E::Mail(mail) => self.arrive(*mail),
            E::Session { idx, runtime, peer, up } => {
                self.deliver_if(idx, runtime, Input::PeerSession { node: peer, up })
            }
            E::RefusedByPeer { idx, life, serial, reason } => self.refused_by_peer(idx, life, serial, reason),
            E::Observe { idx, runtime } => self.observe(idx, runtime),
            E::RolesWoke { idx, incarnation } => self.roles_woke(idx, incarnation),
            E::RolesBack { idx, runtime } => self.roles_back(idx, runtime),
            E::AuthorityWoke { idx, incarnation } => self.authority_woke(idx, incarnation),
            E::AuthorityBack { idx, runtime } => self.authority_back(idx, runtime),
            E::Probed { idx, incarnation, step, ok } => self.probed(idx, incarnation, step, ok),
            E::Tally { idx, runtime } => self.tally(idx, runtime),
            E::Agent { idx, life } => self.agent(idx, life),
            E::AgentWoke { idx, life } => self.agent_woke(idx, life),
            E::AgentInput { idx, life, input } => self.deliver_to_agent(idx, life, *input),
            E::Installed { idx, life, id, text } => self.installed(idx, life, id, &text),
            E::DialArrives { connection, .. } => self.dial_arrives(connection),
            E::DataArrives { connection, to_host, .. } => self.data_arrives(connection, to_host),
            E::ObserveInHosts { idx, runtime } => self.observe_in_hosts(idx, runtime),
            E::HostWoke { idx, runtime } => self.host_woke(idx, runtime),
            E::SessionWoke { idx, runtime, node } => self.session_woke(idx, runtime, node),
            E::CallLate { idx, runtime, ask } => self.call_late(idx, runtime, ask),
            E::Digest { to, caller, runtime, digest } => self.digest(to, caller, runtime, *digest),
            E::DigestAnswered { idx, runtime, sequence, ok } => self.digest_answered(idx, runtime, sequence, ok),
            E::DispatcherWoke { idx, incarnation } => self.dispatcher_woke(idx, incarnation),
            E::DispatcherBack { idx, runtime } => self.dispatcher_back(idx, runtime),
            E::Question { to, caller, question } => self.receive_question(to, caller, *question),
            E::Answered { to, answer } => self.answered(to, *answer),
            E::ObserveInBlocks { idx, runtime } => self.observe_in_blocks(idx, runtime),
            E::BlocksTick { idx, runtime } => self.blocks_tick(idx, runtime),
            E::BlocksRetry { idx, runtime, incarnation } => self.blocks_retry(idx, runtime, incarnation),
            E::BlocksBack { idx, runtime } => self.blocks_back(idx, runtime),
            E::RetrySession { a, b } => self.retry_session(a, b),
            E::AskMembership { idx, runtime, unanswered } => self.ask_membership(idx, runtime, unanswered),
            E::Writer(writer) => self.writer(writer),
            E::Reader => self.reader(),
            E::Operator => self.operator(),
            E::WriteArrives { idx, attempt } => self.write_arrives(idx, attempt),
            E::WriteAnswered { attempt, result } => self.write_answered(attempt, result),
            E::ChangeArrives { idx, op, attempt } => self.change_arrives(idx, op, attempt),
            E::ChangeAnswered { op, attempt, result } => self.change_answered(op, attempt, result),
            E::RetryChange(op) => self.retry_change(op),
            E::DesiredChange(node, role) => {
                let _then = self.change(node, DesiredChange::Role(role));
            }
            E::Register(client) => self.register(client),
            E::RegisterAsks { idx, pending } => self.register_arrives(idx, pending),
            E::RegisterReply { pending, reply } => self.register_reply(&pending, reply),
            E::Dismiss(node) => {
                if !self.clients.resting && self.checks.newest().is_some_and(|t| t.nodes.contains_key(&node)) {
                    let _then = self.change(node, DesiredChange::Remove { force: true });
                }
            }
            E::Candidate { candidate, life } => self.candidate(candidate, life),
            E::CandidateAsks { idx, pending } => self.candidate_arrives(idx, pending),
            E::CandidateReply { pending, reply } => self.candidate_reply(pending, reply),
            E::Process { process, life } => self.step_process(process, life),
            E::FleetAsks { idx, pending } => self.fleet_arrives(idx, *pending),
            E::FleetReply { pending, reply } => self.fleet_reply(*pending, *reply),
            E::FleetOperator => self.fleet_operator(),
            E::Beat { idx, incarnation } => self.beat(idx, incarnation),
            E::ClockWoke { idx, incarnation } => self.clock_woke(idx, incarnation),
            E::DisconnectLeader => self.disconnect_leader(),
            E::LateWrite { writer, write, recoveries } => self.late_write(writer, write, recoveries),
            E::Adversary => self.adversary(),
            E::Upgrade => self.upgrade(),
            E::Watcher(watcher) => self.watcher(watcher),
            E::Backup => self.make_backup(),
            E::Disaster => self.disaster(),
            E::Recover { attempt } => self.recover_alone(attempt),
            E::Straggler => self.straggler(),
            E::Fault => self.fault(),
            E::TimedFaultEnds(timed_fault) => self.end_timed_fault(timed_fault),
        }
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
    pub(crate) fn idx_of(&self, node: NodeId) -> Option<MachineIdx> {
        self.idx_by_node.get(&node).copied()
    }
    pub(crate) fn holder(&self, member_id: RaftId) -> Option<MachineIdx> {
        self.checks.owner(member_id).and_then(|node| self.idx_of(node))
    }
}
