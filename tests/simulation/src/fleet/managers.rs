//! A manager's answers to a fleet: the API's logic over the real store and the real lease clock.

use std::sync::Arc;
use std::time::Duration;

use muster_elections::core::keeper::{AskId, Input as KeeperInput};
use muster_gates::{Write, admission, drift, runner_view};
use muster_messages::protocol::{Applied, ProposeError, Renewal};
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Change, Command, CommandRefusal, DefinitionKey, ErrorBody, ErrorCode, FencingToken, GateStep, Guard, Name,
    Principal, ReconcilerChange, RequestId, Tables, Triple, Uid, runner_lease,
};
use muster_reconciler::core::run::{ObjectError, Recorded, Stepped, Waved};

use super::{Answer, HoldPoint, PendingRequest, Process, Question, Reply, Requester, SCHEMA, Wave};

use crate::events::Event;
use crate::lease_clock::{Clock, Renewer};
use crate::machine::{Asker, MachineIdx};
use crate::world::World;

/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a read waits at its manager for a change.
const VIEW_WAIT: Duration = Duration::from_millis(400);

fn not_here() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead")
}

impl PendingRequest {
    // ---- on the way -----------------------------------------------------------------------------------------------

    /// Every request is answered: after a timeout at the latest.
    pub(super) fn ask(world: &mut World, by: Option<(usize, u32)>, question: Question) {
        let request = RequestId(world.rng.next_u128() | 1);
        let pending = PendingRequest { by, sent: world.now(), request, question, waited: false };
        if by.is_some() {
            let reply = Err(ErrorBody::new(ErrorCode::TimedOut, "no answer came"));
            world.time.after(
                ANSWER_TIMEOUT,
                Event::FleetReply { pending: Box::new(pending.clone()), reply: Box::new(reply) },
            );
        }
        if world.fleet.held_back.iter().any(|point| point.is(&pending.question)) {
            return world.fleet.parked.push(pending);
        }
        Self::send(world, pending);
    }

    pub(super) fn send(world: &mut World, pending: PendingRequest) {
        use ReconcilerRequest as R;
        // A read accepts any replica, however stale.
        let is_read = matches!(pending.question, Question::Reconciler(_, R::View { .. } | R::Admission { .. }));
        // A scenario decides itself when this request arrives.
        let scripted = world.fleet.definitions.is_empty() && world.fleet.subject == SCHEMA;
        let restricts = !scripted && HoldPoint::Restriction.is(&pending.question);
        let at = pending.by.and_then(|(process, _)| world.fleet.processes[process].at);
        let idx = match at {
            _ if is_read && world.rng.chance(600) => world.any_manager(),
            Some(idx) if !world.rng.chance(100) => Some(idx),
            _ if world.faults_active && world.rng.chance(250) => world.any_manager(),
            _ => world.leading(),
        };
        if let Some((process, _)) = pending.by.filter(|_| !is_read) {
            world.fleet.processes[process].at = idx;
        }
        let Some(idx) = idx else { return };
        let conditions = world.net.conditions;
        if !world.rng.chance(conditions.loss) {
            // Widens the window between the read and the write based on it.
            let often = match pending.question {
                _ if restricts => 800,
                Question::Reconciler(_, R::Admit { .. } | R::Step { .. }) | Question::Raise { .. } => 350,
                _ if is_read => 20,
                _ => 100,
            };
            let late = (world.faults_active || restricts) && world.rng.chance(often);
            let late = if late { world.rng.millis(10, 1500) } else { Duration::ZERO };
            let delay = conditions.slow + world.rng.micros(80, 1500) + late;
            world.time.after(delay, Event::FleetAsks { idx, pending: Box::new(pending.clone()) });
        }
        if let Some((process, _)) = pending.by.filter(|_| restricts) {
            Process::start_newcomer(world, process);
        }
        if world.faults_active && world.rng.chance(conditions.duplicate + 20) {
            world.totals.count("fault: request repeated");
            // Repeated by a connection, or sent anew by a client with the same stale belief.
            let request = if world.rng.chance(500) { pending.request } else { RequestId(world.rng.next_u128() | 1) };
            // Some so late that another runner has led meanwhile.
            let most = if world.rng.chance(400) { 7000 } else { 2500 };
            let delay = world.rng.millis(1, most);
            let idx = world.any_manager().unwrap_or(idx);
            world.time.after(delay, Event::FleetAsks { idx, pending: Box::new(PendingRequest { request, ..pending }) });
        }
    }

    pub(crate) fn reply(world: &mut World, pending: PendingRequest, reply: Reply) {
        if pending.by.is_some() && !world.rng.chance(world.net.conditions.loss) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::FleetReply { pending: Box::new(pending), reply: Box::new(reply) });
        }
    }

    // ---- at a manager ---------------------------------------------------------------------------------------------

    pub(crate) fn arrive(world: &mut World, idx: MachineIdx, mut pending: PendingRequest) {
        let Some(runtime) = world.machines[idx].runtime.as_ref().filter(|_| world.machines[idx].up) else { return };
        let tables = runtime.core.tables().clone();
        let leads = runtime.core.replica().raft.leading;
        match pending.question.clone() {
            Question::Acquire { key, session, .. } => {
                let holder =
                    pending.by.map_or_else(String::new, |(process, _)| world.fleet.processes[process].name.clone());
                let duration_ms = u64::try_from(world.fleet.timing.lease.as_millis()).expect("a lease is short");
                let uid = Uid(pending.request.0);
                Self::propose_change(
                    world,
                    idx,
                    pending,
                    Change::AcquireLease { key, holder, session, duration_ms, uid },
                );
            }
            Question::Release { key, session, token } => {
                Self::propose_change(world, idx, pending, Change::ReleaseLease { key, session, token });
            }
            Question::Raise { level, term, .. } => {
                let in_force = Guard::LeaseToken { key: runner_lease(world.fleet.subject.reconciler), token: term };
                let command = Self::command(world, idx, pending.request).guard(in_force);
                let command = command.change(Change::SetFeatureLevel(level));
                world.propose(idx, Asker::Fleet(Box::new(pending)), command, ANSWER_TIMEOUT);
            }
            Question::Renew { key, session, token, .. } => {
                let ask = AskId(world.number());
                let Some(clock) = Clock::at(world, idx) else { return Self::reply(world, pending, Err(not_here())) };
                clock.asks.insert(ask, Renewer::Fleet(Box::new(pending)));
                Clock::step(
                    world,
                    idx,
                    KeeperInput::Renew { ask, session, held: vec![(key, token)], within: ANSWER_TIMEOUT },
                );
            }
            Question::Reconciler(
                _,
                ReconcilerRequest::Admission { seen, .. } | ReconcilerRequest::View { seen, .. },
            ) if !pending.waited && tables.reconcilers.changed <= seen => {
                pending.waited = true;
                world.time.after(VIEW_WAIT, Event::FleetAsks { idx, pending: Box::new(pending) });
            }
            Question::Reconciler(_, ReconcilerRequest::Admission { key, .. }) => {
                Self::reply(world, pending, Ok(Answer::Admission(admission(&tables, &key))));
            }
            Question::Reconciler(_, ReconcilerRequest::View { name, release, .. }) => {
                Self::reply(world, pending, Ok(Answer::View(Arc::new(runner_view(&tables, &name, release)))));
            }
            Question::Reconciler(_, ReconcilerRequest::Wave { name, release, digest, term, wave }) if leads => {
                let key = DefinitionKey { reconciler: name, release };
                Self::write_wave(world, idx, pending, &tables, &key, (&digest, term), wave);
            }
            Question::Reconciler(_, ReconcilerRequest::Wave { .. }) => Self::reply(world, pending, Err(not_here())),
            Question::Reconciler(_, request) => {
                if let Some(change) = change_of(request, &tables) {
                    Self::propose_change(world, idx, pending, Change::Reconciler(change));
                }
            }
        }
    }

    fn propose_change(world: &mut World, idx: MachineIdx, pending: PendingRequest, change: Change) {
        let command = Self::command(world, idx, pending.request).change(change);
        world.propose(idx, Asker::Fleet(Box::new(pending)), command, ANSWER_TIMEOUT);
    }

    fn command(world: &World, idx: MachineIdx, request: RequestId) -> Command {
        let by = Principal::User(Name::sanitized("fleet"));
        Command::idempotent(world.wall(idx), by, "fleet").with_request(request)
    }

    /// Writes each object by its own command.
    fn write_wave(
        world: &mut World,
        idx: MachineIdx,
        pending: PendingRequest,
        tables: &Tables,
        key: &DefinitionKey,
        (digest, term): (&str, FencingToken),
        wave: u32,
    ) {
        let all = &tables.reconcilers;
        let Some(definition) = all.definitions.get(key).filter(|definition| definition.digest == digest) else {
            let error = ErrorBody::new(ErrorCode::Conflict, "there is no such definition");
            return Self::reply(world, pending, Err(error));
        };
        let writes = drift(all, definition, wave as usize);
        let taken = |write: &Write| matches!(write, Write::Taken(_));
        let blocked = writes.iter().filter(|write| taken(write));
        let errors = blocked.map(|write| failed(write.key().to_string(), "it has another owner")).collect();
        let writes: Vec<Write> = writes.into_iter().filter(|w| !taken(w) && !matches!(w, Write::Keep(_))).collect();
        let number = world.number();
        let request = pending.request;
        world
            .fleet
            .waves
            .insert(number, Wave { pending, open: writes.len(), result: Ok(Waved { errors, ..Waved::default() }) });
        for (at, write) in writes.into_iter().enumerate() {
            let object_key = write.key().clone();
            let object = match write {
                Write::Create(object) | Write::Update(object) => Some(Box::new(object)),
                Write::Delete(_) | Write::Keep(_) | Write::Taken(_) => None,
            };
            let (reconciler, release) = (key.reconciler.clone(), key.release);
            let digest = digest.to_owned();
            let change = ReconcilerChange::Apply { reconciler, release, digest, term, key: object_key, object };
            let request = RequestId(request.0.wrapping_add(1 + at as u128));
            let command = Self::command(world, idx, request).change(Change::Reconciler(change));
            world.propose(idx, Asker::FleetWrite { wave: number }, command, ANSWER_TIMEOUT);
        }
        Self::wave_ends(world, number);
    }

    fn wave_ends(world: &mut World, number: u64) {
        if world.fleet.waves.get(&number).is_some_and(|wave| wave.open == 0)
            && let Some(mut wave) = world.fleet.waves.remove(&number)
        {
            if let Ok(waved) = &mut wave.result {
                waved.errors_in_all = u32::try_from(waved.errors.len()).unwrap_or(u32::MAX);
            }
            Self::reply(world, wave.pending, wave.result.map(Answer::Waved));
        }
    }

    /// The Raft member finished the write of an object.
    pub(crate) fn wrote(world: &mut World, number: u64, result: Result<Applied, ProposeError>) {
        world.totals.count(match &result {
            Ok(_) => "objects written",
            Err(ProposeError::Refused(_)) => "objects refused",
            Err(_) => "objects of unknown outcome",
        });
        let Some(wave) = world.fleet.waves.get_mut(&number) else { return };
        wave.open -= 1;
        match (result, &mut wave.result) {
            (Err(ProposeError::Refused(why)), Ok(waved)) => waved.errors.push(failed(String::new(), &why.to_string())),
            (Err(error), _) => wave.result = Err(ErrorBody::from(error)),
            (Ok(_), _) => {}
        }
        Self::wave_ends(world, number);
    }

    /// The Raft member finished a proposal of the fleet.
    pub(crate) fn ended(
        world: &mut World,
        idx: MachineIdx,
        pending: PendingRequest,
        result: Result<Applied, ProposeError>,
    ) {
        use ReconcilerRequest as R;
        Self::count_ended(world, &pending.question, &result);
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        let tables = runtime.core.tables();
        let reply = match (&pending.question, result) {
            (Question::Acquire { key, session, .. }, Ok(_)) => {
                let lease = tables.objects.get(key).and_then(|object| object.lease());
                let own = lease.filter(|lease| lease.is_live() && lease.holding.session == Some(*session));
                let gone = || ErrorBody::new(ErrorCode::Conflict, "the lease already ended");
                own.map(|lease| Answer::Granted(lease.holding.token)).ok_or_else(gone)
            }
            (
                Question::Reconciler(_, R::Admit { key }),
                Ok(_) | Err(ProposeError::Refused(CommandRefusal::NotAdmitted(_))),
            ) => Ok(Answer::Admission(admission(tables, key))),
            (Question::Reconciler(_, R::Announce { participant }), Ok(_)) => {
                Ok(Answer::Admission(admission(tables, &participant.key)))
            }
            (Question::Reconciler(_, R::Step { name, .. }), Ok(applied)) => {
                let epoch = tables.reconcilers.gates.get(name).map_or(0, |gate| gate.now.epoch);
                let revision = if world.seed.is_multiple_of(2) { applied.revision } else { Default::default() };
                Ok(Answer::Stepped(Stepped { epoch, revision }))
            }
            (Question::Reconciler(_, R::StepDone { .. }), Ok(applied)) => {
                Ok(Answer::Recorded(Recorded { revision: applied.revision }))
            }
            (_, Ok(_)) => Ok(Answer::Done),
            (_, Err(error)) => Err(ErrorBody::from(error)),
        };
        Self::reply(world, pending, reply);
    }

    pub(crate) fn renewed(world: &mut World, pending: PendingRequest, answer: Option<&[Renewal]>) {
        let reply = match answer {
            Some([Renewal::Renewed { .. }]) => Ok(Answer::Renewed),
            Some([Renewal::Lost { .. }]) => Ok(Answer::Lost),
            _ => Err(not_here()),
        };
        Self::reply(world, pending, reply);
    }

    fn count_ended(world: &mut World, question: &Question, result: &Result<Applied, ProposeError>) {
        use ReconcilerRequest as R;
        let refused = match result {
            Ok(_) => None,
            Err(ProposeError::Refused(refusal)) => Some(refusal),
            Err(_) => return world.totals.count("requests of unknown outcome"),
        };
        let what = match (question, refused) {
            (Question::Raise { .. }, None) => "feature level raises applied",
            (Question::Raise { .. }, Some(_)) => "feature level raises refused",
            (Question::Reconciler(_, R::Admit { .. }), None) => "admissions",
            (Question::Reconciler(_, R::Admit { .. }), Some(CommandRefusal::NotAdmitted(_))) => {
                "admissions refused by a gate"
            }
            (Question::Reconciler(_, R::Announce { .. }), None) => "members announced",
            (Question::Reconciler(_, R::Leave { .. }), None) => "members left",
            (Question::Reconciler(_, R::Step { step: GateStep::Work, .. }), None) => "gate work started",
            (Question::Reconciler(_, R::Step { step: GateStep::Restrict, .. }), None) => "gates restricted",
            (Question::Reconciler(_, R::Step { step: GateStep::Complete, .. }), None) => "gates completed",
            (Question::Reconciler(_, R::Step { .. }), Some(CommandRefusal::BlockedByMembers { .. })) => {
                "steps refused because of blockers"
            }
            (Question::Reconciler(_, R::StepDone { .. }), None) => "steps of chains recorded",
            (Question::Reconciler(_, R::Step { .. }), Some(CommandRefusal::Held(_))) => "steps held",
            (Question::Reconciler(_, R::Step { .. }), Some(_)) => "stale steps",
            (Question::Reconciler(_, R::Progress { .. }), Some(_)) => "stale reports",
            (Question::Acquire { lease_kind: super::LeaseKind::Runner, .. }, None) => "runner leases acquired",
            (Question::Reconciler(Requester::Discarded, _), Some(_)) => "operators refused",
            _ => return,
        };
        world.totals.count(what);
    }
}

fn failed(key: String, message: &str) -> ObjectError {
    ObjectError { key: key.into(), message: message.to_owned() }
}

/// The requested change.
fn change_of(request: ReconcilerRequest, tables: &Tables) -> Option<ReconcilerChange> {
    use ReconcilerChange as C;
    use ReconcilerRequest as R;
    Some(match request {
        R::Announce { participant } => C::Announce(Box::new(participant)),
        R::Admit { key } => C::Admit(key),
        R::Leave { key } => C::Leave(key),
        R::Step { name, release, digest, term, epoch, step } => {
            C::Step { reconciler: name, release, digest, term, epoch, step }
        }
        R::StepDone { name, release, digest, defined, term, step } => {
            C::StepDone { reconciler: name, release, digest, defined, term, step }
        }
        R::Progress { progress } => C::Progress(Box::new(progress)),
        R::RecordRun { record } => C::RecordRun(record),
        R::Apply { definitions, replace } => {
            let definition = definitions.into_iter().next()?;
            C::Define { definition: Box::new(definition), replace }
        }
        R::Pause { name, paused } => C::Pause { reconciler: name, paused },
        R::Finalize { name, release } => {
            C::Finalize { digest: referenced_definition(tables, &name, release)?, reconciler: name }
        }
        R::Retry { name, release } => {
            C::Retry { digest: referenced_definition(tables, &name, release), reconciler: name }
        }
        R::Repair { name, epoch } => C::Repair { reconciler: name, epoch },
        R::ForceFloor { name, floor, .. } => C::ForceFloor { reconciler: name, floor },
        R::DeleteGate { name } => C::DeleteGate { reconciler: name },
        R::Delete { name } => C::Forget { reconciler: name },
        R::MemberDrain { scope, member } => {
            let serves = tables.reconcilers.participants_of(&scope).find(|p| p.key.member == member)?;
            C::Drain(serves.key.clone())
        }
        R::ObjectPut { key, labels, body } => {
            C::PutObject(Box::new(muster_messages::DesiredObject { key, labels, body, wave: 0 }))
        }
        R::ObjectDelete { key } => C::DeleteObject(key),
        _ => return None,
    })
}

/// The definition that an operator refers to.
fn referenced_definition(tables: &Tables, name: &str, release: Option<Triple>) -> Option<String> {
    let definition = match release {
        Some(release) => {
            let key = DefinitionKey { reconciler: name.to_owned(), release };
            tables.reconcilers.definitions.get(&key)?
        }
        None => muster_gates::status_definition(tables, name)?,
    };
    Some(definition.digest.clone())
}
