//! How a manager answers a fleet: as the API does, over the real store and the real clock of leases.

use std::sync::Arc;
use std::time::Duration;

use muster_elections::core::keeper::{AskId, Input as Heard};
use muster_gates::{Write, admission, drift, runner_view};
use muster_messages::protocol::{Applied, ProposeError, Renewal};
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Change, Command, CommandRefusal, DefinitionKey, ErrorBody, ErrorCode, FencingToken, GateStep, Name, Principal,
    ReconcilerChange, RequestId, Tables, Triple, Uid,
};
use muster_reconciler::core::run::{ObjectError, Stepped, Waved};

use super::{Answer, Asked, Question, Said, Told, Wave, Within};
use crate::candidates::Renewer;
use crate::machine::{Asker, Place};
use crate::world::{Event, Universe};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a look waits at its manager for news.
const WATCH: Duration = Duration::from_millis(400);

fn not_here() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead")
}

impl Universe {
    // ---- on the way -----------------------------------------------------------------------------------------------

    /// There is an answer in any case: silence, after a while.
    pub(super) fn fleet_asks(&mut self, by: Option<(usize, u32)>, question: Question) {
        let request = RequestId(self.dice.wide() | 1);
        let asked = Asked { by, sent: self.now(), request, question, waited: false };
        if by.is_some() {
            let told = Err(ErrorBody::new(ErrorCode::TimedOut, "no answer came"));
            self.time.after(PATIENCE, Event::FleetTold { asked: Box::new(asked.clone()), told: Box::new(told) });
        }
        if self.fleet.held_back.iter().any(|said| said.is(&asked.question)) {
            return self.fleet.parked.push(asked);
        }
        self.fleet_sends(asked);
    }

    pub(super) fn fleet_sends(&mut self, asked: Asked) {
        use ReconcilerRequest as R;
        // Any copy will do for a look, however old it is.
        let looks = matches!(asked.question, Question::Of(_, R::View { .. } | R::Admission { .. }));
        // Told stories say themselves when this comes.
        let restricts = !self.fleet.definitions.is_empty() && Said::Restriction.is(&asked.question);
        let at = asked.by.and_then(|(process, _)| self.fleet.processes[process].at);
        let place = match at {
            _ if looks && self.dice.chance(600) => self.some_manager(),
            Some(place) if !self.dice.chance(100) => Some(place),
            _ if self.faults.active && self.dice.chance(250) => self.some_manager(),
            _ => self.leading(),
        };
        if let Some((process, _)) = asked.by.filter(|_| !looks) {
            self.fleet.processes[process].at = place;
        }
        let Some(place) = place else { return };
        let weather = self.net.weather;
        if !self.dice.chance(weather.loss) {
            // Between what was read and what is written because of it, much may happen.
            let often = match asked.question {
                _ if restricts => 800,
                Question::Of(_, R::Admit { .. } | R::Step { .. }) => 350,
                _ if looks => 20,
                _ => 100,
            };
            let late = (self.faults.active || restricts) && self.dice.chance(often);
            let late = if late { self.dice.millis(10, 1500) } else { Duration::ZERO };
            let delay = weather.slow + self.dice.micros(80, 1500) + late;
            self.time.after(delay, Event::FleetAsks { place, asked: Box::new(asked.clone()) });
        }
        if let Some((process, _)) = asked.by.filter(|_| restricts) {
            self.newcomer(process);
        }
        if self.faults.active && self.dice.chance(weather.twice + 20) {
            self.totals.count("fault: request repeated");
            // By a connection that sends it again, or by somebody who asks anew and believes what they believed.
            let request = if self.dice.chance(500) { asked.request } else { RequestId(self.dice.wide() | 1) };
            // Some so late that another has stood meanwhile.
            let most = if self.dice.chance(400) { 7000 } else { 2500 };
            let delay = self.dice.millis(1, most);
            let place = self.some_manager().unwrap_or(place);
            self.time.after(delay, Event::FleetAsks { place, asked: Box::new(Asked { request, ..asked }) });
        }
    }

    pub(crate) fn fleet_tells(&mut self, asked: Asked, told: Told) {
        if asked.by.is_some() && !self.dice.chance(self.net.weather.loss) {
            let delay = self.net.weather.slow + self.dice.micros(80, 1500);
            self.time.after(delay, Event::FleetTold { asked: Box::new(asked), told: Box::new(told) });
        }
    }

    // ---- at a manager ---------------------------------------------------------------------------------------------

    pub(crate) fn fleet_arrives(&mut self, place: Place, mut asked: Asked) {
        let Some(half) = self.machines[place].half.as_ref().filter(|_| self.machines[place].up) else { return };
        let tables = half.core.tables().clone();
        let leads = half.core.replica().raft.leading;
        match asked.question.clone() {
            Question::Acquire { key, session, .. } => {
                let holder =
                    asked.by.map_or_else(String::new, |(process, _)| self.fleet.processes[process].name.clone());
                let duration_ms = u64::try_from(self.fleet.timing.lease.as_millis()).expect("a lease is short");
                let uid = Uid(asked.request.0);
                self.fleet_change(place, asked, Change::AcquireLease { key, holder, session, duration_ms, uid });
            }
            Question::Release { key, session, token } => {
                self.fleet_change(place, asked, Change::ReleaseLease { key, session, token });
            }
            Question::Renew { key, session, token, .. } => {
                let ask = AskId(self.number());
                let Some(clock) = self.lease_clock(place) else { return self.fleet_tells(asked, Err(not_here())) };
                clock.asks.insert(ask, Renewer::Fleet(Box::new(asked)));
                self.clock_step(place, Heard::Renew { ask, session, held: vec![(key, token)], within: PATIENCE });
            }
            Question::Of(_, ReconcilerRequest::Admission { seen, .. } | ReconcilerRequest::View { seen, .. })
                if !asked.waited && tables.reconcilers.changed <= seen =>
            {
                asked.waited = true;
                self.time.after(WATCH, Event::FleetAsks { place, asked: Box::new(asked) });
            }
            Question::Of(_, ReconcilerRequest::Admission { key, .. }) => {
                self.fleet_tells(asked, Ok(Answer::Admission(admission(&tables, &key))));
            }
            Question::Of(_, ReconcilerRequest::View { name, release, .. }) => {
                self.fleet_tells(asked, Ok(Answer::View(Arc::new(runner_view(&tables, &name, release)))));
            }
            Question::Of(_, ReconcilerRequest::Wave { name, release, digest, term, wave }) if leads => {
                let key = DefinitionKey { reconciler: name, release };
                self.fleet_wave(place, asked, &tables, &key, (&digest, term), wave);
            }
            Question::Of(_, ReconcilerRequest::Wave { .. }) => self.fleet_tells(asked, Err(not_here())),
            Question::Of(_, request) => {
                if let Some(change) = change_of(request, &tables) {
                    self.fleet_change(place, asked, Change::Reconciler(change));
                }
            }
        }
    }

    fn fleet_change(&mut self, place: Place, asked: Asked, change: Change) {
        let command = self.fleet_command(place, asked.request).change(change);
        self.propose(place, Asker::Fleet(Box::new(asked)), command, PATIENCE);
    }

    fn fleet_command(&self, place: Place, request: RequestId) -> Command {
        let by = Principal::User(Name::sanitized("fleet"));
        Command::idempotent(self.wall(place), by, "fleet").with_request(request)
    }

    /// Each object by a command of its own.
    fn fleet_wave(
        &mut self,
        place: Place,
        asked: Asked,
        tables: &Tables,
        key: &DefinitionKey,
        (digest, term): (&str, FencingToken),
        wave: u32,
    ) {
        let all = &tables.reconcilers;
        let Some(definition) = all.definitions.get(key).filter(|definition| definition.digest == digest) else {
            let error = ErrorBody::new(ErrorCode::Conflict, "there is no such definition");
            return self.fleet_tells(asked, Err(error));
        };
        let writes = drift(all, definition, wave as usize);
        let taken = |write: &Write| matches!(write, Write::Taken(_));
        let in_the_way = writes.iter().filter(|write| taken(write));
        let errors = in_the_way.map(|write| failed(write.key().to_string(), "it is somebody else's")).collect();
        let writes: Vec<Write> = writes.into_iter().filter(|w| !taken(w) && !matches!(w, Write::Keep(_))).collect();
        let number = self.number();
        let request = asked.request;
        self.fleet
            .waves
            .insert(number, Wave { asked, open: writes.len(), came_to: Ok(Waved { errors, errors_in_all: 0 }) });
        for (at, write) in writes.into_iter().enumerate() {
            let key_of_it = write.key().clone();
            let object = match write {
                Write::Create(object) | Write::Update(object) => Some(Box::new(object)),
                Write::Delete(_) | Write::Keep(_) | Write::Taken(_) => None,
            };
            let (reconciler, release) = (key.reconciler.clone(), key.release);
            let digest = digest.to_owned();
            let change = ReconcilerChange::Apply { reconciler, release, digest, term, key: key_of_it, object };
            let request = RequestId(request.0.wrapping_add(1 + at as u128));
            let command = self.fleet_command(place, request).change(Change::Reconciler(change));
            self.propose(place, Asker::FleetWrite { wave: number }, command, PATIENCE);
        }
        self.fleet_wave_ends(number);
    }

    fn fleet_wave_ends(&mut self, number: u64) {
        if self.fleet.waves.get(&number).is_some_and(|wave| wave.open == 0)
            && let Some(mut wave) = self.fleet.waves.remove(&number)
        {
            if let Ok(waved) = &mut wave.came_to {
                waved.errors_in_all = u32::try_from(waved.errors.len()).unwrap_or(u32::MAX);
            }
            self.fleet_tells(wave.asked, wave.came_to.map(Answer::Waved));
        }
    }

    /// The raft member has ended the write of an object.
    pub(crate) fn fleet_wrote(&mut self, number: u64, result: Result<Applied, ProposeError>) {
        self.totals.count(match &result {
            Ok(_) => "objects written",
            Err(ProposeError::Refused(_)) => "objects refused",
            Err(_) => "objects of unknown outcome",
        });
        let Some(wave) = self.fleet.waves.get_mut(&number) else { return };
        wave.open -= 1;
        match (result, &mut wave.came_to) {
            (Err(ProposeError::Refused(why)), Ok(waved)) => waved.errors.push(failed(String::new(), &why.to_string())),
            (Err(error), _) => wave.came_to = Err(ErrorBody::from(error)),
            (Ok(_), _) => {}
        }
        self.fleet_wave_ends(number);
    }

    /// The raft member has ended a proposal of the fleet.
    pub(crate) fn fleet_ended(&mut self, place: Place, asked: Asked, result: Result<Applied, ProposeError>) {
        use ReconcilerRequest as R;
        self.count_ended(&asked.question, &result);
        let Some(half) = self.machines[place].half.as_ref() else { return };
        let tables = half.core.tables();
        let told = match (&asked.question, result) {
            (Question::Acquire { key, session, .. }, Ok(_)) => {
                let lease = tables.objects.get(key).and_then(|object| object.lease());
                let own = lease.filter(|lease| lease.is_live() && lease.holding.session == Some(*session));
                let gone = || ErrorBody::new(ErrorCode::Conflict, "it is over already");
                own.map(|lease| Answer::Granted(lease.holding.token)).ok_or_else(gone)
            }
            (Question::Of(_, R::Admit { key }), Ok(_) | Err(ProposeError::Refused(CommandRefusal::NotAdmitted(_)))) => {
                Ok(Answer::Admission(admission(tables, key)))
            }
            (Question::Of(_, R::Announce { participant }), Ok(_)) => {
                Ok(Answer::Admission(admission(tables, &participant.key)))
            }
            (Question::Of(_, R::Step { name, .. }), Ok(applied)) => {
                let epoch = tables.reconcilers.gates.get(name).map_or(0, |gate| gate.now.epoch);
                let revision = if self.seed.is_multiple_of(2) { applied.revision } else { Default::default() };
                Ok(Answer::Stepped(Stepped { epoch, revision }))
            }
            (_, Ok(_)) => Ok(Answer::Done),
            (_, Err(error)) => Err(ErrorBody::from(error)),
        };
        self.fleet_tells(asked, told);
    }

    pub(crate) fn fleet_renewed(&mut self, asked: Asked, answer: Option<&[Renewal]>) {
        let told = match answer {
            Some([Renewal::Renewed { .. }]) => Ok(Answer::Renewed),
            Some([Renewal::Lost { .. }]) => Ok(Answer::Lost),
            _ => Err(not_here()),
        };
        self.fleet_tells(asked, told);
    }

    fn count_ended(&mut self, question: &Question, result: &Result<Applied, ProposeError>) {
        use ReconcilerRequest as R;
        let refused = match result {
            Ok(_) => None,
            Err(ProposeError::Refused(refusal)) => Some(refusal),
            Err(_) => return self.totals.count("questions of unknown outcome"),
        };
        let what = match (question, refused) {
            (Question::Of(_, R::Admit { .. }), None) => "admissions",
            (Question::Of(_, R::Admit { .. }), Some(CommandRefusal::NotAdmitted(_))) => "admissions refused by a gate",
            (Question::Of(_, R::Announce { .. }), None) => "members announced",
            (Question::Of(_, R::Leave { .. }), None) => "members that left",
            (Question::Of(_, R::Step { step: GateStep::Work, .. }), None) => "gates worked on",
            (Question::Of(_, R::Step { step: GateStep::Restrict, .. }), None) => "gates restricted",
            (Question::Of(_, R::Step { step: GateStep::Complete, .. }), None) => "gates completed",
            (Question::Of(_, R::Step { .. }), Some(CommandRefusal::InTheWay { .. })) => "steps refused for who serves",
            (Question::Of(_, R::Step { .. }), Some(CommandRefusal::Held(_))) => "steps held",
            (Question::Of(_, R::Step { .. }), Some(_)) => "steps that were stale",
            (Question::Of(_, R::Progress { .. }), Some(_)) => "reports that were stale",
            (Question::Acquire { part: super::Part::Runner, .. }, None) => "runner's leases acquired",
            (Question::Of(Within::Nobody, _), Some(_)) => "operators refused",
            _ => return,
        };
        self.totals.count(what);
    }
}

fn failed(key: String, message: &str) -> ObjectError {
    ObjectError { key: key.into(), message: message.to_owned() }
}

/// The change that is asked for.
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
        R::Progress { progress } => C::Progress(Box::new(progress)),
        R::Apply { definitions, replace } => {
            let definition = definitions.into_iter().next()?;
            C::Define { definition: Box::new(definition), replace }
        }
        R::Pause { name, paused } => C::Pause { reconciler: name, paused },
        R::Finalize { name, release } => C::Finalize { digest: meant(tables, &name, release)?, reconciler: name },
        R::Retry { name, release } => C::Retry { digest: meant(tables, &name, release), reconciler: name },
        R::Repair { name, epoch } => C::Repair { reconciler: name, epoch },
        R::ForceFloor { name, floor, .. } => C::ForceFloor { reconciler: name, floor },
        R::DeleteGate { name } => C::DeleteGate { reconciler: name },
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

/// The definition that an operator means.
fn meant(tables: &Tables, name: &str, release: Option<Triple>) -> Option<String> {
    let definition = match release {
        Some(release) => {
            let key = DefinitionKey { reconciler: name.to_owned(), release };
            tables.reconcilers.definitions.get(&key)?
        }
        None => muster_gates::shown_definition(tables, name)?,
    };
    Some(definition.digest.clone())
}
