//! Hosts: the manager side of agent sessions, one core per node, and the core that holds them. Digests report
//! them to the leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{AgentAnswer, PeerCall, SessionDigest, SignReply};
use muster_messages::{CertIdentity, ErrorBody, ErrorCode, Moment, NodeId, Replica, Revision, Term};
use muster_sessions::SessionsConfig;
use muster_sessions::core::host::{self, Host};
use muster_sessions::core::node_update::{NodeUpdate, SeenState};
use muster_sessions::core::session::{self, AgentSession, ConnId};
use muster_sessions::core::spread::share_of;

use crate::bugs::Bug;
use crate::connections::AgentConnections;
use crate::events::{Answered, Event, Question};
use crate::machine::{Agent, Caller, MachineIdx};
use crate::schedule::keep_earlier;
use crate::world::World;

/// A question of an agent without an answer by then is lost.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(2500);

/// A manager runtime's agent sessions.
pub struct Hosts {
    core: Host,
    config: Arc<SessionsConfig>,
    sessions: BTreeMap<NodeId, Session>,
    /// Connections that the host has not admitted yet.
    pub waiting: BTreeMap<ConnId, CertIdentity>,
    /// Agents' questions to the leader, by their numbers.
    calls: BTreeMap<u64, (NodeId, ConnId, u64)>,
    seen: SeenState,
    /// An observation of the newest replica is scheduled.
    observe_due: bool,
    /// The replica that was observed last.
    shown: Option<(Revision, Term, Option<NodeId>)>,
    wakes: Option<Moment>,
}

struct Session {
    core: AgentSession,
    wakes: Option<Moment>,
}

impl Hosts {
    pub fn new(config: SessionsConfig, now: Moment, first_sequence: u64) -> Self {
        Self {
            core: Host::new(config.clone(), now, first_sequence),
            config: Arc::new(config),
            sessions: BTreeMap::new(),
            waiting: BTreeMap::new(),
            calls: BTreeMap::new(),
            seen: SeenState::default(),
            observe_due: false,
            shown: None,
            wakes: None,
        }
    }

    /// The replica changed: the sessions observe it soon.
    pub(crate) fn schedule_observe(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_mut().filter(|h| !h.hosts.observe_due) else { return };
        let Replica { tables, raft } = runtime.core.cluster_replica().as_ref();
        let newest = Some((tables.revision, raft.term, raft.leader.and(raft.leader_node)));
        if runtime.hosts.shown != newest {
            runtime.hosts.observe_due = true;
            let (runtime, soon) = (runtime.number, world.rng.micros(0, 1500));
            world.time.after(soon, Event::ObserveInHosts { idx, runtime });
        }
    }

    pub(crate) fn observe(world: &mut World, idx: MachineIdx, runtime: u32) {
        let stays = world.settings.bug == Some(Bug::AllowBlocked);
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        let (replica, hosts) = (h.core.cluster_replica().clone(), &mut h.hosts);
        hosts.observe_due = false;
        let leader = replica.raft.leader.and(replica.raft.leader_node);
        // What is observed, and not what was scheduled: the replica may have changed in between, and may change back.
        hosts.shown = Some((replica.tables.revision, replica.raft.term, leader));
        let nodes = hosts.seen.replace(replica.tables.clone());
        let nodes = nodes.unwrap_or_else(|| hosts.sessions.keys().copied().collect());
        let updates: Vec<(NodeId, NodeUpdate)> = nodes
            .into_iter()
            .filter(|node| hosts.sessions.contains_key(node))
            .filter(|node| !(stays && replica.tables.blocklist.contains_key(node)))
            .map(|node| (node, hosts.seen.update_of(node)))
            .collect();
        for (node, node_update) in updates {
            Self::session_step(world, idx, node, session::Input::NodeUpdate(Box::new(node_update)));
        }
        Self::step(world, idx, host::Input::Leader { term: replica.raft.term, leader });
    }

    // ---- the host -------------------------------------------------------------------------------------------------

    pub(crate) fn step(world: &mut World, idx: MachineIdx, input: host::Input) {
        let now = world.clock(idx);
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let (number, mut effects) = (runtime.number, Vec::new());
        runtime.hosts.core.step(now, input, &mut effects);
        for effect in effects {
            Self::apply_effect(world, idx, number, effect);
        }
        let Some(runtime) = world.machines[idx].runtime_mut(number) else { return };
        let wakes = runtime.hosts.core.wake_at(now);
        if let Some(at) = keep_earlier(&mut runtime.hosts.wakes, wakes) {
            let at = world.moment(idx, at);
            world.time.at(at, Event::HostWoke { idx, runtime: number });
        }
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, runtime: u32) {
        if let Some(runtime) = world.machines[idx].runtime_mut(runtime) {
            runtime.hosts.wakes = None;
            Self::step(world, idx, host::Input::Woke);
        }
    }

    fn apply_effect(world: &mut World, idx: MachineIdx, runtime: u32, effect: host::Effect) {
        match effect {
            host::Effect::Admit { node, conn } => Self::admit_session(world, idx, node, conn),
            host::Effect::Refuse { conn, mut refusal } => {
                if let Some(runtime) = world.machines[idx].runtime.as_mut() {
                    runtime.hosts.waiting.remove(&conn);
                    refusal.managers = runtime.hosts.seen.shared().managers.clone();
                }
                world.totals.count("sessions refused");
                AgentConnections::host_sends(world, conn, Box::new(muster_messages::wire::HostFrame::Ended(refusal)));
                AgentConnections::host_closes(world, conn.0);
            }
            host::Effect::Move { node, reason } => {
                let reason = reason.to_owned();
                world.totals.count("sessions moved to another host");
                Self::session_step(world, idx, node, session::Input::Move { reason });
            }
            host::Effect::CountShare => {
                let runtime = world.machines[idx].runtime.as_ref();
                if let Some(share) = runtime.map(|runtime| share_of(&runtime.core.cluster_replica().tables)) {
                    Self::step(world, idx, host::Input::Share(share));
                }
            }
            host::Effect::Digest(digest) => Self::send_digest(world, idx, runtime, digest),
            host::Effect::DuplicateFound(_) | host::Effect::DuplicateResolved(_) => {}
        }
    }

    fn admit_session(world: &mut World, idx: MachineIdx, node: NodeId, conn: ConnId) {
        let local = world.machines[idx].runtime.as_ref().map(|h| h.core.replica().clone());
        let stays = local.is_some_and(|local| world.lets_stay(&local, node));
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let hosts = &mut runtime.hosts;
        let Some(identity) = hosts.waiting.remove(&conn) else { return };
        let node_update = hosts.seen.update_of(node);
        let config = Arc::clone(&hosts.config);
        let fresh = || Session { core: AgentSession::new(node, config), wakes: None };
        hosts.sessions.entry(node).or_insert_with(fresh);
        let remote = world.idx_of(node).map_or_else(|| AgentConnections::seen_at(0), AgentConnections::seen_at);
        Self::session_step(world, idx, node, session::Input::Connected { conn, identity: Box::new(identity), remote });
        if !stays {
            Self::session_step(world, idx, node, session::Input::NodeUpdate(Box::new(node_update)));
        }
    }

    // ---- one session ----------------------------------------------------------------------------------------------

    pub(crate) fn session_step(world: &mut World, idx: MachineIdx, node: NodeId, input: session::Input) {
        let (now, wall) = (world.clock(idx), world.wall(idx));
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        let Some(session) = runtime.hosts.sessions.get_mut(&node) else { return };
        let mut effects = Vec::new();
        session.core.step(now, wall, input, &mut effects);
        let wakes = session.core.wake_at();
        if let Some(at) = keep_earlier(&mut session.wakes, wakes) {
            let at = world.moment(idx, at);
            world.time.at(at, Event::SessionWoke { idx, runtime: number, node });
        }
        for effect in effects {
            Self::apply_session_effect(world, idx, number, node, effect);
        }
    }

    pub(crate) fn session_woke(world: &mut World, idx: MachineIdx, runtime: u32, node: NodeId) {
        let Some(runtime) = world.machines[idx].runtime_mut(runtime) else { return };
        if let Some(session) = runtime.hosts.sessions.get_mut(&node) {
            session.wakes = None;
            Self::session_step(world, idx, node, session::Input::Woke);
        }
    }

    fn apply_session_effect(world: &mut World, idx: MachineIdx, runtime: u32, node: NodeId, effect: session::Effect) {
        match effect {
            session::Effect::Send { conn, frame } => AgentConnections::host_sends(world, conn, frame),
            session::Effect::Close { conn } => AgentConnections::host_closes(world, conn.0),
            session::Effect::CallLeader { conn, id, call } => {
                Self::call_leader(world, idx, runtime, (node, conn, id), *call)
            }
            session::Effect::Report { fact, connected } => {
                Self::step(world, idx, host::Input::Reported { node, fact, connected });
            }
            session::Effect::Forget => {
                if let Some(runtime) = world.machines[idx].runtime_mut(runtime) {
                    runtime.hosts.sessions.remove(&node);
                }
            }
            session::Effect::LogEvent(note) => {
                if let session::LogEvent::Down { why } = &note {
                    let name = world.name(node);
                    world.log(format!("{name} is down for n{}: {why}", idx + 1));
                }
            }
            session::Effect::AnswerAsk { .. } => {}
        }
    }

    // ---- to the leader --------------------------------------------------------------------------------------------

    fn call_leader(
        world: &mut World,
        idx: MachineIdx,
        runtime: u32,
        (node, conn, id): (NodeId, ConnId, u64),
        call: PeerCall,
    ) {
        let Some(ask) = Agent::question(world, idx, Question::Call(call)) else {
            let error = ErrorBody::new(ErrorCode::Unreachable, "no leader is known");
            return Self::session_step(
                world,
                idx,
                node,
                session::Input::LeaderAnswered { conn, id, result: Err(error) },
            );
        };
        if let Some(h) = world.machines[idx].runtime_mut(runtime) {
            h.hosts.calls.insert(ask, (node, conn, id));
            world.time.after(QUESTION_TIMEOUT, Event::CallLate { idx, runtime, ask });
        }
    }

    /// The leader's answer to an agent's question. False: it was none of these.
    pub(crate) fn call_ended(world: &mut World, idx: MachineIdx, ask: u64, answer: &Answered) -> bool {
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return false };
        let Some((node, conn, id)) = runtime.hosts.calls.remove(&ask) else { return false };
        let result = match answer {
            Answered::Certificate(Ok(text)) => {
                Ok(AgentAnswer::Signed(SignReply { cert_pem: text.clone(), root_pem: "root".to_owned() }))
            }
            Answered::Membership(Ok(reply)) => Ok(AgentAnswer::Membership(reply.clone())),
            Answered::Roots(Ok(())) | Answered::Seal(Ok(())) => Ok(AgentAnswer::Reported),
            Answered::Certificate(Err(error))
            | Answered::Membership(Err(error))
            | Answered::Roots(Err(error))
            | Answered::Seal(Err(error)) => Err(error.clone()),
        };
        Self::session_step(world, idx, node, session::Input::LeaderAnswered { conn, id, result });
        true
    }

    pub(crate) fn call_late(world: &mut World, idx: MachineIdx, runtime: u32, ask: u64) {
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        if let Some((node, conn, id)) = h.hosts.calls.remove(&ask) {
            let error = ErrorBody::new(ErrorCode::TimedOut, "the leader did not answer in time");
            Self::session_step(world, idx, node, session::Input::LeaderAnswered { conn, id, result: Err(error) });
        }
    }

    fn send_digest(world: &mut World, idx: MachineIdx, runtime: u32, digest: SessionDigest) {
        let caller = Caller { idx, life: world.machines[idx].life, ask: digest.sequence };
        world
            .time
            .after(QUESTION_TIMEOUT, Event::DigestAnswered { idx, runtime, sequence: digest.sequence, ok: false });
        let leader = world.machines[idx].runtime.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let Some(to) = leader.and_then(|node| world.idx_of(node)) else { return };
        if (idx == to || world.net.both_open(idx, to)) && !world.rng.chance(world.net.conditions.loss) {
            let delay = world.net.conditions.slow + world.rng.micros(150, 2500);
            world.time.after(delay, Event::Digest { to, caller, runtime, digest: Box::new(digest) });
        }
    }

    pub(crate) fn digest_answered(world: &mut World, idx: MachineIdx, runtime: u32, sequence: u64, ok: bool) {
        if world.machines[idx].runtime(runtime).is_some() {
            Self::step(world, idx, host::Input::DigestAnswered { sequence, ok });
        }
    }
}
