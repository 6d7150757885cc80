//! What a newer view means for what is in progress.

use super::*;

impl Run {
    pub(super) fn observe(&mut self, now: Moment, view: Arc<RunnerView>, out: &mut Out) {
        if self.view.as_ref().is_some_and(|known| view.revision < known.revision) || self.phase == Phase::Ended {
            return; // from a replica that lags behind
        }
        let again = self.retries.is_some_and(|heeded| view.retries > heeded);
        let digest = view.definition.as_ref().map(|d| d.digest.as_str());
        let is_other = self.job.as_ref().is_some_and(|job| Some(job.digest.as_str()) != digest);
        let superseded = is_other && !self.carry_over(&view);
        self.retries = Some(view.retries);
        self.view = Some(view);
        match &mut self.phase {
            Phase::Acting { number, cancelled, .. } if superseded && cancelled.is_none() => {
                *cancelled = Some(Cancelled::Superseded);
                out.push(Effect::Cancel { number: *number });
            }
            // Their result is evaluated when it arrives, or the term is about to end.
            Phase::Acting { .. }
            | Phase::Stepping { .. }
            | Phase::Waving { .. }
            | Phase::Recording { .. }
            | Phase::Resigning { .. }
            | Phase::Ended => {}
            Phase::Retrying { .. } | Phase::Settling { .. } | Phase::Failed { .. } if !superseded && !again => {}
            Phase::Deciding { .. } => {}
            _ => self.reconsider(),
        }
        if again {
            self.failures.hurry();
            (self.again, self.applied) = (true, None);
        }
        if superseded && !matches!(self.phase, Phase::Acting { .. }) {
            // The run of an object set lasts over several waves; what follows is another one.
            let exit = RunExit { text: "replaced by another definition".to_owned(), ..RunExit::default() };
            self.recording.ends(now, RunOutcome::Cancelled, exit, ("", ""));
            self.job = None;
        }
    }

    /// Moves the job to another definition of the chain whose steps up to the current one are the same, so that a definition which
    /// only appends steps repeats none. Returns false if the running action must be cancelled, or the job does not carry over.
    fn carry_over(&mut self, view: &RunnerView) -> bool {
        let acting = matches!(self.phase, Phase::Acting { .. });
        let (Some(job), Some(known)) = (&mut self.job, &self.view) else { return false };
        // The chain was deleted with its record. A view from before our last record does not show it yet.
        let older = self.last_step.is_some_and(|(step, _)| view.revision < step.revision);
        if !older && view.steps_done < job.step {
            return false;
        }
        let was = known.definition.as_ref().filter(|definition| definition.digest == job.digest);
        let (Some(was), Some(is)) = (was, &view.definition) else { return false };
        let (Action::Chain(old), Action::Chain(new)) = (&was.action, &is.action) else { return false };
        let is_same = |(old, new): (&ChainStep, &ChainStep)| old.name == new.name && old.digest == new.digest;
        // With all steps before it: otherwise the definition contradicts what is on record.
        let same = old.iter().zip(new).take(job.step + 1).filter(|pair| is_same(*pair)).count();
        if same <= job.step || !acting && job.carried_out != Some(job.step) {
            return false;
        }
        // The gate leads to the former definition, until a step of it is taken for this one.
        (job.digest, job.release, job.defined) = (is.digest.clone(), is.release.triple, is.revision);
        job.stepped = None;
        // Its author calls it the same; as another user, or with another environment, it is still not the one to run.
        !acting || old.get(job.step) == new.get(job.step) && was.options.command == is.options.command
    }
}
