//! Counters over all attempts of this process, across terms, for metrics.
//!
//! Owns        the counters.

use serde::{Deserialize, Serialize};

use super::*;

/// Counters; the last duration may also decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Attempts that began.
    pub attempts: u64,
    /// Failed attempts, without those that asked to be retried later or that the gate refused.
    pub failures: u64,
    /// The duration of the last attempt with a result, in milliseconds.
    pub last_run_ms: Option<u64>,
    #[serde(skip)]
    begun: Option<Moment>,
}

impl Tally {
    /// The counters at the beginning of a later term.
    pub(super) fn continued(&self) -> Self {
        Self { begun: None, ..self.clone() }
    }
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

#[cfg(test)]
mod tests {
    use muster_messages::GatePath;

    use super::super::scenario::{Scenario, command};
    use super::*;

    fn counted(run: &Run) -> (u64, u64, Option<u64>) {
        let tally = run.tally();
        (tally.attempts, tally.failures, tally.last_run_ms)
    }

    #[test]
    fn attempts_failures_and_duration_are_counted_across_terms() {
        let mut scenario = Scenario::new(command(), GatePath::Reached);
        scenario.unchanged_view();
        scenario.pass(5_000);
        for (takes, outcome, expected) in [
            (1_500, Outcome::Failed("no".into()), (1, 1, Some(1_500))),
            (700, Outcome::Later("not yet".into()), (2, 1, Some(1_500))),
            (20, Outcome::Done, (3, 1, Some(20))),
        ] {
            scenario.pass_until_it_acts();
            let (number, _) = scenario.acts();
            scenario.pass(takes);
            scenario.end(number, outcome);
            assert_eq!(counted(&scenario.run), expected);
        }
        let next = Run::new(scenario.run.who().clone(), 4).counting_on(&scenario.run);
        assert_eq!(counted(&next), (3, 1, Some(20)));
    }
}
