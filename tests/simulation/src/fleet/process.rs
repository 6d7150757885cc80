//! A process: renews its leases, steps its cores, dies, freezes and returns as another release.
//!
//! It checks the clock before every action under a lease.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Definition, ErrorBody, ErrorCode, FencingToken, Moment, NodeId, Participant, ParticipantKey, ParticipantPhase,
    Release, Revision, SessionId, Triple, WallTime, candidates_scope, level_release, runner_lease,
};
use muster_reconciler::core::admission::{Admission, Ask, Input as AdmissionInput};
use muster_reconciler::core::eligibility::{Eligibility, EligibilityTiming, Input as Facts, Me};
use muster_reconciler::core::run::{Effect, Input, Outcome, Run, Runner};

use super::operator::release;
use super::{
    Answer, Candidacy, Keeper, LeaseKind, Member, PendingRequest, Process, Question, RELEASES, Reply, Requester,
    Subject,
};
use crate::machine::MachineIdx;
use crate::simulation::{Event, Simulation};

/// As the reconciler's, shortened for a simulated minute.
const ELIGIBILITY_DELAYS: EligibilityTiming = EligibilityTiming {
    hold_for: Duration::from_secs(3),
    debounce: Duration::from_millis(200),
    out_for: Duration::from_secs(4),
};

/// How often a manager's part looks for a new manager runtime.
const RUNTIME_POLL: Duration = Duration::from_millis(50);
/// A raise without an answer is tried again after this.
const RAISE_TIMEOUT: Duration = Duration::from_secs(2);

fn unexpected<T>(answer: Answer) -> Result<T, ErrorBody> {
    Err(ErrorBody::new(ErrorCode::Internal, format!("an answer of another kind: {answer:?}")))
}

impl Simulation {
    // ---- starting and stopping ------------------------------------------------------------------------------------

    /// A new host of the fleet, not running.
    pub(super) fn new_process(&mut self, release: Release) -> usize {
        let number = self.fleet.processes.len();
        let node = NodeId::from_entropy(self.rng.next_u128());
        let (serving, candidacy, frozen, at, next) = (None, None, None, None, None);
        let name = format!("p{}", number + 1);
        let (life, up, returns, runtime_of) = (0, false, true, None);
        let process =
            Process { name, node, release, runtime_of, life, up, returns, next, frozen, at, serving, candidacy };
        self.fleet.processes.push(process);
        number
    }

    pub(super) fn new_member(&mut self, number: usize, scope: &str, needs: BTreeMap<String, Triple>) -> Member {
        let (session, seed) = (SessionId(self.rng.next_u128() | 1), self.rng.sample());
        let process = &self.fleet.processes[number];
        let key = ParticipantKey { scope: scope.to_owned(), member: process.name.clone(), incarnation: session };
        let participant = Participant {
            key: key.clone(),
            node: Some(process.node),
            release: process.release.clone(),
            needs,
            phase: ParticipantPhase::Announced,
            token: None,
            since: WallTime(0),
            revision: Revision(0),
        };
        let serves = scope == self.fleet.subject.scope;
        Member { keeper: Keeper::new(key.lease(), session), core: Admission::new(serves, seed), participant }
    }

    pub(super) fn new_candidacy(&mut self, number: usize) -> Candidacy {
        let record = self.new_member(number, &candidates_scope(self.fleet.subject.reconciler), BTreeMap::new());
        let Process { name, node, release, .. } = &self.fleet.processes[number];
        let me = Me { member: name.clone(), node: Some(*node), release: release.triple };
        let eligibility = Eligibility::new(me, ELIGIBILITY_DELAYS, false, None);
        Candidacy { record, eligibility, runner: None, run: None, view: None, view_at: Moment(0), acting: None }
    }

    fn boot(&mut self, number: usize) {
        if let Some(idx) = self.fleet.processes[number].runtime_of {
            return self.boot_with_runtime(number, idx);
        }
        let next = self.next_release();
        let certain = self.fleet.processes[number].next.take();
        let needs_target = certain.as_ref().map(|(_, needs)| *needs);
        let release = certain.map_or(next, |(release, _)| release);
        let own = release.triple;
        let Subject { reconciler, scope } = self.fleet.subject;
        let process = &mut self.fleet.processes[number];
        (process.release, process.up) = (release.clone(), true);
        let name = process.name.clone();
        let needs = match self.rng.below(4) {
            _ if needs_target == Some(false) => BTreeMap::new(),
            _ if needs_target == Some(true) => BTreeMap::from([(reconciler.to_owned(), own)]),
            0 => BTreeMap::from([(reconciler.to_owned(), own)]),
            1 => BTreeMap::from([(reconciler.to_owned(), Triple::new(1, 0, 0))]),
            _ => BTreeMap::new(),
        };
        self.log(format!("{name} starts as {release}, needs {needs:?}"));
        let serving = self.new_member(number, scope, needs);
        let candidacy = self.new_candidacy(number);
        let process = &mut self.fleet.processes[number];
        (process.serving, process.candidacy) = (Some(serving), Some(candidacy));
    }

    /// The level of the build is the release. Such members need no gate.
    fn boot_with_runtime(&mut self, number: usize, idx: MachineIdx) {
        let process = &mut self.fleet.processes[number];
        (process.release, process.up) = (level_release(self.machines[idx].build).into(), true);
        let line = format!("{} takes part at feature level {}", process.name, process.release);
        self.log(line);
        let serving = self.new_member(number, self.fleet.subject.scope, BTreeMap::new());
        let candidacy = self.new_candidacy(number);
        let process = &mut self.fleet.processes[number];
        (process.serving, process.candidacy) = (Some(serving), Some(candidacy));
    }

    /// Another start follows.
    pub(super) fn process_ends(&mut self, number: usize, back: Duration) {
        let process = &mut self.fleet.processes[number];
        process.life += 1;
        (process.up, process.frozen, process.at) = (false, None, None);
        (process.serving, process.candidacy) = (None, None);
        let life = process.life;
        if !process.returns {
            return;
        }
        self.time.after(back, Event::Process { process: number, life });
    }

    /// Starts a process at the worst moment: the gate still admits it, while a runner that saw no blocker is about
    /// to restrict the gate.
    pub(super) fn start_newcomer(&mut self, runner: usize) {
        if self.fleet.processes[runner].runtime_of.is_some() {
            return self.roll_back_beside(runner);
        }
        let others: Vec<usize> = (0..self.fleet.processes.len()).filter(|number| *number != runner).collect();
        let chosen = self.rng.pick(&others).filter(|_| self.rng.chance(400));
        let reconciler = self.fleet.subject.reconciler;
        let gate = self.checks.newest().and_then(|tables| tables.reconcilers.gates.get(reconciler));
        let (Some(number), Some(gate)) = (chosen, gate) else { return };
        let (now, target) = (&gate.now, &self.fleet.processes[runner].release);
        let next = if target.triple < now.reconciled.triple {
            Some((now.reconciled.clone(), true)) // blocks a downgrade
        } else {
            let least = RELEASES.into_iter().map(release).find(|release| release.triple >= now.floor);
            least.map(|release| (release, false))
        };
        // Once the target is set, no newer release starts.
        let newest = self.fleet.target.as_ref().map(|release| release.triple);
        if let Some(next) = next.filter(|(release, _)| newest.is_none_or(|newest| release.triple <= newest)) {
            self.fleet.processes[number].next = Some(next);
            self.process_ends(number, Duration::from_millis(1));
        }
    }

    /// Releases its leases and ends.
    pub(super) fn process_stops(&mut self, number: usize) {
        let name = self.fleet.processes[number].name.clone();
        self.log(format!("{name} stops"));
        self.lose(number, LeaseKind::Runner, true);
        let process = &self.fleet.processes[number];
        let members = [process.serving.as_ref(), process.candidacy.as_ref().map(|c| &c.record)];
        let keys: Vec<_> = members.into_iter().flatten().map(|m| m.participant.key.clone()).collect();
        for key in keys {
            self.process_asks(number, Question::Reconciler(Requester::Discarded, ReconcilerRequest::Leave { key }));
        }
        let back = self.rng.millis(20, 1500);
        self.process_ends(number, back);
    }

    /// A manager's part is frozen with its machine.
    fn frozen_until(&self, number: usize) -> Option<Moment> {
        let process = &self.fleet.processes[number];
        let thaws = process.runtime_of.map_or(process.frozen, |idx| self.machines[idx].thaws);
        thaws.filter(|thaws| *thaws > self.now())
    }

    // ---- its turns ------------------------------------------------------------------------------------------------

    pub(crate) fn step_process(&mut self, number: usize, life: u32) {
        let now = self.now();
        // A manager's part lives, freezes and dies with its machine.
        let runtime_of = self.fleet.processes[number].runtime_of;
        let faults_active = self.faults.active && runtime_of.is_none();
        let (dies, freezes, stops) = (
            faults_active && self.rng.chance(8),
            faults_active && self.rng.chance(8),
            faults_active && self.rng.chance(6),
        );
        let process = &mut self.fleet.processes[number];
        if process.life != life {
            return;
        }
        if let Some(thaws) = self.frozen_until(number) {
            return self.time.at(thaws, Event::Process { process: number, life });
        }
        let process = &mut self.fleet.processes[number];
        process.frozen = None;
        if !process.up {
            if runtime_of.is_some_and(|idx| !self.knows_itself(idx)) {
                return self.time.after(RUNTIME_POLL, Event::Process { process: number, life });
            }
            self.boot(number);
        } else if dies {
            self.totals.count("fault: fleet process killed");
            let back = self.rng.millis(10, 3000);
            return self.process_ends(number, back);
        } else if freezes {
            self.totals.count("fault: fleet process frozen");
            let thaws = now + self.rng.millis(100, 4500);
            self.fleet.processes[number].frozen = Some(thaws);
            return self.time.at(thaws, Event::Process { process: number, life });
        }
        let drained = self.fleet.processes[number].serving.as_ref().is_some_and(|m| m.core.admission_state().is_over());
        if stops || drained {
            return self.process_stops(number);
        }
        self.check_clock(number);
        self.renew(number);
        self.step_candidacy(number);
        self.check_serving();
        let pause = self.rng.millis(60, 130);
        self.time.after(pause, Event::Process { process: number, life });
    }

    fn renew(&mut self, number: usize) {
        let (now, timing) = (self.now(), self.fleet.timing);
        for lease_kind in [LeaseKind::Serving, LeaseKind::Record, LeaseKind::Runner] {
            if let Some(keeper) = self.keeper(number, lease_kind).filter(|keeper| keeper.ask_at <= now) {
                keeper.ask_at = now + timing.renew;
                let (key, session) = (keeper.key.clone(), keeper.session);
                let question = match keeper.held {
                    Some((token, _)) => Question::Renew { lease_kind, key, session, token },
                    None => Question::Acquire { lease_kind, key, session },
                };
                self.process_asks(number, question);
            }
            let wakes = self.member(number, lease_kind).and_then(|member| member.core.wake_at());
            if wakes.is_some_and(|wake| wake <= now) {
                self.admit(number, lease_kind, AdmissionInput::Woke);
            }
        }
    }

    fn step_candidacy(&mut self, number: usize) {
        let now = self.now();
        let next = now + self.rng.millis(150, 500);
        let reconciler = self.fleet.subject.reconciler;
        let process = &mut self.fleet.processes[number];
        let raises = process.runtime_of.is_some();
        let Some(candidacy) = &mut process.candidacy else { return };
        candidacy.eligibility.step(now, Facts::Woke);
        let ended = candidacy.acting.take_if(|(.., ends)| *ends <= now);
        if candidacy.view_at <= now {
            candidacy.view_at = next;
            let seen = candidacy.view.as_ref().map_or(Revision(0), |view| view.revision);
            let (name, release) = (reconciler.to_owned(), process.release.triple);
            let request = ReconcilerRequest::View { name, release, seen, wait_ms: 0 };
            self.process_asks(number, Question::Reconciler(Requester::Candidate, request));
        }
        self.update_candidacy(number);
        if let Some((_, action, _)) = ended {
            let outcome = match self.rng.below(8) {
                _ if raises => Outcome::Later("no answer".to_owned()),
                0 if self.faults.active => Outcome::Failed("no".to_owned()),
                1 if self.faults.active => Outcome::Later("later".to_owned()),
                _ => Outcome::Done,
            };
            self.drive(number, Input::Acted { number: action, outcome, output: String::new() });
        }
        let run = self.fleet.processes[number].candidacy.as_ref().and_then(|c| c.run.as_ref());
        if run.and_then(Run::wake_at).is_some_and(|wake| wake <= now) {
            self.drive(number, Input::Woke);
        }
    }

    /// Decides from the other candidates whether to run.
    fn update_candidacy(&mut self, number: usize) {
        let session = SessionId(self.rng.next_u128() | 1);
        let reconciler = self.fleet.subject.reconciler;
        let Some(candidacy) = &mut self.fleet.processes[number].candidacy else { return };
        match (&candidacy.runner, candidacy.eligibility.decision().stands) {
            (None, true) => candidacy.runner = Some(Keeper::new(runner_lease(reconciler), session)),
            (Some(_), false) => self.lose(number, LeaseKind::Runner, true),
            _ => {}
        }
    }

    fn process_asks(&mut self, number: usize, question: Question) {
        let life = self.fleet.processes[number].life;
        self.fleet_asks(Some((number, life)), question);
    }

    // ---- answers --------------------------------------------------------------------------------------------------

    pub(crate) fn fleet_reply(&mut self, pending: PendingRequest, reply: Reply) {
        let Some((number, life)) = pending.by else { return };
        let now = self.now();
        let process = &self.fleet.processes[number];
        if process.life != life || !process.up {
            return;
        }
        if let Some(thaws) = self.frozen_until(number) {
            return self.time.at(thaws, Event::FleetReply { pending: Box::new(pending), reply: Box::new(reply) });
        }
        let elsewhere = [ErrorCode::Unreachable, ErrorCode::TimedOut, ErrorCode::NoQuorum, ErrorCode::UnknownOutcome];
        if reply.as_ref().is_err_and(|error| elsewhere.contains(&error.code)) {
            self.fleet.processes[number].at = None;
        }
        self.check_clock(number);
        match (pending.question, reply) {
            (Question::Acquire { lease_kind, session, .. }, Ok(Answer::Granted(token))) => {
                self.acquired(number, lease_kind, session, pending.sent, token);
            }
            (Question::Renew { lease_kind, token, .. }, Ok(answer)) => {
                self.renewed(number, lease_kind, token, pending.sent, &answer)
            }
            (Question::Raise { term, number: action, .. }, reply) => self.raise_answered(number, (term, action), reply),
            (Question::Reconciler(Requester::Member(lease_kind, ask), _), reply) => {
                let result = reply.and_then(|answer| match answer {
                    Answer::Admission(view) => Ok(view),
                    other => unexpected(other),
                });
                self.admit(number, lease_kind, AdmissionInput::Answered { number: ask, result });
            }
            (Question::Reconciler(Requester::Run(term, ask), request), reply) => {
                self.run_reply(number, term, ask, &request, reply)
            }
            (Question::Reconciler(Requester::Candidate, _), Ok(Answer::View(view))) => {
                if let Some(candidacy) = &mut self.fleet.processes[number].candidacy {
                    candidacy.eligibility.step(now, Facts::View { view: &view, runnable: true });
                    candidacy.view = Some(view.clone());
                }
                self.drive(number, Input::View(view));
            }
            _ => {}
        }
        self.check_serving();
    }

    fn run_reply(&mut self, number: usize, term: FencingToken, ask: u64, request: &ReconcilerRequest, reply: Reply) {
        let run = self.fleet.processes[number].candidacy.as_ref().and_then(|c| c.run.as_ref());
        if run.is_none_or(|run| run.who().term != term) {
            return;
        }
        let input = match request {
            ReconcilerRequest::Step { .. } => {
                let result = reply.and_then(|answer| match answer {
                    Answer::Stepped(stepped) => Ok(stepped),
                    other => unexpected(other),
                });
                Input::Stepped { number: ask, result }
            }
            ReconcilerRequest::Wave { .. } => {
                let result = reply.and_then(|answer| match answer {
                    Answer::Waved(waved) => Ok(waved),
                    other => unexpected(other),
                });
                Input::Waved { number: ask, result }
            }
            _ => Input::Reported { ok: reply.is_ok() },
        };
        self.drive(number, input);
    }

    // ---- leases ---------------------------------------------------------------------------------------------------

    pub(super) fn member(&mut self, number: usize, lease_kind: LeaseKind) -> Option<&mut Member> {
        let process = &mut self.fleet.processes[number];
        match lease_kind {
            LeaseKind::Serving => process.serving.as_mut(),
            LeaseKind::Record => process.candidacy.as_mut().map(|candidacy| &mut candidacy.record),
            LeaseKind::Runner => None,
        }
    }

    fn keeper(&mut self, number: usize, lease_kind: LeaseKind) -> Option<&mut Keeper> {
        if lease_kind == LeaseKind::Runner {
            return self.fleet.processes[number].candidacy.as_mut()?.runner.as_mut();
        }
        self.member(number, lease_kind).map(|member| &mut member.keeper)
    }

    fn acquired(
        &mut self,
        number: usize,
        lease_kind: LeaseKind,
        session: SessionId,
        sent: Moment,
        token: FencingToken,
    ) {
        let (now, timing) = (self.now(), self.fleet.timing);
        let Some(keeper) = self.keeper(number, lease_kind) else { return };
        if keeper.session != session || keeper.held.is_some() || now >= sent + timing.stop_after {
            return;
        }
        keeper.held = Some((token, sent));
        if lease_kind == LeaseKind::Runner {
            self.begin(number, token);
        } else {
            self.admit(number, lease_kind, AdmissionInput::Held(token));
        }
    }

    fn renewed(&mut self, number: usize, lease_kind: LeaseKind, token: FencingToken, sent: Moment, answer: &Answer) {
        let keeper = self.keeper(number, lease_kind);
        let held = keeper.and_then(|keeper| keeper.held.as_mut()).filter(|(held, _)| *held == token);
        match (held, answer) {
            (Some((_, confirmed)), Answer::Renewed) => *confirmed = (*confirmed).max(sent),
            (Some(_), Answer::Lost) => self.lose(number, lease_kind, false),
            _ => {}
        }
    }

    /// A lease ended: by the clock, by the cluster's answer, or by release.
    fn lose(&mut self, number: usize, lease_kind: LeaseKind, gives_up: bool) {
        if lease_kind != LeaseKind::Runner {
            self.totals.count("member leases lost");
            if let Some(member) = self.member(number, lease_kind) {
                member.keeper.held = None;
            }
            return self.admit(number, lease_kind, AdmissionInput::Lost { why: "lost".to_owned() });
        }
        self.drive(number, Input::Ended);
        let Some(candidacy) = &mut self.fleet.processes[number].candidacy else { return };
        // Nothing of it runs any more.
        (candidacy.run, candidacy.acting) = (None, None);
        let Some(Keeper { key, session, held: Some((token, _)), .. }) = candidacy.runner.take() else { return };
        if gives_up {
            self.process_asks(number, Question::Release { key, session, token });
        } else {
            self.totals.count("runner leases lost");
        }
    }

    fn check_clock(&mut self, number: usize) {
        let (now, timing) = (self.now(), self.fleet.timing);
        for lease_kind in [LeaseKind::Serving, LeaseKind::Record, LeaseKind::Runner] {
            let keeper = self.keeper(number, lease_kind);
            if keeper.is_some_and(|keeper| keeper.held.is_some() && !keeper.is_good(now, timing)) {
                self.lose(number, lease_kind, false);
            }
        }
    }

    // ---- its cores ------------------------------------------------------------------------------------------------

    pub(super) fn admit(&mut self, number: usize, lease_kind: LeaseKind, input: AdmissionInput) {
        let now = self.now();
        let Some(member) = self.member(number, lease_kind) else { return };
        let key = member.participant.key.clone();
        let request = member.core.step(now, input).map(|ask| match ask {
            Ask::Announce { number, token } => {
                let participant = Participant { token: Some(token), ..member.participant.clone() };
                (number, ReconcilerRequest::Announce { participant })
            }
            Ask::Admit { number } => (number, ReconcilerRequest::Admit { key }),
            Ask::Watch { number, seen } => (number, ReconcilerRequest::Admission { key, seen, wait_ms: 0 }),
        });
        let announced = member.core.is_announced();
        if let Some((ask, request)) = request {
            self.process_asks(number, Question::Reconciler(Requester::Member(lease_kind, ask), request));
        }
        if let Some(candidacy) =
            self.fleet.processes[number].candidacy.as_mut().filter(|_| lease_kind == LeaseKind::Record)
        {
            candidacy.eligibility.step(now, Facts::Announced(announced));
        }
    }

    /// As the product's handler: a refusal is not a failure, the run tries again.
    fn raise_answered(&mut self, number: usize, (term, action): (FencingToken, u64), reply: Reply) {
        let Some(candidacy) = &mut self.fleet.processes[number].candidacy else { return };
        if candidacy.acting.take_if(|(of, n, _)| (*of, *n) == (term, action)).is_none() {
            return;
        }
        let outcome = match reply {
            Ok(_) => Outcome::Done,
            Err(error) => Outcome::Later(error.message),
        };
        self.drive(number, Input::Acted { number: action, outcome, output: String::new() });
    }

    fn begin(&mut self, number: usize, term: FencingToken) {
        let reconciler = self.fleet.subject.reconciler.to_owned();
        let process = &mut self.fleet.processes[number];
        let Process { name, node, release, candidacy: Some(candidacy), .. } = process else { return };
        let who = Runner { reconciler, node: *node, member: name.clone(), release: release.clone(), term };
        candidacy.run = Some(Run::new(who, term.0));
        let (view, line) = (candidacy.view.clone(), format!("{name}, {release}, runs under term {term}"));
        self.log(line);
        if let Some(view) = view {
            self.drive(number, Input::View(view));
        }
    }

    fn drive(&mut self, number: usize, input: Input) {
        let now = self.now();
        let wall = WallTime(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX));
        let crashes = self.faults.active && self.rng.chance(20);
        let reconciler = self.fleet.subject.reconciler;
        let process = &mut self.fleet.processes[number];
        let Some(candidacy) = &mut process.candidacy else { return };
        let Some(run) = &mut candidacy.run else { return };
        let mut out = Vec::new();
        if crashes {
            // Its actor continues from its checkpoint.
            run.recover(candidacy.acting.map(|(_, action, _)| action));
            run.step(now, wall, Input::Woke, &mut out);
        }
        run.step(now, wall, input, &mut out);
        let (term, release, name) = (run.who().term, process.release.triple, reconciler.to_owned());
        for effect in out {
            let (name, mut ask) = (name.clone(), 0);
            let request = match effect {
                Effect::Step { number, digest, epoch, step } => {
                    ask = number;
                    ReconcilerRequest::Step { name, release, digest, term, epoch, step }
                }
                Effect::Wave { number, digest, wave } => {
                    ask = number;
                    ReconcilerRequest::Wave { name, release, digest, term, wave }
                }
                Effect::Report(progress) => ReconcilerRequest::Progress { progress: *progress },
                Effect::Act { number: action, work } => {
                    self.act(number, term, action, &work.definition);
                    continue;
                }
                Effect::Cancel { number: action } => {
                    if let Some(candidacy) = &mut self.fleet.processes[number].candidacy
                        && let Some((_, _, ends)) = candidacy.acting.as_mut().filter(|(_, at, _)| *at == action)
                    {
                        *ends = now;
                    }
                    continue;
                }
                Effect::Resign => {
                    self.totals.count("runners that resigned");
                    if let Some(candidacy) = &mut self.fleet.processes[number].candidacy {
                        candidacy.eligibility.step(now, Facts::Resign);
                    }
                    continue;
                }
                Effect::Log(_) => continue,
            };
            self.process_asks(number, Question::Reconciler(Requester::Run(term, ask), request));
        }
    }

    fn act(&mut self, number: usize, term: FencingToken, action: u64, definition: &Definition) {
        self.totals.count("actions begun");
        self.check_action(number, term, definition);
        let mut ends = self.now() + self.rng.millis(10, 900);
        if self.fleet.processes[number].runtime_of.is_some() {
            ends = self.now() + RAISE_TIMEOUT;
            let level = u32::try_from(definition.release.triple.major).expect("feature levels are small");
            self.process_asks(number, Question::Raise { level, term, number: action });
        }
        if let Some(candidacy) = &mut self.fleet.processes[number].candidacy {
            candidacy.acting = Some((term, action, ends));
        }
    }
}
