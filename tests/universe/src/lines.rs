//! Lines: the connections between agents and hosts. What is sent on one arrives in order or not at all; a cut link delays it,
//! as a transport that sends again does, until somebody loses patience.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use muster_agent::core as agent;
use muster_gateway::core::admission::{Admission, HereIs, admit};
use muster_messages::protocol::Service;
use muster_messages::wire::{AgentFrame, HostFrame, Refusal};
use muster_messages::{CertIdentity, NodeId};
use muster_sessions::core::session::ConnId;
use muster_sessions::core::{host, session};

use crate::agents::MANAGERS;
use crate::machine::Place;
use crate::world::{Event, Universe};

/// How soon something is tried again on a link that is cut.
const SENT_AGAIN: Duration = Duration::from_millis(200);
/// When somebody who dials and hears nothing gives up.
const DIAL: Duration = Duration::from_secs(2);

/// A line's number: of two lines the later one has the larger.
pub type LineId = u64;

/// What travels.
pub enum Piece {
    FromAgent(AgentFrame),
    Welcome,
    Refused(Refusal),
    FromHost(Box<HostFrame>),
    /// The other side has hung up, or its process is gone.
    Closed(&'static str),
}

/// See the module.
pub struct Line {
    agent: Place,
    attempt: agent::Attempt,
    node: NodeId,
    host: Place,
    half: u32,
    /// The host has let it in.
    accepted: bool,
    /// Which ends still listen.
    agent_open: bool,
    host_open: bool,
    to_agent: VecDeque<Piece>,
    to_host: VecDeque<Piece>,
}

/// All of them.
#[derive(Default)]
pub struct Lines(BTreeMap<LineId, Line>);

impl Lines {
    fn of_agent(&self, place: Place, attempt: agent::Attempt) -> Option<LineId> {
        let found = self.0.iter().rev().find(|(_, l)| l.agent == place && l.agent_open && l.attempt == attempt);
        found.map(|(id, _)| *id)
    }
    fn queue(&mut self, id: LineId, to_host: bool) -> Option<&mut VecDeque<Piece>> {
        let line = self.0.get_mut(&id)?;
        Some(if to_host { &mut line.to_host } else { &mut line.to_agent })
    }
    /// Forgets a line that nobody listens to any more.
    fn sweep(&mut self, id: LineId) {
        if self.0.get(&id).is_some_and(|line| !line.agent_open && !line.host_open) {
            self.0.remove(&id);
        }
    }
    /// A node has a line that this manager half listens to. One to an earlier half of the same machine, whose end nobody has
    /// noticed, is none.
    pub fn at_host(&self, (host, half): (Place, u32), node: NodeId) -> bool {
        self.0.values().any(|l| (l.host, l.half) == (host, half) && l.node == node && l.accepted && l.host_open)
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Universe {
    // ---- dialling -------------------------------------------------------------------------------------------------

    /// An agent dials. A name stands for all managers, as operators give one to their machines.
    pub(crate) fn dial(&mut self, place: Place, attempt: agent::Attempt, addr: &str) {
        let at_home = |m: &crate::machine::Machine| if addr == MANAGERS { m.half.is_some() } else { m.addr == addr };
        let there: Vec<Place> = (0..self.machines.len()).filter(|p| at_home(&self.machines[*p])).collect();
        let Some(host) = self.dice.pick(&there) else {
            return self.undialled(place, attempt, "connection refused", Duration::from_millis(1));
        };
        let id = self.number();
        let node = self.machines[place].id;
        let half = self.machines[host].half.as_ref().map_or(0, |h| h.number);
        let line = Line {
            agent: place,
            attempt,
            node,
            host,
            half,
            accepted: false,
            agent_open: true,
            host_open: true,
            to_agent: VecDeque::new(),
            to_host: VecDeque::new(),
        };
        self.lines.0.insert(id, line);
        let delay = self.net.weather.slow + self.dice.micros(300, 2500);
        self.time.after(delay, Event::Dialled { line: id, place: host });
    }

    fn undialled(&mut self, place: Place, attempt: agent::Attempt, why: &str, after: Duration) {
        let life = self.machines[place].life;
        let lost = agent::Input::Lost { attempt, why: agent::Loss::Broken(why.to_owned()) };
        self.time.after(after, Event::AgentHears { place, life, input: Box::new(lost) });
    }

    /// The dial has reached the host, which decides on its own copy whether to talk to this node.
    pub(crate) fn dialled(&mut self, id: LineId) {
        let Some(line) = self.lines.0.get(&id) else { return };
        let (place, attempt, node, host, half) = (line.agent, line.attempt, line.node, line.host, line.half);
        if !self.net.both_open(place, host) || !self.machines[host].up {
            let refused = self.net.both_open(place, host);
            self.lines.0.remove(&id);
            let after = if refused { Duration::from_millis(1) } else { DIAL };
            return self.undialled(place, attempt, "nobody answers", after);
        }
        let copy = self.machines[host].half(half).map(|h| h.core.replica().clone());
        let here = HereIs { manager: copy.is_some(), ..self.here(host) };
        let certificate = self.machines[place].agent.certificate.clone();
        let admission = admit(certificate.as_ref(), Service::Agent, copy.as_deref(), &here, self.wall(host));
        let node_stays = copy.as_deref().is_some_and(|copy| self.lets_stay(copy, node));
        let admission = if node_stays { Admission::Accept } else { admission };
        match (admission, certificate) {
            (Admission::Refuse(reason, message), _) => {
                let (by, whom) = (self.machines[host].name.clone(), self.machines[place].name.clone());
                self.trace
                    .whisper(self.time.now(), || format!("{by} refuses the agent of {whom}: {reason:?}, {message}"));
                let refusal = Refusal { reason, message, managers: Vec::new(), retry_after_ms: None };
                self.send_on(id, false, Piece::Refused(refusal));
                self.host_hangs_up(id);
            }
            (_, Some(identity)) => {
                if let Some(line) = self.lines.0.get_mut(&id) {
                    line.accepted = true;
                }
                self.send_on(id, false, Piece::Welcome);
                self.arrived(host, id, node, identity);
            }
            (_, None) => self.host_hangs_up(id),
        }
    }

    fn arrived(&mut self, host: Place, id: LineId, node: NodeId, identity: CertIdentity) {
        let Some(half) = self.machines[host].half.as_mut() else { return };
        half.hosts.waiting.insert(ConnId(id), identity);
        self.host_step(host, host::Input::Arrived { node, conn: ConnId(id) });
    }

    /// Where a node's packets seem to come from.
    pub(crate) fn seen_at(place: Place) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::new(10, 0, 0, place as u8 + 1), 4400))
    }

    // ---- sending --------------------------------------------------------------------------------------------------

    pub(crate) fn agent_sends(&mut self, place: Place, attempt: agent::Attempt, frame: AgentFrame) {
        if let Some(id) = self.lines.of_agent(place, attempt) {
            self.send_on(id, true, Piece::FromAgent(frame));
        }
    }

    pub(crate) fn agent_hangs_up(&mut self, place: Place, attempt: agent::Attempt) {
        if let Some(id) = self.lines.of_agent(place, attempt) {
            self.send_on(id, true, Piece::Closed("the agent has hung up"));
            if let Some(line) = self.lines.0.get_mut(&id) {
                line.agent_open = false;
                line.to_agent.clear();
            }
            self.lines.sweep(id);
        }
    }

    pub(crate) fn host_sends(&mut self, conn: ConnId, frame: Box<HostFrame>) {
        self.send_on(conn.0, false, Piece::FromHost(frame));
    }

    pub(crate) fn host_hangs_up(&mut self, id: LineId) {
        self.send_on(id, false, Piece::Closed("the host has hung up"));
        if let Some(line) = self.lines.0.get_mut(&id) {
            line.host_open = false;
            line.to_host.clear();
        }
        self.lines.sweep(id);
    }

    fn send_on(&mut self, id: LineId, to_host: bool, piece: Piece) {
        let Some(queue) = self.lines.queue(id, to_host) else { return };
        queue.push_back(piece);
        if queue.len() == 1 {
            self.carry(id, to_host, Duration::ZERO);
        }
    }

    /// The first of a queue sets out.
    fn carry(&mut self, id: LineId, to_host: bool, pause: Duration) {
        let Some(line) = self.lines.0.get(&id) else { return };
        let place = if to_host { line.host } else { line.agent };
        let delay = pause + self.net.weather.slow + self.dice.micros(80, 900);
        self.time.after(delay, Event::Carried { line: id, place, to_host });
    }

    /// It has come, if the link lets it.
    pub(crate) fn carried(&mut self, id: LineId, to_host: bool) {
        let Some(line) = self.lines.0.get_mut(&id) else { return };
        let (from, to) = if to_host { (line.agent, line.host) } else { (line.host, line.agent) };
        if !self.net.both_open(from, to) || !self.machines[to].up {
            // Nobody acknowledges it.
            return self.carry(id, to_host, SENT_AGAIN);
        }
        let Some(queue) = self.lines.queue(id, to_host) else { return };
        let Some(piece) = queue.pop_front() else { return };
        if !queue.is_empty() {
            self.carry(id, to_host, Duration::ZERO);
        }
        if to_host {
            self.host_receives(id, piece)
        } else {
            self.agent_receives(id, piece)
        }
        self.lines.sweep(id);
    }

    fn agent_receives(&mut self, id: LineId, piece: Piece) {
        let Some(line) = self.lines.0.get_mut(&id).filter(|line| line.agent_open) else { return };
        let (place, attempt, host) = (line.agent, line.attempt, line.host);
        let broken = |why: &str| agent::Loss::Broken(why.to_owned());
        let input = match piece {
            Piece::Welcome => {
                agent::Input::Connected { attempt, host: self.machines[host].id, incarnation: self.incarnation(host) }
            }
            Piece::FromHost(frame) => agent::Input::Heard { attempt, frame },
            Piece::Refused(refusal) => {
                line.agent_open = false;
                agent::Input::Lost { attempt, why: agent::Loss::Refused(refusal) }
            }
            Piece::Closed(why) => {
                line.agent_open = false;
                agent::Input::Lost { attempt, why: broken(why) }
            }
            Piece::FromAgent(_) => return,
        };
        self.agent_step(place, input);
    }

    fn host_receives(&mut self, id: LineId, piece: Piece) {
        let Some(line) = self.lines.0.get_mut(&id).filter(|line| line.host_open) else { return };
        let (host, half, node, conn) = (line.host, line.half, line.node, ConnId(id));
        if self.machines[host].half(half).is_none() {
            // Its process knows nothing of this connection.
            return self.host_hangs_up(id);
        }
        let input = match piece {
            Piece::FromAgent(frame) => session::Input::Frame { conn, frame },
            Piece::Closed(why) => {
                line.host_open = false;
                session::Input::Closed { conn, why: why.to_owned() }
            }
            _ => return,
        };
        self.session_step(host, node, input);
    }

    /// The gateway ends the connections of a node to this manager half: how many.
    pub(crate) fn cut_lines(&mut self, place: Place, half: u32, node: NodeId) -> u64 {
        let of = |line: &Line| {
            line.host == place && line.half == half && line.node == node && line.accepted && line.host_open
        };
        let ids: Vec<LineId> = self.lines.0.iter().filter(|(_, line)| of(line)).map(|(id, _)| *id).collect();
        for id in &ids {
            let conn = ConnId(*id);
            if let Some(half) = self.machines[place].half.as_mut() {
                half.hosts.waiting.remove(&conn);
            }
            self.session_step(place, node, session::Input::Closed { conn, why: "cut".to_owned() });
            self.host_hangs_up(*id);
        }
        ids.len() as u64
    }

    // ---- ends of processes ----------------------------------------------------------------------------------------

    /// The process of an agent, or the manager half of a host, has ended. `noticed`: its machine still closes its connections;
    /// otherwise the other side has to notice by itself, or hears when the machine is back.
    pub(crate) fn lines_end(&mut self, place: Place, as_host: bool, noticed: bool) {
        let of = |line: &Line| {
            if as_host { line.host == place && line.host_open } else { line.agent == place && line.agent_open }
        };
        let ids: Vec<LineId> = self.lines.0.iter().filter(|(_, line)| of(line)).map(|(id, _)| *id).collect();
        for id in ids {
            if noticed {
                self.send_on(id, !as_host, Piece::Closed("the process has ended"));
            }
            let Some(line) = self.lines.0.get_mut(&id) else { continue };
            if as_host {
                line.to_host.clear();
                // What was not noticed is answered with a reset once somebody writes to a machine that is back.
                line.host_open = !noticed && line.agent_open;
            } else {
                line.to_agent.clear();
                line.agent_open = false;
                line.host_open &= self.machines[line.host].half(line.half).is_some();
            }
            self.lines.sweep(id);
        }
    }
}
