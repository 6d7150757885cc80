//! AgentSession: the host's end of one node's session.
//!
//! Owns        the node's connection, its hello, the time of its last frame, the requests in flight.
//! Inputs      connections, frames, the node's record in the local replica, answers of the leader.
//! Outputs     frames, requests to the leader, and reports about the node to the sessions' host.
//! Invariants  SESSION-1  the newest connection of a node is its session; frames of older ones change nothing.
//!             SESSION-2  an agent receives every change of what it needs to know, always as the whole view, and nothing twice.
//!             SESSION-3  a node without a record in a replica that has applied its certificate's grant is informed at once, and its
//!                        connection closed: a session must not outlive the node.
//!             SESSION-4  a node is down only after missed heartbeats, or when it announced that it stops; a broken connection does
//!                        not make it down. The leader learns at once that there is no contact.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub use muster_messages::AskId;
use muster_messages::wire::{
    AGENT_PROTOCOL, ActorsAsk, AgentAnswer, AgentAsk, AgentFrame, AgentHello, BYE_SHUTDOWN, HostFrame, ManagerReport,
    MembershipRequest, PeerCall, Refusal, SessionFact,
};
use muster_messages::{
    CertIdentity, ErrorBody, ErrorCode, IDENTITY_LEVEL, Liveness, Moment, NodeId, RefusalReason, Revision, WallTime,
    check_labels, check_text, printable,
};

use super::node_update::{NodeRecordState, NodeUpdate};
use super::workloads;
use crate::config::SessionsConfig;

/// One connection. Later ones have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

#[derive(Clone, Debug)]
pub enum Input {
    Connected {
        conn: ConnId,
        identity: Box<CertIdentity>,
        remote: SocketAddr,
    },
    Frame {
        conn: ConnId,
        frame: AgentFrame,
    },
    Closed {
        conn: ConnId,
        why: String,
    },
    /// The node's record, from a replica that is not older than any before.
    NodeUpdate(Box<NodeUpdate>),
    /// The newest update also holds as of this revision, which the agent compares with the one before.
    Unchanged(Revision),
    LeaderAnswered {
        conn: ConnId,
        id: u64,
        result: Result<AgentAnswer, ErrorBody>,
    },
    AskNode {
        ask: AskId,
        question: ActorsAsk,
        deadline: Duration,
    },
    /// The agent should find another manager.
    Move {
        reason: String,
    },
    Woke,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Send {
        conn: ConnId,
        frame: Box<HostFrame>,
    },
    /// Closes after earlier frames have been sent.
    Close {
        conn: ConnId,
    },
    CallLeader {
        conn: ConnId,
        id: u64,
        call: Box<PeerCall>,
    },
    AnswerAsk {
        ask: AskId,
        result: Result<String, ErrorBody>,
    },
    /// What the sessions' host should know about this node now.
    Report {
        fact: Option<Box<SessionFact>>,
        connected: bool,
    },
    /// Nothing needs to be remembered: this session may end.
    Forget,
    LogEvent(LogEvent),
}

/// One line per node and minute reports that its session was ended: a holder of its certificate can cause that many
/// times a second.
const ENDED_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Decisions worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    Opened {
        instance: u64,
    },
    Closed {
        why: String,
    },
    Down {
        why: String,
    },
    /// `repeated`: one of this node was reported within `ENDED_LOG_INTERVAL`.
    Ended {
        reason: RefusalReason,
        repeated: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// No connection.
    Away,
    /// Connected, no frame yet.
    Greeting {
        conn: ConnId,
        until: Moment,
    },
    Live {
        conn: ConnId,
    },
}

#[derive(Clone, Debug)]
struct Peer {
    identity: Box<CertIdentity>,
    remote: SocketAddr,
}

#[derive(Clone, Debug)]
struct Question {
    ask: AskId,
    until: Moment,
}

#[derive(Clone, Debug)]
pub struct AgentSession {
    config: Arc<SessionsConfig>,
    node: NodeId,
    phase: Phase,
    peer: Option<Peer>,
    fact: Option<Box<SessionFact>>,
    /// When the last frame of any kind arrived.
    received: Moment,
    down_at: Option<Moment>,
    node_update: Option<Box<NodeUpdate>>,
    /// What was last shown to the agent on this connection.
    shown: Option<Box<NodeUpdate>>,
    /// The agent's requests that await the leader, on this connection.
    asks: usize,
    questions: BTreeMap<u64, Question>,
    next_question: u64,
    /// When an ended session was last reported to the log.
    ended_logged: Option<Moment>,
}

/// The most bytes of an address or a release in a hello. More means a broken or hostile agent.
const MAX_TEXT: usize = 256;
/// The most characters kept of a reason that an agent gives.
const MAX_REASON: usize = 1024;

impl AgentSession {
    pub fn new(node: NodeId, config: Arc<SessionsConfig>) -> Self {
        Self {
            config,
            node,
            phase: Phase::Away,
            peer: None,
            fact: None,
            received: Moment(0),
            down_at: None,
            node_update: None,
            shown: None,
            asks: 0,
            questions: BTreeMap::new(),
            next_question: 0,
            ended_logged: None,
        }
    }

    /// After a crash: the connection is lost, the knowledge of the node is not; its heartbeats count from now. A node that was
    /// down is found down and reported again: the report may have been lost.
    pub fn resume(node: NodeId, config: Arc<SessionsConfig>, fact: Option<SessionFact>, now: Moment) -> Self {
        let mut session = Self::new(node, config);
        session.received = now;
        session.fact = fact.map(Box::new);
        session
    }

    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Connected { conn, identity, remote } => {
                self.connected(now, conn, Peer { identity, remote }, out);
            }
            Input::Frame { conn, frame } => {
                if self.conn() == Some(conn) {
                    self.received = now;
                    self.frame(now, wall, conn, frame, out);
                }
            }
            Input::Closed { conn, why } if self.conn() == Some(conn) => self.away(why, out),
            Input::NodeUpdate(node_update) => self.node_update = Some(node_update),
            Input::Unchanged(to) => self.node_update.iter_mut().for_each(|n| n.revision = n.revision.max(to)),
            Input::LeaderAnswered { conn, id, result } => {
                if self.conn() == Some(conn) {
                    self.asks = self.asks.saturating_sub(1);
                    let frame = Box::new(HostFrame::Answer { id, result });
                    out.push(Effect::Send { conn, frame });
                }
            }
            Input::AskNode { ask, question, deadline } => self.ask_node(now, ask, question, deadline, out),
            Input::Move { reason } => {
                if let Some(conn) = self.conn() {
                    let frame = Box::new(HostFrame::Move { reason: reason.clone() });
                    out.push(Effect::Send { conn, frame });
                    out.push(Effect::Close { conn });
                    self.away(reason, out);
                }
            }
            Input::Closed { .. } | Input::Woke => {}
        }
        self.advance(now, wall, out);
    }

    /// When to wake it if there is no earlier input.
    pub fn wake_at(&self) -> Option<Moment> {
        let own = match self.phase {
            Phase::Greeting { until, .. } => Some(until),
            Phase::Live { .. } => Some(self.received + self.config.down_after()),
            Phase::Away => match (&self.fact, self.down_at) {
                (None, _) => None,
                (Some(_), None) => Some(self.received + self.config.down_after()),
                (Some(_), Some(at)) => Some(at + self.config.remember_down),
            },
        };
        let question = self.questions.values().map(|q| q.until).min();
        own.into_iter().chain(question).min()
    }

    pub fn fact(&self) -> Option<&SessionFact> {
        self.fact.as_deref()
    }
    pub fn received(&self) -> Moment {
        self.received
    }
    pub fn remote(&self) -> Option<SocketAddr> {
        self.peer.as_ref().map(|p| p.remote)
    }
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live { .. })
    }
    pub fn open(&self) -> (usize, usize) {
        (self.asks, self.questions.len())
    }

    fn conn(&self) -> Option<ConnId> {
        match self.phase {
            Phase::Away => None,
            Phase::Greeting { conn, .. } | Phase::Live { conn } => Some(conn),
        }
    }

    /// SESSION-1.
    fn connected(&mut self, now: Moment, conn: ConnId, peer: Peer, out: &mut Vec<Effect>) {
        if let Some(old) = self.conn() {
            if old >= conn {
                return;
            }
            let message = format!("node {} opened a newer session from {}", self.node, peer.remote);
            // Ordinary: an agent with a new certificate opens its session before it closes the former one.
            self.close(old, refusal(RefusalReason::TooManyRequests, message), out);
        }
        self.peer = Some(peer);
        self.shown = None;
        let until = now + self.config.hello_deadline;
        self.phase = Phase::Greeting { conn, until };
    }

    fn frame(&mut self, now: Moment, wall: WallTime, conn: ConnId, frame: AgentFrame, out: &mut Vec<Effect>) {
        match (frame, &self.phase) {
            (AgentFrame::Hello(hello), Phase::Greeting { .. }) => self.greeted(now, wall, conn, hello, out),
            (AgentFrame::Heartbeat { .. }, Phase::Live { .. }) => {
                let revision = self.node_update.as_ref().map(|n| n.revision).unwrap_or_default();
                let frame = Box::new(HostFrame::HeartbeatAck { revision });
                out.push(Effect::Send { conn, frame });
            }
            (AgentFrame::Ask { id, ask }, Phase::Live { .. }) => self.relay(conn, id, ask, out),
            (AgentFrame::Answer { id, result }, Phase::Live { .. }) => {
                let result = result.map_err(|e| ErrorBody { message: printable(&e.message, MAX_REASON), ..e });
                if let Some(question) = self.questions.remove(&id) {
                    out.push(Effect::AnswerAsk { ask: question.ask, result });
                }
            }
            (AgentFrame::Bye { reason }, _) => {
                out.push(Effect::Close { conn });
                let stops = reason == BYE_SHUTDOWN;
                self.away(printable(&reason, MAX_REASON), out);
                if stops && self.fact.is_some() {
                    self.down(now, wall, "it was stopped", out);
                }
            }
            _ => self.end(now, refusal(RefusalReason::Protocol, "unexpected frame"), out),
        }
    }

    fn greeted(&mut self, now: Moment, wall: WallTime, conn: ConnId, hello: AgentHello, out: &mut Vec<Effect>) {
        if let Err(why) = acceptable(&hello) {
            return self.end(now, refusal(RefusalReason::Protocol, why), out);
        }
        let peer = self.peer.as_ref().expect("a session in greeting has a peer");
        let (instance, serial) = (hello.instance, peer.identity.serial.clone());
        self.fact = Some(Box::new(SessionFact {
            node: self.node,
            liveness: Liveness::Ready,
            since: wall,
            addr: reachable(&hello.advertise, peer.remote.ip()),
            name: hello.name,
            release: hello.release,
            labels: hello.labels,
            serial,
            instance,
            remote: peer.remote.to_string(),
            turns: Vec::new(),
        }));
        self.down_at = None;
        self.phase = Phase::Live { conn };
        out.push(Effect::LogEvent(LogEvent::Opened { instance }));
        self.report(out);
    }

    fn relay(&mut self, conn: ConnId, id: u64, ask: AgentAsk, out: &mut Vec<Effect>) {
        let waiting = (self.asks >= self.config.open_asks).then(|| {
            ErrorBody::new(ErrorCode::TooManyRequests, "too many requests from this node are waiting")
                .retry_after(Duration::from_millis(200))
        });
        if let Some(error) = waiting.or_else(|| workloads::refusal(&ask, self.node_update.as_deref())) {
            let frame = Box::new(HostFrame::Answer { id, result: Err(error) });
            return out.push(Effect::Send { conn, frame });
        }
        let peer = self.peer.as_ref().expect("a live session has a peer");
        let call = match ask {
            AgentAsk::Sign { csr_pem } => PeerCall::SignNode {
                identity: (*peer.identity).clone(),
                observed_addr: peer.remote.to_string(),
                csr_pem,
            },
            AgentAsk::Membership(request) => {
                let advertise = reachable(&printable(&request.advertise, MAX_TEXT), peer.remote.ip());
                let request = MembershipRequest { advertise, ..request };
                PeerCall::Membership { node: self.node, request }
            }
            AgentAsk::ReportManager(report) => {
                let failure = report.failure.map(|failure| printable(&failure, MAX_REASON));
                PeerCall::ReportManager { node: self.node, report: ManagerReport { failure, ..report } }
            }
            AgentAsk::TrustRoots { generation } => PeerCall::TrustRoots { node: self.node, generation },
            AgentAsk::SignWorkload(request) => {
                let identity = (*peer.identity).clone();
                PeerCall::SignWorkload { pin: identity.pin, identity, request }
            }
        };
        self.asks += 1;
        out.push(Effect::CallLeader { conn, id, call: Box::new(call) });
    }

    fn ask_node(&mut self, now: Moment, ask: AskId, question: ActorsAsk, deadline: Duration, out: &mut Vec<Effect>) {
        let refusal = match self.phase {
            Phase::Live { conn } if self.questions.len() < self.config.open_questions => {
                self.next_question += 1;
                let (id, until) = (self.next_question, now + deadline);
                self.questions.insert(id, Question { ask, until });
                let frame = Box::new(HostFrame::Ask { id, ask: question });
                return out.push(Effect::Send { conn, frame });
            }
            Phase::Live { .. } => {
                ErrorBody::new(ErrorCode::TooManyRequests, "too many requests to this node are waiting")
                    .retry_after(Duration::from_millis(200))
            }
            // Another manager may host the node by now: the caller asks the others.
            _ => ErrorBody::new(ErrorCode::NotFound, format!("node {} has no session on this manager", self.node)),
        };
        out.push(Effect::AnswerAsk { ask, result: Err(refusal) });
    }

    /// The connection is lost. SESSION-4: that does not make the node down.
    fn away(&mut self, why: String, out: &mut Vec<Effect>) {
        self.phase = Phase::Away;
        self.shown = None;
        self.asks = 0;
        for (_, question) in std::mem::take(&mut self.questions) {
            let result = Err(unanswered(self.node));
            out.push(Effect::AnswerAsk { ask: question.ask, result });
        }
        out.push(Effect::LogEvent(LogEvent::Closed { why }));
        self.report(out);
    }

    fn end(&mut self, now: Moment, refusal: Refusal, out: &mut Vec<Effect>) {
        let Some(conn) = self.conn() else { return };
        // A connection that never sent a frame was not a session yet; any holder of a certificate can open thousands.
        if self.is_live() {
            let repeated = self.ended_logged.is_some_and(|at| now.since(at) < ENDED_LOG_INTERVAL);
            if !repeated {
                self.ended_logged = Some(now);
            }
            out.push(Effect::LogEvent(LogEvent::Ended { reason: refusal.reason, repeated }));
        }
        self.close(conn, refusal, out);
    }

    fn close(&mut self, conn: ConnId, refusal: Refusal, out: &mut Vec<Effect>) {
        let why = refusal.message.clone();
        out.push(Effect::Send { conn, frame: Box::new(HostFrame::Ended(refusal)) });
        out.push(Effect::Close { conn });
        self.away(why, out);
    }

    fn down(&mut self, now: Moment, wall: WallTime, why: &str, out: &mut Vec<Effect>) {
        if let Some(fact) = &mut self.fact
            && self.down_at.is_none()
        {
            fact.liveness = Liveness::Down;
            fact.since = wall;
            self.down_at = Some(now);
            out.push(Effect::LogEvent(LogEvent::Down { why: why.to_owned() }));
            self.report(out);
        }
    }

    fn report(&self, out: &mut Vec<Effect>) {
        let mut fact = self.fact.clone();
        if let Some(fact) = &mut fact
            && self.without_contact()
        {
            fact.liveness = Liveness::Unknown;
        }
        out.push(Effect::Report { fact, connected: self.conn().is_some() });
    }

    /// Its connection is lost, and it is not down yet. Leaders below feature level 3 would see it as a node without a host.
    fn without_contact(&self) -> bool {
        let level = self.node_update.as_ref().map_or(0, |node_update| node_update.shared.feature_level);
        level >= IDENTITY_LEVEL && self.down_at.is_none() && self.conn().is_none()
    }

    /// The only place that acts on time and on the node's record.
    fn advance(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        self.check_record_state(now, out);
        self.judge_time(now, wall, out);
        self.show(out);
        if self.forgettable(now) {
            if self.fact.take().is_some() {
                self.report(out);
            }
            out.push(Effect::Forget);
        }
    }

    /// SESSION-3. A replica that has not applied the certificate's grant cannot know better than the certificate.
    fn check_record_state(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let (Some(node_update), Some(peer)) = (&self.node_update, &self.peer) else {
            return;
        };
        let applied = peer.identity.granted.is_some_and(|granted| node_update.revision >= granted);
        let refusal = match node_update.record_state {
            NodeRecordState::Absent if applied => {
                let message = format!("node {} was removed from the cluster", self.node);
                refusal(RefusalReason::Removed, message)
            }
            NodeRecordState::Blocked => refusal(RefusalReason::Blocked, format!("node {} is blocked", self.node)),
            _ => return,
        };
        self.end(now, refusal, out);
        if self.fact.take().is_some() {
            self.report(out);
        }
    }

    fn judge_time(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        if let Phase::Greeting { until, .. } = self.phase
            && now >= until
        {
            self.end(now, refusal(RefusalReason::Protocol, "no hello in time"), out);
        }
        let deadline = self.received + self.config.down_after();
        if self.fact.is_some() && self.down_at.is_none() && now >= deadline + self.config.stood_still {
            let beat = self.config.heartbeat.mul_f64(1.0 + self.config.heartbeat_jitter);
            self.received = now - self.config.down_after() + beat;
        }
        let silent = now >= self.received + self.config.down_after();
        if silent && self.fact.is_some() && !matches!(self.phase, Phase::Greeting { .. }) {
            if let Phase::Live { conn } = self.phase {
                out.push(Effect::Close { conn });
                self.away("heartbeats were missed".to_owned(), out);
            }
            self.down(now, wall, "heartbeats were missed", out);
        }
        let late: Vec<u64> = self.questions.iter().filter(|(_, q)| now >= q.until).map(|(id, _)| *id).collect();
        for question in late.iter().filter_map(|id| self.questions.remove(id)) {
            let error = ErrorBody::new(ErrorCode::TimedOut, format!("node {} did not answer in time", self.node));
            out.push(Effect::AnswerAsk { ask: question.ask, result: Err(error) });
        }
    }

    /// SESSION-2.
    fn show(&mut self, out: &mut Vec<Effect>) {
        let (Phase::Live { conn }, Some(node_update)) = (&self.phase, &self.node_update) else {
            return;
        };
        let shown_roots = self.shown.as_ref().and_then(|shown| shown.shared.roots.as_ref());
        let same_roots = shown_roots.map(|(shown, _)| shown) == node_update.shared.roots.as_ref().map(|(now, _)| now);
        let same_view = self.shown.as_ref().is_some_and(|shown| shown.same_for_agent(node_update));
        let workloads = workloads::news(self.shown.as_deref(), node_update);
        if same_view && same_roots && workloads.is_empty() {
            return;
        }
        let presented = self.peer.as_ref().map(|peer| &*peer.identity.serial);
        let Some(view) = node_update.view(self.node, presented) else { return };
        if !same_view {
            out.push(Effect::Send { conn: *conn, frame: Box::new(HostFrame::View(view)) });
        }
        if !same_roots {
            let offer = node_update.roots().map(HostFrame::Roots);
            out.extend(offer.map(|frame| Effect::Send { conn: *conn, frame: Box::new(frame) }));
        }
        out.extend(workloads.into_iter().map(|frame| Effect::Send { conn: *conn, frame }));
        self.shown = Some(node_update.clone());
    }

    /// Reported as down until the cluster has recorded it; a node without a record is not reported at all.
    fn forgettable(&self, now: Moment) -> bool {
        if self.conn().is_some() {
            return false;
        }
        if self.fact.is_none() {
            return true;
        }
        let Some(down_at) = self.down_at else { return false };
        let record_state = self.node_update.as_ref().map(|n| &n.record_state);
        let recorded = matches!(record_state, Some(NodeRecordState::Known { liveness: Liveness::Down, .. }));
        let unknown = matches!(record_state, Some(NodeRecordState::Absent | NodeRecordState::Blocked));
        recorded || unknown || now >= down_at + self.config.remember_down
    }
}

fn acceptable(hello: &AgentHello) -> Result<(), String> {
    if hello.protocol != AGENT_PROTOCOL {
        let theirs = hello.protocol;
        return Err(format!("agent protocol {theirs}, this manager supports {AGENT_PROTOCOL}"));
    }
    check_text("the address", &hello.advertise, MAX_TEXT)?;
    check_text("the release", &hello.release, MAX_TEXT)?;
    check_labels(&hello.labels)
}

/// The address that others should dial: an unspecified host is replaced by the observed one.
pub fn reachable(advertise: &str, seen: IpAddr) -> String {
    let unspecified = match advertise.parse::<SocketAddr>() {
        Ok(addr) if addr.ip().is_unspecified() => Some(addr.port()),
        Ok(_) => None,
        Err(_) => match advertise.rsplit_once(':') {
            Some(("", port)) => port.parse().ok(),
            _ => None,
        },
    };
    match unspecified {
        Some(port) => SocketAddr::new(seen.to_canonical(), port).to_string(),
        None => advertise.to_owned(),
    }
}

fn refusal(reason: RefusalReason, message: impl Into<String>) -> Refusal {
    Refusal { reason, message: message.into(), managers: Vec::new(), retry_after_ms: None }
}

fn unanswered(node: NodeId) -> ErrorBody {
    let text = format!("the session of node {node} ended before it answered; the request may have been carried out");
    ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(500))
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
