//! The agent's shell: connections, files, watches, reply ports, timers. [`crate::core`] decides.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_kernel::{Address, Alarm, Cx, Fault, Parked, Shell, Spec};
use muster_messages::protocol::{AgentMsg, Named, NodeCredentials};
use muster_messages::wire::{AgentAsk, AgentFrame};
use muster_messages::{Incarnation, NodeId, Revision, Trouble, word};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::asks::Port;
use crate::core::{Agent, Attempt, Effect, Input, Loss, Start};
use crate::install::{Installer, facts};
use crate::line::{Incoming, Lines};
use crate::log::log_event;
use crate::memory::PendingWrites;
use crate::ports::AgentPorts;
use crate::status::{ended_of, trouble_of};

/// How long a stopping agent waits until its last frame has been sent.
const LAST_FRAME_TIMEOUT: Duration = Duration::from_millis(500);

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
    RootsInstalled(Revision),
    RootsRefused {
        generation: Revision,
        why: String,
    },
}

impl From<AgentMsg> for Msg {
    fn from(msg: AgentMsg) -> Self {
        Msg::Protocol(msg)
    }
}

/// Messages that wait at most: requests to the leader and refusals; its own tasks are not counted.
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
    installer: Installer,
    lines: Lines,
    alarm: Alarm,
    writes: PendingWrites,
}

impl AgentShell {
    /// From the present state of disk and watches. Blocking: it reads files.
    pub fn new(ports: AgentPorts) -> Result<Self, Fault> {
        let installer = Installer::new(&ports.in_force)?;
        let credentials = ports.credentials.borrow().clone();
        ports.workloads.trust(&credentials);
        let local = ports.memory.load()?;
        ports.managers.send_replace(local.managers.clone());
        let start = Start {
            demotion_reported: ports.demoted.get() == Some(credentials.identity.serial.clone()),
            certificate: facts(&credentials)?,
            hello: ports.hello.clone(),
            known: local.managers,
            seeds: ports.seeds.clone(),
            seed: rand::random(),
            workloads: ports.workloads.stamp(),
            ended: local.ended.and_then(|e| trouble_of(&e)),
        };
        Ok(Self {
            core: Agent::new(start, ports.config.clone()),
            installer,
            writes: PendingWrites::new(ports.memory.clone()),
            lines: Lines::default(),
            ports,
            effects: Vec::new(),
            asks: Parked::default(),
            alarm: Alarm::default(),
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
            Effect::Dial { attempt, addr } => self.lines.dial(cx, &self.ports, attempt, addr),
            Effect::Send { attempt, frame } => self.lines.send(cx, attempt, frame),
            Effect::HangUp { attempt } => self.lines.hang_up(attempt),
            Effect::AskForCertificate { attempt, id, because } => {
                debug!(?because, "requesting a certificate");
                let ask = AgentAsk::Sign { csr_pem: self.installer.request(id)? };
                self.lines.send(cx, attempt, Box::new(AgentFrame::Ask { id, ask }));
            }
            Effect::Install { id, reply } => cx.report(self.installer.install(id, reply.cert_pem)),
            Effect::InstallRoots(offer) => cx.report(self.installer.install_roots(offer)),
            Effect::LeaderAnswered { ask, result } => {
                if let Some(port) = self.asks.take(ask) {
                    port.answer(result);
                }
            }
            Effect::KeepManagers(managers) => {
                self.ports.managers.send_replace(managers.clone());
                self.writes.change(move |node| node.managers = managers);
            }
            Effect::KeepTrouble(trouble) => self.writes.change(move |node| node.ended = ended_of(&trouble)),
            Effect::KeepDemoted(serial) => self.ports.demoted.set(serial),
            Effect::PublishWanted(wanted) => {
                info!(wanted = wanted.wanted, because = %word(wanted.because), "manager runtime decision changed");
                self.ports.wanted.send_replace(wanted);
            }
            Effect::PublishTrouble(trouble) => {
                if let Some(t) = &trouble {
                    warn!(reason = %Trouble::from(t.reason), why = t.message, "this node cannot serve its role");
                }
                self.ports.trouble.send_replace(trouble);
            }
            Effect::PublishSession(session) => {
                self.ports.session.send_replace(session);
            }
            Effect::PublishWorkloads { entries, stamp } => self.ports.workloads.replace(entries, stamp),
            Effect::LogEvent { event, repeated } => log_event(&event, repeated),
        }
        Ok(())
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
            Msg::Protocol(AgentMsg::SignWorkload { request, reply }) => {
                let ask = self.asks.park(Port::Workload(reply));
                Input::AskLeader { ask, question: AgentAsk::SignWorkload(request) }
            }
            Msg::Protocol(AgentMsg::RefusedByPeer { refusal, serial }) => Input::RefusedByPeer { refusal, serial },
            Msg::Wake => {
                self.alarm.fired();
                Input::Woke
            }
            Msg::Connected { attempt, host, incarnation } => Input::Connected { attempt, host, incarnation },
            Msg::Received { attempt, received } => Input::Received { attempt, frame: received.frame },
            Msg::Lost { attempt, why } => {
                self.lines.hang_up(attempt);
                Input::Lost { attempt, why }
            }
            Msg::Installed(credentials) => {
                self.ports.workloads.trust(&credentials);
                Input::Installed(facts(&credentials)?)
            }
            Msg::InstallFailed(why) => Input::InstallFailed(why),
            Msg::RootsInstalled(generation) => {
                // Workloads trust a root before the cluster learns that this node does: from then on it may sign.
                self.ports.workloads.trust(&self.ports.credentials.borrow());
                Input::RootsInstalled(generation)
            }
            Msg::RootsRefused { generation, why } => Input::RootsRefused { generation, why },
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
        let closing = self.lines.closing();
        if self.step(cx, Input::Stop).is_ok() {
            // Each resolves in any case once its connection is closed.
            let _late = timeout(LAST_FRAME_TIMEOUT, join_all(closing)).await;
        }
        // A node that was finally refused knows it at its next start, however soon it was stopped.
        self.writes.finish().await;
    }
}
