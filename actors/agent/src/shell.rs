//! The agent's shell: connections, files, watches, reply ports, timers. [`crate::core`] decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use muster_kernel::{Address, AdminAction, Alarm, Cx, Fault, Parked, Shell, Slot, Spec};
use muster_messages::protocol::{AgentMsg, Named, NodeCredentials, Reply};
use muster_messages::wire::{
    AGENT_PROTOCOL, ActorsAsk, AgentAnswer, AgentAsk, AgentFrame, AgentHello, MembershipReply,
};
use muster_messages::{ErrorBody, ErrorCode, Incarnation, Name, NodeId, RefusalReason, Role, Secret};
use muster_pki::Ended;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::config::AgentConfig;
use crate::core::{Agent, Attempt, CertificateFacts, Effect, Input, LogEvent, Loss, SessionStatus, Start};
use crate::install::{self, issued_at};
use crate::line::{Dial, Incoming, Line, LineArgs, line};
use crate::memory::NodeMemory;
use crate::status::{ManagerWanted, NodeTrouble, TroubleReason, WantedBecause};

/// How long a stopping agent waits until its last frame has been sent.
const LAST_FRAME_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a stopping agent waits for pending writes. A disk that hangs does not keep the process alive.
const PENDING_WRITES_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers a request about this process's actors. An admin action is carried out once the answer has been sent: it may end
/// what the line depends on.
pub type Inspector = Arc<dyn Fn(ActorsAsk) -> BoxFuture<'static, Result<Inspected, ErrorBody>> + Send + Sync>;

/// An answer, and the admin action that follows.
pub type Inspected = (String, Option<AdminAction>);

/// The agent's settings from the code that wires the tree.
pub struct AgentSetup {
    pub config: AgentConfig,
    pub memory: NodeMemory,
    /// Random per process: tells two processes with one identity apart.
    pub instance: u64,
    /// The process's credentials. Once the agent runs, only it replaces them.
    pub credentials: Arc<watch::Sender<Arc<NodeCredentials>>>,
    pub dial: Arc<dyn Dial>,
    pub inspector: Inspector,
    pub name: Name,
    /// `host:port`; an unspecified host is replaced by the one that the hosts of its sessions see.
    pub advertise: String,
    pub release: String,
    pub labels: BTreeMap<String, String>,
    /// Addresses given on the command line, tried beside the remembered ones.
    pub seeds: Vec<String>,
}

/// Made once, shared by every incarnation of the agent. Keep a clone to subscribe.
#[derive(Clone)]
pub struct AgentPorts {
    pub(crate) config: AgentConfig,
    pub(crate) memory: NodeMemory,
    pub(crate) credentials: Arc<watch::Sender<Arc<NodeCredentials>>>,
    pub(crate) wanted: Arc<watch::Sender<ManagerWanted>>,
    pub(crate) trouble: Arc<watch::Sender<Option<NodeTrouble>>>,
    pub(crate) session: Arc<watch::Sender<Option<SessionStatus>>>,
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) inspector: Inspector,
    pub(crate) hello: AgentHello,
    pub(crate) seeds: Vec<String>,
    /// The certificate that a peer called demoted: an agent that restarts must not start its manager runtime with it.
    pub(crate) demoted: Slot<String>,
}

impl AgentPorts {
    /// The watched values start from credentials and disk; the agent corrects them when it starts.
    pub fn new(setup: AgentSetup) -> Self {
        let role = setup.credentials.borrow().identity.node().map(|(_, role)| role);
        let because = match role {
            Some(Role::Manager) => WantedBecause::CertificateSaysManager,
            _ => WantedBecause::CertificateSaysWorker,
        };
        let hello = AgentHello {
            protocol: AGENT_PROTOCOL,
            instance: setup.instance,
            name: setup.name,
            advertise: setup.advertise,
            release: setup.release,
            labels: setup.labels,
        };
        Self {
            config: setup.config,
            memory: setup.memory,
            credentials: setup.credentials,
            wanted: Arc::new(watch::Sender::new(ManagerWanted::new(because))),
            trouble: Arc::new(watch::Sender::new(None)),
            session: Arc::new(watch::Sender::new(None)),
            dial: setup.dial,
            inspector: setup.inspector,
            hello,
            seeds: setup.seeds,
            demoted: Slot::new(),
        }
    }
    /// Whether the manager runtime should run.
    pub fn wanted(&self) -> watch::Receiver<ManagerWanted> {
        self.wanted.subscribe()
    }
    /// Why this node cannot do its work, if so.
    pub fn trouble(&self) -> watch::Receiver<Option<NodeTrouble>> {
        self.trouble.subscribe()
    }
    /// The session in force: set once the host has shown its first view.
    pub fn session(&self) -> watch::Receiver<Option<SessionStatus>> {
        self.session.subscribe()
    }
    pub fn credentials(&self) -> watch::Receiver<Arc<NodeCredentials>> {
        self.credentials.subscribe()
    }
    /// Random per process: tells two processes with one identity apart.
    pub fn instance(&self) -> u64 {
        self.hello.instance
    }
}

/// The messages of the agent, including those of its own timers and tasks.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(AgentMsg),
    Wake,
    Connected {
        attempt: Attempt,
        host: NodeId,
        incarnation: Incarnation,
    },
    Received {
        attempt: Attempt,
        received: Incoming,
    },
    Lost {
        attempt: Attempt,
        why: Loss,
    },
    Installed(Arc<NodeCredentials>),
    InstallFailed(String),
}

impl From<AgentMsg> for Msg {
    fn from(msg: AgentMsg) -> Self {
        Msg::Protocol(msg)
    }
}

/// Who waits for an answer of the leader.
enum Port {
    Membership(Reply<Result<MembershipReply, ErrorBody>>),
    Report(Reply<Result<(), ErrorBody>>),
}

impl Port {
    fn answer(self, result: Result<AgentAnswer, ErrorBody>) {
        let mixed_up = || ErrorBody::new(ErrorCode::Internal, "the answer is of another kind than the question");
        let _gave_up = match (self, result) {
            (Self::Membership(port), Ok(AgentAnswer::Membership(reply))) => port.send(Ok(reply)).is_ok(),
            (Self::Membership(port), Ok(_)) => port.send(Err(mixed_up())).is_ok(),
            (Self::Membership(port), Err(error)) => port.send(Err(error)).is_ok(),
            (Self::Report(port), Ok(AgentAnswer::Reported)) => port.send(Ok(())).is_ok(),
            (Self::Report(port), Ok(_)) => port.send(Err(mixed_up())).is_ok(),
            (Self::Report(port), Err(error)) => port.send(Err(error)).is_ok(),
        };
    }
}

/// Messages that wait at most: membership requests and refusals; its own tasks are not counted.
const MAILBOX_CAPACITY: usize = 64;

/// An address for an agent that does not exist yet.
pub fn agent_address() -> Address<Msg> {
    Address::new(MAILBOX_CAPACITY)
}

pub fn agent_spec(address: Address<Msg>, ports: AgentPorts) -> Spec {
    Spec::actor("agent", address, move || AgentShell::new(ports.clone()))
}

pub struct AgentShell {
    core: Agent,
    ports: AgentPorts,
    effects: Vec<Effect>,
    asks: Parked<Port>,
    /// The key of the latest certificate request.
    key: Option<(u64, Secret)>,
    /// At most two: the session's, and that of the former one (AGENT-12).
    lines: Vec<Line>,
    alarm: Alarm,
    last_log_event: Option<LogEvent>,
    /// Pending writes to the node's memory.
    writes: JoinSet<()>,
}

impl AgentShell {
    /// From the present state of disk and watches. Blocking: it reads files.
    pub fn new(ports: AgentPorts) -> Result<Self, Fault> {
        let store = ports.memory.store();
        // A crash between writing and publishing must not leave the process with credentials older than the disk's.
        if let Some(saved) = store.load_credentials()? {
            ports.credentials.send_if_modified(|current| {
                let differs = current.identity.serial != saved.identity.serial;
                if differs {
                    *current = Arc::new(saved);
                }
                differs
            });
        }
        let credentials = ports.credentials.borrow().clone();
        let local = ports.memory.load()?;
        let start = Start {
            demotion_reported: ports.demoted.get() == Some(credentials.identity.serial.clone()),
            certificate: facts(&credentials)?,
            hello: ports.hello.clone(),
            known: local.managers,
            seeds: ports.seeds.clone(),
            seed: rand::random(),
            ended: local.ended.and_then(|e| trouble_of(&e)),
        };
        Ok(Self {
            core: Agent::new(start, ports.config.clone()),
            ports,
            effects: Vec::new(),
            asks: Parked::default(),
            key: None,
            lines: Vec::new(),
            alarm: Alarm::default(),
            last_log_event: None,
            writes: JoinSet::new(),
        })
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) -> Result<(), Fault> {
        self.core.step(cx.now(), cx.wall(), input, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.apply(cx, effect)?;
        }
        self.effects = effects;
        self.alarm.set(cx, self.core.wake_at(), Msg::Wake);
        Ok(())
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) -> Result<(), Fault> {
        match effect {
            Effect::Dial { attempt, addr } => self.dial(cx, attempt, addr),
            Effect::Send { attempt, frame } => self.send(cx, attempt, frame),
            Effect::HangUp { attempt } => {
                self.lines.retain(|line| line.attempt != attempt);
            }
            Effect::AskForCertificate { attempt, id, because } => {
                debug!(?because, "requesting a certificate");
                let key = muster_pki::new_key();
                let csr_pem = muster_pki::make_csr(&key)?;
                self.key = Some((id, key));
                let ask = AgentAsk::Sign { csr_pem };
                self.send(cx, attempt, Box::new(AgentFrame::Ask { id, ask }));
            }
            Effect::Install { id, reply } => self.install(cx, id, reply.cert_pem),
            Effect::LeaderAnswered { ask, result } => {
                if let Some(port) = self.asks.take(ask) {
                    port.answer(result);
                }
            }
            Effect::KeepManagers(managers) => self.remember(move |node| node.managers = managers),
            Effect::KeepTrouble(trouble) => {
                self.remember(move |node| node.ended = ended_of(&trouble));
            }
            Effect::KeepDemoted(serial) => self.ports.demoted.set(serial),
            Effect::PublishWanted(wanted) => {
                info!(wanted = wanted.wanted, because = ?wanted.because, "manager runtime decision changed");
                self.ports.wanted.send_replace(wanted);
            }
            Effect::PublishTrouble(trouble) => {
                if let Some(t) = &trouble {
                    warn!(reason = t.reason.word(), why = t.message, "this node cannot serve its role");
                }
                self.ports.trouble.send_replace(trouble);
            }
            Effect::PublishSession(session) => {
                self.ports.session.send_replace(session);
            }
            Effect::LogEvent(log_event) => self.log_event(log_event),
        }
        Ok(())
    }

    fn dial(&mut self, cx: &Cx<Msg>, attempt: Attempt, addr: String) {
        let config = &self.ports.config;
        let (line, task) = line(LineArgs {
            attempt,
            addr,
            dial: Arc::clone(&self.ports.dial),
            deadline: config.dial_deadline,
            outbox: config.outbox,
            inspector: Arc::clone(&self.ports.inspector),
            open_questions: config.open_questions,
            me: cx.me().clone(),
        });
        self.lines.push(line);
        cx.spawn(task);
    }

    fn send(&mut self, cx: &Cx<Msg>, attempt: Attempt, frame: Box<AgentFrame>) {
        let Some(line) = self.lines.iter().find(|line| line.attempt == attempt) else {
            return;
        };
        if line.outbox.try_send((frame, None)).is_err() {
            self.lines.retain(|line| line.attempt != attempt);
            let why = Loss::Broken("the host reads too slowly".to_owned());
            let _ended = cx.me().tell(Msg::Lost { attempt, why });
        }
    }

    fn install(&mut self, cx: &Cx<Msg>, id: u64, cert_pem: String) {
        let me = cx.me().clone();
        let Some((_, key)) = self.key.take_if(|(asked, _)| *asked == id) else {
            let _ended = me.tell(Msg::InstallFailed("the key of this certificate request was lost".to_owned()));
            return;
        };
        let current = self.ports.credentials.borrow().clone();
        let (store, publish) = (self.ports.memory.store().clone(), Arc::clone(&self.ports.credentials));
        cx.spawn(async move {
            let install = move || install::install(&store, &current, key, cert_pem);
            let installed = tokio::task::spawn_blocking(install).await;
            let msg = match installed {
                Ok(Ok(credentials)) => {
                    publish.send_replace(Arc::clone(&credentials));
                    Msg::Installed(credentials)
                }
                Ok(Err(why)) => Msg::InstallFailed(why),
                Err(why) => Msg::InstallFailed(why.to_string()),
            };
            let _ended = me.tell(msg);
        });
    }

    /// A failed write is only logged: the node learns the values again from the next manager.
    fn remember(&mut self, change: impl FnOnce(&mut muster_pki::LocalNode) + Send + 'static) {
        while self.writes.try_join_next().is_some() {}
        let memory = self.ports.memory.clone();
        self.writes.spawn_blocking(move || {
            if let Err(error) = memory.update(change) {
                warn!(error = crate::line::chain(&error), "cannot write the node's memory (node.json)");
            }
        });
    }

    /// A repeated event is logged once.
    fn log_event(&mut self, log_event: LogEvent) {
        let repeated = self.last_log_event.as_ref() == Some(&log_event);
        match &log_event {
            LogEvent::SessionOpened { host, addr } => info!(%host, addr, "session opened"),
            LogEvent::SessionLost { addr, why } => info!(addr, why, "session lost"),
            LogEvent::CertificateInForce { role, serial } => info!(%role, serial, "new certificate in force"),
            LogEvent::DialFailed { addr, why } if !repeated => info!(addr, why, "cannot open a session"),
            LogEvent::DialFailed { addr, why } => debug!(addr, why, "cannot open a session"),
            LogEvent::Refused { addr, reason, message } if !repeated => {
                info!(addr, %reason, why = message, "refused by manager")
            }
            LogEvent::Refused { addr, reason, message } => debug!(addr, %reason, why = message, "refused by manager"),
            LogEvent::SignFailed { why } => info!(why, "failed to obtain a certificate"),
        }
        self.last_log_event = Some(log_event);
    }
}

impl Shell for AgentShell {
    type Msg = Msg;
    const KIND: &'static str = "Agent";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.step(cx, Input::Woke)
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        let input = match msg {
            Msg::Protocol(AgentMsg::RequestMembership { request, reply }) => {
                let ask = self.asks.park(Port::Membership(reply));
                Input::AskLeader { ask, question: AgentAsk::Membership(request) }
            }
            Msg::Protocol(AgentMsg::ReportManager { report, reply }) => {
                let ask = self.asks.park(Port::Report(reply));
                Input::AskLeader { ask, question: AgentAsk::ReportManager(report) }
            }
            Msg::Protocol(AgentMsg::RefusedByPeer { refusal, serial }) => Input::RefusedByPeer { refusal, serial },
            Msg::Wake => {
                self.alarm.fired();
                Input::Woke
            }
            Msg::Connected { attempt, host, incarnation } => Input::Connected { attempt, host, incarnation },
            Msg::Received { attempt, received } => Input::Received { attempt, frame: received.frame },
            Msg::Lost { attempt, why } => {
                self.lines.retain(|line| line.attempt != attempt);
                Input::Lost { attempt, why }
            }
            Msg::Installed(credentials) => Input::Installed(facts(&credentials)?),
            Msg::InstallFailed(why) => Input::InstallFailed(why),
        };
        self.step(cx, input)
    }

    fn view(&self) -> Value {
        let certificate = self.core.certificate();
        json!({
            "session": self.core.session(),
            "connecting_to": self.core.connecting_to(),
            "failures": self.core.failures(),
            "certificate": {
                "role": certificate.role,
                "serial": certificate.serial,
                "granted": certificate.granted,
                "not_after": certificate.not_after,
                "renew_at": self.core.renew_at(),
                "wanted_because": self.core.need(muster_kernel::Clock.wall()),
            },
            "managers": self.core.managers(),
            "manager_runtime": *self.ports.wanted.borrow(),
            "trouble": *self.ports.trouble.borrow(),
            "last_refusal": self.core.last_refusal(),
            "last_loss": self.core.last_loss(),
            "requests_to_leader": self.asks.len(),
        })
    }

    async fn stopping(&mut self, cx: &Cx<Msg>) {
        let closing: Vec<_> = self.lines.iter_mut().filter_map(|line| line.closed.take()).collect();
        if self.step(cx, Input::Stop).is_ok() {
            // Each resolves in any case once its connection is closed.
            let _late = timeout(LAST_FRAME_TIMEOUT, join_all(closing)).await;
        }
        // A node that was finally refused knows it at its next start, however soon it was stopped.
        if timeout(PENDING_WRITES_TIMEOUT, async { while self.writes.join_next().await.is_some() {} }).await.is_err() {
            warn!("stopping with unwritten node state (last refusal, manager list)");
        }
    }
}

fn facts(credentials: &NodeCredentials) -> Result<CertificateFacts, Fault> {
    let issued = issued_at(&credentials.cert_pem).ok_or_else(|| Fault::new("the certificate cannot be read"))?;
    CertificateFacts::of(&credentials.identity, issued)
        .ok_or_else(|| Fault::new("the certificate of this process is not a node's"))
}

fn ended_of(trouble: &NodeTrouble) -> Option<Ended> {
    let reason = match trouble.reason {
        TroubleReason::Blocked => RefusalReason::Blocked,
        TroubleReason::Removed => RefusalReason::Removed,
        TroubleReason::CertificateExpired => return None,
    };
    Some(Ended { reason, message: trouble.message.clone(), at: trouble.at })
}

/// The trouble of a kept final refusal.
pub fn trouble_of(ended: &Ended) -> Option<NodeTrouble> {
    let reason = match ended.reason {
        RefusalReason::Blocked => TroubleReason::Blocked,
        RefusalReason::Removed => TroubleReason::Removed,
        _ => return None,
    };
    Some(NodeTrouble::new(reason, ended.message.clone(), ended.at))
}
