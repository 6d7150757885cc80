//! The history of runs: a record of each, when it begins and when it ends.
//!
//! Owns        the run in progress, and the records that the cluster has not confirmed.
//! Inputs      runs that begin and end; answers.
//! Outputs     one record at a time, in their order.
//! Invariants  RUN-7  each run of a term has its own number, and one record: the log replaces a record by the end of the same run, and
//!                    by nothing else. What is confirmed or refused is not sent again, and what is not answered only a few times.
//! Why no failure here delays or ends a run: the gate is what counts, and a history with a gap is better than a migration that is
//! repeated.

use std::collections::VecDeque;

use muster_messages::{RunExit, RunOutcome, RunRecord};

use super::*;

/// Records that wait for the cluster. If it takes none for so long it has no quorum, and the term ends soon.
const MAX_PENDING: usize = 16;
/// The pauses after attempts that were not answered; then the record is dropped. They outlast a change of leaders. A manager of an
/// older build does not know records: it closes the connection, each time.
const RETRY_PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(15)];

/// A run in progress.
#[derive(Clone, Debug, PartialEq)]
struct InProgress {
    record: RunRecord,
    since: Moment,
    kept: Kept,
}

/// What is recorded of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    All,
    /// It repairs drift: a success every few seconds would push everything else out.
    Failure,
    /// The cluster's feature level does not have records yet.
    Nothing,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Recording {
    /// The runs of this term that have begun.
    count: u64,
    current: Option<InProgress>,
    pending: VecDeque<RunRecord>,
    /// How many records have made room for newer ones since the last answer.
    pushed_out: usize,
    /// The first of them was sent, and is not answered.
    open: bool,
    /// The run and the outcome that were sent last, and how many of these attempts were not answered.
    sent: Option<(u64, RunOutcome)>,
    unanswered: usize,
    not_before: Moment,
}

impl Recording {
    /// The last answer may not have arrived.
    pub fn forget(&mut self) {
        self.open = false;
    }

    /// The run in progress was not begun after all: a crash came first.
    pub fn not_begun(&mut self) {
        let Some(InProgress { record, .. }) = self.current.take() else { return };
        if self.pending.back().is_some_and(|last| last.of_term == record.of_term) {
            self.pending.pop_back();
        }
    }

    /// The number of the run in progress: its request is sent again after a crash.
    pub fn in_progress(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.record.of_term)
    }

    /// A run of this definition, or of a step of its chain, begins; its number in this term.
    pub fn begins(
        &mut self,
        who: &Runner,
        (now, wall): (Moment, WallTime),
        (release, step): (&Release, Option<&str>),
        attempt: u32,
        kept: Kept,
    ) -> u64 {
        self.count += 1;
        let record = RunRecord {
            reconciler: who.reconciler.clone(),
            number: 0,
            term: who.term,
            of_term: self.count,
            attempt,
            node: who.node,
            release: release.clone(),
            step: step.map(str::to_owned),
            began: wall,
            ran_for_ms: None,
            exit: None,
            outcome: RunOutcome::Running,
            head: String::new(),
            tail: String::new(),
            revision: Revision(0),
        };
        if kept == Kept::All {
            self.push(record.clone());
        }
        self.current = Some(InProgress { record, since: now, kept });
        self.count
    }

    /// The run in progress has ended.
    pub fn ends(&mut self, now: Moment, outcome: RunOutcome, exit: RunExit, (head, tail): (&str, &str)) {
        let Some(InProgress { record, since, kept }) = self.current.take() else { return };
        if kept == Kept::Nothing || kept == Kept::Failure && outcome == RunOutcome::Done {
            return;
        }
        let ran_for_ms = u64::try_from(now.since(since).as_millis()).ok();
        let (head, tail) = (head.to_owned(), tail.to_owned());
        self.push(RunRecord { ran_for_ms, exit: Some(exit), outcome, head, tail, ..record }.truncated());
    }

    fn push(&mut self, record: RunRecord) {
        // Its beginning need not be written any more, unless it may be on its way.
        let kept = usize::from(self.open);
        while self.pending.len() > kept && self.pending.back().is_some_and(|last| last.of_term == record.of_term) {
            self.pending.pop_back();
        }
        if self.pending.len() >= MAX_PENDING && self.pending.remove(kept).is_some() {
            self.pushed_out += 1;
        }
        self.pending.push_back(record);
    }

    /// The cluster has decided about the first one, or has not answered. Returns a line for the log if a record was dropped: that one, or
    /// others since the last answer.
    pub fn answered(&mut self, now: Moment, decided: bool) -> Option<String> {
        let reconciler = self.pending.back().map(|last| last.reconciler.clone());
        let given_up = self.settle(now, decided);
        let pushed_out = reconciler.filter(|_| self.pushed_out > 0).map(|reconciler| {
            let count = std::mem::take(&mut self.pushed_out);
            format!("{reconciler}: {count} records of runs made room for newer ones before the cluster had answered; they are not recorded")
        });
        let lines: Vec<String> = given_up.into_iter().chain(pushed_out).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    /// Returns why the first one was given up.
    fn settle(&mut self, now: Moment, decided: bool) -> Option<String> {
        if !std::mem::take(&mut self.open) {
            return None;
        }
        if decided {
            self.pending.pop_front();
            return None;
        }
        if let Some(pause) = RETRY_PAUSES.get(self.unanswered) {
            self.unanswered += 1;
            self.not_before = now + *pause;
            return None;
        }
        let RunRecord { reconciler, term, of_term, outcome, .. } = self.pending.pop_front()?;
        let what = if outcome == RunOutcome::Running { "beginning" } else { "end" };
        let attempts = self.unanswered + 1;
        Some(format!(
            "{reconciler}: the cluster answered none of {attempts} attempts to record the {what} of run {of_term} of term {term}; \
             it is not recorded"
        ))
    }

    /// The record to send now, if any.
    pub fn next(&mut self, now: Moment) -> Option<RunRecord> {
        let next = self.pending.front().filter(|_| !self.open && self.not_before <= now)?.clone();
        let of = Some((next.of_term, next.outcome));
        if self.sent != of {
            (self.sent, self.unanswered) = (of, 0);
        }
        self.open = true;
        Some(next)
    }

    pub fn wake_at(&self) -> Option<Moment> {
        (!self.open && !self.pending.is_empty()).then_some(self.not_before)
    }

    /// Whether nothing is in progress, and every record is written or refused.
    pub fn is_complete(&self) -> bool {
        self.current.is_none() && self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::{CommandAction, ErrorCode, GatePath};

    use super::super::scenario::{Scenario, command};
    use super::*;

    fn recorded(scenario: &Scenario) -> Vec<(u64, u32, RunOutcome)> {
        scenario.records.iter().map(|record| (record.of_term, record.attempt, record.outcome)).collect()
    }

    #[test]
    fn runs_are_recorded_when_they_begin_and_end() {
        use RunOutcome as R;
        let mut scenario = Scenario::new(command(), GatePath::First);
        scenario.unchanged_view();
        for outcome in [Outcome::Failed("no".into()), Outcome::Later("not yet".into()), Outcome::Done] {
            scenario.pass_until_it_acts();
            let (number, work) = scenario.acts();
            assert_eq!(scenario.records.last().unwrap().of_term, work.of_term);
            scenario.pass(700);
            scenario.end(number, outcome);
        }
        let begins_and_ends = |n, outcome| [(u64::from(n), n, R::Running), (u64::from(n), n, outcome)];
        let expected = [(1, R::Failed), (2, R::Later), (3, R::Done)].map(|(n, outcome)| begins_and_ends(n, outcome));
        assert_eq!(recorded(&scenario), expected.concat());
        let RunRecord { ran_for_ms, exit, head, tail, .. } = &scenario.records[1];
        assert_eq!((*ran_for_ms, exit.as_ref().unwrap().text.as_str()), (Some(700), "no"));
        assert_eq!((head.as_str(), tail.as_str()), ("begin", "out"));
        assert!(scenario.run.is_recorded());
    }

    #[test]
    fn timeout_and_replacement_are_recorded_as_such() {
        for (replaced, expected) in [(false, RunOutcome::TimedOut), (true, RunOutcome::Cancelled)] {
            let mut scenario = Scenario::new(command(), GatePath::First);
            scenario.unchanged_view();
            let (number, _) = scenario.acts();
            if replaced {
                scenario.change_view(|view| view.definition.as_mut().unwrap().digest = "other".into());
            } else {
                scenario.pass(60_000);
            }
            scenario.end(number, Outcome::Failed("ended by signal 15".into()));
            assert_eq!(scenario.records[1].outcome, expected);
        }
    }

    #[test]
    fn replacement_ends_the_run_of_an_object_set() {
        use RunOutcome as R;
        for awaits in [false, true] {
            let mut scenario = Scenario::new(Action::Objects(vec![]), GatePath::First);
            scenario.unchanged_view();
            let Effect::Wave { number, .. } = scenario.only() else { panic!("no wave") };
            let waved = |scenario: &mut Scenario| {
                let waiting = awaits.then(|| "it is not ready".to_owned());
                scenario.receive(Input::Waved { number, result: Ok(Waved { waiting, ..Waved::default() }) });
            };
            if awaits {
                waved(&mut scenario);
            }
            scenario.change_view(|view| {
                let definition = view.definition.as_mut().unwrap();
                (definition.digest, definition.release) = ("other".into(), "2.1.0".parse().unwrap());
            });
            assert_eq!(recorded(&scenario)[..2], [(1, 1, R::Running), (1, 1, R::Cancelled)]);
            if !awaits {
                waved(&mut scenario);
            }
            assert_eq!(recorded(&scenario)[2..], [(2, 1, R::Running)], "it is another run");
            assert_eq!(scenario.records[2].release.to_string(), "2.1.0");
            assert!(matches!(scenario.only(), Effect::Wave { wave: 0, .. }));
        }
    }

    #[test]
    fn end_of_a_term_is_recorded_once_its_action_has_ended() {
        for (outcome, expected) in
            [(Outcome::Failed("signal 15".into()), RunOutcome::TermEnded), (Outcome::Done, RunOutcome::Done)]
        {
            let mut scenario = Scenario::new(command(), GatePath::First);
            scenario.unchanged_view();
            let (number, _) = scenario.acts();
            scenario.receive(Input::Ended);
            scenario.receive(Input::Ended);
            assert!(!scenario.run.is_recorded() && scenario.records.len() == 1);
            scenario.end(number, outcome.clone());
            scenario.end(number, outcome);
            assert_eq!(recorded(&scenario)[1..], [(1, 1, expected)]);
            assert!(scenario.run.is_recorded());
        }
    }

    #[test]
    fn successful_repairs_are_not_recorded() {
        let mut scenario = Scenario::new(Action::Objects(vec![]), GatePath::Reached);
        scenario.change_view(|view| view.waves = 1);
        let wave = |scenario: &mut Scenario, result: Result<Waved, ErrorBody>| {
            scenario.pass_until(|effect| matches!(effect, Effect::Wave { .. }));
            let Effect::Wave { number, .. } = scenario.only() else { panic!("no wave") };
            scenario.receive(Input::Waved { number, result });
        };
        wave(&mut scenario, Ok(Waved::default()));
        assert_eq!(recorded(&scenario), [(1, 1, RunOutcome::Running), (1, 1, RunOutcome::Done)]);
        wave(&mut scenario, Ok(Waved::default()));
        wave(&mut scenario, Err(ErrorBody::new(ErrorCode::NoQuorum, "none")));
        assert_eq!(recorded(&scenario)[2..], [(3, 1, RunOutcome::Later)]);
        assert_eq!(scenario.records[2].exit.as_ref().unwrap().text, "none");
    }

    #[test]
    fn nothing_is_recorded_below_the_feature_level() {
        let action = Action::Command(CommandAction { argv: vec!["true".into()], env: Default::default() });
        let mut scenario = Scenario::new(action, GatePath::First);
        scenario.change_view(|view| view.records_runs = false);
        let (number, work) = scenario.acts();
        scenario.end(number, Outcome::Done);
        assert_eq!((work.of_term, scenario.records.len()), (1, 0));
        assert!(scenario.run.is_recorded());
    }

    fn begun() -> (Recording, Runner, Moment) {
        let who = Scenario::new(command(), GatePath::First).run.who().clone();
        let (mut recording, now) = (Recording::default(), Moment(1_000_000));
        recording.begins(&who, (now, WallTime(1)), (&who.release, None), 1, Kept::All);
        (recording, who, now)
    }
    fn ends(recording: &mut Recording, now: Moment) {
        recording.ends(now, RunOutcome::Done, RunExit::default(), ("", ""));
    }

    #[test]
    fn unanswered_record_is_sent_again_and_a_decided_one_is_not() {
        let (mut recording, _, now) = begun();
        assert!(recording.next(now).is_some() && recording.next(now).is_none(), "one at a time");
        recording.answered(now, false);
        assert_eq!((recording.next(now), recording.wake_at()), (None, Some(now + RETRY_PAUSES[0])));
        assert!(recording.next(now + RETRY_PAUSES[0]).is_some());
        recording.forget(); // a crash of its actor
        assert!(recording.next(now + RETRY_PAUSES[0]).is_some());
        recording.answered(now, true);
        recording.answered(now, true); // repeated
        assert_eq!((recording.next(now + RETRY_PAUSES[0] * 2), recording.wake_at()), (None, None));
    }

    /// An older daemon closes the connection each time.
    #[test]
    fn record_that_is_never_answered_is_dropped() {
        let (mut recording, _, mut now) = begun();
        let first = recording.next(now).unwrap();
        ends(&mut recording, now);
        for pause in RETRY_PAUSES {
            assert_eq!(recording.answered(now, false), None);
            assert_eq!(recording.wake_at(), Some(now + pause));
            now = now + pause;
            assert_eq!(recording.next(now).as_ref(), Some(&first));
        }
        let line = recording.answered(now, false).unwrap();
        assert!(line.contains("none of 4 attempts") && line.contains("beginning of run 1"), "{line}");
        // The next one is given as many.
        assert_eq!(recording.next(now).map(|record| record.outcome), Some(RunOutcome::Done));
        assert_eq!(recording.answered(now, false), None);
        now = now + RETRY_PAUSES[0];
        assert!(recording.next(now).is_some());
        assert_eq!(recording.answered(now, true), None);
        assert!(recording.is_complete());
    }

    #[test]
    fn end_replaces_a_beginning_that_was_not_sent() {
        for sent in [false, true] {
            let (mut recording, _, now) = begun();
            let mut outcomes = Vec::new();
            if sent {
                outcomes.extend(recording.next(now).map(|record| record.outcome));
            }
            ends(&mut recording, now);
            if sent {
                recording.answered(now, true);
            }
            outcomes.extend(recording.next(now).map(|record| record.outcome));
            let expected = if sent { vec![RunOutcome::Running, RunOutcome::Done] } else { vec![RunOutcome::Done] };
            assert_eq!(outcomes, expected);
        }
    }

    #[test]
    fn records_that_wait_are_bounded_and_the_newest_stay() {
        let (mut recording, who, now) = begun();
        let first = recording.next(now).unwrap();
        for attempt in 2..100 {
            ends(&mut recording, now);
            recording.begins(&who, (now, WallTime(1)), (&who.release, None), attempt, Kept::All);
        }
        ends(&mut recording, now);
        assert_eq!(recording.pending.len(), MAX_PENDING);
        let said = recording.answered(now, false).expect("a line for the log");
        assert!(said.starts_with("schema: 84 records of runs made room for newer ones"), "{said}");
        assert_eq!(recording.next(now + RETRY_PAUSES[0]), Some(first), "the one that was sent is still the first");
        assert_eq!(recording.pending.back().map(|last| last.of_term), Some(99));
    }
}
