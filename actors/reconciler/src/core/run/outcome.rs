//! Results of steps, waves and actions.

use muster_messages::ErrorCode;

use super::*;

impl Run {
    pub(super) fn stepped(
        &mut self,
        now: Moment,
        wall: WallTime,
        number: u64,
        result: Result<Stepped, ErrorBody>,
        out: &mut Out,
    ) {
        let Phase::Stepping { number: asked, step } = self.phase else { return };
        if asked != number {
            return;
        }
        let Some(view) = self.view.clone() else { return self.reconsider() };
        match result {
            Ok(stepped) => {
                self.last_step = Some((stepped, now + MAX_VIEW_LAG));
                self.named.clear();
                let definition = view.definition.as_ref();
                let current =
                    definition.filter(|definition| self.job.as_ref().is_some_and(|job| job.is_of(definition)));
                match (current, step) {
                    (Some(definition), GateStep::Complete) => self.succeeded(now, definition),
                    (Some(definition), GateStep::Work | GateStep::Restrict) => {
                        if let Some(job) = &mut self.job {
                            job.stepped = Some(stepped.epoch);
                        }
                        self.apply(now, &view, definition, out);
                    }
                    (None, _) => self.superseded(),
                }
            }
            Err(body) if is_refusal(body.code) => self.refused(now, &view),
            Err(body) => self.trouble(now, wall, body.message, out),
        }
    }

    pub(super) fn waved(
        &mut self,
        now: Moment,
        wall: WallTime,
        number: u64,
        result: Result<Waved, ErrorBody>,
        out: &mut Out,
    ) {
        if self.phase != (Phase::Waving { number }) {
            return;
        }
        // Without a job another definition has replaced it.
        let (Some(view), Some(job)) = (self.view.clone(), &mut self.job) else { return self.reconsider() };
        let Some(definition) = &view.definition else { return self.reconsider() };
        let recording = &mut self.recording;
        let mut ends = |outcome, text: &str| {
            let exit = RunExit { text: in_short(text, MAX_ERROR_BYTES), ..RunExit::default() };
            recording.ends(now, outcome, exit, ("", ""));
        };
        match result {
            Ok(Waved { waiting: Some(why), .. }) => self.awaits(now, wall, &why, definition.run_timeout_ms, out),
            Ok(waved) if waved.errors.is_empty() => {
                job.wave += 1;
                job.awaited_until = None;
                if job.wave < waves(&view) {
                    let wave = job.wave;
                    self.wave(wave, out);
                } else {
                    ends(RunOutcome::Done, "");
                    self.ran(now, &view, definition, out);
                }
            }
            Ok(waved) => {
                let named = |error: &ObjectError| {
                    let key = error.key.as_str().map_or_else(|| error.key.to_string(), str::to_owned);
                    format!("{key}: {}", error.message)
                };
                let first: Vec<_> = waved.errors.iter().take(3).map(named).collect();
                let in_all = waved.errors_in_all.max(u32::try_from(waved.errors.len()).unwrap_or(u32::MAX));
                let text = format!("objects that could not be applied: {in_all}; {}", first.join("; "));
                ends(RunOutcome::Failed, &text);
                self.failed(now, wall, text, out);
            }
            Err(body) if is_refusal(body.code) => {
                ends(RunOutcome::Cancelled, &body.message);
                self.refused(now, &view);
            }
            Err(body) => {
                ends(RunOutcome::Later, &body.message);
                self.trouble(now, wall, body.message, out);
            }
        }
    }

    /// The next step of a chain begins once the one before is on record, by a view that shows that: an operator may have paused
    /// it, or a member may block it, meanwhile.
    pub(super) fn recorded(
        &mut self,
        now: Moment,
        wall: WallTime,
        number: u64,
        result: Result<Recorded, ErrorBody>,
        out: &mut Out,
    ) {
        if self.last_record == Some(number) {
            // Whatever the answer is: the term does not last for another attempt.
            self.last_record = None;
            return;
        }
        if self.phase != (Phase::Recording { number }) {
            return;
        }
        let Some(view) = self.view.clone() else { return self.reconsider() };
        match result {
            Ok(Recorded { revision }) => {
                // An older view does not have it yet.
                self.last_step = Some((Stepped { epoch: view.gate.epoch, revision }, now + MAX_VIEW_LAG));
                self.failures.end();
                if let Some(job) = &mut self.job {
                    (job.step, job.carried_out, job.attempt) = (job.step + 1, None, 0);
                }
                self.reconsider();
            }
            Err(body) if is_refusal(body.code) => self.refused(now, &view),
            Err(body) => self.trouble(now, wall, body.message, out),
        }
    }

    /// The wave waits for a condition, until the time of the run is over.
    fn awaits(&mut self, now: Moment, wall: WallTime, why: &str, limit_ms: u64, out: &mut Out) {
        let why = in_short(why, MAX_ERROR_BYTES);
        let Some(job) = &mut self.job else { return self.reconsider() };
        let limit = Duration::from_millis(limit_ms);
        let until = *job.awaited_until.get_or_insert(now + limit);
        if limit_ms > 0 && until <= now {
            let text = format!("{why}; it has waited for {limit:?}, the timeout of the definition");
            let exit = RunExit { text: in_short(&text, MAX_ERROR_BYTES), ..RunExit::default() };
            self.recording.ends(now, RunOutcome::TimedOut, exit, ("", ""));
            return self.failed(now, wall, text, out);
        }
        let again_at = now + CONDITION_RECHECK_DELAY;
        let again_at = if limit_ms > 0 { again_at.min(until) } else { again_at };
        self.phase = Phase::Awaiting { again_at, why };
    }

    pub(super) fn acted(&mut self, now: Moment, wall: WallTime, number: u64, ended: Ended, out: &mut Out) {
        let (is_over, cancelled) = match self.phase {
            Phase::Acting { number: acting, cancelled, .. } if acting == number => (false, cancelled),
            Phase::Ended if self.ending == Some(number) => (true, None),
            _ => return,
        };
        let Ended { outcome, exit, head, output } = ended;
        let exit = RunExit { text: outcome.why().to_owned(), ..exit };
        self.recording.ends(now, run_outcome(&outcome, cancelled, is_over), exit, (&head, &output));
        if is_over {
            self.ending = None;
            if let Some(job) = self.job.as_mut().filter(|_| outcome == Outcome::Done) {
                job.carried_out = Some(job.step);
                self.record_last(out);
            }
            return;
        }
        self.output = output;
        let Some(view) = self.view.clone() else { return self.reconsider() };
        let digest = self.job.as_ref().map(|job| job.digest.clone());
        let current = view.definition.as_ref().filter(|d| Some(&d.digest) == digest.as_ref());
        let Some(definition) = current else { return self.superseded() };
        match (outcome, cancelled) {
            // A success counts, however late.
            (Outcome::Done, _) if matches!(definition.action, Action::Chain(_)) => {
                self.tally.ends(now, false);
                let Some(job) = &mut self.job else { return self.reconsider() };
                job.carried_out = Some(job.step);
                // Under a definition that has replaced the one whose step this was, the gate does not lead to it yet. After a
                // deletion the step does not count.
                let leads = job.stepped.is_some() || !job.completes || view.gate.reconciled.is_none();
                if leads && job.is_of(definition) { self.apply(now, &view, definition, out) } else { self.reconsider() }
            }
            (Outcome::Done, _) => self.ran(now, &view, definition, out),
            (_, Some(Cancelled::Superseded)) => self.superseded(),
            (_, Some(Cancelled::TimedOut)) => {
                let limit = Duration::from_millis(definition.run_timeout_ms);
                self.failed(now, wall, format!("the action did not end within {limit:?}"), out);
            }
            (Outcome::Later(why), None) => self.trouble(now, wall, why, out),
            (Outcome::Failed(why), None) => self.failed(now, wall, why, out),
            (Outcome::Permanent(why), None) => self.given_up(now, &in_short(&why, MAX_ERROR_BYTES), out),
        }
    }

    /// The action has succeeded; the gate is completed unless it already is.
    pub(super) fn ran(&mut self, now: Moment, view: &RunnerView, definition: &Definition, out: &mut Out) {
        self.tally.ends(now, false);
        let Some(job) = &mut self.job else { return self.reconsider() };
        if !job.completes {
            return self.succeeded(now, definition);
        }
        job.ran = true;
        self.apply(now, view, definition, out);
    }

    /// The run is complete; the result is now kept.
    pub(super) fn succeeded(&mut self, now: Moment, definition: &Definition) {
        self.job = None;
        self.again = false;
        self.failures.end();
        let next = definition.every_ms.map(|ms| now + Duration::from_millis(ms));
        self.applied = Some(Applied { digest: definition.digest.clone(), next });
        self.phase = Phase::Kept { next };
    }

    /// Another definition has replaced the current one.
    fn superseded(&mut self) {
        self.job = None;
        self.reconsider();
    }

    /// RUN-2. The gate was not in the expected state, or a member blocks it after all: a newer view shows which.
    fn refused(&mut self, now: Moment, view: &RunnerView) {
        if let Some(job) = &mut self.job {
            (job.stepped, job.refused, job.wave, job.awaited_until) = (None, true, 0, None);
        }
        self.phase = Phase::Deciding { after: view.revision, until: now + REFUSAL_RECHECK_DELAY };
    }

    /// Not counted as a failure: it is retried.
    fn trouble(&mut self, now: Moment, wall: WallTime, why: String, out: &mut Out) {
        let pause = self.failures.pause();
        self.retry(now, wall, pause, why, out);
    }

    fn failed(&mut self, now: Moment, wall: WallTime, why: String, out: &mut Out) {
        self.tally.ends(now, true);
        self.failures.count();
        let view = self.view.clone();
        let definition = view.as_ref().and_then(|view| view.definition.as_ref());
        if definition.is_some_and(|d| self.failures.in_a_row >= d.resign_after) && self.has_equal() {
            let why = self.remember(now, &why, out);
            let (name, n) = (&self.who.reconciler, self.failures.in_a_row);
            out.push(Effect::Log(LogLine::Warn(format!(
                "{name} failed {n} times on this node; resigning for another: {why}{}",
                last_lines(&self.output)
            ))));
            self.phase = Phase::Resigning { why, lost_at: None };
            return;
        }
        let periodic = self.job.as_ref().is_some_and(|job| job.periodic);
        let pause = match definition.and_then(|d| d.every_ms).filter(|_| periodic) {
            // What was applied once most likely still is; a later retry suffices.
            Some(every) => Duration::from_millis(every),
            None => self.failures.pause(),
        };
        self.retry(now, wall, pause, why, out);
    }

    fn retry(&mut self, now: Moment, wall: WallTime, pause: Duration, why: String, out: &mut Out) {
        let why = self.remember(now, &why, out);
        self.phase = Phase::Retrying { at: now + pause, wall: wall.plus(pause), why };
    }

    /// Keeps what went wrong, and returns it in short.
    fn remember(&mut self, now: Moment, why: &str, out: &mut Out) -> String {
        let why = in_short(why, MAX_ERROR_BYTES);
        if self.failures.remember(now, &why) {
            out.push(Effect::Log(LogLine::Error(format!("{}: attempt failed: {why}", self.who.reconciler))));
        }
        why
    }

    fn given_up(&mut self, now: Moment, why: &str, out: &mut Out) {
        self.tally.ends(now, true);
        self.failures.count();
        let name = &self.who.reconciler;
        out.push(Effect::Log(LogLine::Error(format!("{name} failed permanently: {why}{}", last_lines(&self.output)))));
        self.failures.last_error = Some(why.to_owned());
        self.phase = Phase::Failed { why: why.to_owned() };
    }
}

/// How an action ended, in the words of its record.
fn run_outcome(outcome: &Outcome, cancelled: Option<Cancelled>, is_over: bool) -> RunOutcome {
    match (outcome, cancelled) {
        (Outcome::Done, _) => RunOutcome::Done,
        _ if is_over => RunOutcome::TermEnded,
        (_, Some(Cancelled::Superseded)) => RunOutcome::Cancelled,
        (_, Some(Cancelled::TimedOut)) => RunOutcome::TimedOut,
        (Outcome::Later(_), None) => RunOutcome::Later,
        (Outcome::Failed(_), None) => RunOutcome::Failed,
        (Outcome::Permanent(_), None) => RunOutcome::Permanent,
    }
}

/// Lines of output in a line of the log.
const LOGGED_LINES: usize = 3;
/// Maximum length of these.
const MAX_LOGGED_BYTES: usize = 600;

/// The end of an action's output, as the end of a line of the log.
fn last_lines(output: &str) -> String {
    let mut lines: Vec<&str> = output.lines().rev().filter(|line| !line.trim().is_empty()).take(LOGGED_LINES).collect();
    lines.reverse();
    if lines.is_empty() {
        String::new()
    } else {
        format!("; output: {}", in_short(&lines.join(" | "), MAX_LOGGED_BYTES))
    }
}

/// The cluster has decided, and would decide the same again.
fn is_refusal(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Conflict | ErrorCode::GateClosed | ErrorCode::NotFound)
}
