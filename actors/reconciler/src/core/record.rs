//! Whether a candidate needs its record, which others see and wait for.
//!
//! Owns        whether this process can run the definition, and whether it retires.
//! Inputs      the definition's view, the request to retire; the state of the record and of the campaign.
//! Outputs     whether to announce a record, whether to campaign, and what becomes of the record ([`RecordStep`]).
//! Invariants  a record lasts as long as the campaign: others do not stop waiting for a candidate that may still hold the term.

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordNeed {
    runnable: bool,
    retiring: bool,
}

/// The record that was announced last, as its member reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The cluster has ended it, or it was asked to end.
    pub over: bool,
    /// Its lease has been released: nothing of it is left.
    pub gone: bool,
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
    /// Another view: whether this process can run its definition. True: a record is to be announced, as there is none.
    pub fn observe(&mut self, runnable: bool, record: Option<Record>) -> bool {
        self.runnable = runnable;
        self.is_needed() && record.is_none()
    }

    pub fn retire(&mut self) {
        self.retiring = true;
    }
    pub fn is_retiring(self) -> bool {
        self.retiring
    }

    /// Whether a record that is over is to be announced again, after a pause.
    pub fn announces_again(self, record: Option<Record>) -> bool {
        self.is_needed() && record.is_some_and(|record| record.over)
    }

    fn is_needed(self) -> bool {
        self.runnable && !self.retiring
    }

    /// `stands`: by its place among the candidates. One that retires does not campaign.
    pub fn campaigns(self, stands: bool) -> bool {
        stands && !self.retiring
    }

    /// A candidate with nothing left to run must not hold back the others. Its record stays as long as its campaign does.
    pub fn step(self, campaign_is_over: bool, record: Option<Record>) -> RecordStep {
        let gone = record.is_none_or(|record| record.gone);
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
    const IDLE: RecordNeed = RecordNeed { runnable: false, retiring: false };
    const RETIRING: RecordNeed = RecordNeed { runnable: true, retiring: true };

    /// Every state of a record: none, present, over, gone.
    const NONE: Option<Record> = None;
    const PRESENT: Option<Record> = Some(Record { over: false, gone: false });
    const OVER: Option<Record> = Some(Record { over: true, gone: false });
    const GONE: Option<Record> = Some(Record { over: true, gone: true });

    #[test]
    fn record_ends_after_the_campaign_of_a_candidate_without_work() {
        for record in [NONE, PRESENT, OVER, GONE] {
            assert_eq!(RUNS.step(true, record), RecordStep::Keep);
            assert_eq!((IDLE.step(false, record), RETIRING.step(false, record)), (RecordStep::Keep, RecordStep::Keep));
        }
        for record in [PRESENT, OVER] {
            assert_eq!((IDLE.step(true, record), RETIRING.step(true, record)), (RecordStep::Leave, RecordStep::Leave));
        }
        for record in [NONE, GONE] {
            assert_eq!(
                (IDLE.step(true, record), RETIRING.step(true, record)),
                (RecordStep::Ended, RecordStep::Retired)
            );
        }
    }

    #[test]
    fn candidate_with_work_announces_a_record_once() {
        for (runnable, record, announces) in [
            (true, NONE, true),
            (true, PRESENT, false),
            (true, OVER, false),
            (true, GONE, false),
            (false, NONE, false),
            (false, PRESENT, false),
        ] {
            let mut need = IDLE;
            assert_eq!(need.observe(runnable, record), announces, "{runnable} {record:?}");
            assert_eq!(need, if runnable { RUNS } else { IDLE });
        }
        let mut need = RUNS;
        assert!(!need.observe(false, NONE) && need == IDLE, "another definition");
    }

    #[test]
    fn only_a_record_that_is_over_is_announced_again() {
        let again = |need: RecordNeed| [NONE, PRESENT, OVER, GONE].map(|record| need.announces_again(record));
        assert_eq!(again(RUNS), [false, false, true, true]);
        assert_eq!((again(IDLE), again(RETIRING)), ([false; 4], [false; 4]));
    }

    #[test]
    fn retiring_candidate_neither_campaigns_nor_announces() {
        let mut need = RecordNeed::default();
        need.retire();
        assert!(need.is_retiring() && !RUNS.is_retiring());
        assert!(!need.observe(true, NONE), "it has work, and no record");
        assert_eq!(need, RETIRING);
        assert_eq!((RUNS.campaigns(true), RUNS.campaigns(false), RETIRING.campaigns(true)), (true, false, false));
        assert!(IDLE.campaigns(true), "whether it has work is part of its place");
    }
}
