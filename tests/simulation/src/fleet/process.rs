//! A process: renews its leases, steps its cores, dies, freezes and returns as another release.
//!
//! It checks the clock before every action under a lease.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    ErrorCode, FencingToken, Moment, NodeId, Participant, ParticipantKey, ParticipantPhase, Release, Revision,
    SessionId, Triple, WallTime, candidates_scope, level_release, runner_lease,
};
use muster_reconciler::core::admission::{Admission, Ask, Input as AdmissionInput};
use muster_reconciler::core::eligibility::{Eligibility, EligibilityTiming, Input as Facts, Me};
use muster_reconciler::core::run::{Effect, Input, Outcome, Run, Runner, Work};

use super::operator::release;
use super::{
    Answer, Candidacy, Fleet, Keeper, LeaseKind, Member, PendingRequest, Process, Question, RELEASES, Reply, Requester,
    Subject,
};
use crate::events::Event;
use crate::machine::MachineIdx;
use crate::upgrades::Levels;
use crate::world::World;

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

impl Process {
    // ---- starting and stopping ------------------------------------------------------------------------------------

    /// A new host of the fleet, not running.
    pub(super) fn add(world: &mut World, release: Release) -> usize {
        let number = world.fleet.processes.len();
        let node = NodeId::from_entropy(world.rng.next_u128());
        let (serving, candidacy, frozen, at, next) = (None, None, None, None, None);
        let name = format!("p{}", number + 1);
        let (life, up, returns, runtime_of) = (0, false, true, None);
        let process =
            Process { name, node, release, runtime_of, life, up, returns, next, frozen, at, serving, candidacy };
        world.fleet.processes.push(process);
        number
    }

    pub(super) fn new_member(world: &mut World, number: usize, scope: &str, needs: BTreeMap<String, Triple>) -> Member {
        let (session, seed) = (SessionId(world.rng.next_u128() | 1), world.rng.sample());
        let process = &world.fleet.processes[number];
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
        let serves = scope == world.fleet.subject.scope;
        Member { keeper: Keeper::new(key.lease(), session), core: Admission::new(serves, seed), participant }
    }

    pub(super) fn new_candidacy(world: &mut World, number: usize) -> Candidacy {
        let scope = candidates_scope(world.fleet.subject.reconciler);
        let record = Self::new_member(world, number, &scope, BTreeMap::new());
        let Process { name, node, release, .. } = &world.fleet.processes[number];
        let me = Me { member: name.clone(), node: Some(*node), release: release.triple };
        let eligibility = Eligibility::new(me, ELIGIBILITY_DELAYS, false, None);
        Candidacy { record, eligibility, runner: None, run: None, view: None, view_at: Moment(0), acting: None }
    }

    fn boot(world: &mut World, number: usize) {
        if let Some(idx) = world.fleet.processes[number].runtime_of {
            return Self::boot_with_runtime(world, number, idx);
        }
        let next = Fleet::next_release(world);
        let certain = world.fleet.processes[number].next.take();
        let needs_target = certain.as_ref().map(|(_, needs)| *needs);
        let release = certain.map_or(next, |(release, _)| release);
        let own = release.triple;
        let Subject { reconciler, scope } = world.fleet.subject;
        let process = &mut world.fleet.processes[number];
        (process.release, process.up) = (release.clone(), true);
        let name = process.name.clone();
        let needs = match world.rng.below(4) {
            _ if needs_target == Some(false) => BTreeMap::new(),
            _ if needs_target == Some(true) => BTreeMap::from([(reconciler.to_owned(), own)]),
            0 => BTreeMap::from([(reconciler.to_owned(), own)]),
            1 => BTreeMap::from([(reconciler.to_owned(), Triple::new(1, 0, 0))]),
            _ => BTreeMap::new(),
        };
        world.log(format!("{name} starts as {release}, needs {needs:?}"));
        let serving = Self::new_member(world, number, scope, needs);
        let candidacy = Self::new_candidacy(world, number);
        let process = &mut world.fleet.processes[number];
        (process.serving, process.candidacy) = (Some(serving), Some(candidacy));
    }

    /// The level of the build is the release. Such members need no gate.
    fn boot_with_runtime(world: &mut World, number: usize, idx: MachineIdx) {
        let process = &mut world.fleet.processes[number];
        (process.release, process.up) = (level_release(world.machines[idx].build).into(), true);
        let line = format!("{} takes part at feature level {}", process.name, process.release);
        world.log(line);
        let scope = world.fleet.subject.scope;
        let serving = Self::new_member(world, number, scope, BTreeMap::new());
        let candidacy = Self::new_candidacy(world, number);
        let process = &mut world.fleet.processes[number];
        (process.serving, process.candidacy) = (Some(serving), Some(candidacy));
    }

    /// Another start follows.
    pub(super) fn end(world: &mut World, number: usize, back: Duration) {
        let process = &mut world.fleet.processes[number];
        process.life += 1;
        (process.up, process.frozen, process.at) = (false, None, None);
        (process.serving, process.candidacy) = (None, None);
        let life = process.life;
        if !process.returns {
            return;
        }
        world.time.after(back, Event::Process { process: number, life });
    }

    /// Starts a process at the worst moment: the gate still admits it, while a runner that saw no blocker is about
    /// to restrict the gate.
    pub(super) fn start_newcomer(world: &mut World, runner: usize) {
        if world.fleet.processes[runner].runtime_of.is_some() {
            return Levels::roll_back_beside(world, runner);
        }
        let others: Vec<usize> = (0..world.fleet.processes.len()).filter(|number| *number != runner).collect();
        let chosen = world.rng.pick(&others).filter(|_| world.rng.chance(400));
        let reconciler = world.fleet.subject.reconciler;
        let gate = world.checks.newest().and_then(|tables| tables.reconcilers.gates.get(reconciler));
        let (Some(number), Some(gate)) = (chosen, gate) else { return };
        let (now, target) = (&gate.now, &world.fleet.processes[runner].release);
        let next = if target.triple < now.reconciled.triple {
            Some((now.reconciled.clone(), true)) // blocks a downgrade
        } else {
            let least = RELEASES.into_iter().map(release).find(|release| release.triple >= now.floor);
            least.map(|release| (release, false))
        };
        // Once the target is set, no newer release starts.
        let newest = world.fleet.target.as_ref().map(|release| release.triple);
        if let Some(next) = next.filter(|(release, _)| newest.is_none_or(|newest| release.triple <= newest)) {
            world.fleet.processes[number].next = Some(next);
            Self::end(world, number, Duration::from_millis(1));
        }
    }

    /// Releases its leases and ends.
    pub(super) fn stop(world: &mut World, number: usize) {
        let name = world.fleet.processes[number].name.clone();
        world.log(format!("{name} stops"));
        Self::lose(world, number, LeaseKind::Runner, true);
        let process = &world.fleet.processes[number];
        let members = [process.serving.as_ref(), process.candidacy.as_ref().map(|c| &c.record)];
        let keys: Vec<_> = members.into_iter().flatten().map(|m| m.participant.key.clone()).collect();
        for key in keys {
            Self::ask(world, number, Question::Reconciler(Requester::Discarded, ReconcilerRequest::Leave { key }));
        }
        let back = world.rng.millis(20, 1500);
        Self::end(world, number, back);
    }

    /// A manager's part is frozen with its machine.
    fn frozen_until(world: &World, number: usize) -> Option<Moment> {
        let process = &world.fleet.processes[number];
        let thaws = process.runtime_of.map_or(process.frozen, |idx| world.machines[idx].thaws);
        thaws.filter(|thaws| *thaws > world.now())
    }

    // ---- its turns ------------------------------------------------------------------------------------------------

    pub(crate) fn step(world: &mut World, number: usize, life: u32) {
        let now = world.now();
        // A manager's part lives, freezes and dies with its machine.
        let runtime_of = world.fleet.processes[number].runtime_of;
        let faults_active = world.faults_active && runtime_of.is_none();
        let (dies, freezes, stops) = (
            faults_active && world.rng.chance(8),
            faults_active && world.rng.chance(8),
            faults_active && world.rng.chance(6),
        );
        let process = &mut world.fleet.processes[number];
        if process.life != life {
            return;
        }
        if let Some(thaws) = Self::frozen_until(world, number) {
            return world.time.at(thaws, Event::Process { process: number, life });
        }
        let process = &mut world.fleet.processes[number];
        process.frozen = None;
        if !process.up {
            if runtime_of.is_some_and(|idx| !Levels::knows_itself(world, idx)) {
                return world.time.after(RUNTIME_POLL, Event::Process { process: number, life });
            }
            Self::boot(world, number);
        } else if dies {
            world.totals.count("fault: fleet process killed");
            let back = world.rng.millis(10, 3000);
            return Self::end(world, number, back);
        } else if freezes {
            world.totals.count("fault: fleet process frozen");
            let thaws = now + world.rng.millis(100, 4500);
            world.fleet.processes[number].frozen = Some(thaws);
            return world.time.at(thaws, Event::Process { process: number, life });
        }
        let drained =
            world.fleet.processes[number].serving.as_ref().is_some_and(|m| m.core.admission_state().is_over());
        if stops || drained {
            return Self::stop(world, number);
        }
        Self::check_clock(world, number);
        Self::renew(world, number);
        Self::step_candidacy(world, number);
        Fleet::check_serving(world);
        let pause = world.rng.millis(60, 130);
        world.time.after(pause, Event::Process { process: number, life });
    }

    fn renew(world: &mut World, number: usize) {
        let (now, timing) = (world.now(), world.fleet.timing);
        for lease_kind in [LeaseKind::Serving, LeaseKind::Record, LeaseKind::Runner] {
            if let Some(keeper) = Self::keeper(world, number, lease_kind).filter(|keeper| keeper.ask_at <= now) {
                keeper.ask_at = now + timing.renew;
                let (key, session) = (keeper.key.clone(), keeper.session);
                let question = match keeper.held {
                    Some((token, _)) => Question::Renew { lease_kind, key, session, token },
                    None => Question::Acquire { lease_kind, key, session },
                };
                Self::ask(world, number, question);
            }
            let wakes = Self::member(world, number, lease_kind).and_then(|member| member.core.wake_at());
            if wakes.is_some_and(|wake| wake <= now) {
                Self::admit(world, number, lease_kind, AdmissionInput::Woke);
            }
        }
    }

    fn step_candidacy(world: &mut World, number: usize) {
        let now = world.now();
        let next = now + world.rng.millis(150, 500);
        let reconciler = world.fleet.subject.reconciler;
        let process = &mut world.fleet.processes[number];
        let raises = process.runtime_of.is_some();
        let Some(candidacy) = &mut process.candidacy else { return };
        candidacy.eligibility.step(now, Facts::Woke);
        let ended = candidacy.acting.take_if(|(.., ends)| *ends <= now);
        if candidacy.view_at <= now {
            candidacy.view_at = next;
            let seen = candidacy.view.as_ref().map_or(Revision(0), |view| view.revision);
            let (name, release) = (reconciler.to_owned(), process.release.triple);
            let request = ReconcilerRequest::View { name, release, seen, wait_ms: 0 };
            Self::ask(world, number, Question::Reconciler(Requester::Candidate, request));
        }
        Self::update_candidacy(world, number);
        if let Some((_, action, _)) = ended {
            let outcome = match world.rng.below(8) {
                _ if raises => Outcome::Later("no answer".to_owned()),
                0 if world.faults_active => Outcome::Failed("no".to_owned()),
                1 if world.faults_active => Outcome::Later("later".to_owned()),
                _ => Outcome::Done,
            };
            Self::drive(world, number, Input::Acted { number: action, ended: Box::new(outcome.into()) });
        }
        let run = world.fleet.processes[number].candidacy.as_ref().and_then(|c| c.run.as_ref());
        if run.and_then(Run::wake_at).is_some_and(|wake| wake <= now) {
            Self::drive(world, number, Input::Woke);
        }
    }

    /// Decides from the other candidates whether to run.
    fn update_candidacy(world: &mut World, number: usize) {
        let session = SessionId(world.rng.next_u128() | 1);
        let reconciler = world.fleet.subject.reconciler;
        let Some(candidacy) = &mut world.fleet.processes[number].candidacy else { return };
        match (&candidacy.runner, candidacy.eligibility.decision().stands) {
            (None, true) => candidacy.runner = Some(Keeper::new(runner_lease(reconciler), session)),
            (Some(_), false) => Self::lose(world, number, LeaseKind::Runner, true),
            _ => {}
        }
    }

    fn ask(world: &mut World, number: usize, question: Question) {
        let life = world.fleet.processes[number].life;
        PendingRequest::ask(world, Some((number, life)), question);
    }

    // ---- answers --------------------------------------------------------------------------------------------------

    pub(crate) fn reply(world: &mut World, pending: PendingRequest, reply: Reply) {
        let Some((number, life)) = pending.by else { return };
        let now = world.now();
        let process = &world.fleet.processes[number];
        if process.life != life || !process.up {
            return;
        }
        if let Some(thaws) = Self::frozen_until(world, number) {
            return world.time.at(thaws, Event::FleetReply { pending: Box::new(pending), reply: Box::new(reply) });
        }
        let elsewhere = [ErrorCode::Unreachable, ErrorCode::TimedOut, ErrorCode::NoQuorum, ErrorCode::UnknownOutcome];
        if reply.as_ref().is_err_and(|error| elsewhere.contains(&error.code)) {
            world.fleet.processes[number].at = None;
        }
        Self::check_clock(world, number);
        match (pending.question, reply) {
            (Question::Acquire { lease_kind, session, .. }, Ok(Answer::Granted(token))) => {
                Self::acquired(world, number, lease_kind, session, pending.sent, token);
            }
            (Question::Renew { lease_kind, token, .. }, Ok(answer)) => {
                Self::renewed(world, number, lease_kind, token, pending.sent, &answer)
            }
            (Question::Raise { term, number: action, .. }, reply) => {
                Self::raise_answered(world, number, (term, action), reply)
            }
            (Question::Reconciler(Requester::Member(lease_kind, ask), _), reply) => {
                let result = reply.and_then(|answer| match answer {
                    Answer::Admission(view) => Ok(view),
                    other => super::unexpected(other),
                });
                Self::admit(world, number, lease_kind, AdmissionInput::Answered { number: ask, result });
            }
            (Question::Reconciler(Requester::Run(term, ask), request), reply) => {
                Self::run_reply(world, number, term, ask, &request, reply)
            }
            (Question::Reconciler(Requester::Candidate, _), Ok(Answer::View(view))) => {
                if let Some(candidacy) = &mut world.fleet.processes[number].candidacy {
                    candidacy.eligibility.step(now, Facts::View { view: &view, runnable: true });
                    // One from a replica that lags behind may come later.
                    if candidacy.view.as_ref().is_none_or(|known| known.revision <= view.revision) {
                        candidacy.view = Some(view.clone());
                    }
                }
                Self::drive(world, number, Input::View(view));
            }
            _ => {}
        }
        Fleet::check_serving(world);
    }

    fn run_reply(
        world: &mut World,
        number: usize,
        term: FencingToken,
        ask: u64,
        request: &ReconcilerRequest,
        reply: Reply,
    ) {
        let run = world.fleet.processes[number].candidacy.as_ref().and_then(|c| c.run.as_ref());
        if run.is_none_or(|run| run.who().term != term) {
            return;
        }
        let input = match request {
            ReconcilerRequest::Step { .. } => Input::Stepped { number: ask, result: reply.and_then(Answer::stepped) },
            ReconcilerRequest::Wave { .. } => Input::Waved { number: ask, result: reply.and_then(Answer::waved) },
            ReconcilerRequest::StepDone { .. } => {
                Input::Recorded { number: ask, result: reply.and_then(Answer::recorded) }
            }
            ReconcilerRequest::RecordRun { .. } => {
                Input::RunRecorded { decided: reply.map_or_else(|error| !error.code.is_transient(), |_| true) }
            }
            _ => Input::Reported { ok: reply.is_ok() },
        };
        Self::drive(world, number, input);
    }

    // ---- leases ---------------------------------------------------------------------------------------------------

    pub(super) fn member(world: &mut World, number: usize, lease_kind: LeaseKind) -> Option<&mut Member> {
        let process = &mut world.fleet.processes[number];
        match lease_kind {
            LeaseKind::Serving => process.serving.as_mut(),
            LeaseKind::Record => process.candidacy.as_mut().map(|candidacy| &mut candidacy.record),
            LeaseKind::Runner => None,
        }
    }

    fn keeper(world: &mut World, number: usize, lease_kind: LeaseKind) -> Option<&mut Keeper> {
        if lease_kind == LeaseKind::Runner {
            return world.fleet.processes[number].candidacy.as_mut()?.runner.as_mut();
        }
        Self::member(world, number, lease_kind).map(|member| &mut member.keeper)
    }

    fn acquired(
        world: &mut World,
        number: usize,
        lease_kind: LeaseKind,
        session: SessionId,
        sent: Moment,
        token: FencingToken,
    ) {
        let (now, timing) = (world.now(), world.fleet.timing);
        let Some(keeper) = Self::keeper(world, number, lease_kind) else { return };
        if keeper.session != session || keeper.held.is_some() || now >= sent + timing.stop_after {
            return;
        }
        keeper.held = Some((token, sent));
        if lease_kind == LeaseKind::Runner {
            Self::begin(world, number, token);
        } else {
            Self::admit(world, number, lease_kind, AdmissionInput::Held(token));
        }
    }

    fn renewed(
        world: &mut World,
        number: usize,
        lease_kind: LeaseKind,
        token: FencingToken,
        sent: Moment,
        answer: &Answer,
    ) {
        let keeper = Self::keeper(world, number, lease_kind);
        let held = keeper.and_then(|keeper| keeper.held.as_mut()).filter(|(held, _)| *held == token);
        match (held, answer) {
            (Some((_, confirmed)), Answer::Renewed) => *confirmed = (*confirmed).max(sent),
            (Some(_), Answer::Lost) => Self::lose(world, number, lease_kind, false),
            _ => {}
        }
    }

    /// A lease ended: by the clock, by the cluster's answer, or by release.
    fn lose(world: &mut World, number: usize, lease_kind: LeaseKind, gives_up: bool) {
        if lease_kind != LeaseKind::Runner {
            world.totals.count("member leases lost");
            if let Some(member) = Self::member(world, number, lease_kind) {
                member.keeper.held = None;
            }
            return Self::admit(world, number, lease_kind, AdmissionInput::Lost { why: "lost".to_owned() });
        }
        Self::drive(world, number, Input::Ended);
        let Some(candidacy) = &mut world.fleet.processes[number].candidacy else { return };
        // Nothing of it runs any more.
        (candidacy.run, candidacy.acting) = (None, None);
        let Some(Keeper { key, session, held: Some((token, _)), .. }) = candidacy.runner.take() else { return };
        if gives_up {
            Self::ask(world, number, Question::Release { key, session, token });
        } else {
            world.totals.count("runner leases lost");
        }
    }

    fn check_clock(world: &mut World, number: usize) {
        let (now, timing) = (world.now(), world.fleet.timing);
        for lease_kind in [LeaseKind::Serving, LeaseKind::Record, LeaseKind::Runner] {
            let keeper = Self::keeper(world, number, lease_kind);
            if keeper.is_some_and(|keeper| keeper.held.is_some() && !keeper.is_good(now, timing)) {
                Self::lose(world, number, lease_kind, false);
            }
        }
    }

    // ---- its cores ------------------------------------------------------------------------------------------------

    pub(super) fn admit(world: &mut World, number: usize, lease_kind: LeaseKind, input: AdmissionInput) {
        let now = world.now();
        let Some(member) = Self::member(world, number, lease_kind) else { return };
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
            Self::ask(world, number, Question::Reconciler(Requester::Member(lease_kind, ask), request));
        }
        if let Some(candidacy) =
            world.fleet.processes[number].candidacy.as_mut().filter(|_| lease_kind == LeaseKind::Record)
        {
            candidacy.eligibility.step(now, Facts::Announced(announced));
        }
    }

    /// As the product's handler: a refusal is not a failure, the run tries again.
    fn raise_answered(world: &mut World, number: usize, (term, action): (FencingToken, u64), reply: Reply) {
        let Some(candidacy) = &mut world.fleet.processes[number].candidacy else { return };
        if candidacy.acting.take_if(|(of, n, _)| (*of, *n) == (term, action)).is_none() {
            return;
        }
        let outcome = match reply {
            Ok(_) => Outcome::Done,
            Err(error) => Outcome::Later(error.message),
        };
        Self::drive(world, number, Input::Acted { number: action, ended: Box::new(outcome.into()) });
    }

    fn begin(world: &mut World, number: usize, term: FencingToken) {
        let reconciler = world.fleet.subject.reconciler.to_owned();
        let process = &mut world.fleet.processes[number];
        let Process { name, node, release, candidacy: Some(candidacy), .. } = process else { return };
        let who = Runner { reconciler, node: *node, member: name.clone(), release: release.clone(), term };
        candidacy.run = Some(Run::new(who, term.0));
        let (view, line) = (candidacy.view.clone(), format!("{name}, {release}, runs under term {term}"));
        world.log(line);
        if let Some(view) = view {
            Self::drive(world, number, Input::View(view));
        }
    }

    fn drive(world: &mut World, number: usize, input: Input) {
        let now = world.now();
        let wall = WallTime(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX));
        let crashes = world.faults_active && world.rng.chance(20);
        let reconciler = world.fleet.subject.reconciler;
        let process = &mut world.fleet.processes[number];
        let Some(candidacy) = &mut process.candidacy else { return };
        let Some(run) = &mut candidacy.run else { return };
        let mut out = Vec::new();
        if crashes {
            // Its actor continues from its checkpoint.
            run.recover(candidacy.acting.map(|(_, action, _)| action));
            run.step(now, wall, Input::Woke, &mut out);
        }
        run.step(now, wall, input, &mut out);
        let (term, name) = (run.who().term, reconciler.to_owned());
        for effect in out {
            let (name, mut ask) = (name.clone(), 0);
            let request = match effect {
                Effect::Step { number, release, digest, epoch, step } => {
                    ask = number;
                    ReconcilerRequest::Step { name, release, digest, term, epoch, step }
                }
                Effect::Wave { number, release, digest, wave } => {
                    ask = number;
                    ReconcilerRequest::Wave { name, release, digest, term, wave }
                }
                Effect::Record { number, release, digest, defined, step } => {
                    ask = number;
                    ReconcilerRequest::StepDone { name, release, digest, defined, term, step }
                }
                Effect::Report(progress) => ReconcilerRequest::Progress { progress: *progress },
                Effect::Act { number: action, work } => {
                    Self::act(world, number, term, action, &work);
                    continue;
                }
                Effect::Cancel { number: action } => {
                    if let Some(candidacy) = &mut world.fleet.processes[number].candidacy
                        && let Some((_, _, ends)) = candidacy.acting.as_mut().filter(|(_, at, _)| *at == action)
                    {
                        *ends = now;
                    }
                    continue;
                }
                Effect::Resign => {
                    world.totals.count("runners that resigned");
                    if let Some(candidacy) = &mut world.fleet.processes[number].candidacy {
                        candidacy.eligibility.step(now, Facts::Resign);
                    }
                    continue;
                }
                Effect::RecordRun(record) => ReconcilerRequest::RecordRun { record },
                Effect::Log(_) => continue,
            };
            Self::ask(world, number, Question::Reconciler(Requester::Run(term, ask), request));
        }
    }

    fn act(world: &mut World, number: usize, term: FencingToken, action: u64, work: &Work) {
        world.totals.count("actions begun");
        let definition = &work.definition;
        Fleet::check_action(world, number, term, definition);
        Fleet::check_step(world, number, work);
        let mut ends = world.now() + world.rng.millis(10, 900);
        if world.fleet.processes[number].runtime_of.is_some() {
            ends = world.now() + RAISE_TIMEOUT;
            let level = u32::try_from(definition.release.triple.major).expect("feature levels are small");
            Self::ask(world, number, Question::Raise { level, term, number: action });
        }
        if let Some(candidacy) = &mut world.fleet.processes[number].candidacy {
            candidacy.acting = Some((term, action, ends));
        }
    }
}
