//! Random histories: three members that upgrade, go back, freeze, lose their network and die; interfering operators; answers
//! that come late or never. The reconciler is a command, a set of objects, or a chain that grows with each release. The store checks its invariants with every entry. Here it is checked that a member that believes it
//! serves is known to, that actions begin only where the gate leads, and that the system converges once disturbances end.

mod checks;
mod machine;
mod operator;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{LeaseRequest, ReconcilerRequest};
use muster_messages::{
    ErrorBody, ErrorCode, FencingToken, LeaseView, Moment, Participant, ParticipantKey, ParticipantPhase, Revision,
    Rng, SessionId, WallTime, candidates_scope, runner_lease,
};
use muster_reconciler::core::admission::{Admission, Ask, Input as AdmissionInput};
use muster_reconciler::core::eligibility::{Eligibility, EligibilityTiming, Input as Facts, Me};
use muster_reconciler::core::run::{Effect, Input, Outcome, Run, Runner};
use serde::de::DeserializeOwned;

use self::machine::{InFlight, Keeper, Machine, Member, Part, Question, RENEW_DEADLINE};
use crate::fleet::{chain, digested, node_id, objects, schema};
use crate::judge::{Judge, release};

const TICK: Duration = Duration::from_millis(50);
const RELEASES: [&str; 3] = ["1.0.0", "2.0.0", "3.0.0"];
/// Of a chain: one more with each release.
const STEPS: [&str; 3] = ["a", "b", "c"];
/// How long a view may be older than the runner's own last step before it is accepted anyway.
const MAX_VIEW_LAG: Duration = Duration::from_secs(30);
/// How long a lease is kept for the last record of its term.
const RECORD_TIMEOUT: Duration = Duration::from_secs(1);

struct History {
    reconciler: &'static str,
    is_chain: bool,
    judge: Judge,
    rng: Rng,
    now: Moment,
    machines: Vec<Machine>,
    /// By arrival time; the request at the judge, or the answer at the machine.
    in_flight: BTreeMap<(Moment, u64), (usize, u64, InFlight)>,
    sent: u64,
    /// Operators move gates.
    wild: bool,
    acts: u64,
    runs_done: u64,
    /// Terms that were given up while a step of a chain was not on record.
    last_records: u64,
    deletions: u64,
}

fn read<T: DeserializeOwned>(answer: Result<String, ErrorBody>) -> Result<T, ErrorBody> {
    answer.map(|text| serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::seeded(seed);
        let (reconciler, is_chain) = rng.pick(&[("schema", false), ("schema", true), ("things", false)]).unwrap();
        let wild = rng.one_in(2);
        let mut history = Self {
            reconciler,
            is_chain,
            judge: Judge::founded(),
            rng,
            now: Moment(3_600_000_000),
            machines: vec![],
            in_flight: BTreeMap::new(),
            sent: 0,
            wild,
            acts: 0,
            runs_done: 0,
            last_records: 0,
            deletions: 0,
        };
        for (at, of) in RELEASES.into_iter().enumerate() {
            let floor = history.rng.pick(&["0.0.0", "1.0.0", of]).unwrap();
            let floor = if release(floor).triple > release(of).triple { of } else { floor };
            let every = Duration::from_secs(history.rng.pick(&[5, 30]).unwrap());
            let spec = match reconciler {
                "schema" if is_chain => chain(of, &STEPS[..=at]).floor(release(floor).triple).downgrade(true),
                "schema" => schema(of, floor),
                _ => objects(of, &[("a", of), ("b", "same"), (of, "own")]).floor(release(floor).triple),
            };
            let spec = if reconciler == "schema" { spec.settle(Duration::from_secs(1)) } else { spec };
            let spec = if history.rng.one_in(4) { spec.once() } else { spec.every(every) };
            history.judge.define(digested(spec));
        }
        for name in ["n1", "n2", "n3"] {
            let machine = history.boot(name, "1.0.0", 0);
            history.machines.push(machine);
        }
        history
    }

    fn boot(&mut self, name: &'static str, of: &str, start: u64) -> Machine {
        let is = release(of);
        let reconciler = self.reconciler;
        let needs =
            if self.rng.one_in(3) { BTreeMap::from([(reconciler.to_owned(), is.triple)]) } else { BTreeMap::new() };
        let (a, b) = (self.rng.sample(), self.rng.sample());
        let member = |scope: &str, session: u64, serves: bool, needs| {
            let key = ParticipantKey {
                scope: scope.to_owned(),
                member: name.to_owned(),
                incarnation: SessionId(u128::from(session)),
            };
            let participant = Participant {
                key: key.clone(),
                node: Some(node_id(name)),
                release: is.clone(),
                needs,
                phase: ParticipantPhase::Announced,
                token: None,
                since: WallTime(0),
                revision: Revision(0),
            };
            let keeper = Keeper::new(key.lease(), name, key.incarnation);
            Member { keeper, core: Admission::new(serves, session), participant }
        };
        let me = Me { member: name.to_owned(), node: Some(node_id(name)), release: is.triple };
        Machine {
            name,
            serving: member("db", a, true, needs),
            record: member(&candidates_scope(reconciler), b, false, BTreeMap::new()),
            release: is,
            start,
            eligibility: Eligibility::new(me, EligibilityTiming::default(), false, None),
            runner: None,
            run: None,
            view: None,
            read_at: Moment(0),
            acting: None,
            step: None,
            carried_out: None,
            recorded_at: Moment(0),
            leaves_by: None,
            frozen: Moment(0),
            cut: Moment(0),
        }
    }

    fn send(&mut self, from: usize, question: Question) {
        let most = if self.rng.one_in(10) { 3000 } else { 40 };
        let delay = Duration::from_millis(1 + self.rng.below(most));
        self.sent += 1;
        let start = self.machines[from].start;
        self.in_flight.insert((self.now + delay, self.sent), (from, start, InFlight::There(question)));
    }

    fn arrive(&mut self, at: usize, start: u64, what: InFlight) {
        match what {
            InFlight::There(question) => {
                let lost = self.machines[at].cut > self.now || self.rng.one_in(50);
                let arrived = !lost || self.rng.one_in(2); // or only the answer is lost
                let answer = arrived.then(|| self.judged(&question));
                let (answer, delay) = match answer {
                    Some(answer) if !lost => (answer, Duration::from_millis(1 + self.rng.below(40))),
                    _ => (Err(ErrorBody::new(ErrorCode::TimedOut, "no answer")), Duration::from_secs(5)),
                };
                self.sent += 1;
                self.in_flight.insert((self.now + delay, self.sent), (at, start, InFlight::Back(question, answer)));
            }
            InFlight::Back(question, answer) if self.machines[at].start == start => {
                if self.machines[at].frozen > self.now {
                    let later = (self.machines[at].frozen, self.sent + 1);
                    self.sent += 1;
                    self.in_flight.insert(later, (at, start, InFlight::Back(question, answer)));
                } else {
                    self.check_clock(at);
                    self.receive(at, question, answer);
                }
            }
            InFlight::Back(..) => {}
        }
    }

    fn judged(&mut self, question: &Question) -> Result<String, ErrorBody> {
        match question {
            Question::Lease(_, _, request) => self.judge.lease(self.now, request.clone()),
            Question::Member(_, _, request) | Question::Run(_, _, request) => self.judge.reconcile(request.clone()),
        }
    }

    fn member(&mut self, at: usize, part: Part) -> &mut Member {
        let machine = &mut self.machines[at];
        if part == Part::Serving { &mut machine.serving } else { &mut machine.record }
    }

    fn receive(&mut self, at: usize, question: Question, answer: Result<String, ErrorBody>) {
        match question {
            Question::Lease(part, sent, request) => self.leased(at, part, sent, &request, answer),
            Question::Member(part, number, _) => {
                self.admit(at, part, AdmissionInput::Answered { number, result: read(answer) });
            }
            Question::Run(term, number, request) => {
                if self.machines[at].run.as_ref().is_none_or(|run| run.who().term != term) {
                    return;
                }
                let input = match request {
                    ReconcilerRequest::Step { .. } => Input::Stepped { number, result: read(answer) },
                    ReconcilerRequest::Wave { .. } => Input::Waved { number, result: read(answer) },
                    ReconcilerRequest::StepDone { .. } => {
                        let result = read(answer);
                        let machine = &mut self.machines[at];
                        if result.is_ok() {
                            (machine.carried_out, machine.recorded_at) = (None, self.now);
                        } else if let Some((_, asked)) = &mut machine.carried_out {
                            *asked = false;
                        }
                        Input::Recorded { number, result }
                    }
                    ReconcilerRequest::RecordRun { .. } => {
                        Input::RunRecorded { decided: answer.map_or_else(|error| !error.code.is_transient(), |_| true) }
                    }
                    _ => Input::Reported { ok: answer.is_ok() },
                };
                self.drive(at, input);
            }
        }
    }

    fn leased(
        &mut self,
        at: usize,
        part: Part,
        sent: Moment,
        request: &LeaseRequest,
        answer: Result<String, ErrorBody>,
    ) {
        let now = self.now;
        let keeper = match part {
            Part::Runner => self.machines[at].runner.as_mut(),
            _ => Some(&mut self.member(at, part).keeper),
        };
        let Some(keeper) = keeper else { return };
        let lost = match (request, answer) {
            (LeaseRequest::Acquire { session, .. }, Ok(text))
                if *session == keeper.session && keeper.held.is_none() =>
            {
                let view: LeaseView = read(Ok(text)).unwrap();
                if now < sent + RENEW_DEADLINE {
                    keeper.held = Some((view.fencing_token, sent));
                    let token = view.fencing_token;
                    match part {
                        Part::Runner => self.begin(at, token),
                        _ => self.admit(at, part, AdmissionInput::Held(token)),
                    }
                }
                false
            }
            (LeaseRequest::Renew { held, .. }, Ok(text)) => {
                let renewed = text.contains("true");
                match &mut keeper.held {
                    Some((token, confirmed)) if *token == held[0].1 => {
                        if renewed {
                            *confirmed = (*confirmed).max(sent);
                        }
                        !renewed
                    }
                    _ => false,
                }
            }
            _ => false,
        };
        if lost {
            self.lose(at, part);
        }
    }

    /// A lease is over, by the clock or by the cluster's answer.
    fn lose(&mut self, at: usize, part: Part) {
        match part {
            Part::Runner => {
                self.drive(at, Input::Ended);
                // None of its actions runs any more.
                let machine = &mut self.machines[at];
                (machine.runner, machine.run, machine.acting) = (None, None, None);
                (machine.carried_out, machine.leaves_by) = (None, None);
            }
            _ => {
                self.member(at, part).keeper.held = None;
                self.admit(at, part, AdmissionInput::Lost { why: "lost".into() });
            }
        }
    }

    /// The clock is checked before every input.
    fn check_clock(&mut self, at: usize) {
        let now = self.now;
        for part in [Part::Serving, Part::Record, Part::Runner] {
            let keeper = match part {
                Part::Runner => self.machines[at].runner.as_ref(),
                _ => Some(&self.member(at, part).keeper),
            };
            if keeper.is_some_and(|keeper| keeper.held.is_some() && !keeper.is_good(now)) {
                self.lose(at, part);
            }
        }
    }

    fn admit(&mut self, at: usize, part: Part, input: AdmissionInput) {
        let now = self.now;
        let member = self.member(at, part);
        let asked = member.core.step(now, input);
        let key = member.participant.key.clone();
        let request = |ask| match ask {
            Ask::Announce { number, token } => {
                let participant = Participant { token: Some(token), ..member.participant.clone() };
                (number, ReconcilerRequest::Announce { participant })
            }
            Ask::Admit { number } => (number, ReconcilerRequest::Admit { key }),
            Ask::Watch { number, seen } => (number, ReconcilerRequest::Admission { key, seen, wait_ms: 0 }),
        };
        let request = asked.map(request);
        let announced = member.core.is_announced();
        if let Some((number, request)) = request {
            self.send(at, Question::Member(part, number, request));
        }
        if part == Part::Record {
            self.machines[at].eligibility.step(now, Facts::Announced(announced));
        }
    }

    fn begin(&mut self, at: usize, term: FencingToken) {
        let machine = &mut self.machines[at];
        let who = Runner {
            reconciler: self.reconciler.to_owned(),
            node: node_id(machine.name),
            member: machine.name.to_owned(),
            release: machine.release.clone(),
            term,
        };
        machine.run = Some(Run::new(who, term.0));
        if let Some(view) = machine.view.clone() {
            self.drive(at, Input::View(view));
        }
    }

    fn drive(&mut self, at: usize, input: Input) {
        let now = self.now;
        let wall = WallTime(i64::try_from(now.0 / 1000).unwrap());
        let machine = &mut self.machines[at];
        let Some(run) = &mut machine.run else { return };
        let mut out = Vec::new();
        if self.rng.one_in(30) {
            // A crash of its actor: it continues from its checkpoint.
            run.recover(machine.acting.map(|(_, number, _)| number));
            run.step(now, wall, Input::Woke, &mut out);
        }
        run.step(now, wall, input, &mut out);
        let term = run.who().term;
        let name = self.reconciler.to_owned();
        for effect in out {
            match effect {
                Effect::Step { number, release, digest, epoch, step } => {
                    let request = ReconcilerRequest::Step { name: name.clone(), release, digest, term, epoch, step };
                    self.send(at, Question::Run(term, number, request));
                }
                Effect::Wave { number, release, digest, wave } => {
                    let request = ReconcilerRequest::Wave { name: name.clone(), release, digest, term, wave };
                    self.send(at, Question::Run(term, number, request));
                }
                Effect::Record { number, release, digest, defined, step } => {
                    if let Some((of, asked)) = &mut self.machines[at].carried_out {
                        *asked |= *of == step;
                    }
                    let name = name.clone();
                    let request = ReconcilerRequest::StepDone { name, release, digest, defined, term, step };
                    self.send(at, Question::Run(term, number, request));
                }
                Effect::Report(progress) => {
                    let request = ReconcilerRequest::Progress { progress: *progress };
                    self.send(at, Question::Run(term, 0, request));
                }
                Effect::Act { number, work } => {
                    self.check_action(at, term);
                    self.machines[at].step = work.step.map(|step| step.name);
                    self.check_step(at);
                    let takes = Duration::from_millis(self.rng.below(8000));
                    assert!(self.machines[at].acting.is_none(), "two actions at once (RUN-3)");
                    self.machines[at].acting = Some((term, number, now + takes));
                }
                Effect::Cancel { number } => {
                    if let Some((_, acting, ends)) = &mut self.machines[at].acting
                        && *acting == number
                    {
                        *ends = now;
                    }
                }
                Effect::Resign => drop(self.machines[at].eligibility.step(now, Facts::Resign).clone()),
                Effect::RecordRun(record) => {
                    self.send(at, Question::Run(term, 0, ReconcilerRequest::RecordRun { record }));
                }
                Effect::Log(_) => {}
            }
        }
    }

    fn tick(&mut self) {
        self.now = self.now + TICK;
        let now = self.now;
        self.judge.expire(now);
        while let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.key().0 <= now) {
            let (at, start, what) = entry.remove();
            self.arrive(at, start, what);
        }
        for at in 0..self.machines.len() {
            if self.machines[at].frozen <= now {
                self.beat(at);
            }
        }
        self.check_serving();
        let terms: Vec<_> = self.judge.writes.iter().map(|(term, _)| *term).collect();
        assert!(terms.is_sorted(), "a write of an older term after one of a newer (I5): {terms:?}");
        self.judge.writes.drain(..self.judge.writes.len().saturating_sub(1));
    }

    fn beat(&mut self, at: usize) {
        let now = self.now;
        self.check_clock(at);
        for part in [Part::Serving, Part::Record, Part::Runner] {
            let over = part != Part::Runner && self.member(at, part).core.admission_state().is_over();
            let keeper = match part {
                Part::Runner => self.machines[at].runner.as_mut(),
                _ => Some(&mut self.member(at, part).keeper),
            };
            if let Some(keeper) = keeper.filter(|keeper| keeper.ask_at <= now && !over) {
                keeper.ask_at = now + Duration::from_secs(if keeper.held.is_some() { 2 } else { 1 });
                let request = keeper.request();
                self.send(at, Question::Lease(part, now, request));
            }
            if part != Part::Runner && self.member(at, part).core.wake_at().is_some_and(|wake| wake <= now) {
                self.admit(at, part, AdmissionInput::Woke);
            }
        }
        if self.machines[at].read_at <= now && self.machines[at].cut <= now {
            self.machines[at].read_at = now + Duration::from_millis(100 + self.rng.below(400));
            let view = Arc::new(self.judge.view(self.reconciler, self.machines[at].release.triple));
            self.machines[at].view = Some(Arc::clone(&view));
            self.machines[at].eligibility.step(now, Facts::View { view: &view, runnable: true });
            self.drive(at, Input::View(view));
        }
        self.machines[at].eligibility.step(now, Facts::Woke);
        self.campaign(at);
        if let Some((_, number, _)) = self.machines[at].acting.take_if(|(.., ends)| *ends <= now) {
            let outcome = match self.rng.below(12) {
                0 => Outcome::Failed("no".into()),
                1 => Outcome::Later("later".into()),
                _ => Outcome::Done,
            };
            let done = outcome == Outcome::Done;
            self.runs_done += u64::from(done);
            let machine = &mut self.machines[at];
            machine.carried_out = machine.step.take().filter(|_| done).map(|step| (step, false));
            self.drive(at, Input::Acted { number, ended: Box::new(outcome.into()) });
            if self.machines[at].leaves_by.is_some() {
                self.check_last_record(at);
            }
        }
        if self.machines[at].run.as_ref().and_then(Run::wake_at).is_some_and(|wake| wake <= now) {
            self.drive(at, Input::Woke);
        }
    }

    fn campaign(&mut self, at: usize) {
        let stands = self.machines[at].eligibility.decision().stands;
        let session = SessionId(u128::from(self.rng.sample()));
        let machine = &mut self.machines[at];
        match (&machine.runner, stands) {
            (None, true) => {
                machine.runner = Some(Keeper::new(runner_lease(self.reconciler), machine.name, session));
            }
            (Some(_), false) if machine.leaves_by.is_none() => {
                machine.leaves_by = Some(self.now + RECORD_TIMEOUT);
                self.drive(at, Input::Ended);
                if self.machines[at].acting.is_none() {
                    self.check_last_record(at);
                }
                self.leave(at);
            }
            (Some(_), _) if machine.leaves_by.is_some() => self.leave(at),
            _ => {}
        }
    }

    /// Releases the lease of the runner once its action has ended, and everything is on record or takes too long.
    fn leave(&mut self, at: usize) {
        let (now, machine) = (self.now, &mut self.machines[at]);
        if machine.acting.is_some() {
            machine.leaves_by = Some(now + RECORD_TIMEOUT);
            return;
        }
        let is_recorded = machine.run.as_ref().is_none_or(Run::is_recorded);
        if !is_recorded && machine.leaves_by.is_some_and(|until| now < until) {
            return;
        }
        let Some(keeper) = &machine.runner else { return };
        let (lease, session, held) = (keeper.lease.clone(), keeper.session, keeper.held);
        self.lose(at, Part::Runner);
        if let Some((token, _)) = held {
            let release = LeaseRequest::Release { lease, session, token };
            self.send(at, Question::Lease(Part::Runner, now, release));
        }
    }
}

fn run_history(seed: u64) -> History {
    let mut history = History::new(seed);
    let seconds = 60 + history.rng.below(240);
    for tick in 0..seconds * 20 {
        history.tick();
        if tick % 20 == 0 && history.rng.one_in(4) {
            history.disturb();
        }
    }
    history.clear_faults();
    history
}

/// `MUSTER_SEED` runs only that seed.
#[test]
fn random_histories_stay_safe_and_converge() {
    if let Some(seed) = std::env::var("MUSTER_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run_history(seed);
        return;
    }
    let (mut acts, mut commands, mut last_records, mut deletions) = (0, 0, 0, 0);
    for seed in 0..60 {
        let outcome = std::panic::catch_unwind(|| run_history(seed));
        let command = "cargo test -p muster-reconciler --test scenarios histories -- --nocapture";
        let history = outcome.unwrap_or_else(|_| panic!("reproduce: MUSTER_SEED={seed} {command}"));
        acts += history.acts;
        commands += u64::from(history.runs_done > 0);
        last_records += history.last_records;
        deletions += history.deletions;
    }
    assert!(acts > 100 && commands > 10, "the histories cover too little: {acts} actions in {commands} of them");
    let chains = "the histories of chains cover too little";
    assert!(last_records > 0 && deletions > 0, "{chains}: {last_records} last records, {deletions} deletions");
}
