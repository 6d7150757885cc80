//! Agents: their cores, their persistent state, joining, and the membership that a manager runtime requests.

use std::time::Duration;

use muster_agent::core::{self as agent, CertificateFacts};
use muster_cert_authority::core as authority;
use muster_messages::wire::{
    AGENT_PROTOCOL, AgentAnswer, AgentAsk, AgentFrame, AgentHello, MembershipReply, MembershipRequest, PeerCall,
    Refusal,
};
use muster_messages::{
    CertIdentity, ErrorBody, ErrorCode, Incarnation, NodeId, RaftId, RefusalReason, Revision, Role, Subject, WallTime,
};
use muster_role_manager::core as roles;

use crate::leaders::token_secret;
use crate::machine::{Caller, Keeper, MachineIdx, RoleAsker};
use crate::members::cluster;
use crate::schedule::keep_earlier;
use crate::simulation::{Answered, Event, Question, Simulation};

/// Interval, in milliseconds, at which an unjoined machine tries to join, the membership agent checks for a leader, and the mesh
/// probes whether a peer still accepts it.
const CHECK_MILLIS: (u64, u64) = (60, 180);
/// A question without an answer is repeated after this time.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(2500);
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const MAX_PAUSE: Duration = Duration::from_secs(2);
const LEADERLESS_AFTER: Duration = Duration::from_secs(3);

/// The name that resolves to all managers, whatever their addresses.
pub const MANAGERS: &str = "managers:4400";

/// Parses the text that stands for a certificate, and its issue time.
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

/// A certificate of the simulated cluster.
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

impl Simulation {
    // ---- the process ----------------------------------------------------------------------------------------------

    /// Starts the agent of a joined machine from its disk.
    pub(crate) fn start_agent(&mut self, idx: MachineIdx) {
        let (seed, instance, config) = (self.rng.sample(), self.rng.sample(), self.settings.agent.clone());
        let machine = &mut self.machines[idx];
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
            demotion_reported: machine.agent.demotion_reported.as_ref() == Some(&facts.serial),
            certificate: facts,
            hello,
            known: machine.agent.known.clone(),
            seeds: vec![MANAGERS.to_owned()],
            seed,
            ended: machine.agent.ended.clone(),
        };
        machine.agent.core = Some(agent::Agent::new(start, config));
        machine.agent.wakes = None;
        self.agent_step(idx, agent::Input::Woke);
    }

    /// Periodic work of a process.
    pub(crate) fn agent(&mut self, idx: MachineIdx, life: u32) {
        let machine = &self.machines[idx];
        if !machine.up || machine.life != life || machine.agent.ended.is_some() {
            return;
        }
        let next = self.rng.millis(CHECK_MILLIS.0, CHECK_MILLIS.1);
        self.time.after(next, Event::Agent { idx, life });
        self.ask_when_leaderless(idx);
        self.contact_some_peer(idx);
        self.check_blocked_sessions(idx);
        if self.machines[idx].agent.certificate.is_none() {
            self.ask_to_join(idx);
        }
    }

    /// Joins through a reachable manager.
    fn ask_to_join(&mut self, idx: MachineIdx) {
        let now = self.now();
        if self.machines[idx].agent.asking.is_some_and(|(_, until)| now < until) {
            return;
        }
        let hosts: Vec<MachineIdx> = (0..self.machines.len())
            .filter(|p| self.machines[*p].runs() && self.machines[*p].runtime.is_some())
            .filter(|p| self.net.both_open(idx, *p))
            .collect();
        let Some(host) = self.rng.pick(&hosts) else { return };
        let leader = self.machines[host].runtime.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let Some(to) = leader.and_then(|node| self.idx_of(node)) else { return };
        let ask = self.number();
        self.machines[idx].agent.asking = Some((ask, now + QUESTION_TIMEOUT));
        let caller = Caller { idx, life: self.machines[idx].life, ask };
        self.send_question(host, to, caller, Question::Join);
    }

    // ---- the core -------------------------------------------------------------------------------------------------

    pub(crate) fn deliver_to_agent(&mut self, idx: MachineIdx, life: u32, input: agent::Input) {
        if self.machines[idx].life == life {
            self.agent_step(idx, input);
        }
    }

    pub(crate) fn agent_woke(&mut self, idx: MachineIdx, life: u32) {
        let machine = &mut self.machines[idx];
        if machine.life == life {
            machine.agent.wakes = None;
            self.agent_step(idx, agent::Input::Woke);
        }
    }

    pub(crate) fn agent_step(&mut self, idx: MachineIdx, input: agent::Input) {
        let (now, wall) = (self.clock(idx), self.wall(idx));
        let machine = &mut self.machines[idx];
        let life = machine.life;
        let Some(core) = machine.agent.core.as_mut().filter(|_| machine.up) else { return };
        let mut effects = Vec::new();
        core.step(now, wall, input, &mut effects);
        let wakes = core.wake_at();
        if let Some(at) = keep_earlier(&mut machine.agent.wakes, wakes) {
            let at = self.moment(idx, at);
            self.time.at(at, Event::AgentWoke { idx, life });
        }
        for effect in effects {
            self.apply_agent_effect(idx, effect);
        }
    }

    fn apply_agent_effect(&mut self, idx: MachineIdx, effect: agent::Effect) {
        match effect {
            agent::Effect::Dial { attempt, addr } => self.dial(idx, attempt, &addr),
            agent::Effect::Send { attempt, frame } => self.agent_sends(idx, attempt, *frame),
            agent::Effect::HangUp { attempt } => self.agent_closes(idx, attempt),
            agent::Effect::AskForCertificate { attempt, id, .. } => {
                let ask = AgentAsk::Sign { csr_pem: "a request".to_owned() };
                self.agent_sends(idx, attempt, AgentFrame::Ask { id, ask });
            }
            agent::Effect::Install { id, reply } => {
                let (life, soon) = (self.machines[idx].life, self.rng.micros(300, 20_000));
                self.time.after(soon, Event::Installed { idx, life, id, text: reply.cert_pem });
            }
            agent::Effect::LeaderAnswered { ask, result } => {
                let asked = |h: &crate::machine::ManagerRuntime| h.keeper.asking == Some(ask.0);
                if self.machines[idx].runtime.as_ref().is_some_and(asked) {
                    let member_id = result.map(|answer| match answer {
                        AgentAnswer::Membership(reply) => reply,
                        other => panic!("a request for a seat was answered {other:?}"),
                    });
                    self.membership_answered(idx, member_id);
                }
            }
            agent::Effect::KeepManagers(known) => self.machines[idx].agent.known = known,
            agent::Effect::KeepTrouble(trouble) => {
                self.check_notified(idx, true);
                self.log(format!("n{} is informed: {:?}", idx + 1, trouble.reason));
                self.machines[idx].agent.ended = Some(trouble);
            }
            agent::Effect::KeepDemoted(serial) => {
                self.check_notified(idx, false);
                self.log(format!("n{} is informed of its demotion", idx + 1));
                self.machines[idx].agent.demotion_reported = Some(serial);
            }
            agent::Effect::PublishWanted(wanted) => {
                self.machines[idx].agent.wanted = wanted.wanted;
                self.switch_runtime(idx);
            }
            agent::Effect::PublishSession(session) => {
                self.totals.add("sessions opened", u64::from(session.is_some()));
            }
            agent::Effect::PublishTrouble(_) | agent::Effect::LogEvent { .. } => {}
        }
    }

    fn check_notified(&mut self, idx: MachineIdx, removed: bool) {
        let machine = &self.machines[idx];
        let granted = machine.agent.certificate.as_ref().and_then(|c| c.granted);
        let outcome = self.checks.notified(machine.id, granted, removed);
        self.require(outcome);
    }

    /// A peer refused the manager runtime because of its certificate.
    pub(crate) fn refused_by_peer(&mut self, idx: MachineIdx, life: u32, serial: String, reason: RefusalReason) {
        let message = "refused by a peer".to_owned();
        let refusal = Refusal { reason, message, managers: Vec::new(), retry_after_ms: None };
        self.deliver_to_agent(idx, life, agent::Input::RefusedByPeer { refusal, serial: Some(serial) });
    }

    /// A certificate arrived and is on disk.
    pub(crate) fn installed(&mut self, idx: MachineIdx, life: u32, id: u64, text: &str) {
        if !self.machines[idx].up || self.machines[idx].life != life {
            return;
        }
        match self.keep_certificate(idx, text) {
            Some(facts) => self.agent_step(idx, agent::Input::Installed(facts)),
            None => {
                self.agent_step(idx, agent::Input::InstallFailed(format!("the answer to {id} contains no certificate")))
            }
        }
    }

    fn keep_certificate(&mut self, idx: MachineIdx, text: &str) -> Option<CertificateFacts> {
        let id = self.machines[idx].id;
        let (certificate, issued_at) = read_certificate(id, text)?;
        let (_, role) = certificate.node()?;
        let granted = certificate.granted.unwrap_or_default();
        let facts = CertificateFacts::of(&certificate, issued_at)?;
        self.totals.count("certificates issued");
        let outcome = self.checks.certified(id, role, granted);
        self.require(outcome);
        self.log(format!("n{} receives a certificate: role={role} granted={granted}", idx + 1));
        self.remember_certificate(idx, &certificate);
        let agent = &mut self.machines[idx].agent;
        agent.certificate = Some(certificate);
        agent.issued_at = issued_at;
        Some(facts)
    }

    /// Starts or stops the manager runtime. Data of a stopped runtime is discarded.
    fn switch_runtime(&mut self, idx: MachineIdx) {
        let machine = &self.machines[idx];
        match (machine.wants_manager(), machine.runtime.is_some()) {
            (true, false) => self.start_runtime(idx, false),
            (false, true) => {
                self.log(format!("n{} stops its manager runtime", idx + 1));
                self.stop_runtime(idx, true);
                self.machines[idx].disk.wipe();
            }
            _ => {}
        }
    }

    // ---- questions to the leader ----------------------------------------------------------------------------------

    /// Sends a question of this host to the node that it believes leads.
    pub(crate) fn question(&mut self, host: MachineIdx, question: Question) -> Option<u64> {
        let leader = self.machines[host].runtime.as_ref().and_then(|h| h.core.replica().raft.leader_node);
        let to = leader.and_then(|node| self.idx_of(node))?;
        let ask = self.number();
        let caller = Caller { idx: host, life: self.machines[host].life, ask };
        self.send_question(host, to, caller, question);
        Some(ask)
    }

    fn send_question(&mut self, host: MachineIdx, to: MachineIdx, caller: Caller, question: Question) {
        let lost = !(host == to || self.net.both_open(host, to)) || self.rng.chance(self.net.conditions.loss);
        if !lost {
            let delay = self.net.conditions.slow + self.rng.micros(150, 2500);
            self.time.after(delay, Event::Question { to, caller, question: Box::new(question) });
        }
    }

    pub(crate) fn receive_question(&mut self, to: MachineIdx, caller: Caller, question: Question) {
        let unreachable = ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead");
        match question {
            Question::Call(PeerCall::Membership { node, request }) => match self.roles(to) {
                Some(roles) => {
                    let ask = roles::AskId(caller.ask);
                    roles.asks.insert(ask, RoleAsker::Membership(caller));
                    self.roles_step(to, roles::Input::MembershipRequested { ask, node, request });
                }
                None => self.reply(to, caller, Answered::Membership(Err(unreachable))),
            },
            Question::Call(PeerCall::SignNode { .. }) if self.holds.certificates => {}
            Question::Call(PeerCall::SignNode { identity, observed_addr, .. }) => {
                let (observed, key) = (observed_addr.parse().ok(), self.key.clone());
                self.request_certificate(
                    to,
                    caller,
                    authority::CertificateRequest::Node(authority::NodeRequest { identity, observed, key }),
                );
            }
            Question::Call(_) => {}
            Question::Join => {
                let from = &self.machines[caller.idx];
                let request = authority::CertificateRequest::Join(Box::new(authority::VerifiedJoin {
                    request: from.agent.request,
                    node: from.id,
                    secret: token_secret(from.agent.joins_as),
                    name: from.name.clone(),
                    addr: from.addr.clone(),
                    release: "0.1.0".to_owned(),
                    labels: Default::default(),
                    observed: Some(Self::seen_at(caller.idx)),
                    key: self.key.clone(),
                    rekey: None,
                }));
                self.request_certificate(to, caller, request);
            }
        }
    }

    pub(crate) fn request_certificate(
        &mut self,
        to: MachineIdx,
        caller: Caller,
        request: authority::CertificateRequest,
    ) {
        let node = match &request {
            authority::CertificateRequest::Node(request) => request.identity.node().map(|(node, _)| node),
            authority::CertificateRequest::Join(request) => Some(request.node),
            _ => None,
        };
        match self.authority(to) {
            Some(authority) => {
                let ask = authority::AskId(caller.ask);
                authority.asks.insert(ask, (caller, node));
                self.authority_step(to, authority::Input::Asked(ask, request));
            }
            None => {
                let unreachable = ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead");
                self.reply(to, caller, Answered::Certificate(Err(unreachable)));
            }
        }
    }

    pub(crate) fn answered(&mut self, to: Caller, answer: Answered) {
        let machine = &self.machines[to.idx];
        if !machine.up || machine.life != to.life || self.call_ended(to.idx, to.ask, &answer) {
            return;
        }
        let joins = self.machines[to.idx].agent.asking.is_some_and(|(ask, _)| ask == to.ask);
        if let Answered::Certificate(result) = answer
            && joins
        {
            self.machines[to.idx].agent.asking = None;
            self.joined(to.idx, result);
        }
    }

    fn joined(&mut self, idx: MachineIdx, result: Result<String, ErrorBody>) {
        match result {
            // Unless an earlier answer arrived first.
            Ok(text)
                if self.machines[idx].agent.certificate.is_none() && self.keep_certificate(idx, &text).is_some() =>
            {
                self.totals.count("nodes joined");
                self.start_agent(idx);
            }
            Err(error) if matches!(error.code, ErrorCode::Removed | ErrorCode::Blocked) => {
                // A real node may retry indefinitely; here this answer is final.
                let (message, at) = (error.message, self.wall(idx));
                let reason = muster_agent::TroubleReason::Removed;
                self.machines[idx].agent.ended = Some(muster_agent::NodeTrouble::new(reason, message, at));
            }
            _ => {}
        }
    }

    // ---- membership -----------------------------------------------------------------------------------------------

    /// `unanswered`: only if that question is still unanswered.
    pub(crate) fn ask_membership(&mut self, idx: MachineIdx, runtime: u32, unanswered: Option<u64>) {
        let Some(h) = self.machines[idx].runtime(runtime) else { return };
        if unanswered.is_some_and(|ask| h.keeper.asking != Some(ask)) {
            return;
        }
        // Once a newer member id is assigned, the loss of the old data is known and repaired.
        let disk = &self.machines[idx].disk;
        let lost = disk.lost.clone().filter(|_| h.keeper.assigned <= disk.held);
        let held = if lost.is_some() { self.machines[idx].disk.held } else { h.keeper.holds };
        let advertise = self.machines[idx].addr.clone();
        let request = MembershipRequest { advertise, held, data_lost: lost, feature_level: self.machines[idx].build };
        let ask = self.number();
        if let Some(h) = self.machines[idx].runtime_mut(runtime) {
            h.keeper.asking = Some(ask);
        }
        self.time.after(QUESTION_TIMEOUT, Event::AskMembership { idx, runtime, unanswered: Some(ask) });
        self.agent_step(
            idx,
            agent::Input::AskLeader { ask: agent::AskId(ask), question: AgentAsk::Membership(request) },
        );
    }

    /// A member without a leader for this long may have been removed without notice.
    fn ask_when_leaderless(&mut self, idx: MachineIdx) {
        let now = self.now();
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        if runtime.core.replica().raft.leader.is_some() {
            runtime.leaderless_since = None;
            return;
        }
        let since = *runtime.leaderless_since.get_or_insert(now);
        if now.since(since) >= LEADERLESS_AFTER && runtime.keeper.asking.is_none() {
            runtime.leaderless_since = Some(now);
            self.ask_again(idx, Duration::ZERO);
        }
    }

    fn ask_again(&mut self, idx: MachineIdx, pause: Duration) {
        if let Some(runtime) = self.machines[idx].runtime.as_ref().map(|h| h.number) {
            self.time.after(pause, Event::AskMembership { idx, runtime, unanswered: None });
        }
    }

    fn membership_answered(&mut self, idx: MachineIdx, result: Result<MembershipReply, ErrorBody>) {
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        runtime.keeper.asking = None;
        match result {
            Ok(MembershipReply::IsMember { raft_id }) => {
                runtime.keeper.assigned = Some(raft_id);
                runtime.keeper.pause = FIRST_PAUSE;
                let stale = runtime.keeper.holds.is_some_and(|held| held != raft_id);
                let given = runtime.keeper.holds == Some(raft_id);
                self.log(format!("n{} is assigned member id {raft_id}", idx + 1));
                if stale && self.machines[idx].disk.lost.is_none() {
                    self.log(format!("n{} discards the data of an older member id", idx + 1));
                    let keeper = self.machines[idx].runtime.as_ref().map(|h| h.keeper.clone()).unwrap_or_default();
                    self.stop_runtime(idx, true);
                    self.machines[idx].disk.replace(false);
                    self.start_runtime(idx, false);
                    if let Some(runtime) = self.machines[idx].runtime.as_mut() {
                        runtime.keeper = Keeper { holds: None, asking: None, ..keeper };
                    }
                } else {
                    self.settle_membership(idx);
                }
                if !given {
                    self.ask_again(idx, MAX_PAUSE);
                }
            }
            Ok(MembershipReply::Wait { retry_after_ms, .. }) => {
                let pause = Duration::from_millis(retry_after_ms).clamp(FIRST_PAUSE, MAX_PAUSE);
                self.ask_again(idx, pause);
            }
            Ok(MembershipReply::NotWanted { .. }) => self.ask_again(idx, MAX_PAUSE),
            Err(error) if error.code == ErrorCode::GateClosed => self.stop_incompatible(idx, "the leader says so"),
            Err(_) => {
                let pause = runtime.keeper.pause;
                runtime.keeper.pause = pause.mul_f64(1.5).min(MAX_PAUSE);
                self.ask_again(idx, pause);
            }
        }
    }

    /// The member id that the member publishes.
    pub(crate) fn keep_member_id(&mut self, idx: MachineIdx, holds: Option<RaftId>) {
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        if runtime.keeper.holds == holds {
            return;
        }
        let had = std::mem::replace(&mut runtime.keeper.holds, holds);
        match holds {
            Some(held) => {
                self.machines[idx].silent_since = None;
                self.machines[idx].disk.held = Some(held);
                self.settle_membership(idx);
            }
            None if had.is_some() => self.ask_again(idx, FIRST_PAUSE),
            None => {}
        }
    }

    /// A data loss is repaired once the new member id holds data.
    fn settle_membership(&mut self, idx: MachineIdx) {
        let machine = &mut self.machines[idx];
        let Some(runtime) = machine.runtime.as_ref() else { return };
        if runtime.keeper.holds.is_some() && runtime.keeper.holds == runtime.keeper.assigned {
            machine.disk.lost = None;
        }
    }
}
