//! The universe: machines, a network between them, clients, faults, and one clock that only moves when nobody has work.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_agent::AgentConfig;
use muster_messages::{Moment, NodeId, RaftId, RequestId, WallTime};
use muster_pki::CsrKey;
use muster_raft_member::core::{Input, RaftConfig};
use muster_role_manager::core::Wish;
use muster_sessions::{DispatcherConfig, SessionsConfig};
use muster_store::Limits;
use muster_store::invariants::Broken;

use crate::breaks::Break;
use crate::candidates::Candidates;
use crate::checks::Checks;
use crate::clients::Clients;
use crate::dice::Dice;
pub use crate::events::{Answered, Event, Mail, Question};
use crate::faults::Faults;
use crate::fleet::Fleet;
use crate::liars::Liars;
use crate::lines::Lines;
use crate::machine::{Machine, Place};
use crate::model::Model;
use crate::network::Network;
use crate::recoveries::Recoveries;
use crate::registers::Registers;
use crate::report::{Failure, Totals};
use crate::schedule::Schedule;
use crate::snapshots::Snapshots;
use crate::trace::Trace;
use crate::watchers::Watcher;

/// Wall clocks begin here; nothing depends on it.
const DAWN: i64 = 1_767_225_600_000;

/// How the cores are configured in a universe.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub raft: RaftConfig,
    pub roles: muster_role_manager::core::Config,
    pub authority: muster_cert_authority::Config,
    pub agent: AgentConfig,
    pub sessions: SessionsConfig,
    pub dispatcher: DispatcherConfig,
    pub broken: Option<Break>,
}

impl Settings {
    /// So long after the last fault every silence that came of it is over: a host that was lost is one that says nothing, for the
    /// grace, and agents find another.
    pub fn calm_after(&self) -> Duration {
        self.sessions.down_after() + self.dispatcher.grace
    }

    /// Agents that beat this often, and silences that are shorter than the real ones, as everything in a universe's minute.
    pub fn hurry_agents(&mut self, heartbeat: Duration) {
        const SILENCE: Duration = Duration::from_secs(3);
        let beats = u32::try_from(SILENCE.as_micros() / heartbeat.as_micros().max(1)).unwrap_or(1);
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
            grace: SILENCE * 2,
            stood_still: Duration::from_secs(2),
            overlap: SILENCE * 3,
            ..DispatcherConfig::default()
        };
    }
}

/// See the module. The stories' verbs are in `story`, the random run is in `run`.
pub struct Universe {
    pub(crate) seed: u64,
    pub(crate) dice: Dice,
    pub(crate) time: Schedule<Event>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) places: BTreeMap<NodeId, Place>,
    pub(crate) net: Network,
    pub(crate) lines: Lines,
    /// When something last went wrong, or was mended.
    pub(crate) disturbed: Moment,
    /// Clocks run at different rates.
    pub(crate) drifts: bool,
    /// How far all calendars are ahead of the clocks.
    pub(crate) calendar: Duration,
    pub(crate) settings: Settings,
    pub(crate) clients: Clients,
    pub(crate) candidates: Candidates,
    pub(crate) registers: Registers,
    pub(crate) recoveries: Recoveries,
    pub(crate) watchers: Vec<Watcher>,
    pub(crate) liars: Liars,
    pub(crate) snapshots: Snapshots,
    pub(crate) fleet: Fleet,
    pub(crate) faults: Faults,
    pub(crate) model: Model,
    pub(crate) checks: Checks,
    pub(crate) trace: Trace,
    pub(crate) totals: Totals,
    pub(crate) key: CsrKey,
    pub(crate) logger: slog::Logger,
    /// Members whose turn is due, in order.
    pub(crate) due: VecDeque<Place>,
    pub(crate) halves: u32,
    pub(crate) incarnations: u32,
    pub(crate) numbers: u64,
    pub(crate) broken: Option<Broken>,
    pub(crate) holds: crate::story::Holds,
}

impl Universe {
    /// An empty universe.
    pub fn seeded(seed: u64) -> Self {
        Self::with_break(seed, None)
    }
    /// One in which a promise is broken on purpose.
    pub fn with_break(seed: u64, broken: Option<Break>) -> Self {
        let mut settings = Settings { broken, ..Settings::default() };
        // Snapshots are rare by default and would hardly occur in a minute.
        let mut dice = Dice::seeded(seed);
        settings.raft.snapshot_entries = 40 + dice.roll() % 160;
        settings.raft.keep_entries = dice.roll() % 24;
        settings.raft.keep_time = Duration::ZERO;
        settings.raft.snapshot_limit = Duration::from_secs(6);
        // As small as everything in a universe's minute, so that what is over is forgotten.
        settings.raft.limits = Limits { outcomes: 96 + dice.below(160), callers: 64, events: 24 + dice.below(60) };
        let snapshots = Snapshots::at([40_000, 200_000, 2_000_000][dice.below(3)]);
        settings.roles.learner_silence = Duration::from_secs(8);
        settings.hurry_agents(Duration::from_millis(500));
        Break::engage(broken, &mut settings);
        let checks = Checks::new(settings.raft.limits.events);
        Self {
            seed,
            dice,
            time: Schedule::default(),
            machines: Vec::new(),
            places: BTreeMap::new(),
            net: Network::default(),
            lines: Lines::default(),
            disturbed: Moment(0),
            drifts: false,
            calendar: Duration::ZERO,
            settings,
            clients: Clients::default(),
            candidates: Candidates::default(),
            registers: Registers::default(),
            recoveries: Recoveries::default(),
            watchers: Vec::new(),
            liars: Liars::default(),
            snapshots,
            fleet: Fleet::default(),
            faults: Faults::default(),
            model: Model::default(),
            checks,
            trace: Trace::default(),
            totals: Totals::default(),
            key: CsrKey::parse(include_str!("request.pem")).expect("the signing request of the universe is sound"),
            logger: slog::Logger::root(slog::Discard, slog::o!()),
            due: VecDeque::new(),
            halves: 0,
            incarnations: 0,
            numbers: 0,
            broken: None,
            holds: crate::story::Holds::default(),
        }
    }

    /// Prints the story as it happens.
    #[must_use]
    pub fn aloud(mut self) -> Self {
        self.trace.aloud = true;
        self
    }
    pub fn now(&self) -> Moment {
        self.time.now()
    }
    /// The monotonic clock of a machine.
    pub(crate) fn clock(&self, place: Place) -> Moment {
        self.machines[place].shows(self.now())
    }
    /// What a calendar shows that is right.
    pub(crate) fn today(&self) -> WallTime {
        WallTime(DAWN + (self.now().0 / 1000) as i64).plus(self.calendar)
    }
    pub(crate) fn wall(&self, place: Place) -> WallTime {
        let skew = if self.recoveries.clocks_agree() { 0 } else { self.machines[place].wall_skew };
        WallTime(self.today().0 + skew)
    }
    /// A moment of a machine's clock, as the universe's.
    pub(crate) fn moment(&self, place: Place, at: Moment) -> Moment {
        self.machines[place].when(at)
    }
    /// How much faster or slower a clock runs, in millionths.
    pub(crate) fn rate(&mut self) -> i64 {
        const MOST: u64 = 20_000;
        if self.drifts { (self.dice.roll() % (2 * MOST + 1)) as i64 - MOST as i64 } else { 0 }
    }
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
    /// Another request's id. They grow with time, as in the product.
    pub(crate) fn request(&mut self) -> RequestId {
        RequestId::fresh(self.today(), self.dice.wide())
    }
    pub(crate) fn say(&mut self, line: impl Into<String>) {
        let now = self.now();
        self.trace.tell(now, line.into());
    }
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.places.get(&node).map_or_else(|| node.to_string(), |p| self.machines[*p].name.to_string())
    }
    /// The first broken invariant ends the universe.
    pub(crate) fn hold_to(&mut self, verdict: Result<(), Broken>) {
        if let Err(broken) = verdict {
            self.broken.get_or_insert(broken);
        }
    }
    pub(crate) fn failure(&self, broken: &Broken) -> Failure {
        let Broken { name, detail } = broken;
        Failure::new(self.seed, name, detail.clone(), self.trace.tail())
    }

    /// Lets everything happen that happens until then, or until something is broken.
    pub fn run_to(&mut self, until: Moment) -> Result<(), Failure> {
        loop {
            while let Some(place) = self.due.pop_front() {
                self.turn(place);
            }
            if let Some(broken) = &self.broken {
                return Err(self.failure(&broken.clone()));
            }
            match self.time.next(until) {
                Some(event) => self.happen(event),
                None => return Ok(()),
            }
        }
    }

    /// When the machine that it happens to thaws, if that is frozen.
    fn thaws(&self, event: &Event) -> Option<Moment> {
        self.machines[event.place()?].thaws
    }

    fn happen(&mut self, event: Event) {
        use Event as E;
        if let Some(thaws) = self.thaws(&event) {
            self.time.at(thaws, event);
            return;
        }
        match event {
            E::Tick { place, half } => self.tick(place, half),
            E::Woke { place, half } => self.hear_if(place, half, Input::Woke),
            E::Synced { place, half, number } => self.synced(place, half, number),
            E::Local { place, half, input } => self.hear_if(place, half, *input),
            E::Mail(mail) => self.arrive(*mail),
            E::Session { place, half, peer, up } => self.hear_if(place, half, Input::PeerSession { node: peer, up }),
            E::Told { place, life, serial, reason } => self.told(place, life, serial, reason),
            E::Look { place, half } => self.look(place, half),
            E::RolesWoke { place, incarnation } => self.roles_woke(place, incarnation),
            E::RolesBack { place, half } => self.roles_back(place, half),
            E::AuthorityWoke { place, incarnation } => self.authority_woke(place, incarnation),
            E::AuthorityBack { place, half } => self.authority_back(place, half),
            E::Probed { place, incarnation, step, ok } => self.probed(place, incarnation, step, ok),
            E::Tally { place, half } => self.tally(place, half),
            E::Agent { place, life } => self.agent(place, life),
            E::AgentWoke { place, life } => self.agent_woke(place, life),
            E::AgentHears { place, life, input } => self.agent_hears(place, life, *input),
            E::Installed { place, life, id, text } => self.installed(place, life, id, &text),
            E::Dialled { line, .. } => self.dialled(line),
            E::Carried { line, to_host, .. } => self.carried(line, to_host),
            E::HostsLook { place, half } => self.hosts_look(place, half),
            E::HostWoke { place, half } => self.host_woke(place, half),
            E::SessionWoke { place, half, node } => self.session_woke(place, half, node),
            E::CallLate { place, half, ask } => self.call_late(place, half, ask),
            E::Digest { to, caller, half, digest } => self.digest(to, caller, half, *digest),
            E::DigestAnswered { place, half, sequence, ok } => self.digest_answered(place, half, sequence, ok),
            E::DispatcherWoke { place, incarnation } => self.dispatcher_woke(place, incarnation),
            E::DispatcherBack { place, half } => self.dispatcher_back(place, half),
            E::Question { to, caller, question } => self.questioned(to, caller, *question),
            E::Answered { to, answer } => self.answered(to, *answer),
            E::BlocksLook { place, half } => self.blocks_look(place, half),
            E::BlocksTick { place, half } => self.blocks_tick(place, half),
            E::BlocksRetry { place, half, incarnation } => self.blocks_retry(place, half, incarnation),
            E::BlocksBack { place, half } => self.blocks_back(place, half),
            E::Redial { a, b } => self.redial(a, b),
            E::AskSeat { place, half, unanswered } => self.ask_seat(place, half, unanswered),
            E::Writer(writer) => self.writer(writer),
            E::Reader => self.reader(),
            E::Operator => self.operator(),
            E::WriteArrives { place, attempt } => self.write_arrives(place, attempt),
            E::WriteAnswered { attempt, result } => self.write_answered(attempt, result),
            E::WishArrives { place, op, attempt } => self.wish_arrives(place, op, attempt),
            E::WishAnswered { op, attempt, result } => self.wish_answered(op, attempt, result),
            E::WishAgain(op) => self.wish_again(op),
            E::Wish(node, role) => {
                let _then = self.wish(node, Wish::Role(role));
            }
            E::Register(client) => self.register(client),
            E::RegisterAsks { place, asked } => self.register_arrives(place, asked),
            E::RegisterTold { asked, told } => self.register_told(&asked, told),
            E::Dismiss(node) => {
                if !self.clients.resting && self.checks.newest().is_some_and(|t| t.nodes.contains_key(&node)) {
                    let _then = self.wish(node, Wish::Remove { force: true });
                }
            }
            E::Candidate { candidate, life } => self.candidate(candidate, life),
            E::CandidateAsks { place, asked } => self.candidate_arrives(place, asked),
            E::CandidateTold { asked, told } => self.candidate_told(asked, told),
            E::Process { process, life } => self.process_turn(process, life),
            E::FleetAsks { place, asked } => self.fleet_arrives(place, *asked),
            E::FleetTold { asked, told } => self.fleet_told(*asked, *told),
            E::FleetOperator => self.fleet_operator(),
            E::Beat { place, incarnation } => self.beat(place, incarnation),
            E::ClockWoke { place, incarnation } => self.clock_woke(place, incarnation),
            E::CutOffTheLeader => self.cut_off_the_leader(),
            E::LateWrite { writer, write, recoveries } => self.write_comes_late(writer, write, recoveries),
            E::Liar => self.liar(),
            E::Watcher(watcher) => self.watcher(watcher),
            E::Backup => self.make_backup(),
            E::Disaster => self.disaster(),
            E::Recover { attempt } => self.go_on_alone(attempt),
            E::Straggler => self.straggler(),
            E::Fault => self.fault(),
            E::Over(injury) => self.over(injury),
        }
    }

    /// The machine whose member leads with the highest term and may decide.
    pub(crate) fn leading(&self) -> Option<Place> {
        let leads = |place: &Place| {
            let half = self.machines[*place].half.as_ref()?;
            let raft = &half.core.replica().raft;
            raft.leading.then_some((raft.term, *place))
        };
        (0..self.machines.len()).filter_map(|p| leads(&p)).max().map(|(_, place)| place)
    }
    pub(crate) fn place_of(&self, node: NodeId) -> Option<Place> {
        self.places.get(&node).copied()
    }
    pub(crate) fn holder(&self, seat: RaftId) -> Option<Place> {
        self.checks.owner(seat).and_then(|node| self.place_of(node))
    }
}
