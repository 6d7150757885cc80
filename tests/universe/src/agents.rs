//! The agent halves, reduced to what role changes depend on: a view from some manager, a certificate from the leader,
//! a manager half that comes and goes with it, a seat that is asked for.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_gateway::core::admission::{Admission, HereIs, admit};
use muster_messages::protocol::Service;
use muster_messages::wire::{SeatReply, SeatRequest};
use muster_messages::{
    CertIdentity, CertificateState, ClusterId, ErrorBody, ErrorCode, FEATURE_LEVEL, Incarnation, NodeId, RaftId,
    RefusalReason, Revision, Role, Subject, WallTime,
};
use muster_role_manager::core as roles;

use crate::leaders::token_secret;
use crate::machine::{Caller, Keeper, Place, RoleAsker};
use crate::members::CLUSTER;
use crate::world::{Answered, Event, Question, Universe};

/// How often an agent looks. The real one is told at once; this is as fast as a message or two.
const LOOK: (u64, u64) = (60, 180);
/// A question that is not answered by then is asked again.
const PATIENCE: Duration = Duration::from_millis(2500);
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

const ALONE: Duration = Duration::from_secs(3);

/// What a certificate says, out of the text that stands for it.
fn read_certificate(node: NodeId, text: &str) -> Option<CertIdentity> {
    let mut words = text.split(' ');
    let role: Role = words.next()?.parse().ok()?;
    let granted = Revision(words.next()?.parse().ok()?);
    let serial = words.next()?.to_owned();
    let not_after = WallTime(words.next()?.parse().ok()?);
    Some(certificate(node, role, Some(granted), serial, not_after))
}

/// A certificate of the universe's cluster.
pub(crate) fn certificate(
    node: NodeId,
    role: Role,
    granted: Option<Revision>,
    serial: String,
    not_after: WallTime,
) -> CertIdentity {
    let (cluster, subject) = (ClusterId::from_entropy(CLUSTER), Subject::Node { node, role });
    CertIdentity { cluster, subject, serial, granted, incarnation: Incarnation(1), not_after }
}

impl Universe {
    /// An agent looks around: at its view, at what it lacks.
    pub(crate) fn agent(&mut self, place: Place, life: u32) {
        let machine = &self.machines[place];
        if !machine.up || machine.life != life || machine.agent.ended.is_some() {
            return;
        }
        let next = self.dice.millis(LOOK.0, LOOK.1);
        self.time.after(next, Event::Agent { place, life });
        if self.machines[place].wants_half() && self.machines[place].half.is_none() {
            self.start_half(place, false);
        }
        self.ask_when_alone(place);
        let now = self.now();
        let waiting = self.machines[place].agent.asking.is_some_and(|(_, until)| now < until);
        let Some(host) = self.host_of(place) else { return };
        if self.machines[place].agent.certificate.is_none() {
            if !waiting {
                let _nobody_leads = self.question(place, host, Question::Join);
            }
            return;
        }
        if !self.admitted(place, host) {
            return;
        }
        let Some(half) = self.machines[host].half.as_ref() else { return };
        let tables = half.core.replica().tables.clone();
        let id = self.machines[place].id;
        let agent = &mut self.machines[place].agent;
        let Some(record) = tables.nodes.get(&id).filter(|_| tables.revision >= agent.seen) else { return };
        agent.seen = tables.revision;
        let Some(certificate) = agent.certificate.as_ref() else { return };
        let current = certificate.granted == Some(record.granted) && certificate.node() == Some((id, record.role));
        let newer = certificate.granted.is_some_and(|g| g > record.granted);
        let recorded = record.certificate.as_ref().filter(|c| c.serial == certificate.serial);
        let rotates = recorded.is_some_and(|c| c.state == CertificateState::Rotate);
        if (!current && !newer || rotates || agent.told_demoted) && !waiting {
            let _nobody_leads = self.question(place, host, Question::Sign);
        }
    }

    /// Some manager that this agent can reach; its own, if it likes.
    fn host_of(&mut self, place: Place) -> Option<Place> {
        let hosts: Vec<Place> = (0..self.machines.len())
            .filter(|p| self.machines[*p].runs() && self.machines[*p].half.is_some())
            .filter(|p| *p == place || self.net.both_open(place, *p))
            .collect();
        self.dice.pick(&hosts)
    }

    fn admitted(&mut self, place: Place, host: Place) -> bool {
        let Some(half) = self.machines[host].half.as_ref() else { return false };
        let here = HereIs { cluster: ClusterId::from_entropy(CLUSTER), incarnation: Incarnation(1), manager: true };
        let agent = &self.machines[place].agent;
        let (replica, wall) = (half.core.replica(), self.wall(host));
        let admission = admit(agent.certificate.as_ref(), Service::Agent, Some(replica), &here, wall);
        match admission {
            Admission::Refuse(reason, _) => {
                let serial = agent.certificate.as_ref().map(|c| c.serial.clone()).unwrap_or_default();
                let life = self.machines[place].life;
                self.told(place, life, &serial, reason);
                false
            }
            _ => true,
        }
    }

    /// AGENT-5 of the agent: only these words end anything.
    pub(crate) fn told(&mut self, place: Place, life: u32, serial: &str, reason: RefusalReason) {
        let machine = &self.machines[place];
        let Some(certificate) = machine.agent.certificate.as_ref().filter(|c| c.serial == serial) else { return };
        if !machine.up || machine.life != life || machine.agent.ended.is_some() {
            return;
        }
        let (id, granted) = (machine.id, certificate.granted);
        match reason {
            RefusalReason::Blocked | RefusalReason::Removed => {
                let verdict = self.checks.told(id, granted, true);
                self.hold_to(verdict);
                self.say(format!("n{} is told that it is {reason}", place + 1));
                self.end_agent(place, reason);
            }
            RefusalReason::Demoted if machine.certified() == Some(Role::Manager) && !machine.agent.told_demoted => {
                let verdict = self.checks.told(id, granted, false);
                self.hold_to(verdict);
                self.say(format!("n{} is told that it is demoted", place + 1));
                self.machines[place].agent.told_demoted = true;
                self.manager_half(place);
            }
            _ => {}
        }
    }

    fn end_agent(&mut self, place: Place, reason: RefusalReason) {
        self.machines[place].agent.ended = Some(reason);
        self.manager_half(place);
    }

    /// Starts or stops the manager half. Data left from one that stopped is worthless.
    fn manager_half(&mut self, place: Place) {
        let machine = &self.machines[place];
        match (machine.wants_half(), machine.half.is_some()) {
            (true, false) => self.start_half(place, false),
            (false, true) => {
                self.say(format!("n{} stops its manager half", place + 1));
                self.drop_half(place, true);
                self.machines[place].disk.wipe();
            }
            _ => {}
        }
    }

    // ---- questions to the leader ----------------------------------------------------------------------------------

    /// Sends a question by way of the host to whom it takes for the leader.
    fn question(&mut self, place: Place, host: Place, question: Question) -> Option<u64> {
        let leader = self.machines[host].half.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let to = leader.and_then(|node| self.place_of(node))?;
        let ask = self.number();
        let until = self.now() + PATIENCE;
        match &question {
            Question::Seat(_) => {
                if let Some(half) = self.machines[place].half.as_mut() {
                    half.keeper.asking = Some(ask);
                }
            }
            _ => self.machines[place].agent.asking = Some((ask, until)),
        }
        let lost = !(host == to || self.net.both_open(host, to)) || self.dice.chance(self.net.weather.loss);
        if !lost {
            let caller = Caller { place, life: self.machines[place].life, ask };
            let delay = self.net.weather.slow + self.dice.micros(150, 2500);
            self.time.after(delay, Event::Question { to, caller, question: Box::new(question) });
        }
        Some(ask)
    }

    pub(crate) fn questioned(&mut self, to: Place, caller: Caller, question: Question) {
        let asks = roles::AskId(caller.ask);
        let from = &self.machines[caller.place];
        let (node, addr, certificate) = (from.id, from.addr.clone(), from.agent.certificate.clone());
        let observed = Some(SocketAddr::from((Ipv4Addr::new(10, 0, 0, caller.place as u8 + 1), 4400)));
        let unreachable = ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead");
        match question {
            Question::Seat(request) => match self.roles(to) {
                Some(roles) => {
                    roles.asks.insert(asks, RoleAsker::Seat(caller));
                    self.roles_step(to, roles::Input::Knocked { ask: asks, node, request });
                }
                None => {
                    let half = self.machines[caller.place].half.as_ref().map_or(0, |h| h.number);
                    self.reply(to, caller, Answered::Seat { half, result: Err(unreachable) });
                }
            },
            Question::Sign if self.holds.certificates => {}
            Question::Join | Question::Sign => {
                let key = self.key.clone();
                let from = &self.machines[caller.place];
                let wish = match certificate {
                    Some(identity) => authority::Wish::Node(authority::NodeWish { identity, observed, key }),
                    None => authority::Wish::Join(Box::new(authority::JoinWish {
                        request: from.agent.request,
                        node,
                        secret: token_secret(from.agent.joins_as),
                        name: from.name.clone(),
                        addr,
                        release: "0.1.0".to_owned(),
                        labels: Default::default(),
                        observed,
                        key,
                        rekey: false,
                    })),
                };
                match self.authority(to) {
                    Some(authority) => {
                        let ask = authority::AskId(caller.ask);
                        authority.asks.insert(ask, caller);
                        self.authority_step(to, authority::Input::Asked(ask, wish));
                    }
                    None => self.reply(to, caller, Answered::Certificate(Err(unreachable))),
                }
            }
        }
    }

    pub(crate) fn answered(&mut self, to: Caller, answer: Answered) {
        let machine = &self.machines[to.place];
        if !machine.up || machine.life != to.life {
            return;
        }
        match answer {
            Answered::Certificate(result) => {
                if machine.agent.asking.is_none_or(|(ask, _)| ask != to.ask) {
                    return;
                }
                self.machines[to.place].agent.asking = None;
                self.certificate_came(to.place, result);
            }
            Answered::Seat { half, result } => {
                let current = machine.half(half).is_some_and(|h| h.keeper.asking == Some(to.ask));
                if current {
                    self.seat_answered(to.place, result);
                }
            }
        }
    }

    fn certificate_came(&mut self, place: Place, result: Result<String, ErrorBody>) {
        let id = self.machines[place].id;
        match result {
            Ok(text) => {
                let Some(certificate) = read_certificate(id, &text) else { return };
                let Some((_, role)) = certificate.node() else { return };
                let granted = certificate.granted.unwrap_or_default();
                self.totals.count("certificates issued");
                if self.machines[place].agent.certificate.is_none() {
                    self.totals.count("nodes joined");
                }
                let verdict = self.checks.certified(id, role, granted);
                self.hold_to(verdict);
                self.say(format!("n{} gets a certificate as {role}, granted at {granted}", place + 1));
                let agent = &mut self.machines[place].agent;
                agent.certificate = Some(certificate);
                agent.told_demoted = false;
                self.manager_half(place);
            }
            Err(error) if matches!(error.code, ErrorCode::Removed | ErrorCode::Blocked) => {
                let granted = self.machines[place].agent.certificate.as_ref().and_then(|c| c.granted);
                let verdict = self.checks.told(id, granted, true);
                self.hold_to(verdict);
                self.end_agent(place, RefusalReason::Removed);
            }
            Err(_) => {}
        }
    }

    // ---- the seat -------------------------------------------------------------------------------------------------

    /// `unanswered`: only if that question still is.
    pub(crate) fn ask_seat(&mut self, place: Place, half: u32, unanswered: Option<u64>) {
        let Some(h) = self.machines[place].half(half) else { return };
        if unanswered.is_some_and(|ask| h.keeper.asking != Some(ask)) {
            return;
        }
        // Once a newer seat was given, the loss of the old one is known and made good.
        let disk = &self.machines[place].disk;
        let lost = disk.lost.clone().filter(|_| h.keeper.seated <= disk.held);
        let held = if lost.is_some() { self.machines[place].disk.held } else { h.keeper.holds };
        let advertise = self.machines[place].addr.clone();
        let request = SeatRequest { advertise, held, data_lost: lost, feature_level: FEATURE_LEVEL };
        let asked = self.host_of(place).and_then(|host| self.question(place, host, Question::Seat(request)));
        match asked {
            Some(ask) => self.time.after(PATIENCE, Event::AskSeat { place, half, unanswered: Some(ask) }),
            None => self.ask_again(place, FIRST_PAUSE * 4),
        }
    }

    /// A member that follows nobody for so long may have lost its seat without hearing of it.
    fn ask_when_alone(&mut self, place: Place) {
        let now = self.now();
        let Some(half) = self.machines[place].half.as_mut() else { return };
        if half.core.replica().raft.leader.is_some() {
            half.alone_since = None;
            return;
        }
        let since = *half.alone_since.get_or_insert(now);
        if now.since(since) >= ALONE && half.keeper.asking.is_none() {
            half.alone_since = Some(now);
            self.ask_again(place, Duration::ZERO);
        }
    }

    fn ask_again(&mut self, place: Place, pause: Duration) {
        if let Some(half) = self.machines[place].half.as_ref().map(|h| h.number) {
            self.time.after(pause, Event::AskSeat { place, half, unanswered: None });
        }
    }

    fn seat_answered(&mut self, place: Place, result: Result<SeatReply, ErrorBody>) {
        let Some(half) = self.machines[place].half.as_mut() else { return };
        half.keeper.asking = None;
        match result {
            Ok(SeatReply::Seated { raft_id }) => {
                half.keeper.seated = Some(raft_id);
                half.keeper.pause = FIRST_PAUSE;
                let stale = half.keeper.holds.is_some_and(|held| held != raft_id);
                let given = half.keeper.holds == Some(raft_id);
                self.say(format!("n{} has seat {raft_id}", place + 1));
                if stale && self.machines[place].disk.lost.is_none() {
                    self.say(format!("n{} holds the data of an older seat and empties it", place + 1));
                    let keeper = self.machines[place].half.as_ref().map(|h| h.keeper.clone()).unwrap_or_default();
                    self.drop_half(place, true);
                    self.machines[place].disk.replace(false);
                    self.start_half(place, false);
                    if let Some(half) = self.machines[place].half.as_mut() {
                        half.keeper = Keeper { holds: None, asking: None, ..keeper };
                    }
                } else {
                    self.settle_seat(place);
                }
                if !given {
                    self.ask_again(place, LONGEST_PAUSE);
                }
            }
            Ok(SeatReply::Wait { retry_after_ms, .. }) => {
                let pause = Duration::from_millis(retry_after_ms).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                self.ask_again(place, pause);
            }
            Ok(SeatReply::NotWanted { .. }) => self.ask_again(place, LONGEST_PAUSE),
            Err(_) => {
                let pause = half.keeper.pause;
                half.keeper.pause = pause.mul_f64(1.5).min(LONGEST_PAUSE);
                self.ask_again(place, pause);
            }
        }
    }

    /// The member's seat, as it publishes it.
    pub(crate) fn keep_seat(&mut self, place: Place, holds: Option<RaftId>) {
        let Some(half) = self.machines[place].half.as_mut() else { return };
        if half.keeper.holds == holds {
            return;
        }
        let had = std::mem::replace(&mut half.keeper.holds, holds);
        match holds {
            Some(held) => {
                self.machines[place].silent_since = None;
                self.machines[place].disk.held = Some(held);
                self.settle_seat(place);
            }
            None if had.is_some() => self.ask_again(place, FIRST_PAUSE),
            None => {}
        }
    }

    /// A loss is over once the new seat holds data.
    fn settle_seat(&mut self, place: Place) {
        let machine = &mut self.machines[place];
        let Some(half) = machine.half.as_ref() else { return };
        if half.keeper.holds.is_some() && half.keeper.holds == half.keeper.seated {
            machine.disk.lost = None;
        }
    }
}
