//! The simulation: the world, its users, and its faults, driven by one queue of events.

use std::time::Duration;

use muster_messages::Moment;
use muster_raft_member::core::Input;
use muster_role_manager::core::RequestedChange;
use muster_store::Limits;

use crate::adversaries::Adversaries;
use crate::blocks::Blocks;
use crate::bugs::Bug;
use crate::candidates::Candidates;
use crate::clients::Clients;
use crate::connections::AgentConnections;
use crate::events::Event;
use crate::faults::Faults;
use crate::fleet::{Fleet, PendingRequest, Process};
use crate::hosts::Hosts;
use crate::keyrings::Keyring;
use crate::lease_clock::Clock;
use crate::machine::{Agent, Authority, Autopilot, Dispatch, Keeper, Leader, ManagerRuntime, Roles, Rotation};
use crate::policies::Policies;
use crate::recoveries::Recoveries;
use crate::registers::Registers;
use crate::report::Failure;
use crate::rng::Rng;
use crate::root_operators::RootOperators;
use crate::rotations::Rotations;
use crate::settings::Settings;
use crate::snapshots::Snapshots;
use crate::upgrades::Levels;
use crate::watchers::Watchers;
use crate::world::World;

/// See the module. `scenario` has the scenario steps, `run` the random run.
pub struct Simulation {
    pub(crate) world: World,
    pub(crate) clients: Clients,
    pub(crate) candidates: Candidates,
    pub(crate) registers: Registers,
    pub(crate) watchers: Watchers,
    pub(crate) adversaries: Adversaries,
    pub(crate) recoveries: Recoveries,
    pub(crate) operators: RootOperators,
    pub(crate) faults: Faults,
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
        Self {
            world: World::new(seed, rng, settings, snapshots),
            clients: Clients::default(),
            candidates: Candidates::default(),
            registers: Registers::default(),
            watchers: Watchers::default(),
            adversaries: Adversaries::default(),
            recoveries: Recoveries::default(),
            operators: RootOperators::default(),
            faults: Faults::default(),
        }
    }

    /// Prints the trace as it happens.
    #[must_use]
    pub fn verbose(mut self) -> Self {
        self.world.trace.verbose = true;
        self
    }

    pub fn now(&self) -> Moment {
        self.world.now()
    }

    /// Runs events until this time, or until a violation.
    pub fn run_to(&mut self, until: Moment) -> Result<(), Failure> {
        loop {
            while let Some(idx) = self.world.due.pop_front() {
                ManagerRuntime::turn(&mut self.world, idx);
            }
            if let Some(violation) = &self.world.violation {
                return Err(self.world.failure(&violation.clone()));
            }
            match self.world.time.next(until) {
                Some(event) => self.handle(event),
                None => return Ok(()),
            }
        }
    }

    /// When the event's machine thaws, if that is frozen.
    fn thaws(&self, event: &Event) -> Option<Moment> {
        self.world.machines[event.idx()?].thaws
    }

    fn handle(&mut self, event: Event) {
        use Event as E;
        if let Some(thaws) = self.thaws(&event) {
            self.world.time.at(thaws, event);
            return;
        }
        let world = &mut self.world;
        match event {
            E::Tick { idx, runtime } => ManagerRuntime::tick(world, idx, runtime),
            E::Woke { idx, runtime } => world.deliver_if(idx, runtime, Input::Woke),
            E::Synced { idx, runtime, number } => ManagerRuntime::synced(world, idx, runtime, number),
            E::Local { idx, runtime, input } => world.deliver_if(idx, runtime, *input),
            E::Mail(mail) => ManagerRuntime::arrive(world, *mail),
            E::Session { idx, runtime, peer, up } => {
                world.deliver_if(idx, runtime, Input::PeerSession { node: peer, up })
            }
            E::RefusedByPeer { idx, life, serial, reason } => Agent::refused_by_peer(world, idx, life, serial, reason),
            E::Observe { idx, runtime } => Leader::observe(world, idx, runtime),
            E::RolesWoke { idx, incarnation } => Roles::woke(world, idx, incarnation),
            E::RolesBack { idx, runtime } => Roles::restart(world, idx, runtime),
            E::AuthorityWoke { idx, incarnation } => Authority::woke(world, idx, incarnation),
            E::AuthorityBack { idx, runtime } => Authority::restart(world, idx, runtime),
            E::SignedLate { idx, incarnation, step, signed } => {
                Authority::signed(world, idx, incarnation, step, *signed)
            }
            E::RotationWoke { idx, incarnation } => Rotation::woke(world, idx, incarnation),
            E::RotationBack { idx, runtime } => Rotation::restart(world, idx, runtime),
            E::AutopilotWoke { idx, incarnation } => Autopilot::woke(world, idx, incarnation),
            E::AutopilotBack { idx, runtime } => Autopilot::restart(world, idx, runtime),
            E::AutopilotAnswered { idx, incarnation, input } => Autopilot::answered(world, idx, incarnation, *input),
            E::Probed { idx, incarnation, step, ok } => Roles::probed(world, idx, incarnation, step, ok),
            E::Tally { idx, runtime } => Leader::tally(world, idx, runtime),
            E::Agent { idx, life } => Agent::tick(world, idx, life),
            E::AgentWoke { idx, life } => Agent::woke(world, idx, life),
            E::AgentInput { idx, life, input } => Agent::deliver(world, idx, life, *input),
            E::Installed { idx, life, id, text } => Agent::installed(world, idx, life, id, &text),
            E::RootsWritten { idx, life, offer } => Agent::roots_written(world, idx, life, *offer),
            E::DialArrives { connection, .. } => AgentConnections::dial_arrives(world, connection),
            E::DataArrives { connection, to_host, .. } => AgentConnections::data_arrives(world, connection, to_host),
            E::ObserveInHosts { idx, runtime } => Hosts::observe(world, idx, runtime),
            E::HostWoke { idx, runtime } => Hosts::woke(world, idx, runtime),
            E::SessionWoke { idx, runtime, node } => Hosts::session_woke(world, idx, runtime, node),
            E::CallLate { idx, runtime, ask } => Hosts::call_late(world, idx, runtime, ask),
            E::Digest { to, caller, runtime, digest } => Dispatch::digest(world, to, caller, runtime, *digest),
            E::DigestAnswered { idx, runtime, sequence, ok } => {
                Hosts::digest_answered(world, idx, runtime, sequence, ok)
            }
            E::DispatcherWoke { idx, incarnation } => Dispatch::woke(world, idx, incarnation),
            E::DispatcherBack { idx, runtime } => Dispatch::restart(world, idx, runtime),
            E::Question { to, caller, question } => Agent::receive_question(world, to, caller, *question),
            E::Answered { to, answer } => Agent::answered(world, to, *answer),
            E::ObserveInBlocks { idx, runtime } => Blocks::observe_replica(world, idx, runtime),
            E::BlocksTick { idx, runtime } => Blocks::tick(world, idx, runtime),
            E::BlocksRetry { idx, runtime, incarnation } => Blocks::retry(world, idx, runtime, incarnation),
            E::BlocksBack { idx, runtime } => Blocks::restart(world, idx, runtime),
            E::RetrySession { a, b } => Blocks::retry_session(world, a, b),
            E::AskMembership { idx, runtime, unanswered } => Keeper::ask(world, idx, runtime, unanswered),
            E::Writer(writer) => self.clients.writer(world, &self.adversaries, writer),
            E::Reader => self.clients.reader(world),
            E::Operator => self.clients.operator(world),
            E::WriteArrives { idx, attempt } => self.clients.write_arrives(world, idx, attempt),
            E::WriteAnswered { attempt, result } => self.clients.write_answered(world, attempt, result),
            E::ChangeArrives { idx, op, attempt } => self.clients.change_arrives(world, idx, op, attempt),
            E::ChangeAnswered { op, attempt, result } => self.clients.change_answered(world, op, attempt, result),
            E::RetryChange(op) => self.clients.retry_change(world, op),
            E::RequestedChange(node, role) => {
                let _then = self.clients.change(world, node, RequestedChange::Role(role));
            }
            E::Register(client) => self.registers.step(world, client),
            E::RegisterAsks { idx, pending } => Registers::arrive(world, idx, pending),
            E::RegisterReply { pending, reply } => self.registers.reply(world, &pending, reply),
            E::Dismiss(node) => {
                if !world.resting && world.checks.newest().is_some_and(|t| t.nodes.contains_key(&node)) {
                    let _then = self.clients.change(world, node, RequestedChange::Remove { force: true });
                }
            }
            E::Candidate { candidate, life } => self.candidates.step(world, candidate, life),
            E::CandidateAsks { idx, pending } => Candidates::arrive(world, idx, pending),
            E::CandidateReply { pending, reply } => self.candidates.reply(world, pending, reply),
            E::Process { process, life } => Process::step(world, process, life),
            E::FleetAsks { idx, pending } => PendingRequest::arrive(world, idx, *pending),
            E::FleetReply { pending, reply } => Process::reply(world, *pending, *reply),
            E::FleetOperator => Fleet::operator(world),
            E::Beat { idx, incarnation } => Clock::beat(world, idx, incarnation),
            E::ClockWoke { idx, incarnation } => Clock::woke(world, idx, incarnation),
            E::DisconnectLeader => self.faults.disconnect_leader(world),
            E::LateWrite { writer, write, recoveries } => Clients::late_write(world, writer, write, recoveries),
            E::Adversary => Adversaries::act(world),
            E::Upgrade => Levels::upgrade(world),
            E::RootOperator => self.operators.act(world),
            E::RootAsked { idx, attempt } => self.operators.arrives(world, idx, attempt),
            E::RootAnswered { attempt, result } => self.operators.answered(world, attempt, result),
            E::RetryRoot(op) => self.operators.retry(world, op),
            E::RootFault => Rotations::fault(world),
            E::PolicyOperator => Policies::operator(world),
            E::PolicyFault => Policies::fault(world),
            E::KeyOperator => Keyring::operator(world),
            E::Unlock(idx) => Keyring::unlock(world, idx),
            E::KeyringWritten { idx, life, runtime, number } => Keyring::written(world, idx, life, runtime, number),
            E::FilesSealed { idx, runtime, version } => Keyring::files_sealed(world, idx, runtime, version),
            E::KeyringWoke { idx, runtime } => Keyring::woke(world, idx, runtime),
            E::SealReported { to, result } => Keyring::reported(world, to, result),
            E::Watcher(watcher) => self.watchers.step(world, watcher),
            E::Backup => self.recoveries.make_backup(world),
            E::Disaster => self.recoveries.disaster(world),
            E::Recover { attempt } => self.recoveries.recover_alone(world, attempt),
            E::Straggler => self.recoveries.straggler(world),
            E::Fault => self.faults.inject(world),
            E::TimedFaultEnds(timed_fault) => self.faults.end(world, timed_fault),
        }
    }
}
