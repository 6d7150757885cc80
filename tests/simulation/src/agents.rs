//! Agents: their cores, their persistent state, joining, and the membership that a manager runtime requests.

use std::time::Duration;

use muster_agent::core::{self as agent, CertificateFacts};
use muster_cert_authority::core as authority;
use muster_messages::wire::{
    AGENT_PROTOCOL, AgentAnswer, AgentAsk, AgentFrame, AgentHello, MembershipReply, MembershipRequest, PeerCall,
    Refusal,
};
use muster_messages::{
    CertIdentity, ErrorBody, ErrorCode, Incarnation, NodeId, RaftId, RefusalReason, Revision, Role, Subject, WallTime,
};
use muster_role_manager::core as roles;

use crate::adversaries::MAX_FORMER_CERTIFICATES;
use crate::blocks::Blocks;
use crate::connections::AgentConnections;
use crate::events::{Answered, Event, Question};
use crate::hosts::Hosts;
use crate::keyrings::Keyring;
use crate::leaders::token_secret;
use crate::machine::{Agent, Authority, Caller, Keeper, MachineIdx, ManagerRuntime, RoleAsker, Roles, Rotation};
use crate::members::cluster;
use crate::roots::Chain;
use crate::schedule::keep_earlier;
use crate::upgrades::Levels;
use crate::world::World;

/// Interval, in milliseconds, at which an unjoined machine tries to join, the membership agent checks for a leader, and the mesh
/// probes whether a peer still accepts it.
const CHECK_MILLIS: (u64, u64) = (60, 180);
/// A question without an answer is repeated after this time.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(2500);
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const MAX_PAUSE: Duration = Duration::from_secs(2);
const LEADERLESS_AFTER: Duration = Duration::from_secs(3);

/// The name that resolves to all managers, whatever their addresses.
pub const MANAGERS: &str = "managers:4400";

/// Words of a certificate before those about its root.
const WORDS: usize = 6;

/// Parses the text that stands for a certificate, and its issue time.
pub(crate) fn read_certificate(node: NodeId, text: &str) -> Option<(CertIdentity, WallTime)> {
    let mut words = text.split(' ');
    let role: Role = words.next()?.parse().ok()?;
    let granted = Revision(words.next()?.parse().ok()?);
    let serial = words.next()?.to_owned();
    let not_after = WallTime(words.next()?.parse().ok()?);
    let issued_at = WallTime(words.next()?.parse().ok()?);
    let incarnation = Incarnation(words.next()?.parse().ok()?);
    Some((certificate(node, role, Some(granted), (serial, incarnation), not_after), issued_at))
}

/// A certificate of the simulated cluster.
pub(crate) fn certificate(
    node: NodeId,
    role: Role,
    granted: Option<Revision>,
    (serial, incarnation): (String, Incarnation),
    not_after: WallTime,
) -> CertIdentity {
    let (cluster, subject) = (cluster(), Subject::Node { node, role });
    CertIdentity { cluster, subject, serial, granted, incarnation, not_after, pin: None, issuer: None }
}

impl Agent {
    // ---- the process ----------------------------------------------------------------------------------------------

    /// Starts the agent of a joined machine from its disk.
    pub(crate) fn start(world: &mut World, idx: MachineIdx) {
        let (seed, instance, config) = (world.rng.sample(), world.rng.sample(), world.settings.agent.clone());
        let machine = &mut world.machines[idx];
        let Some(identity) = machine.agent.certificate.as_ref() else { return };
        let Some(facts) = CertificateFacts::of(identity, machine.agent.issued_at) else { return };
        let hello = AgentHello {
            protocol: AGENT_PROTOCOL,
            instance,
            name: machine.name.clone(),
            advertise: machine.addr.clone(),
            release: "0.1.0".to_owned(),
            labels: Default::default(),
        };
        let start = agent::Start {
            demotion_reported: machine.agent.demotion_reported.as_ref() == Some(&facts.serial),
            certificate: facts,
            hello,
            known: machine.agent.known.clone(),
            seeds: vec![MANAGERS.to_owned()],
            seed,
            workloads: Default::default(),
            ended: machine.agent.ended.clone(),
        };
        machine.agent.core = Some(agent::Agent::new(start, config));
        machine.agent.wakes = None;
        machine.agent.trust.accepted = None;
        Self::step(world, idx, agent::Input::Woke);
    }

    /// Periodic work of a process.
    pub(crate) fn tick(world: &mut World, idx: MachineIdx, life: u32) {
        let machine = &world.machines[idx];
        if !machine.up || machine.life != life || machine.agent.ended.is_some() {
            return;
        }
        let next = world.rng.millis(CHECK_MILLIS.0, CHECK_MILLIS.1);
        world.time.after(next, Event::Agent { idx, life });
        Keeper::ask_when_leaderless(world, idx);
        ManagerRuntime::contact_some_peer(world, idx);
        Blocks::check_sessions(world, idx);
        if world.machines[idx].agent.certificate.is_none() {
            Self::ask_to_join(world, idx);
        }
    }

    /// Joins through a reachable manager.
    fn ask_to_join(world: &mut World, idx: MachineIdx) {
        let now = world.now();
        if world.machines[idx].agent.asking.is_some_and(|(_, until)| now < until) {
            return;
        }
        let hosts: Vec<MachineIdx> = (0..world.machines.len())
            .filter(|p| world.machines[*p].runs() && world.machines[*p].runtime.is_some())
            .filter(|p| world.net.both_open(idx, *p))
            .collect();
        let Some(host) = world.rng.pick(&hosts) else { return };
        let leader = world.machines[host].runtime.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let Some(to) = leader.and_then(|node| world.idx_of(node)) else { return };
        if !Self::follow_token(world, idx, host) {
            return;
        }
        let ask = world.number();
        world.machines[idx].agent.asking = Some((ask, now + QUESTION_TIMEOUT));
        let caller = Caller { idx, life: world.machines[idx].life, ask };
        Self::send_question(world, host, to, caller, Question::Join);
    }

    // ---- the core -------------------------------------------------------------------------------------------------

    pub(crate) fn deliver(world: &mut World, idx: MachineIdx, life: u32, input: agent::Input) {
        if world.machines[idx].life == life {
            Self::step(world, idx, input);
        }
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, life: u32) {
        let machine = &mut world.machines[idx];
        if machine.life == life {
            machine.agent.wakes = None;
            Self::step(world, idx, agent::Input::Woke);
        }
    }

    pub(crate) fn step(world: &mut World, idx: MachineIdx, input: agent::Input) {
        let (now, wall) = (world.clock(idx), world.wall(idx));
        let machine = &mut world.machines[idx];
        let life = machine.life;
        let Some(core) = machine.agent.core.as_mut().filter(|_| machine.up) else { return };
        let mut effects = Vec::new();
        core.step(now, wall, input, &mut effects);
        let wakes = core.wake_at();
        if let Some(at) = keep_earlier(&mut machine.agent.wakes, wakes) {
            let at = world.moment(idx, at);
            world.time.at(at, Event::AgentWoke { idx, life });
        }
        for effect in effects {
            Self::apply_effect(world, idx, effect);
        }
    }

    fn apply_effect(world: &mut World, idx: MachineIdx, effect: agent::Effect) {
        match effect {
            agent::Effect::Dial { attempt, addr } => AgentConnections::dial(world, idx, attempt, &addr),
            agent::Effect::Send { attempt, frame } => AgentConnections::agent_sends(world, idx, attempt, *frame),
            agent::Effect::HangUp { attempt } => AgentConnections::agent_closes(world, idx, attempt),
            agent::Effect::AskForCertificate { attempt, id, .. } => {
                let ask = AgentAsk::Sign { csr_pem: "a request".to_owned() };
                AgentConnections::agent_sends(world, idx, attempt, AgentFrame::Ask { id, ask });
            }
            agent::Effect::Install { id, reply } => {
                let (life, soon) = (world.machines[idx].life, world.rng.micros(300, 20_000));
                world.time.after(soon, Event::Installed { idx, life, id, text: reply.cert_pem });
            }
            agent::Effect::PublishWorkloads { .. } => {} // no workload runs here
            agent::Effect::InstallRoots(offer) => Self::install_roots(world, idx, offer),
            agent::Effect::LeaderAnswered { ask, result } => {
                let asked = |h: &crate::machine::ManagerRuntime| h.keeper.asking == Some(ask.0);
                if world.machines[idx].runtime.as_ref().is_some_and(asked) {
                    let member_id = result.map(|answer| match answer {
                        AgentAnswer::Membership(reply) => reply,
                        other => panic!("a request for a seat was answered {other:?}"),
                    });
                    Keeper::answered(world, idx, member_id);
                }
            }
            agent::Effect::KeepManagers(known) => world.machines[idx].agent.known = known,
            agent::Effect::KeepTrouble(trouble) => {
                Self::check_notified(world, idx, true);
                world.log(format!("n{} is informed: {:?}", idx + 1, trouble.reason));
                world.machines[idx].agent.ended = Some(trouble);
            }
            agent::Effect::KeepDemoted(serial) => {
                Self::check_notified(world, idx, false);
                world.log(format!("n{} is informed of its demotion", idx + 1));
                world.machines[idx].agent.demotion_reported = Some(serial);
            }
            agent::Effect::PublishWanted(wanted) => {
                world.machines[idx].agent.wanted = wanted.wanted;
                Self::switch_runtime(world, idx);
            }
            agent::Effect::PublishSession(session) => {
                world.totals.add("sessions opened", u64::from(session.is_some()));
            }
            agent::Effect::PublishTrouble(_) | agent::Effect::LogEvent { .. } => {}
        }
    }

    fn check_notified(world: &mut World, idx: MachineIdx, removed: bool) {
        let machine = &world.machines[idx];
        let granted = machine.agent.certificate.as_ref().and_then(|c| c.granted);
        let outcome = world.checks.notified(machine.id, granted, removed);
        world.require(outcome);
    }

    /// A peer refused the manager runtime because of its certificate.
    pub(crate) fn refused_by_peer(
        world: &mut World,
        idx: MachineIdx,
        life: u32,
        serial: String,
        reason: RefusalReason,
    ) {
        let message = "refused by a peer".to_owned();
        let refusal = Refusal { reason, message, managers: Vec::new(), retry_after_ms: None };
        Self::deliver(world, idx, life, agent::Input::RefusedByPeer { refusal, serial: Some(serial) });
    }

    /// A certificate arrived and is on disk.
    pub(crate) fn installed(world: &mut World, idx: MachineIdx, life: u32, id: u64, text: &str) {
        if !world.machines[idx].up || world.machines[idx].life != life {
            return;
        }
        match Self::keep_certificate(world, idx, text) {
            Some(facts) => {
                Keyring::certified(world, idx);
                Self::step(world, idx, agent::Input::Installed(facts));
            }
            None => {
                world.log(format!("n{} cannot install an answer: {text:?}", idx + 1));
                let why = format!("the answer to {id} contains no certificate of a trusted root");
                Self::step(world, idx, agent::Input::InstallFailed(why));
            }
        }
    }

    fn keep_certificate(world: &mut World, idx: MachineIdx, text: &str) -> Option<CertificateFacts> {
        let id = world.machines[idx].id;
        let (certificate, issued_at) = read_certificate(id, text)?;
        let chain = Chain::read(text.split(' ').skip(WORDS))?;
        if !world.machines[idx].agent.trust.install(chain) {
            world.totals.count("certificates of a root that is not trusted");
            return None;
        }
        let (_, role) = certificate.node()?;
        let granted = certificate.granted.unwrap_or_default();
        let facts = CertificateFacts::of(&certificate, issued_at)?;
        world.totals.count("certificates issued");
        let outcome = world.checks.certified(id, role, granted);
        world.require(outcome);
        world.log(format!("n{} receives a certificate: role={role} granted={granted}", idx + 1));
        Self::remember_certificate(world, idx, &certificate);
        let agent = &mut world.machines[idx].agent;
        agent.certificate = Some(certificate);
        agent.issued_at = issued_at;
        Some(facts)
    }

    // ---- certificates ---------------------------------------------------------------------------------------------

    /// Remembers a certificate for later theft.
    pub(crate) fn remember_certificate(world: &mut World, idx: MachineIdx, certificate: &CertIdentity) {
        let former = &mut world.machines[idx].agent.former;
        former.push(certificate.clone());
        if former.len() > MAX_FORMER_CERTIFICATES {
            former.remove(0);
        }
    }

    /// Starts or stops the manager runtime. Data of a stopped runtime is discarded.
    fn switch_runtime(world: &mut World, idx: MachineIdx) {
        let machine = &world.machines[idx];
        match (machine.wants_manager(), machine.runtime.is_some()) {
            (true, false) => ManagerRuntime::start(world, idx, false),
            (false, true) => {
                world.log(format!("n{} stops its manager runtime", idx + 1));
                ManagerRuntime::stop(world, idx, true);
                world.machines[idx].disk.wipe();
                Keyring::certified(world, idx);
            }
            _ => {}
        }
    }

    // ---- questions to the leader ----------------------------------------------------------------------------------

    /// Sends a question of this host to the node that it believes leads.
    pub(crate) fn question(world: &mut World, host: MachineIdx, question: Question) -> Option<u64> {
        let leader = world.machines[host].runtime.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let to = leader.and_then(|node| world.idx_of(node))?;
        let ask = world.number();
        let caller = Caller { idx: host, life: world.machines[host].life, ask };
        Self::send_question(world, host, to, caller, question);
        Some(ask)
    }

    fn send_question(world: &mut World, host: MachineIdx, to: MachineIdx, caller: Caller, question: Question) {
        let lost = !(host == to || world.net.both_open(host, to)) || world.rng.chance(world.net.conditions.loss);
        if !lost {
            let delay = world.net.conditions.slow + world.rng.micros(150, 2500);
            world.time.after(delay, Event::Question { to, caller, question: Box::new(question) });
        }
    }

    pub(crate) fn receive_question(world: &mut World, to: MachineIdx, caller: Caller, question: Question) {
        let unreachable = ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead");
        match question {
            Question::Call(PeerCall::Membership { node, request }) => match Roles::at(world, to) {
                Some(roles) => {
                    let ask = roles::AskId(caller.ask);
                    roles.asks.insert(ask, RoleAsker::Membership(caller));
                    Roles::step(world, to, roles::Input::MembershipRequested { ask, node, request });
                }
                None => world.reply(to, caller, Answered::Membership(Err(unreachable))),
            },
            Question::Call(PeerCall::SignNode { .. }) if world.holds.certificates => {}
            Question::Call(PeerCall::SignNode { identity, observed_addr, .. }) => {
                let (observed, key) = (observed_addr.parse().ok(), world.key.clone());
                Authority::request(
                    world,
                    to,
                    caller,
                    authority::CertificateRequest::Node(authority::NodeRequest { identity, observed, key }),
                );
            }
            Question::Call(PeerCall::TrustRoots { node, generation }) => {
                Rotation::trusted(world, to, caller, node, generation);
            }
            Question::Call(PeerCall::ReportSeal(seal)) => Keyring::report_arrives(world, to, caller, seal),
            Question::Call(_) => {}
            Question::Join => {
                let from = &world.machines[caller.idx];
                let request = authority::CertificateRequest::Join(Box::new(authority::VerifiedJoin {
                    request: from.agent.request,
                    node: from.id,
                    secret: token_secret(from.agent.joins_as),
                    name: from.name.clone(),
                    addr: from.addr.clone(),
                    release: "0.1.0".to_owned(),
                    labels: Default::default(),
                    observed: Some(AgentConnections::seen_at(caller.idx)),
                    key: world.key.clone(),
                    rekey: None,
                }));
                Authority::request(world, to, caller, request);
            }
        }
    }

    pub(crate) fn answered(world: &mut World, to: Caller, answer: Answered) {
        let machine = &world.machines[to.idx];
        if !machine.up || machine.life != to.life || Hosts::call_ended(world, to.idx, to.ask, &answer) {
            return;
        }
        if let Answered::Seal(result) = answer {
            return Keyring::reported(world, to, result);
        }
        let joins = world.machines[to.idx].agent.asking.is_some_and(|(ask, _)| ask == to.ask);
        if let Answered::Certificate(result) = answer
            && joins
        {
            world.machines[to.idx].agent.asking = None;
            Self::joined(world, to.idx, result);
        }
    }

    fn joined(world: &mut World, idx: MachineIdx, result: Result<String, ErrorBody>) {
        match result {
            // Unless an earlier answer arrived first.
            Ok(text)
                if world.machines[idx].agent.certificate.is_none()
                    && Self::keep_certificate(world, idx, &text).is_some() =>
            {
                world.totals.count("nodes joined");
                Self::start(world, idx);
            }
            Err(error) if matches!(error.code, ErrorCode::Removed | ErrorCode::Blocked) => {
                // A real node may retry indefinitely; here this answer is final.
                let (message, at) = (error.message, world.wall(idx));
                let reason = muster_agent::TroubleReason::Removed;
                world.machines[idx].agent.ended = Some(muster_agent::NodeTrouble::new(reason, message, at));
            }
            _ => {}
        }
    }
}

impl Keeper {
    // ---- membership -----------------------------------------------------------------------------------------------

    /// `unanswered`: only if that question is still unanswered.
    pub(crate) fn ask(world: &mut World, idx: MachineIdx, runtime: u32, unanswered: Option<u64>) {
        let Some(h) = world.machines[idx].runtime(runtime) else { return };
        if unanswered.is_some_and(|ask| h.keeper.asking != Some(ask)) {
            return;
        }
        // Once a newer member id is assigned, the loss of the old data is known and repaired.
        let disk = &world.machines[idx].disk;
        let lost = disk.lost.clone().filter(|_| h.keeper.assigned <= disk.held);
        let held = if lost.is_some() { world.machines[idx].disk.held } else { h.keeper.holds };
        let advertise = world.machines[idx].addr.clone();
        let request = MembershipRequest { advertise, held, data_lost: lost, feature_level: world.machines[idx].build };
        let ask = world.number();
        if let Some(h) = world.machines[idx].runtime_mut(runtime) {
            h.keeper.asking = Some(ask);
        }
        world.time.after(QUESTION_TIMEOUT, Event::AskMembership { idx, runtime, unanswered: Some(ask) });
        Agent::step(
            world,
            idx,
            agent::Input::AskLeader { ask: agent::AskId(ask), question: AgentAsk::Membership(request) },
        );
    }

    /// A member without a leader for this long may have been removed without notice.
    fn ask_when_leaderless(world: &mut World, idx: MachineIdx) {
        let now = world.now();
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        if runtime.core.replica().raft.leader.is_some() {
            runtime.leaderless_since = None;
            return;
        }
        let since = *runtime.leaderless_since.get_or_insert(now);
        if now.since(since) >= LEADERLESS_AFTER && runtime.keeper.asking.is_none() {
            runtime.leaderless_since = Some(now);
            Self::ask_again(world, idx, Duration::ZERO);
        }
    }

    fn ask_again(world: &mut World, idx: MachineIdx, pause: Duration) {
        if let Some(runtime) = world.machines[idx].runtime.as_ref().map(|h| h.number) {
            world.time.after(pause, Event::AskMembership { idx, runtime, unanswered: None });
        }
    }

    fn answered(world: &mut World, idx: MachineIdx, result: Result<MembershipReply, ErrorBody>) {
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        runtime.keeper.asking = None;
        match result {
            Ok(MembershipReply::IsMember { raft_id }) => {
                runtime.keeper.assigned = Some(raft_id);
                runtime.keeper.pause = FIRST_PAUSE;
                let stale = runtime.keeper.holds.is_some_and(|held| held != raft_id);
                let given = runtime.keeper.holds == Some(raft_id);
                world.log(format!("n{} is assigned member id {raft_id}", idx + 1));
                if stale && world.machines[idx].disk.lost.is_none() {
                    world.log(format!("n{} discards the data of an older member id", idx + 1));
                    let keeper = world.machines[idx].runtime.as_ref().map(|h| h.keeper.clone()).unwrap_or_default();
                    ManagerRuntime::stop(world, idx, true);
                    world.machines[idx].disk.replace(false);
                    ManagerRuntime::start(world, idx, false);
                    if let Some(runtime) = world.machines[idx].runtime.as_mut() {
                        runtime.keeper = Keeper { holds: None, asking: None, ..keeper };
                    }
                } else {
                    Self::settle(world, idx);
                }
                if !given {
                    Self::ask_again(world, idx, MAX_PAUSE);
                }
            }
            Ok(MembershipReply::Wait { retry_after_ms, .. }) => {
                let pause = Duration::from_millis(retry_after_ms).clamp(FIRST_PAUSE, MAX_PAUSE);
                Self::ask_again(world, idx, pause);
            }
            Ok(MembershipReply::NotWanted { .. }) => Self::ask_again(world, idx, MAX_PAUSE),
            Err(error) if error.code == ErrorCode::GateClosed => {
                Levels::stop_incompatible(world, idx, "the leader says so")
            }
            Err(_) => {
                let pause = runtime.keeper.pause;
                runtime.keeper.pause = pause.mul_f64(1.5).min(MAX_PAUSE);
                Self::ask_again(world, idx, pause);
            }
        }
    }

    /// The member id that the member publishes.
    pub(crate) fn keep(world: &mut World, idx: MachineIdx, holds: Option<RaftId>) {
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        if runtime.keeper.holds == holds {
            return;
        }
        let had = std::mem::replace(&mut runtime.keeper.holds, holds);
        match holds {
            Some(held) => {
                world.machines[idx].silent_since = None;
                world.machines[idx].disk.held = Some(held);
                Self::settle(world, idx);
            }
            None if had.is_some() => Self::ask_again(world, idx, FIRST_PAUSE),
            None => {}
        }
    }

    /// A data loss is repaired once the new member id holds data.
    fn settle(world: &mut World, idx: MachineIdx) {
        let machine = &mut world.machines[idx];
        let Some(runtime) = machine.runtime.as_ref() else { return };
        if runtime.keeper.holds.is_some() && runtime.keeper.holds == runtime.keeper.assigned {
            machine.disk.lost = None;
        }
    }
}
