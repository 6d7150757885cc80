//! The agent halves: their cores, what their disks keep for them, and joining; and the seat that a manager half asks for.

use std::time::Duration;

use muster_agent::core::{self as agent, CertificateFacts};
use muster_cert_authority::core as authority;
use muster_messages::wire::{
    AGENT_PROTOCOL, AgentAnswer, AgentAsk, AgentFrame, AgentHello, PeerCall, Refusal, SeatReply, SeatRequest,
};
use muster_messages::{
    CertIdentity, ErrorBody, ErrorCode, FEATURE_LEVEL, Incarnation, NodeId, RaftId, RefusalReason, Revision, Role,
    Subject, WallTime,
};
use muster_role_manager::core as roles;

use crate::leaders::token_secret;
use crate::machine::{Caller, Keeper, Place, RoleAsker};
use crate::members::cluster;
use crate::schedule::sooner;
use crate::world::{Answered, Event, Question, Universe};

/// How often a machine that has not joined tries, a seat keeper looks whether its member follows anybody, and the mesh
/// finds out whether some peer still talks to it.
const LOOK: (u64, u64) = (60, 180);
/// A question that is not answered by then is asked again.
const PATIENCE: Duration = Duration::from_millis(2500);
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const ALONE: Duration = Duration::from_secs(3);

/// The name by which all managers can be found, whatever their addresses are.
pub const MANAGERS: &str = "managers:4400";

/// What a certificate says, out of the text that stands for it; and when it was issued.
pub(crate) fn read_certificate(node: NodeId, text: &str) -> Option<(CertIdentity, WallTime)> {
    let mut words = text.split(' ');
    let role: Role = words.next()?.parse().ok()?;
    let granted = Revision(words.next()?.parse().ok()?);
    let serial = words.next()?.to_owned();
    let not_after = WallTime(words.next()?.parse().ok()?);
    let issued_at = WallTime(words.next()?.parse().ok()?);
    let incarnation = Incarnation(words.next()?.parse().ok()?);
    Some((certificate(node, role, Some(granted), (serial, incarnation), not_after), issued_at))
}

/// A certificate of the universe's cluster.
pub(crate) fn certificate(
    node: NodeId,
    role: Role,
    granted: Option<Revision>,
    (serial, incarnation): (String, Incarnation),
    not_after: WallTime,
) -> CertIdentity {
    let (cluster, subject) = (cluster(), Subject::Node { node, role });
    CertIdentity { cluster, subject, serial, granted, incarnation, not_after, pin: None }
}

impl Universe {
    // ---- the process ----------------------------------------------------------------------------------------------

    /// The process of a machine that has joined starts its agent from what its disk has kept.
    pub(crate) fn start_agent(&mut self, place: Place) {
        let (seed, instance, config) = (self.dice.roll(), self.dice.roll(), self.settings.agent.clone());
        let machine = &mut self.machines[place];
        let Some(identity) = machine.agent.certificate.as_ref() else { return };
        let Some(facts) = CertificateFacts::of(identity, machine.agent.issued_at) else { return };
        let hello = AgentHello {
            protocol: AGENT_PROTOCOL,
            instance,
            name: machine.name.clone(),
            advertise: machine.addr.clone(),
            release: "0.1.0".to_owned(),
            labels: Default::default(),
        };
        let start = agent::Start {
            told_demoted: machine.agent.told_demoted.as_ref() == Some(&facts.serial),
            certificate: facts,
            hello,
            known: machine.agent.known.clone(),
            seeds: vec![MANAGERS.to_owned()],
            seed,
            ended: machine.agent.ended.clone(),
        };
        machine.agent.core = Some(agent::Agent::new(start, config));
        machine.agent.wakes = None;
        self.agent_step(place, agent::Input::Woke);
    }

    /// What a process looks after by itself.
    pub(crate) fn agent(&mut self, place: Place, life: u32) {
        let machine = &self.machines[place];
        if !machine.up || machine.life != life || machine.agent.ended.is_some() {
            return;
        }
        let next = self.dice.millis(LOOK.0, LOOK.1);
        self.time.after(next, Event::Agent { place, life });
        self.ask_when_alone(place);
        self.look_at_a_peer(place);
        self.judge_the_blocked(place);
        if self.machines[place].agent.certificate.is_none() {
            self.ask_to_join(place);
        }
    }

    /// Through some manager that it can reach.
    fn ask_to_join(&mut self, place: Place) {
        let now = self.now();
        if self.machines[place].agent.asking.is_some_and(|(_, until)| now < until) {
            return;
        }
        let hosts: Vec<Place> = (0..self.machines.len())
            .filter(|p| self.machines[*p].runs() && self.machines[*p].half.is_some())
            .filter(|p| self.net.both_open(place, *p))
            .collect();
        let Some(host) = self.dice.pick(&hosts) else { return };
        let leader = self.machines[host].half.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let Some(to) = leader.and_then(|node| self.place_of(node)) else { return };
        let ask = self.number();
        self.machines[place].agent.asking = Some((ask, now + PATIENCE));
        let caller = Caller { place, life: self.machines[place].life, ask };
        self.carry_question(host, to, caller, Question::Join);
    }

    // ---- the core -------------------------------------------------------------------------------------------------

    pub(crate) fn agent_hears(&mut self, place: Place, life: u32, input: agent::Input) {
        if self.machines[place].life == life {
            self.agent_step(place, input);
        }
    }

    pub(crate) fn agent_woke(&mut self, place: Place, life: u32) {
        let machine = &mut self.machines[place];
        if machine.life == life {
            machine.agent.wakes = None;
            self.agent_step(place, agent::Input::Woke);
        }
    }

    pub(crate) fn agent_step(&mut self, place: Place, input: agent::Input) {
        let (now, wall) = (self.clock(place), self.wall(place));
        let machine = &mut self.machines[place];
        let life = machine.life;
        let Some(core) = machine.agent.core.as_mut().filter(|_| machine.up) else { return };
        let mut effects = Vec::new();
        core.step(now, wall, input, &mut effects);
        let wakes = core.wake_at();
        if let Some(at) = sooner(&mut machine.agent.wakes, wakes) {
            let at = self.moment(place, at);
            self.time.at(at, Event::AgentWoke { place, life });
        }
        for effect in effects {
            self.perform_agent(place, effect);
        }
    }

    fn perform_agent(&mut self, place: Place, effect: agent::Effect) {
        match effect {
            agent::Effect::Dial { attempt, addr } => self.dial(place, attempt, &addr),
            agent::Effect::Send { attempt, frame } => self.agent_sends(place, attempt, *frame),
            agent::Effect::HangUp { attempt } => self.agent_hangs_up(place, attempt),
            agent::Effect::AskForCertificate { attempt, id, .. } => {
                let ask = AgentAsk::Sign { csr_pem: "a request".to_owned() };
                self.agent_sends(place, attempt, AgentFrame::Ask { id, ask });
            }
            agent::Effect::Install { id, reply } => {
                let (life, soon) = (self.machines[place].life, self.dice.micros(300, 20_000));
                self.time.after(soon, Event::Installed { place, life, id, text: reply.cert_pem });
            }
            agent::Effect::LeaderAnswered { ask, result } => {
                let asked = |h: &crate::machine::Half| h.keeper.asking == Some(ask.0);
                if self.machines[place].half.as_ref().is_some_and(asked) {
                    let seat = result.map(|answer| match answer {
                        AgentAnswer::Seat(reply) => reply,
                        other => panic!("a request for a seat was answered {other:?}"),
                    });
                    self.seat_answered(place, seat);
                }
            }
            agent::Effect::KeepManagers(known) => self.machines[place].agent.known = known,
            agent::Effect::KeepTrouble(trouble) => {
                self.judge_told(place, true);
                self.say(format!("n{} is told that it is {:?}", place + 1, trouble.reason));
                self.machines[place].agent.ended = Some(trouble);
            }
            agent::Effect::KeepDemoted(serial) => {
                self.judge_told(place, false);
                self.say(format!("n{} is told that it is demoted", place + 1));
                self.machines[place].agent.told_demoted = Some(serial);
            }
            agent::Effect::PublishWanted(wanted) => {
                self.machines[place].agent.wanted = wanted.wanted;
                self.manager_half(place);
            }
            agent::Effect::PublishSession(session) => {
                self.totals.add("sessions opened", u64::from(session.is_some()));
            }
            agent::Effect::PublishTrouble(_) | agent::Effect::Note(_) => {}
        }
    }

    fn judge_told(&mut self, place: Place, removed: bool) {
        let machine = &self.machines[place];
        let granted = machine.agent.certificate.as_ref().and_then(|c| c.granted);
        let verdict = self.checks.told(machine.id, granted, removed);
        self.hold_to(verdict);
    }

    /// A manager has refused the manager half, for what its certificate says.
    pub(crate) fn told(&mut self, place: Place, life: u32, serial: String, reason: RefusalReason) {
        let message = "refused by a peer".to_owned();
        let refusal = Refusal { reason, message, managers: Vec::new(), retry_after_ms: None };
        self.agent_hears(place, life, agent::Input::RefusedByPeer { refusal, serial: Some(serial) });
    }

    /// A certificate has come, and is on disk.
    pub(crate) fn installed(&mut self, place: Place, life: u32, id: u64, text: &str) {
        if !self.machines[place].up || self.machines[place].life != life {
            return;
        }
        match self.keep_certificate(place, text) {
            Some(facts) => self.agent_step(place, agent::Input::Installed(facts)),
            None => {
                self.agent_step(place, agent::Input::InstallFailed(format!("the answer to {id} is no certificate")))
            }
        }
    }

    fn keep_certificate(&mut self, place: Place, text: &str) -> Option<CertificateFacts> {
        let id = self.machines[place].id;
        let (certificate, issued_at) = read_certificate(id, text)?;
        let (_, role) = certificate.node()?;
        let granted = certificate.granted.unwrap_or_default();
        let facts = CertificateFacts::of(&certificate, issued_at)?;
        self.totals.count("certificates issued");
        let verdict = self.checks.certified(id, role, granted);
        self.hold_to(verdict);
        self.say(format!("n{} gets a certificate as {role}, granted at {granted}", place + 1));
        self.note_certificate(place, &certificate);
        let agent = &mut self.machines[place].agent;
        agent.certificate = Some(certificate);
        agent.issued_at = issued_at;
        Some(facts)
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

    /// Sends a question of this host to whom it takes for the leader.
    pub(crate) fn question(&mut self, host: Place, question: Question) -> Option<u64> {
        let leader = self.machines[host].half.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let to = leader.and_then(|node| self.place_of(node))?;
        let ask = self.number();
        let caller = Caller { place: host, life: self.machines[host].life, ask };
        self.carry_question(host, to, caller, question);
        Some(ask)
    }

    fn carry_question(&mut self, host: Place, to: Place, caller: Caller, question: Question) {
        let lost = !(host == to || self.net.both_open(host, to)) || self.dice.chance(self.net.weather.loss);
        if !lost {
            let delay = self.net.weather.slow + self.dice.micros(150, 2500);
            self.time.after(delay, Event::Question { to, caller, question: Box::new(question) });
        }
    }

    pub(crate) fn questioned(&mut self, to: Place, caller: Caller, question: Question) {
        let unreachable = ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead");
        match question {
            Question::Call(PeerCall::Seat { node, request }) => match self.roles(to) {
                Some(roles) => {
                    let ask = roles::AskId(caller.ask);
                    roles.asks.insert(ask, RoleAsker::Seat(caller));
                    self.roles_step(to, roles::Input::Knocked { ask, node, request });
                }
                None => self.reply(to, caller, Answered::Seat(Err(unreachable))),
            },
            Question::Call(PeerCall::SignNode { .. }) if self.holds.certificates => {}
            Question::Call(PeerCall::SignNode { identity, observed_addr, .. }) => {
                let (observed, key) = (observed_addr.parse().ok(), self.key.clone());
                self.wish_for(to, caller, authority::Wish::Node(authority::NodeWish { identity, observed, key }));
            }
            Question::Call(_) => {}
            Question::Join => {
                let from = &self.machines[caller.place];
                let wish = authority::Wish::Join(Box::new(authority::JoinWish {
                    request: from.agent.request,
                    node: from.id,
                    secret: token_secret(from.agent.joins_as),
                    name: from.name.clone(),
                    addr: from.addr.clone(),
                    release: "0.1.0".to_owned(),
                    labels: Default::default(),
                    observed: Some(Self::seen_at(caller.place)),
                    key: self.key.clone(),
                    rekey: None,
                }));
                self.wish_for(to, caller, wish);
            }
        }
    }

    pub(crate) fn wish_for(&mut self, to: Place, caller: Caller, wish: authority::Wish) {
        let node = match &wish {
            authority::Wish::Node(wish) => wish.identity.node().map(|(node, _)| node),
            authority::Wish::Join(wish) => Some(wish.node),
            _ => None,
        };
        match self.authority(to) {
            Some(authority) => {
                let ask = authority::AskId(caller.ask);
                authority.asks.insert(ask, (caller, node));
                self.authority_step(to, authority::Input::Asked(ask, wish));
            }
            None => {
                let unreachable = ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead");
                self.reply(to, caller, Answered::Certificate(Err(unreachable)));
            }
        }
    }

    pub(crate) fn answered(&mut self, to: Caller, answer: Answered) {
        let machine = &self.machines[to.place];
        if !machine.up || machine.life != to.life || self.call_ended(to.place, to.ask, &answer) {
            return;
        }
        let joins = self.machines[to.place].agent.asking.is_some_and(|(ask, _)| ask == to.ask);
        if let Answered::Certificate(result) = answer
            && joins
        {
            self.machines[to.place].agent.asking = None;
            self.joined(to.place, result);
        }
    }

    fn joined(&mut self, place: Place, result: Result<String, ErrorBody>) {
        match result {
            // Unless an earlier answer came late, and first.
            Ok(text)
                if self.machines[place].agent.certificate.is_none()
                    && self.keep_certificate(place, &text).is_some() =>
            {
                self.totals.count("nodes joined");
                self.start_agent(place);
            }
            Err(error) if matches!(error.code, ErrorCode::Removed | ErrorCode::Blocked) => {
                // It may try for ever; here it has heard enough.
                let (message, at) = (error.message, self.wall(place));
                let reason = muster_agent::TroubleReason::Removed;
                self.machines[place].agent.ended = Some(muster_agent::NodeTrouble::new(reason, message, at));
            }
            _ => {}
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
        let ask = self.number();
        if let Some(h) = self.machines[place].half_mut(half) {
            h.keeper.asking = Some(ask);
        }
        self.time.after(PATIENCE, Event::AskSeat { place, half, unanswered: Some(ask) });
        self.agent_step(place, agent::Input::AskLeader { ask: agent::AskId(ask), question: AgentAsk::Seat(request) });
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
