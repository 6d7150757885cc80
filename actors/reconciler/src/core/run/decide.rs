//! The next action by the newest view: wait, advance the gate, settle, or apply.

use muster_messages::wire::RunnerView;
use muster_messages::{Definition, GatePath, GateStep, HoldReason, HoldView, Word};

use super::*;

impl Run {
    /// The only reader of holds, paths and blockers.
    pub(super) fn decide(&mut self, now: Moment, view: &Arc<RunnerView>, out: &mut Out) {
        if let Some(job) = &mut self.job {
            // A completed action is not repeated while the gate is in transition under our own term: an operator may have moved
            // its floor. Nor before a gate exists: no other runner has run during our term.
            let ours = view.gate.at_work && view.gate.term == self.who.term || view.gate.reconciled.is_none();
            job.ran &= !job.refused || ours;
            job.refused = false;
        }
        let Some(definition) = &view.definition else {
            let message = format!("no definition of release {} exists", self.who.release);
            return self.wait(ReconcilerPhase::Waiting, PhaseReason::NoDefinition, message);
        };
        if let Some(until) = self.lags(now, view) {
            self.phase = Phase::Deciding { after: view.revision, until };
            return;
        }
        self.heed_deleted_record(definition);
        match &view.hold {
            // Finalization need not be offered while it is blocked.
            Some(hold) if hold.reason == HoldReason::ReadyToFinalize && view.blockers_in_all > 0 => {
                return self.wait_for_blockers(view, definition, out);
            }
            Some(hold) => return self.hold(hold),
            None => {}
        }
        let Some(path) = view.path.as_ref().and_then(Word::known) else {
            let message = format!("unknown gate path: {}", view.path.as_ref().map_or("none", Word::text));
            return self.wait(ReconcilerPhase::Blocked, PhaseReason::UnknownPath, message);
        };
        let blocked = view.blockers_in_all > 0;
        match path {
            GatePath::Reached => self.reached(now, view, definition, out),
            // A member that was asked to stop serves until it has stopped.
            GatePath::Open if blocked && !self.has_begun(view) => self.wait_for_blockers(view, definition, out),
            GatePath::Open => self.open(now, view, definition, out),
            GatePath::Restrict | GatePath::First if blocked => self.wait_for_blockers(view, definition, out),
            GatePath::Restrict => {
                self.job_of(view, definition, true);
                self.take(view.gate.epoch, GateStep::Restrict, out);
            }
            GatePath::First => {
                // Nothing was applied before: a late write can only be an earlier attempt of the same definition.
                self.job_of(view, definition, true).settled = true;
                self.apply(now, view, definition, out);
            }
        }
    }

    /// Until when a view counts as older than our own last step.
    fn lags(&self, now: Moment, view: &RunnerView) -> Option<Moment> {
        let (step, until) = self.last_step?;
        let older = match step.revision {
            Revision(0) => view.gate.epoch < step.epoch,
            revision => view.revision < revision,
        };
        (older && now < until).then_some(until)
    }

    /// The reconciler was deleted, with the record of its chain, and the same definition was applied: steps that ran before are run
    /// again.
    fn heed_deleted_record(&mut self, definition: &Definition) {
        let is_chain = matches!(definition.action, Action::Chain(_));
        let current = self.job.as_mut().filter(|job| is_chain && job.digest == definition.digest);
        if let Some(job) = current.filter(|job| job.defined != definition.revision) {
            (job.defined, job.step, job.carried_out) = (definition.revision, 0, None);
            (job.attempt, job.ran) = (0, false);
        }
    }

    /// The job for this definition: the current one, or a new one.
    fn job_of(&mut self, view: &RunnerView, definition: &Definition, completes: bool) -> &mut Job {
        let current = self.job.take().filter(|job| job.digest == definition.digest && job.completes == completes);
        self.job.insert(current.unwrap_or_else(|| Job {
            digest: definition.digest.clone(),
            release: definition.release.triple,
            defined: definition.revision,
            from: view.gate.reconciled.clone(),
            stepped: None,
            settled: false,
            completes,
            periodic: false,
            wave: 0,
            awaited_until: None,
            step: view.steps_done,
            carried_out: None,
            attempt: 0,
            ran: false,
            refused: false,
        }))
    }

    /// The gate is at the target. It is applied again each period, and once at the beginning of a term, to be sure that nothing
    /// has drifted.
    fn reached(&mut self, now: Moment, view: &RunnerView, definition: &Definition, out: &mut Out) {
        if self.job.as_ref().is_some_and(|job| job.completes) {
            // Our own completion, whose answer was lost; or an operator's repair.
            let ran = self.job.take().is_some_and(|job| job.ran);
            if ran {
                return self.succeeded(now, definition);
            }
        }
        if self.job.is_none() {
            let applied = self.applied.as_ref().filter(|applied| applied.digest == definition.digest);
            let (due, next, periodic) = match applied {
                Some(applied) => (applied.next.is_some_and(|next| next <= now), applied.next, true),
                // `once` means once, in whichever term; unless an operator asks for it.
                None => (definition.every_ms.is_some() || self.again, None, false),
            };
            if !due {
                self.applied = Some(Applied { digest: definition.digest.clone(), next });
                self.phase = Phase::Kept { next };
                return;
            }
            let job = self.job_of(view, definition, false);
            (job.periodic, job.settled) = (periodic, periodic);
        }
        self.apply(now, view, definition, out);
    }

    /// Whether our own step began the current transition: then no member blocks it any more.
    fn has_begun(&self, view: &RunnerView) -> bool {
        self.job.as_ref().is_some_and(|job| job.stepped.is_some()) && view.gate.term == self.who.term
    }

    /// The gate admits no member that is incompatible with the outcome.
    fn open(&mut self, now: Moment, view: &RunnerView, definition: &Definition, out: &mut Out) {
        let term = self.who.term;
        let (epoch, by) = (view.gate.epoch, view.gate.term);
        let job = self.job_of(view, definition, true);
        // Written by no runner but us since our step.
        let ours = job.stepped.is_some_and(|stepped| stepped > epoch || stepped == epoch && by == term);
        if ours {
            self.apply(now, view, definition, out);
        } else {
            self.take(epoch, GateStep::Work, out);
        }
    }

    fn take(&mut self, epoch: u64, step: GateStep, out: &mut Out) {
        let (number, (release, digest)) = (self.number(), self.applied_definition());
        self.phase = Phase::Stepping { number, step };
        out.push(Effect::Step { number, release, digest, epoch, step });
    }

    /// Settles first; then the next attempt, or the end of the run.
    pub(super) fn apply(&mut self, now: Moment, view: &RunnerView, definition: &Definition, out: &mut Out) {
        let Some(job) = &mut self.job else { return self.reconsider() };
        if !job.settled && definition.settle_ms > 0 {
            self.phase = Phase::Settling { until: now + Duration::from_millis(definition.settle_ms) };
            return;
        }
        if job.ran {
            let epoch = job.stepped.unwrap_or(view.gate.epoch);
            return self.take(epoch, GateStep::Complete, out);
        }
        let mut step = None;
        if let Action::Chain(steps) = &definition.action {
            job.step = job.step.max(view.steps_done);
            step = steps.get(job.step).cloned();
            match &step {
                // The others have run, by this definition or by earlier ones.
                None => return self.ran(now, view, definition, out),
                Some(step) if job.carried_out == Some(job.step) => return self.record(&step.name.clone(), out),
                Some(_) => {}
            }
        }
        // The waves of an object set, however often one of them waits, are one attempt.
        let continues = is_object_set(definition) && job.attempt > 0 && self.recording.in_progress().is_some();
        if !continues {
            // Unless it is over: a run whose job the gate has replaced.
            self.recording.ends(now, RunOutcome::Cancelled, RunExit::default(), ("", ""));
            (job.attempt, job.awaited_until) = (job.attempt + 1, None);
            self.tally.begins(now);
        }
        let (attempt, wave, from) = (job.attempt, job.wave, job.from.clone());
        let kept = match (view.records_runs, job.periodic) {
            (false, _) => Kept::Nothing,
            (true, true) => Kept::Failure,
            (true, false) => Kept::All,
        };
        let of = (&definition.release, step.as_ref().map(|step| step.name.as_str()));
        if continues {
            return self.wave(wave, out);
        }
        let of_term = self.recording.begins(&self.who, (now, self.wall), of, attempt, kept);
        if is_object_set(definition) {
            return self.wave(wave, out);
        }
        let number = self.number();
        let limit = Some(definition.run_timeout_ms).filter(|ms| *ms > 0);
        let deadline = limit.map(|ms| now + Duration::from_millis(ms));
        self.phase = Phase::Acting { number, deadline, cancelled: None };
        let work = Work { from, definition: Arc::new(definition.clone()), attempt, step, of_term };
        out.push(Effect::Act { number, work: Box::new(work) });
    }

    fn record(&mut self, step: &str, out: &mut Out) {
        let number = self.request_record(step, out);
        self.phase = Phase::Recording { number };
    }

    /// The term is over, and its lease is held until this is answered, for a moment: afterwards a successor would run the step
    /// again.
    pub(super) fn record_last(&mut self, out: &mut Out) {
        let Some(job) = self.job.as_ref().filter(|job| job.carried_out == Some(job.step)) else { return };
        let definition = self.view.as_ref().and_then(|view| view.definition.as_ref());
        let action = definition.filter(|definition| definition.digest == job.digest).map(|d| &d.action);
        let Some(Action::Chain(steps)) = action else { return };
        let step = steps.get(job.step).map(|step| step.name.clone());
        self.last_record = step.map(|step| self.request_record(&step, out));
    }

    fn request_record(&mut self, step: &str, out: &mut Out) -> u64 {
        let (number, (release, digest)) = (self.number(), self.applied_definition());
        let defined = self.job.as_ref().map(|job| job.defined).unwrap_or_default();
        out.push(Effect::Record { number, release, digest, defined, step: step.to_owned() });
        number
    }

    pub(super) fn wave(&mut self, wave: u32, out: &mut Out) {
        let (number, (release, digest)) = (self.number(), self.applied_definition());
        self.phase = Phase::Waving { number };
        out.push(Effect::Wave { number, release, digest, wave });
    }

    /// Release and digest of the definition that is applied.
    fn applied_definition(&self) -> (Triple, String) {
        let job = self.job.as_ref().map(|job| (job.release, job.digest.clone()));
        job.unwrap_or((self.who.release.triple, String::new()))
    }

    fn wait(&mut self, phase: ReconcilerPhase, reason: PhaseReason, message: String) {
        self.phase = Phase::Waiting(Described { phase, reason: reason.into(), message });
    }

    fn hold(&mut self, hold: &HoldView) {
        // An operator must resolve whatever only a newer release knows.
        let phase = hold.reason.known().map_or(ReconcilerPhase::Blocked, HoldReason::phase);
        let reason = hold.reason.within();
        self.phase = Phase::Waiting(Described { phase, reason, message: hold.message.clone() });
    }

    /// Names the blockers, and logs each set of releases once.
    fn wait_for_blockers(&mut self, view: &RunnerView, definition: &Definition, out: &mut Out) {
        let name = &self.who.reconciler;
        let members: Vec<_> =
            view.blockers.iter().map(|b| format!("{} ({}: {})", b.member, b.release, b.why)).collect();
        let more = view.blockers_in_all.saturating_sub(members.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let who = members.join(", ");
        let message = format!(
            "blocked by {who}{more}, incompatible with {}; stop or upgrade them; `muster reconciler blockers {name}` lists all",
            definition.release
        );
        let releases: BTreeSet<String> = view.blockers.iter().map(|b| b.release.to_string()).collect();
        if releases != self.named {
            out.push(Effect::Log(LogLine::Info(format!("{name} is waiting: {message}"))));
            self.named = releases;
        }
        self.wait(ReconcilerPhase::Waiting, PhaseReason::Blockers, message);
    }
}
