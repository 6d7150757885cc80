//! Connections between agents and hosts. Data arrives in order or not at all; a disconnected link delays it,
//! as TCP retransmission does, until one side gives up.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use muster_agent::core as agent;
use muster_gateway::core::admission::{Admission, LocalFacts, admit};
use muster_messages::protocol::Service;
use muster_messages::wire::{AgentFrame, HostFrame, Refusal};
use muster_messages::{CertIdentity, NodeId};
use muster_sessions::core::session::ConnId;
use muster_sessions::core::{host, session};

use crate::agents::MANAGERS;
use crate::machine::MachineIdx;
use crate::simulation::{Event, Simulation};

/// Delay before a retry on a disconnected link.
const RESEND_DELAY: Duration = Duration::from_millis(200);
/// Timeout of a dial without an answer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection's number; later connections have larger numbers.
pub type ConnectionNumber = u64;

/// A message on a connection.
pub enum ConnectionMsg {
    FromAgent(AgentFrame),
    Welcome,
    Refused(Refusal),
    FromHost(Box<HostFrame>),
    /// The other side closed, or its process ended.
    Closed(&'static str),
}

/// See the module.
pub struct AgentConnection {
    agent: MachineIdx,
    attempt: agent::Attempt,
    node: NodeId,
    host: MachineIdx,
    runtime: u32,
    /// The host has admitted it.
    accepted: bool,
    /// Which ends are still open.
    agent_open: bool,
    host_open: bool,
    to_agent: VecDeque<ConnectionMsg>,
    to_host: VecDeque<ConnectionMsg>,
}

/// All connections.
#[derive(Default)]
pub struct AgentConnections(BTreeMap<ConnectionNumber, AgentConnection>);

impl AgentConnections {
    fn of_agent(&self, idx: MachineIdx, attempt: agent::Attempt) -> Option<ConnectionNumber> {
        let found = self.0.iter().rev().find(|(_, l)| l.agent == idx && l.agent_open && l.attempt == attempt);
        found.map(|(id, _)| *id)
    }
    fn queue(&mut self, id: ConnectionNumber, to_host: bool) -> Option<&mut VecDeque<ConnectionMsg>> {
        let connection = self.0.get_mut(&id)?;
        Some(if to_host { &mut connection.to_host } else { &mut connection.to_agent })
    }
    /// Forgets a connection that both ends closed.
    fn sweep(&mut self, id: ConnectionNumber) {
        if self.0.get(&id).is_some_and(|connection| !connection.agent_open && !connection.host_open) {
            self.0.remove(&id);
        }
    }
    /// A node has a connection to this manager runtime. One to an earlier runtime of the same machine, whose end went
    /// unnoticed, does not count.
    pub fn at_host(&self, (host, runtime): (MachineIdx, u32), node: NodeId) -> bool {
        self.0.values().any(|l| (l.host, l.runtime) == (host, runtime) && l.node == node && l.accepted && l.host_open)
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Simulation {
    // ---- dialling -------------------------------------------------------------------------------------------------

    /// An agent dials. One name stands for all managers, as operators configure it.
    pub(crate) fn dial(&mut self, idx: MachineIdx, attempt: agent::Attempt, addr: &str) {
        let at_home = |m: &crate::machine::Machine| if addr == MANAGERS { m.runtime.is_some() } else { m.addr == addr };
        let there: Vec<MachineIdx> = (0..self.machines.len()).filter(|p| at_home(&self.machines[*p])).collect();
        let Some(host) = self.rng.pick(&there) else {
            return self.dial_failed(idx, attempt, "connection refused", Duration::from_millis(1));
        };
        let id = self.number();
        let node = self.machines[idx].id;
        let runtime = self.machines[host].runtime.as_ref().map_or(0, |h| h.number);
        let connection = AgentConnection {
            agent: idx,
            attempt,
            node,
            host,
            runtime,
            accepted: false,
            agent_open: true,
            host_open: true,
            to_agent: VecDeque::new(),
            to_host: VecDeque::new(),
        };
        self.connections.0.insert(id, connection);
        let delay = self.net.conditions.slow + self.rng.micros(300, 2500);
        self.time.after(delay, Event::DialArrives { connection: id, idx: host });
    }

    fn dial_failed(&mut self, idx: MachineIdx, attempt: agent::Attempt, why: &str, after: Duration) {
        let life = self.machines[idx].life;
        let lost = agent::Input::Lost { attempt, why: agent::Loss::Broken(why.to_owned()) };
        self.time.after(after, Event::AgentInput { idx, life, input: Box::new(lost) });
    }

    /// The dial reached the host, which decides by its own replica whether to admit the node.
    pub(crate) fn dial_arrives(&mut self, id: ConnectionNumber) {
        let Some(connection) = self.connections.0.get(&id) else { return };
        let (idx, attempt, node, host, runtime) =
            (connection.agent, connection.attempt, connection.node, connection.host, connection.runtime);
        if !self.net.both_open(idx, host) || !self.machines[host].up {
            let refused = self.net.both_open(idx, host);
            self.connections.0.remove(&id);
            let after = if refused { Duration::from_millis(1) } else { DIAL_TIMEOUT };
            return self.dial_failed(idx, attempt, "no answer", after);
        }
        let replica = self.machines[host].runtime(runtime).map(|h| h.core.replica().clone());
        let here = LocalFacts { manager: replica.is_some(), ..self.here(host) };
        let certificate = self.machines[idx].agent.certificate.clone();
        let admission = admit(certificate.as_ref(), Service::Agent, replica.as_deref(), &here, self.wall(host));
        let node_stays = replica.as_deref().is_some_and(|replica| self.lets_stay(replica, node));
        let admission = if node_stays { Admission::Accept } else { admission };
        match (admission, certificate) {
            (Admission::Refuse(reason, message), _) => {
                let (by, whom) = (self.machines[host].name.clone(), self.machines[idx].name.clone());
                self.trace.print_if_verbose(self.time.now(), || {
                    format!("{by} refuses the agent of {whom}: {reason:?}, {message}")
                });
                let refusal = Refusal { reason, message, managers: Vec::new(), retry_after_ms: None };
                self.send_message(id, false, ConnectionMsg::Refused(refusal));
                self.host_closes(id);
            }
            (_, Some(identity)) => {
                if let Some(connection) = self.connections.0.get_mut(&id) {
                    connection.accepted = true;
                }
                self.send_message(id, false, ConnectionMsg::Welcome);
                self.arrived(host, id, node, identity);
            }
            (_, None) => self.host_closes(id),
        }
    }

    fn arrived(&mut self, host: MachineIdx, id: ConnectionNumber, node: NodeId, identity: CertIdentity) {
        let Some(runtime) = self.machines[host].runtime.as_mut() else { return };
        runtime.hosts.waiting.insert(ConnId(id), identity);
        self.host_step(host, host::Input::Arrived { node, conn: ConnId(id) });
    }

    /// The apparent source address of a node.
    pub(crate) fn seen_at(idx: MachineIdx) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::new(10, 0, 0, idx as u8 + 1), 4400))
    }

    // ---- sending --------------------------------------------------------------------------------------------------

    pub(crate) fn agent_sends(&mut self, idx: MachineIdx, attempt: agent::Attempt, frame: AgentFrame) {
        if let Some(id) = self.connections.of_agent(idx, attempt) {
            self.send_message(id, true, ConnectionMsg::FromAgent(frame));
        }
    }

    pub(crate) fn agent_closes(&mut self, idx: MachineIdx, attempt: agent::Attempt) {
        if let Some(id) = self.connections.of_agent(idx, attempt) {
            self.send_message(id, true, ConnectionMsg::Closed("the agent has hung up"));
            if let Some(connection) = self.connections.0.get_mut(&id) {
                connection.agent_open = false;
                connection.to_agent.clear();
            }
            self.connections.sweep(id);
        }
    }

    pub(crate) fn host_sends(&mut self, conn: ConnId, frame: Box<HostFrame>) {
        self.send_message(conn.0, false, ConnectionMsg::FromHost(frame));
    }

    pub(crate) fn host_closes(&mut self, id: ConnectionNumber) {
        self.send_message(id, false, ConnectionMsg::Closed("the host has hung up"));
        if let Some(connection) = self.connections.0.get_mut(&id) {
            connection.host_open = false;
            connection.to_host.clear();
        }
        self.connections.sweep(id);
    }

    fn send_message(&mut self, id: ConnectionNumber, to_host: bool, message: ConnectionMsg) {
        let Some(queue) = self.connections.queue(id, to_host) else { return };
        queue.push_back(message);
        if queue.len() == 1 {
            self.schedule_delivery(id, to_host, Duration::ZERO);
        }
    }

    /// Sends the first message of a queue.
    fn schedule_delivery(&mut self, id: ConnectionNumber, to_host: bool, pause: Duration) {
        let Some(connection) = self.connections.0.get(&id) else { return };
        let idx = if to_host { connection.host } else { connection.agent };
        let delay = pause + self.net.conditions.slow + self.rng.micros(80, 900);
        self.time.after(delay, Event::DataArrives { connection: id, idx, to_host });
    }

    /// A message arrives if the link is up.
    pub(crate) fn data_arrives(&mut self, id: ConnectionNumber, to_host: bool) {
        let Some(connection) = self.connections.0.get_mut(&id) else { return };
        let (from, to) =
            if to_host { (connection.agent, connection.host) } else { (connection.host, connection.agent) };
        if !self.net.both_open(from, to) || !self.machines[to].up {
            // No acknowledgement.
            return self.schedule_delivery(id, to_host, RESEND_DELAY);
        }
        let Some(queue) = self.connections.queue(id, to_host) else { return };
        let Some(message) = queue.pop_front() else { return };
        if !queue.is_empty() {
            self.schedule_delivery(id, to_host, Duration::ZERO);
        }
        if to_host {
            self.host_receives(id, message)
        } else {
            self.agent_receives(id, message)
        }
        self.connections.sweep(id);
    }

    fn agent_receives(&mut self, id: ConnectionNumber, message: ConnectionMsg) {
        let Some(connection) = self.connections.0.get_mut(&id).filter(|connection| connection.agent_open) else {
            return;
        };
        let (idx, attempt, host) = (connection.agent, connection.attempt, connection.host);
        let broken = |why: &str| agent::Loss::Broken(why.to_owned());
        let input = match message {
            ConnectionMsg::Welcome => {
                agent::Input::Connected { attempt, host: self.machines[host].id, incarnation: self.incarnation(host) }
            }
            ConnectionMsg::FromHost(frame) => agent::Input::Received { attempt, frame },
            ConnectionMsg::Refused(refusal) => {
                connection.agent_open = false;
                agent::Input::Lost { attempt, why: agent::Loss::Refused(refusal) }
            }
            ConnectionMsg::Closed(why) => {
                connection.agent_open = false;
                agent::Input::Lost { attempt, why: broken(why) }
            }
            ConnectionMsg::FromAgent(_) => return,
        };
        self.agent_step(idx, input);
    }

    fn host_receives(&mut self, id: ConnectionNumber, message: ConnectionMsg) {
        let Some(connection) = self.connections.0.get_mut(&id).filter(|connection| connection.host_open) else {
            return;
        };
        let (host, runtime, node, conn) = (connection.host, connection.runtime, connection.node, ConnId(id));
        if self.machines[host].runtime(runtime).is_none() {
            // The host's process does not know this connection.
            return self.host_closes(id);
        }
        let input = match message {
            ConnectionMsg::FromAgent(frame) => session::Input::Frame { conn, frame },
            ConnectionMsg::Closed(why) => {
                connection.host_open = false;
                session::Input::Closed { conn, why: why.to_owned() }
            }
            _ => return,
        };
        self.session_step(host, node, input);
    }

    /// The gateway closes a node's connections to this manager runtime; returns how many.
    pub(crate) fn close_connections(&mut self, idx: MachineIdx, runtime: u32, node: NodeId) -> u64 {
        let of = |connection: &AgentConnection| {
            connection.host == idx
                && connection.runtime == runtime
                && connection.node == node
                && connection.accepted
                && connection.host_open
        };
        let ids: Vec<ConnectionNumber> =
            self.connections.0.iter().filter(|(_, connection)| of(connection)).map(|(id, _)| *id).collect();
        for id in &ids {
            let conn = ConnId(*id);
            if let Some(runtime) = self.machines[idx].runtime.as_mut() {
                runtime.hosts.waiting.remove(&conn);
            }
            self.session_step(idx, node, session::Input::Closed { conn, why: "cut".to_owned() });
            self.host_closes(*id);
        }
        ids.len() as u64
    }

    // ---- ends of processes ----------------------------------------------------------------------------------------

    /// An agent's process, or a host's manager runtime, ended. `noticed`: its machine still closes its connections;
    /// otherwise the other side must notice by itself, or learns it when the machine is back.
    pub(crate) fn connections_end(&mut self, idx: MachineIdx, as_host: bool, noticed: bool) {
        let of = |connection: &AgentConnection| {
            if as_host {
                connection.host == idx && connection.host_open
            } else {
                connection.agent == idx && connection.agent_open
            }
        };
        let ids: Vec<ConnectionNumber> =
            self.connections.0.iter().filter(|(_, connection)| of(connection)).map(|(id, _)| *id).collect();
        for id in ids {
            if noticed {
                self.send_message(id, !as_host, ConnectionMsg::Closed("the process has ended"));
            }
            let Some(connection) = self.connections.0.get_mut(&id) else { continue };
            if as_host {
                connection.to_host.clear();
                // An unnoticed end is answered with a reset once data reaches the restarted machine.
                connection.host_open = !noticed && connection.agent_open;
            } else {
                connection.to_agent.clear();
                connection.agent_open = false;
                connection.host_open &= self.machines[connection.host].runtime(connection.runtime).is_some();
            }
            self.connections.sweep(id);
        }
    }
}
