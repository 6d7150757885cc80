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

use crate::bugs::Bug;
use crate::machine::{Caller, MachineIdx};
use crate::schedule::keep_earlier;
use crate::simulation::{Answered, Event, Question, Simulation};

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
}

impl Simulation {
    /// The replica changed: the sessions observe it soon.
    pub(crate) fn schedule_observe_in_hosts(&mut self, idx: MachineIdx) {
        let Some(runtime) = self.machines[idx].runtime.as_mut().filter(|h| !h.hosts.observe_due) else { return };
        let Replica { tables, raft } = runtime.core.replica().as_ref();
        let newest = Some((tables.revision, raft.term, raft.leader.and(raft.leader_node)));
        if runtime.hosts.shown != newest {
            runtime.hosts.observe_due = true;
            let (runtime, soon) = (runtime.number, self.rng.micros(0, 1500));
            self.time.after(soon, Event::ObserveInHosts { idx, runtime });
        }
    }

    pub(crate) fn observe_in_hosts(&mut self, idx: MachineIdx, runtime: u32) {
        let stays = self.settings.bug == Some(Bug::AllowBlocked);
        let Some(h) = self.machines[idx].runtime_mut(runtime) else { return };
        let (replica, hosts) = (h.core.replica().clone(), &mut h.hosts);
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
            self.session_step(idx, node, session::Input::NodeUpdate(Box::new(node_update)));
        }
        self.host_step(idx, host::Input::Leader { term: replica.raft.term, leader });
    }

    // ---- the host -------------------------------------------------------------------------------------------------

    pub(crate) fn host_step(&mut self, idx: MachineIdx, input: host::Input) {
        let now = self.clock(idx);
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let (number, mut effects) = (runtime.number, Vec::new());
        runtime.hosts.core.step(now, input, &mut effects);
        for effect in effects {
            self.apply_host_effect(idx, number, effect);
        }
        let Some(runtime) = self.machines[idx].runtime_mut(number) else { return };
        let wakes = runtime.hosts.core.wake_at(now);
        if let Some(at) = keep_earlier(&mut runtime.hosts.wakes, wakes) {
            let at = self.moment(idx, at);
            self.time.at(at, Event::HostWoke { idx, runtime: number });
        }
    }

    pub(crate) fn host_woke(&mut self, idx: MachineIdx, runtime: u32) {
        if let Some(runtime) = self.machines[idx].runtime_mut(runtime) {
            runtime.hosts.wakes = None;
            self.host_step(idx, host::Input::Woke);
        }
    }

    fn apply_host_effect(&mut self, idx: MachineIdx, runtime: u32, effect: host::Effect) {
        match effect {
            host::Effect::Admit { node, conn } => self.admit_session(idx, node, conn),
            host::Effect::Refuse { conn, mut refusal } => {
                if let Some(runtime) = self.machines[idx].runtime.as_mut() {
                    runtime.hosts.waiting.remove(&conn);
                    refusal.managers = runtime.hosts.seen.shared().managers.clone();
                }
                self.totals.count("sessions refused");
                self.host_sends(conn, Box::new(muster_messages::wire::HostFrame::Ended(refusal)));
                self.host_closes(conn.0);
            }
            host::Effect::Move { node } => {
                let reason = "this manager has no leader".to_owned();
                self.totals.count("sessions moved to another host");
                self.session_step(idx, node, session::Input::Move { reason });
            }
            host::Effect::Digest(digest) => self.send_digest(idx, runtime, digest),
            host::Effect::DuplicateFound(_) | host::Effect::DuplicateResolved(_) => {}
        }
    }

    fn admit_session(&mut self, idx: MachineIdx, node: NodeId, conn: ConnId) {
        let local = self.machines[idx].runtime.as_ref().map(|h| h.core.replica().clone());
        let stays = local.is_some_and(|local| self.lets_stay(&local, node));
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let hosts = &mut runtime.hosts;
        let Some(identity) = hosts.waiting.remove(&conn) else { return };
        let node_update = hosts.seen.update_of(node);
        let config = Arc::clone(&hosts.config);
        let fresh = || Session { core: AgentSession::new(node, config), wakes: None };
        hosts.sessions.entry(node).or_insert_with(fresh);
        let remote = self.idx_of(node).map_or_else(|| Self::seen_at(0), Self::seen_at);
        self.session_step(idx, node, session::Input::Connected { conn, identity: Box::new(identity), remote });
        if !stays {
            self.session_step(idx, node, session::Input::NodeUpdate(Box::new(node_update)));
        }
    }

    // ---- one session ----------------------------------------------------------------------------------------------

    pub(crate) fn session_step(&mut self, idx: MachineIdx, node: NodeId, input: session::Input) {
        let (now, wall) = (self.clock(idx), self.wall(idx));
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        let Some(session) = runtime.hosts.sessions.get_mut(&node) else { return };
        let mut effects = Vec::new();
        session.core.step(now, wall, input, &mut effects);
        let wakes = session.core.wake_at();
        if let Some(at) = keep_earlier(&mut session.wakes, wakes) {
            let at = self.moment(idx, at);
            self.time.at(at, Event::SessionWoke { idx, runtime: number, node });
        }
        for effect in effects {
            self.apply_session_effect(idx, number, node, effect);
        }
    }

    pub(crate) fn session_woke(&mut self, idx: MachineIdx, runtime: u32, node: NodeId) {
        let Some(runtime) = self.machines[idx].runtime_mut(runtime) else { return };
        if let Some(session) = runtime.hosts.sessions.get_mut(&node) {
            session.wakes = None;
            self.session_step(idx, node, session::Input::Woke);
        }
    }

    fn apply_session_effect(&mut self, idx: MachineIdx, runtime: u32, node: NodeId, effect: session::Effect) {
        match effect {
            session::Effect::Send { conn, frame } => self.host_sends(conn, frame),
            session::Effect::Close { conn } => self.host_closes(conn.0),
            session::Effect::CallLeader { conn, id, call } => self.call_leader(idx, runtime, (node, conn, id), *call),
            session::Effect::Report { fact, connected } => {
                self.host_step(idx, host::Input::Reported { node, fact, connected });
            }
            session::Effect::Forget => {
                if let Some(runtime) = self.machines[idx].runtime_mut(runtime) {
                    runtime.hosts.sessions.remove(&node);
                }
            }
            session::Effect::LogEvent(note) => {
                if let session::LogEvent::Down { why } = &note {
                    let name = self.name(node);
                    self.log(format!("{name} is down for n{}: {why}", idx + 1));
                }
            }
            session::Effect::AnswerAsk { .. } => {}
        }
    }

    // ---- to the leader --------------------------------------------------------------------------------------------

    fn call_leader(&mut self, idx: MachineIdx, runtime: u32, (node, conn, id): (NodeId, ConnId, u64), call: PeerCall) {
        let Some(ask) = self.question(idx, Question::Call(call)) else {
            let error = ErrorBody::new(ErrorCode::Unreachable, "no leader is known");
            return self.session_step(idx, node, session::Input::LeaderAnswered { conn, id, result: Err(error) });
        };
        if let Some(h) = self.machines[idx].runtime_mut(runtime) {
            h.hosts.calls.insert(ask, (node, conn, id));
            self.time.after(QUESTION_TIMEOUT, Event::CallLate { idx, runtime, ask });
        }
    }

    /// The leader's answer to an agent's question. False: it was none of these.
    pub(crate) fn call_ended(&mut self, idx: MachineIdx, ask: u64, answer: &Answered) -> bool {
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return false };
        let Some((node, conn, id)) = runtime.hosts.calls.remove(&ask) else { return false };
        let result = match answer {
            Answered::Certificate(Ok(text)) => {
                Ok(AgentAnswer::Signed(SignReply { cert_pem: text.clone(), root_pem: "root".to_owned() }))
            }
            Answered::Membership(Ok(reply)) => Ok(AgentAnswer::Membership(reply.clone())),
            Answered::Certificate(Err(error)) | Answered::Membership(Err(error)) => Err(error.clone()),
        };
        self.session_step(idx, node, session::Input::LeaderAnswered { conn, id, result });
        true
    }

    pub(crate) fn call_late(&mut self, idx: MachineIdx, runtime: u32, ask: u64) {
        let Some(h) = self.machines[idx].runtime_mut(runtime) else { return };
        if let Some((node, conn, id)) = h.hosts.calls.remove(&ask) {
            let error = ErrorBody::new(ErrorCode::TimedOut, "the leader did not answer in time");
            self.session_step(idx, node, session::Input::LeaderAnswered { conn, id, result: Err(error) });
        }
    }

    fn send_digest(&mut self, idx: MachineIdx, runtime: u32, digest: SessionDigest) {
        let caller = Caller { idx, life: self.machines[idx].life, ask: digest.sequence };
        self.time.after(QUESTION_TIMEOUT, Event::DigestAnswered { idx, runtime, sequence: digest.sequence, ok: false });
        let leader = self.machines[idx].runtime.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let Some(to) = leader.and_then(|node| self.idx_of(node)) else { return };
        if (idx == to || self.net.both_open(idx, to)) && !self.rng.chance(self.net.conditions.loss) {
            let delay = self.net.conditions.slow + self.rng.micros(150, 2500);
            self.time.after(delay, Event::Digest { to, caller, runtime, digest: Box::new(digest) });
        }
    }

    pub(crate) fn digest_answered(&mut self, idx: MachineIdx, runtime: u32, sequence: u64, ok: bool) {
        if self.machines[idx].runtime(runtime).is_some() {
            self.host_step(idx, host::Input::DigestAnswered { sequence, ok });
        }
    }
}
