//! AgentSession's shell: one connection, reply ports, timers. [`crate::core::session`] decides.

mod msg;

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::Connection;
use muster_kernel::{Address, Alarm, Cx, Fault, Parked, Shell, Slot, Spec};
use muster_messages::protocol::{LeaderCalls, Reply};
use muster_messages::wire::{AgentFrame, HostFrame, SessionFact};
use muster_messages::{ErrorBody, NodeId, millis};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{debug, info};

pub use self::msg::Msg;
use crate::config::SessionsConfig;
use crate::core::session::{AgentSession, ConnId, Effect, Input, LogEvent};
use crate::host;
use crate::inbox::{Inbox, PassedOn};
use crate::leader::ask_leader;
use crate::line::{Line, line};

/// How long a stopping session waits until its last frame has been sent.
const LAST_FRAME_TIMEOUT: Duration = Duration::from_millis(200);

/// What all incarnations of one node's session share.
#[derive(Clone)]
pub(crate) struct SessionPorts {
    pub node: NodeId,
    pub config: Arc<SessionsConfig>,
    pub inbox: Inbox,
    pub memory: Slot<SessionFact>,
    pub leader: Arc<dyn LeaderCalls>,
    pub passed_on: PassedOn,
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

pub struct SessionShell {
    core: AgentSession,
    ports: SessionPorts,
    line: Option<Line>,
    /// The line that a newer one replaces, while its final frame is sent.
    leaving: Option<Line>,
    asks: Parked<Reply<Result<String, ErrorBody>>>,
    alarm: Alarm,
}

impl SessionShell {
    fn new(ports: SessionPorts) -> Self {
        let now = muster_kernel::Clock.now();
        let core = AgentSession::resume(ports.node, Arc::clone(&ports.config), ports.memory.get(), now);
        Self { core, ports, line: None, leaving: None, asks: Parked::default(), alarm: Alarm::default() }
    }

    /// Takes the content of the inbox. The connection first: without one the session may have no reason to stay.
    fn take_inbox(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let passed_on = self.ports.passed_on.revision(); // first: what was passed on by then is in the inbox
        let (connection, node_update) = self.ports.inbox.take();
        if let Some((conn, connection)) = connection {
            self.take(cx, conn, connection)?;
        }
        if let Some(node_update) = node_update {
            self.step(cx, Input::NodeUpdate(Box::new(node_update)))?;
        }
        self.step(cx, Input::Unchanged(passed_on))
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
            self.apply(cx, effect)?;
        }
        self.alarm.set(cx, self.core.wake_at(), Msg::Wake);
        Ok(())
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) -> Result<(), Fault> {
        match effect {
            Effect::Send { conn, frame } => self.send(cx, conn, frame),
            Effect::Close { conn } => {
                self.line.take_if(|line| line.conn == conn);
            }
            Effect::CallLeader { conn, id, call } => {
                let answer = ask_leader(&*self.ports.leader, *call, self.ports.config.leader_deadline);
                cx.report(async move { Msg::LeaderAnswered { conn, id, result: answer.await } });
            }
            Effect::AnswerAsk { ask, result } => {
                if let Some(reply) = self.asks.take(ask) {
                    let _gone = reply.send(result);
                }
            }
            Effect::Report { fact, connected } => {
                if let Some(fact) = &fact {
                    self.ports.memory.set((**fact).clone());
                }
                let node = self.ports.node;
                // The host's mailbox has room for reports of every session at once; full or down, the host itself has
                // failed.
                self.ports.host.tell(host::Msg::Reported { node, fact, connected })?;
            }
            Effect::Forget => {
                let node = self.ports.node;
                self.ports.host.tell(host::Msg::Forget { node, seen: self.ports.inbox.last_taken() })?;
            }
            Effect::LogEvent(log_event) => self.log_event(log_event),
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

    fn log_event(&self, log_event: LogEvent) {
        let node = self.ports.node;
        match log_event {
            LogEvent::Opened { instance } => debug!(%node, instance, "session opened"),
            LogEvent::Closed { why } => debug!(%node, why, "session closed"),
            LogEvent::Down { why } => info!(%node, why, "node is down"),
            LogEvent::Ended { reason, repeated: true } => debug!(%node, %reason, "session ended"),
            LogEvent::Ended { reason, repeated: false } => info!(%node, %reason, "session ended"),
        }
    }
}

impl Shell for SessionShell {
    type Msg = Msg;
    const KIND: &'static str = "AgentSession";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.take_inbox(cx)?;
        self.step(cx, Input::Woke)
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::InboxChanged => self.take_inbox(cx),
            Msg::AskNode { ask: question, deadline, reply } => {
                let ask = self.asks.park(reply);
                self.step(cx, Input::AskNode { ask, question, deadline })
            }
            Msg::Move { reason } => self.step(cx, Input::Move { reason }),
            Msg::Received { conn, received } => {
                if matches!(*received.frame, AgentFrame::Heartbeat { .. }) {
                    self.take_inbox(cx)?;
                }
                self.step(cx, Input::Frame { conn, frame: *received.frame })
            }
            Msg::Closed { conn, why } => self.step(cx, Input::Closed { conn, why }),
            Msg::LeaderAnswered { conn, id, result } => self.step(cx, Input::LeaderAnswered { conn, id, result }),
            Msg::Wake => {
                self.alarm.fired();
                self.step(cx, Input::Woke)
            }
        }
    }

    fn view(&self) -> Value {
        let (asks, questions) = self.core.open();
        let received = muster_kernel::Clock.now().since(self.core.received());
        let fact = self.core.fact();
        json!({
            "node": self.ports.node,
            "name": fact.map(|f| f.name.as_str()),
            "live": self.core.is_live(),
            "liveness": fact.map(|f| f.liveness),
            "since": fact.map(|f| f.since),
            "remote": self.core.remote(),
            "instance": fact.map(|f| format!("{:016x}", f.instance)),
            "last_heard_ms": millis(received),
            "asks": asks,
            "questions": questions,
        })
    }

    async fn stopping(&mut self, cx: &Cx<Msg>) {
        let closing = self.line.as_mut().and_then(|line| line.closed.take());
        let reason = "this manager is stopping".to_owned();
        // The host may be stopping too and no longer receive: that is not a fault now.
        let _host_gone = self.step(cx, Input::Move { reason });
        self.line = None;
        if let Some(closed) = closing {
            // Resolves in any case once the connection is closed.
            let _late = timeout(LAST_FRAME_TIMEOUT, closed).await;
        }
    }
}
