//! What the attempts of this process have come to, whatever the term, for those who count.

use serde::Serialize;

use super::*;

/// Only grows, but for the last duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    pub attempts: u64,
    /// Those that failed. One that asked to be tried later, or that the gate refused, has not.
    pub failures: u64,
    /// How long the last one took that came to something.
    pub last_run_ms: Option<u64>,
    #[serde(skip)]
    begun: Option<Moment>,
}

impl Tally {
    pub(super) fn begins(&mut self, now: Moment) {
        self.attempts += 1;
        self.begun = Some(now);
    }
    pub(super) fn ends(&mut self, now: Moment, failed: bool) {
        if let Some(begun) = self.begun.take() {
            self.last_run_ms = u64::try_from(now.since(begun).as_millis()).ok();
            self.failures += u64::from(failed);
        }
    }
}

impl Run {
    /// Goes on counting where the run of an earlier term has stopped.
    #[must_use]
    pub fn counting_on(mut self, earlier: &Run) -> Self {
        self.tally = Tally { begun: None, ..earlier.tally.clone() };
        self
    }
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, command};
    use super::*;

    fn counted(run: &Run) -> (u64, u64, Option<u64>) {
        let tally = run.tally();
        (tally.attempts, tally.failures, tally.last_run_ms)
    }

    #[test]
    fn attempts_failures_and_the_last_duration_are_counted_across_terms() {
        let mut story = Story::new(command(), "reached");
        story.look();
        story.pass(5_000);
        for (takes, outcome, expected) in [
            (1_500, Outcome::Failed("no".into()), (1, 1, Some(1_500))),
            (700, Outcome::Later("not yet".into()), (2, 1, Some(1_500))),
            (20, Outcome::Done, (3, 1, Some(20))),
        ] {
            while !story.told.iter().any(|effect| matches!(effect, Effect::Act { .. })) {
                story.pass(1); // until it is tried again
            }
            let (number, _) = story.acts();
            story.pass(takes);
            story.end(number, outcome);
            assert_eq!(counted(&story.run), expected);
        }
        let next = Run::new(story.run.who().clone(), 4).counting_on(&story.run);
        assert_eq!(counted(&next), (3, 1, Some(20)));
    }
}
