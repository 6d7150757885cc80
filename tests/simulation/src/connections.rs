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
use crate::events::Event;
use crate::hosts::Hosts;
use crate::machine::{Agent, MachineIdx};
use crate::roots;
use crate::world::World;

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
    /// A connection of this agent that its host has admitted.
    pub fn accepted_of(&self, idx: MachineIdx) -> Option<ConnectionNumber> {
        self.0
            .iter()
            .rev()
            .find(|(_, l)| l.agent == idx && l.accepted && l.agent_open && l.host_open)
            .map(|(id, _)| *id)
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }

    // ---- dialling -------------------------------------------------------------------------------------------------

    /// An agent dials. One name stands for all managers, as operators configure it.
    pub(crate) fn dial(world: &mut World, idx: MachineIdx, attempt: agent::Attempt, addr: &str) {
        let at_home = |m: &crate::machine::Machine| if addr == MANAGERS { m.runtime.is_some() } else { m.addr == addr };
        let there: Vec<MachineIdx> = (0..world.machines.len()).filter(|p| at_home(&world.machines[*p])).collect();
        let Some(host) = world.rng.pick(&there) else {
            return Self::dial_failed(world, idx, attempt, "connection refused", Duration::from_millis(1));
        };
        if world.machines[host].thaws.is_some() {
            return Self::dial_failed(world, idx, attempt, "no answer", DIAL_TIMEOUT);
        }
        let id = world.number();
        let node = world.machines[idx].id;
        let runtime = world.machines[host].runtime.as_ref().map_or(0, |h| h.number);
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
        world.connections.0.insert(id, connection);
        let delay = world.net.conditions.slow + world.rng.micros(300, 2500);
        world.time.after(delay, Event::DialArrives { connection: id, idx: host });
    }

    fn dial_failed(world: &mut World, idx: MachineIdx, attempt: agent::Attempt, why: &str, after: Duration) {
        let life = world.machines[idx].life;
        let lost = agent::Input::Lost { attempt, why: agent::Loss::Broken(why.to_owned()) };
        world.time.after(after, Event::AgentInput { idx, life, input: Box::new(lost) });
    }

    /// The dial reached the host, which decides by its own replica whether to admit the node.
    pub(crate) fn dial_arrives(world: &mut World, id: ConnectionNumber) {
        let Some(connection) = world.connections.0.get(&id) else { return };
        let (idx, attempt, node, host, runtime) =
            (connection.agent, connection.attempt, connection.node, connection.host, connection.runtime);
        if !world.net.both_open(idx, host) || !world.machines[host].up {
            let refused = world.net.both_open(idx, host);
            world.connections.0.remove(&id);
            let after = if refused { Duration::from_millis(1) } else { DIAL_TIMEOUT };
            return Self::dial_failed(world, idx, attempt, "no answer", after);
        }
        let replica = world.machines[host].runtime(runtime).map(|h| h.core.cluster_replica().clone());
        let here = LocalFacts { manager: replica.is_some(), ..world.here(host) };
        let certificate = roots::presented(world, host, idx);
        let unverified = certificate.is_none() && world.machines[idx].agent.certificate.is_some();
        if unverified || !roots::verifies(world, idx, host) {
            world.totals.count("dials without a path to a trusted root");
            world.connections.0.remove(&id);
            return Self::dial_failed(world, idx, attempt, "no trusted root", Duration::from_millis(1));
        }
        let admission = admit(certificate.as_ref(), Service::Agent, replica.as_deref(), &here, world.wall(host));
        let node_stays = replica.as_deref().is_some_and(|replica| world.lets_stay(replica, node));
        let admission = if node_stays { Admission::Accept } else { admission };
        match (admission, certificate) {
            (Admission::Refuse(reason, message), _) => {
                let (by, whom) = (world.machines[host].name.clone(), world.machines[idx].name.clone());
                world.trace.print_if_verbose(world.time.now(), || {
                    format!("{by} refuses the agent of {whom}: {reason:?}, {message}")
                });
                let refusal = Refusal { reason, message, managers: Vec::new(), retry_after_ms: None };
                Self::send_message(world, id, false, ConnectionMsg::Refused(refusal));
                Self::host_closes(world, id);
            }
            (_, Some(identity)) => {
                if let Some(connection) = world.connections.0.get_mut(&id) {
                    connection.accepted = true;
                }
                Self::send_message(world, id, false, ConnectionMsg::Welcome);
                Self::arrived(world, host, id, node, identity);
            }
            (_, None) => Self::host_closes(world, id),
        }
    }

    fn arrived(world: &mut World, host: MachineIdx, id: ConnectionNumber, node: NodeId, identity: CertIdentity) {
        let Some(runtime) = world.machines[host].runtime.as_mut() else { return };
        runtime.hosts.waiting.insert(ConnId(id), identity);
        Hosts::step(world, host, host::Input::Arrived { node, conn: ConnId(id) });
    }

    /// The apparent source address of a node.
    pub(crate) fn seen_at(idx: MachineIdx) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::new(10, 0, 0, idx as u8 + 1), 4400))
    }

    // ---- sending --------------------------------------------------------------------------------------------------

    pub(crate) fn agent_sends(world: &mut World, idx: MachineIdx, attempt: agent::Attempt, frame: AgentFrame) {
        if let Some(id) = world.connections.of_agent(idx, attempt) {
            Self::send_message(world, id, true, ConnectionMsg::FromAgent(frame));
        }
    }

    pub(crate) fn agent_closes(world: &mut World, idx: MachineIdx, attempt: agent::Attempt) {
        if let Some(id) = world.connections.of_agent(idx, attempt) {
            Self::send_message(world, id, true, ConnectionMsg::Closed("the agent has hung up"));
            if let Some(connection) = world.connections.0.get_mut(&id) {
                connection.agent_open = false;
                connection.to_agent.clear();
            }
            world.connections.sweep(id);
        }
    }

    pub(crate) fn host_sends(world: &mut World, conn: ConnId, frame: Box<HostFrame>) {
        Self::send_message(world, conn.0, false, ConnectionMsg::FromHost(frame));
    }

    pub(crate) fn host_closes(world: &mut World, id: ConnectionNumber) {
        Self::send_message(world, id, false, ConnectionMsg::Closed("the host has hung up"));
        if let Some(connection) = world.connections.0.get_mut(&id) {
            connection.host_open = false;
            connection.to_host.clear();
        }
        world.connections.sweep(id);
    }

    fn send_message(world: &mut World, id: ConnectionNumber, to_host: bool, message: ConnectionMsg) {
        let Some(queue) = world.connections.queue(id, to_host) else { return };
        queue.push_back(message);
        if queue.len() == 1 {
            Self::schedule_delivery(world, id, to_host, Duration::ZERO);
        }
    }

    /// Sends the first message of a queue.
    fn schedule_delivery(world: &mut World, id: ConnectionNumber, to_host: bool, pause: Duration) {
        let Some(connection) = world.connections.0.get(&id) else { return };
        let idx = if to_host { connection.host } else { connection.agent };
        let delay = pause + world.net.conditions.slow + world.rng.micros(80, 900);
        world.time.after(delay, Event::DataArrives { connection: id, idx, to_host });
    }

    /// A message arrives if the link is up.
    pub(crate) fn data_arrives(world: &mut World, id: ConnectionNumber, to_host: bool) {
        let Some(connection) = world.connections.0.get_mut(&id) else { return };
        let (from, to) =
            if to_host { (connection.agent, connection.host) } else { (connection.host, connection.agent) };
        if !world.net.both_open(from, to) || !world.machines[to].up {
            // No acknowledgement.
            return Self::schedule_delivery(world, id, to_host, RESEND_DELAY);
        }
        let Some(queue) = world.connections.queue(id, to_host) else { return };
        let Some(message) = queue.pop_front() else { return };
        if !queue.is_empty() {
            Self::schedule_delivery(world, id, to_host, Duration::ZERO);
        }
        if to_host {
            Self::host_receives(world, id, message)
        } else {
            Self::agent_receives(world, id, message)
        }
        world.connections.sweep(id);
    }

    fn agent_receives(world: &mut World, id: ConnectionNumber, message: ConnectionMsg) {
        let Some(connection) = world.connections.0.get_mut(&id).filter(|connection| connection.agent_open) else {
            return;
        };
        let (idx, attempt, host) = (connection.agent, connection.attempt, connection.host);
        let broken = |why: &str| agent::Loss::Broken(why.to_owned());
        let input = match message {
            ConnectionMsg::Welcome => {
                agent::Input::Connected { attempt, host: world.machines[host].id, incarnation: world.incarnation(host) }
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
        Agent::step(world, idx, input);
    }

    fn host_receives(world: &mut World, id: ConnectionNumber, message: ConnectionMsg) {
        let Some(connection) = world.connections.0.get_mut(&id).filter(|connection| connection.host_open) else {
            return;
        };
        let (host, runtime, node, conn) = (connection.host, connection.runtime, connection.node, ConnId(id));
        if world.machines[host].runtime(runtime).is_none() {
            // The host's process does not know this connection.
            return Self::host_closes(world, id);
        }
        let input = match message {
            ConnectionMsg::FromAgent(frame) => session::Input::Frame { conn, frame },
            ConnectionMsg::Closed(why) => {
                connection.host_open = false;
                session::Input::Closed { conn, why: why.to_owned() }
            }
            _ => return,
        };
        Hosts::session_step(world, host, node, input);
    }

    /// The gateway closes a node's connections to this manager runtime; returns how many.
    pub(crate) fn close_of_node(world: &mut World, idx: MachineIdx, runtime: u32, node: NodeId) -> u64 {
        let of = |connection: &AgentConnection| {
            connection.host == idx
                && connection.runtime == runtime
                && connection.node == node
                && connection.accepted
                && connection.host_open
        };
        let ids: Vec<ConnectionNumber> =
            world.connections.0.iter().filter(|(_, connection)| of(connection)).map(|(id, _)| *id).collect();
        for id in &ids {
            let conn = ConnId(*id);
            if let Some(runtime) = world.machines[idx].runtime.as_mut() {
                runtime.hosts.waiting.remove(&conn);
            }
            Hosts::session_step(world, idx, node, session::Input::Closed { conn, why: "cut".to_owned() });
            Self::host_closes(world, *id);
        }
        ids.len() as u64
    }

    // ---- ends of processes ----------------------------------------------------------------------------------------

    /// An agent's process, or a host's manager runtime, ended. `noticed`: its machine still closes its connections;
    /// otherwise the other side must notice by itself, or learns it when the machine is back.
    pub(crate) fn process_ends(world: &mut World, idx: MachineIdx, as_host: bool, noticed: bool) {
        let of = |connection: &AgentConnection| {
            if as_host {
                connection.host == idx && connection.host_open
            } else {
                connection.agent == idx && connection.agent_open
            }
        };
        let ids: Vec<ConnectionNumber> =
            world.connections.0.iter().filter(|(_, connection)| of(connection)).map(|(id, _)| *id).collect();
        for id in ids {
            if noticed {
                Self::send_message(world, id, !as_host, ConnectionMsg::Closed("the process has ended"));
            }
            let Some(connection) = world.connections.0.get_mut(&id) else { continue };
            if as_host {
                connection.to_host.clear();
                // An unnoticed end is answered with a reset once data reaches the restarted machine.
                connection.host_open = !noticed && connection.agent_open;
            } else {
                connection.to_agent.clear();
                connection.agent_open = false;
                connection.host_open &= world.machines[connection.host].runtime(connection.runtime).is_some();
            }
            world.connections.sweep(id);
        }
    }
}
