//! Hosts: the manager's ends of agent sessions, one core for each node, and the core that has them all. What the leader is
//! told of them travels in digests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{AgentAnswer, PeerCall, SessionDigest, SignReply};
use muster_messages::{CertIdentity, ErrorBody, ErrorCode, Moment, NodeId, Replica, Revision, Tables, Term};
use muster_sessions::SessionsConfig;
use muster_sessions::core::host::{self, Host};
use muster_sessions::core::news::{News, Shared, changed, shared_changed};
use muster_sessions::core::session::{self, AgentSession, ConnId};

use crate::breaks::Break;
use crate::machine::{Caller, Place};
use crate::schedule::sooner;
use crate::world::{Answered, Event, Question, Universe};

/// A question of an agent that is not answered by then was lost.
const PATIENCE: Duration = Duration::from_millis(2500);

/// What a manager half has of agents.
pub struct Hosts {
    core: Host,
    config: Arc<SessionsConfig>,
    sessions: BTreeMap<NodeId, Session>,
    /// Connections that the host has not let in yet.
    pub waiting: BTreeMap<ConnId, CertIdentity>,
    /// Agents' questions at the leader, under the number they travel with.
    calls: BTreeMap<u64, (NodeId, ConnId, u64)>,
    copy: Tables,
    shared: Arc<Shared>,
    /// A look at the newest copy is scheduled.
    look_due: bool,
    /// What of the copy it has been shown, or is about to be.
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
            copy: Tables::default(),
            shared: Arc::default(),
            look_due: false,
            shown: None,
            wakes: None,
        }
    }
}

impl Universe {
    /// The copy has changed: the sessions see it soon.
    pub(crate) fn hosts_look_soon(&mut self, place: Place) {
        let Some(half) = self.machines[place].half.as_mut().filter(|h| !h.hosts.look_due) else { return };
        let Replica { tables, raft } = half.core.replica().as_ref();
        let newest = Some((tables.revision, raft.term, raft.leader.and(raft.leader_node)));
        if half.hosts.shown != newest {
            (half.hosts.look_due, half.hosts.shown) = (true, newest);
            let (half, soon) = (half.number, self.dice.micros(0, 1500));
            self.time.after(soon, Event::HostsLook { place, half });
        }
    }

    pub(crate) fn hosts_look(&mut self, place: Place, half: u32) {
        let stays = self.settings.broken == Some(Break::LetTheBlockedStay);
        let Some(h) = self.machines[place].half_mut(half) else { return };
        let (replica, hosts) = (h.core.replica().clone(), &mut h.hosts);
        hosts.look_due = false;
        let old = std::mem::replace(&mut hosts.copy, replica.tables.clone());
        let mut nodes = changed(&old, &hosts.copy);
        if shared_changed(&old, &hosts.copy, &nodes) {
            let shared = Shared::of(&hosts.copy);
            if shared != *hosts.shared {
                hosts.shared = Arc::new(shared);
                nodes = hosts.sessions.keys().copied().collect();
            }
        }
        let told: Vec<(NodeId, News)> = nodes
            .into_iter()
            .filter(|node| hosts.sessions.contains_key(node))
            .filter(|node| !(stays && hosts.copy.blocklist.contains_key(node)))
            .map(|node| (node, News::of(&hosts.copy, node, &hosts.shared)))
            .collect();
        for (node, news) in told {
            self.session_step(place, node, session::Input::News(Box::new(news)));
        }
        let leader = replica.raft.leader.and(replica.raft.leader_node);
        self.host_step(place, host::Input::Leader { term: replica.raft.term, leader });
    }

    // ---- the host -------------------------------------------------------------------------------------------------

    pub(crate) fn host_step(&mut self, place: Place, input: host::Input) {
        let now = self.clock(place);
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let (number, mut effects) = (half.number, Vec::new());
        half.hosts.core.step(now, input, &mut effects);
        for effect in effects {
            self.perform_host(place, number, effect);
        }
        let Some(half) = self.machines[place].half_mut(number) else { return };
        let wakes = half.hosts.core.wake_at(now);
        if let Some(at) = sooner(&mut half.hosts.wakes, wakes) {
            let at = self.moment(place, at);
            self.time.at(at, Event::HostWoke { place, half: number });
        }
    }

    pub(crate) fn host_woke(&mut self, place: Place, half: u32) {
        if let Some(half) = self.machines[place].half_mut(half) {
            half.hosts.wakes = None;
            self.host_step(place, host::Input::Woke);
        }
    }

    fn perform_host(&mut self, place: Place, half: u32, effect: host::Effect) {
        match effect {
            host::Effect::Admit { node, conn } => self.let_in(place, node, conn),
            host::Effect::Refuse { conn, mut refusal } => {
                if let Some(half) = self.machines[place].half.as_mut() {
                    half.hosts.waiting.remove(&conn);
                    refusal.managers = half.hosts.shared.managers.clone();
                }
                self.totals.count("sessions refused");
                self.host_sends(conn, Box::new(muster_messages::wire::HostFrame::Ended(refusal)));
                self.host_hangs_up(conn.0);
            }
            host::Effect::Move { node } => {
                let reason = "this manager has no leader".to_owned();
                self.totals.count("sessions sent away");
                self.session_step(place, node, session::Input::Move { reason });
            }
            host::Effect::Digest(digest) => self.send_digest(place, half, digest),
            host::Effect::Warn(_) | host::Effect::Over(_) => {}
        }
    }

    fn let_in(&mut self, place: Place, node: NodeId, conn: ConnId) {
        let copy = self.machines[place].half.as_ref().map(|h| h.core.replica().clone());
        let stays = copy.is_some_and(|copy| self.lets_stay(&copy, node));
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let hosts = &mut half.hosts;
        let Some(identity) = hosts.waiting.remove(&conn) else { return };
        let news = News::of(&hosts.copy, node, &hosts.shared);
        let config = Arc::clone(&hosts.config);
        let fresh = || Session { core: AgentSession::new(node, config), wakes: None };
        hosts.sessions.entry(node).or_insert_with(fresh);
        let remote = self.place_of(node).map_or_else(|| Self::seen_at(0), Self::seen_at);
        self.session_step(place, node, session::Input::Connected { conn, identity: Box::new(identity), remote });
        if !stays {
            self.session_step(place, node, session::Input::News(Box::new(news)));
        }
    }

    // ---- one session ----------------------------------------------------------------------------------------------

    pub(crate) fn session_step(&mut self, place: Place, node: NodeId, input: session::Input) {
        let (now, wall) = (self.clock(place), self.wall(place));
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let number = half.number;
        let Some(session) = half.hosts.sessions.get_mut(&node) else { return };
        let mut effects = Vec::new();
        session.core.step(now, wall, input, &mut effects);
        let wakes = session.core.wake_at();
        if let Some(at) = sooner(&mut session.wakes, wakes) {
            let at = self.moment(place, at);
            self.time.at(at, Event::SessionWoke { place, half: number, node });
        }
        for effect in effects {
            self.perform_session(place, number, node, effect);
        }
    }

    pub(crate) fn session_woke(&mut self, place: Place, half: u32, node: NodeId) {
        let Some(half) = self.machines[place].half_mut(half) else { return };
        if let Some(session) = half.hosts.sessions.get_mut(&node) {
            session.wakes = None;
            self.session_step(place, node, session::Input::Woke);
        }
    }

    fn perform_session(&mut self, place: Place, half: u32, node: NodeId, effect: session::Effect) {
        match effect {
            session::Effect::Send { conn, frame } => self.host_sends(conn, frame),
            session::Effect::Close { conn } => self.host_hangs_up(conn.0),
            session::Effect::CallLeader { conn, id, call } => self.call_leader(place, half, (node, conn, id), *call),
            session::Effect::Report { fact, connected } => {
                self.host_step(place, host::Input::Reported { node, fact, connected });
            }
            session::Effect::Forget => {
                if let Some(half) = self.machines[place].half_mut(half) {
                    half.hosts.sessions.remove(&node);
                }
            }
            session::Effect::Note(note) => {
                if let session::Note::Down { why } = &note {
                    let name = self.name(node);
                    self.say(format!("{name} is down for n{}: {why}", place + 1));
                }
            }
            session::Effect::AnswerAsk { .. } => {}
        }
    }

    // ---- to the leader --------------------------------------------------------------------------------------------

    fn call_leader(&mut self, place: Place, half: u32, (node, conn, id): (NodeId, ConnId, u64), call: PeerCall) {
        let Some(ask) = self.question(place, Question::Call(call)) else {
            let error = ErrorBody::new(ErrorCode::Unreachable, "no leader is known");
            return self.session_step(place, node, session::Input::LeaderAnswered { conn, id, result: Err(error) });
        };
        if let Some(h) = self.machines[place].half_mut(half) {
            h.hosts.calls.insert(ask, (node, conn, id));
            self.time.after(PATIENCE, Event::CallLate { place, half, ask });
        }
    }

    /// The leader's answer to a question of an agent. False: it was none of these.
    pub(crate) fn call_ended(&mut self, place: Place, ask: u64, answer: &Answered) -> bool {
        let Some(half) = self.machines[place].half.as_mut() else { return false };
        let Some((node, conn, id)) = half.hosts.calls.remove(&ask) else { return false };
        let result = match answer {
            Answered::Certificate(Ok(text)) => {
                Ok(AgentAnswer::Signed(SignReply { cert_pem: text.clone(), root_pem: "root".to_owned() }))
            }
            Answered::Seat(Ok(reply)) => Ok(AgentAnswer::Seat(reply.clone())),
            Answered::Certificate(Err(error)) | Answered::Seat(Err(error)) => Err(error.clone()),
        };
        self.session_step(place, node, session::Input::LeaderAnswered { conn, id, result });
        true
    }

    pub(crate) fn call_late(&mut self, place: Place, half: u32, ask: u64) {
        let Some(h) = self.machines[place].half_mut(half) else { return };
        if let Some((node, conn, id)) = h.hosts.calls.remove(&ask) {
            let error = ErrorBody::new(ErrorCode::TimedOut, "the leader did not answer in time");
            self.session_step(place, node, session::Input::LeaderAnswered { conn, id, result: Err(error) });
        }
    }

    fn send_digest(&mut self, place: Place, half: u32, digest: SessionDigest) {
        let caller = Caller { place, life: self.machines[place].life, ask: digest.sequence };
        self.time.after(PATIENCE, Event::DigestAnswered { place, half, sequence: digest.sequence, ok: false });
        let leader = self.machines[place].half.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let Some(to) = leader.and_then(|node| self.place_of(node)) else { return };
        if (place == to || self.net.both_open(place, to)) && !self.dice.chance(self.net.weather.loss) {
            let delay = self.net.weather.slow + self.dice.micros(150, 2500);
            self.time.after(delay, Event::Digest { to, caller, half, digest: Box::new(digest) });
        }
    }

    pub(crate) fn digest_answered(&mut self, place: Place, half: u32, sequence: u64, ok: bool) {
        if self.machines[place].half(half).is_some() {
            self.host_step(place, host::Input::DigestAnswered { sequence, ok });
        }
    }
}
