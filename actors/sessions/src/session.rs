//! AgentSession's shell: one connection, reply ports, timers. Decisions are [`crate::core::session`]'s.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_gateway::Connection;
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Slot, Spec};
use muster_messages::protocol::{Named, Reply};
use muster_messages::wire::{
    ActorsAsk, AgentAnswer, HostFrame, PeerCall, SeatReply, SessionFact, SignReply, WireError, decode,
};
use muster_messages::{ErrorBody, ErrorCode, Moment, NodeId, millis};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{debug, info};

use crate::config::SessionsConfig;
use crate::core::news::News;
use crate::core::session::{AgentSession, AskId, ConnId, Effect, Input, Note};
use crate::host;
use crate::line::{Heard, Line, line};

/// How a host reaches the leader: its own services while it leads, the mesh otherwise.
pub trait LeaderCalls: Send + Sync + 'static {
    /// Calls whoever leads now. Every call is safe to repeat. `unreachable` or `no_quorum` when nobody leads.
    fn call(&self, call: PeerCall) -> BoxFuture<'static, Result<Vec<u8>, ErrorBody>>;
}

/// One line per node and minute says that its session was ended: whoever holds its certificate can have that happen many
/// times a second.
const ENDED_EVERY: Duration = Duration::from_secs(60);

/// How long a stopping session waits for its last frame to leave.
const GOODBYE: Duration = Duration::from_millis(200);

/// What the host lays down for a session, and the session picks up: a level, so that neither a start nor a crash in
/// between loses it.
#[derive(Clone, Default)]
pub(crate) struct Cradle(Arc<Mutex<Laid>>);

#[derive(Default)]
struct Laid {
    connection: Option<(ConnId, Connection)>,
    /// Stays where it lies: an incarnation that starts after a crash needs it too.
    news: Option<News>,
    picked: ConnId,
}

impl Cradle {
    /// The newest connection replaces one that was not picked up yet.
    pub(crate) fn lay(&self, conn: ConnId, connection: Connection) {
        self.laid().connection = Some((conn, connection));
    }
    pub(crate) fn tell(&self, news: News) {
        self.laid().news = Some(news);
    }
    /// The newest connection that a session has picked up, over all its incarnations.
    fn picked(&self) -> ConnId {
        self.laid().picked
    }
    fn laid(&self) -> MutexGuard<'_, Laid> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a session hears.
pub enum Msg {
    /// Something new lies in the cradle.
    Look,
    AskNode {
        ask: ActorsAsk,
        deadline: Duration,
        reply: Reply<Result<String, ErrorBody>>,
    },
    Move {
        reason: String,
    },
    Heard {
        conn: ConnId,
        heard: Heard,
    },
    Closed {
        conn: ConnId,
        why: String,
    },
    LeaderAnswered {
        conn: ConnId,
        id: u64,
        result: Result<AgentAnswer, ErrorBody>,
    },
    Wake,
}

impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Msg::Look => "look",
            Msg::AskNode { .. } => "ask_node",
            Msg::Move { .. } => "move",
            Msg::Heard { heard, .. } => match &*heard.frame {
                muster_messages::wire::AgentFrame::Hello(_) => "hello",
                muster_messages::wire::AgentFrame::Heartbeat { .. } => "heartbeat",
                muster_messages::wire::AgentFrame::Ask { .. } => "ask",
                muster_messages::wire::AgentFrame::Answer { .. } => "answer",
                muster_messages::wire::AgentFrame::Bye { .. } => "bye",
            },
            Msg::Closed { .. } => "closed",
            Msg::LeaderAnswered { .. } => "leader_answered",
            Msg::Wake => "wake",
        }
    }
}

/// What every incarnation of one node's session shares.
#[derive(Clone)]
pub(crate) struct SessionPorts {
    pub node: NodeId,
    pub config: Arc<SessionsConfig>,
    pub cradle: Cradle,
    pub memory: Slot<SessionFact>,
    pub leader: Arc<dyn LeaderCalls>,
    pub host: Address<host::Msg>,
}

/// The name of a node's session among its siblings.
pub(crate) fn session_name(node: NodeId) -> String {
    format!("session-{node}")
}

pub(crate) fn session_spec(address: Address<Msg>, ports: SessionPorts) -> Spec {
    let name = session_name(ports.node);
    Spec::actor(name, address, move || Ok(SessionShell::new(ports.clone()))).counted_as("session-*")
}

/// See the module.
pub struct SessionShell {
    core: AgentSession,
    ports: SessionPorts,
    line: Option<Line>,
    /// The line that a newer one replaces, while the last word on it is said.
    leaving: Option<Line>,
    asks: BTreeMap<AskId, Reply<Result<String, ErrorBody>>>,
    next_ask: u64,
    alarm: Alarm,
    /// When the log was told last that a session was ended.
    told: Option<Moment>,
}

impl SessionShell {
    fn new(ports: SessionPorts) -> Self {
        let now = muster_kernel::Clock.now();
        let core = AgentSession::resume(ports.node, Arc::clone(&ports.config), ports.memory.get(), now);
        Self {
            core,
            ports,
            line: None,
            leaving: None,
            asks: BTreeMap::new(),
            next_ask: 0,
            alarm: Alarm::default(),
            told: None,
        }
    }

    /// Takes what the host laid down. The connection first: without one there may be nothing to stay for.
    fn look(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let (connection, news) = {
            let mut laid = self.ports.cradle.laid();
            let connection = laid.connection.take();
            if let Some((conn, _)) = &connection {
                laid.picked = *conn;
            }
            (connection, laid.news.clone())
        };
        if let Some((conn, connection)) = connection {
            self.take(cx, conn, connection)?;
        }
        match news {
            Some(news) => self.step(cx, Input::News(Box::new(news))),
            None => Ok(()),
        }
    }

    fn take(&mut self, cx: &Cx<Msg>, conn: ConnId, connection: Connection) -> Result<(), Fault> {
        let Some(identity) = connection.identity.clone() else {
            return Ok(()); // the gateway admits agents by certificate alone
        };
        let remote = connection.remote;
        let (outbox, limit) = (self.ports.config.outbox, self.ports.config.write_deadline);
        let (line, task) = line(conn, connection, cx.me().clone(), outbox, limit);
        self.leaving = self.line.replace(line);
        cx.spawn(task);
        let identity = Box::new(identity);
        let stepped = self.step(cx, Input::Connected { conn, identity, remote });
        self.leaving = None;
        stepped
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) -> Result<(), Fault> {
        let mut effects = Vec::new();
        self.core.step(cx.now(), cx.wall(), input, &mut effects);
        for effect in effects {
            self.perform(cx, effect)?;
        }
        self.alarm.set(cx, self.core.wake_at(), Msg::Wake);
        Ok(())
    }

    fn perform(&mut self, cx: &Cx<Msg>, effect: Effect) -> Result<(), Fault> {
        match effect {
            Effect::Send { conn, frame } => self.send(cx, conn, frame),
            Effect::Close { conn } => {
                self.line.take_if(|line| line.conn == conn);
            }
            Effect::CallLeader { conn, id, call } => self.call(cx, conn, id, *call),
            Effect::AnswerAsk { ask, result } => {
                if let Some(reply) = self.asks.remove(&ask) {
                    let _gone = reply.send(result);
                }
            }
            Effect::Report { fact, connected } => {
                if let Some(fact) = &fact {
                    self.ports.memory.set((**fact).clone());
                }
                let node = self.ports.node;
                // The host's mailbox takes news of every session at once; full or down, the host itself has failed.
                self.ports.host.tell(host::Msg::Reported { node, fact, connected })?;
            }
            Effect::Forget => {
                let node = self.ports.node;
                self.ports.host.tell(host::Msg::Forget { node, seen: self.ports.cradle.picked() })?;
            }
            Effect::Note(note) => self.note(cx.now(), note),
        }
        Ok(())
    }

    fn send(&mut self, cx: &Cx<Msg>, conn: ConnId, frame: Box<HostFrame>) {
        let mut lines = self.line.iter().chain(&self.leaving);
        let Some(line) = lines.find(|line| line.conn == conn) else {
            return;
        };
        if line.outbox.try_send(frame).is_err() {
            self.line.take_if(|line| line.conn == conn);
            let why = "the agent reads too slowly".to_owned();
            let _ended = cx.me().tell(Msg::Closed { conn, why });
        }
    }

    fn call(&self, cx: &Cx<Msg>, conn: ConnId, id: u64, call: PeerCall) {
        let (me, limit) = (cx.me().clone(), self.ports.config.leader_deadline);
        let read: fn(&[u8]) -> Result<AgentAnswer, WireError> = match call {
            PeerCall::SignNode { .. } => |bytes| decode::<SignReply>(bytes).map(AgentAnswer::Signed),
            PeerCall::ReportManager { .. } => |_| Ok(AgentAnswer::Reported),
            _ => |bytes| decode::<SeatReply>(bytes).map(AgentAnswer::Seat),
        };
        let calling = self.ports.leader.call(call);
        cx.spawn(async move {
            let result = match timeout(limit, calling).await {
                Ok(Ok(bytes)) => read(&bytes).map_err(|error| {
                    ErrorBody::new(ErrorCode::Internal, format!("the leader's answer cannot be read: {error}"))
                }),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(ErrorBody::new(ErrorCode::TimedOut, "the leader did not answer in time")),
            };
            let _ended = me.tell(Msg::LeaderAnswered { conn, id, result });
        });
    }

    fn park(&mut self, reply: Reply<Result<String, ErrorBody>>) -> AskId {
        self.next_ask += 1;
        let ask = AskId(self.next_ask);
        self.asks.insert(ask, reply);
        ask
    }

    fn note(&mut self, now: Moment, note: Note) {
        let node = self.ports.node;
        match note {
            Note::Opened { instance } => debug!(%node, instance, "session opened"),
            Note::Closed { why } => debug!(%node, why, "session closed"),
            Note::Down { why } => info!(%node, why, "node is down"),
            Note::Ended { reason } if self.told.is_some_and(|at| now.since(at) < ENDED_EVERY) => {
                debug!(%node, %reason, "session ended");
            }
            Note::Ended { reason } => {
                self.told = Some(now);
                info!(%node, %reason, "session ended");
            }
        }
    }
}

impl Shell for SessionShell {
    type Msg = Msg;
    const KIND: &'static str = "AgentSession";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.look(cx)?;
        self.step(cx, Input::Woke)
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Look => self.look(cx),
            Msg::AskNode { ask: question, deadline, reply } => {
                let ask = self.park(reply);
                self.step(cx, Input::AskNode { ask, question, deadline })
            }
            Msg::Move { reason } => self.step(cx, Input::Move { reason }),
            Msg::Heard { conn, heard } => self.step(cx, Input::Frame { conn, frame: *heard.frame }),
            Msg::Closed { conn, why } => self.step(cx, Input::Closed { conn, why }),
            Msg::LeaderAnswered { conn, id, result } => self.step(cx, Input::LeaderAnswered { conn, id, result }),
            Msg::Wake => {
                self.alarm.rang();
                self.step(cx, Input::Woke)
            }
        }
    }

    fn view(&self) -> Value {
        let (asks, questions) = self.core.open();
        let heard = muster_kernel::Clock.now().since(self.core.heard());
        let fact = self.core.fact();
        json!({
            "node": self.ports.node,
            "name": fact.map(|f| f.name.as_str()),
            "live": self.core.is_live(),
            "liveness": fact.map(|f| f.liveness),
            "since": fact.map(|f| f.since),
            "remote": self.core.remote(),
            "instance": fact.map(|f| format!("{:016x}", f.instance)),
            "last_heard_ms": millis(heard),
            "asks": asks,
            "questions": questions,
        })
    }

    async fn stopping(&mut self, cx: &Cx<Msg>) {
        let closing = self.line.as_mut().and_then(|line| line.closed.take());
        let reason = "this manager is stopping".to_owned();
        // The host may be stopping too and no longer listen: that is no fault now.
        let _host_gone = self.step(cx, Input::Move { reason });
        self.line = None;
        if let Some(closed) = closing {
            // Resolves, one way or the other, once the connection is closed.
            let _late = timeout(GOODBYE, closed).await;
        }
    }
}
