//! Whether a candidate needs its record, which others see and wait for.
//!
//! Owns        whether this process can run the definition, and whether it retires.

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordNeed {
    /// This process can run the definition.
    pub runnable: bool,
    pub retiring: bool,
}

/// What becomes of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStep {
    Keep,
    /// It is asked to end.
    Leave,
    /// It has ended, if there was one, and another one may follow.
    Ended,
    /// It has ended, if there was one, and this candidate with it.
    Retired,
}

impl RecordNeed {
    /// A record is announced, and again after one that the cluster has ended.
    pub fn is_needed(self) -> bool {
        self.runnable && !self.retiring
    }

    /// `stands`: by its place among the candidates. One that retires does not campaign.
    pub fn campaigns(self, stands: bool) -> bool {
        stands && !self.retiring
    }

    /// A candidate with nothing left to run must not hold back the others. Its record stays as long as its campaign does.
    ///
    /// `gone`: there is no record, or it has ended.
    pub fn step(self, campaign_is_over: bool, gone: bool) -> RecordStep {
        match (self.is_needed() || !campaign_is_over, gone) {
            (true, _) => RecordStep::Keep,
            (false, false) => RecordStep::Leave,
            (false, true) if self.retiring => RecordStep::Retired,
            (false, true) => RecordStep::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: RecordNeed = RecordNeed { runnable: true, retiring: false };

    #[test]
    fn record_ends_after_the_campaign_of_a_candidate_without_work() {
        let idle = RecordNeed { runnable: false, ..RUNS };
        let retiring = RecordNeed { retiring: true, ..RUNS };
        for gone in [false, true] {
            assert_eq!(RUNS.step(true, gone), RecordStep::Keep);
            assert_eq!((idle.step(false, gone), retiring.step(false, gone)), (RecordStep::Keep, RecordStep::Keep));
        }
        assert_eq!((idle.step(true, false), idle.step(true, true)), (RecordStep::Leave, RecordStep::Ended));
        assert_eq!((retiring.step(true, false), retiring.step(true, true)), (RecordStep::Leave, RecordStep::Retired));
    }

    #[test]
    fn retiring_candidate_neither_campaigns_nor_announces() {
        let retiring = RecordNeed { retiring: true, ..RUNS };
        assert_eq!((RUNS.is_needed(), retiring.is_needed(), RecordNeed::default().is_needed()), (true, false, false));
        assert_eq!((RUNS.campaigns(true), RUNS.campaigns(false), retiring.campaigns(true)), (true, false, false));
    }
}
