//! The decisions of a switch: one step at a time, towards the newest value.
//!
//! Owns        the key of the child that runs; whether a stop or a preparation is in progress.
//! Inputs      the key that the newest value wants, and whether something must be prepared; the end of a stop or preparation.
//! Outputs     the next [`Step`].
//! Invariants  a child starts only when none runs, no step is in progress, and nothing is left to prepare.

/// What a switch does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Start,
    Stop,
    Prepare,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SwitchCore {
    /// The key of the child that runs.
    running: Option<u64>,
    /// A stop or a preparation is in progress. It is when the switch starts: a child left by an earlier incarnation, whose key is
    /// unknown, is stopped first.
    busy: bool,
}

impl Default for SwitchCore {
    fn default() -> Self {
        Self { running: None, busy: true }
    }
}

impl SwitchCore {
    /// The next step, which counts as begun. `wanted`: the key of the child to run, `None` for none.
    pub fn next(&mut self, wanted: Option<u64>, needs_preparation: bool) -> Option<Step> {
        let runs = self.running.is_some();
        if self.busy || wanted == self.running && (runs || !needs_preparation) {
            return None;
        }
        if runs || needs_preparation {
            self.busy = true;
            return Some(if runs { Step::Stop } else { Step::Prepare });
        }
        self.running = wanted;
        Some(Step::Start)
    }

    /// A stop or a preparation ended: nothing runs.
    pub fn stopped(&mut self) {
        (self.running, self.busy) = (None, false);
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }
    pub fn is_busy(&self) -> bool {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch whose child with this key runs; `None`: without a child.
    fn running(key: Option<u64>) -> SwitchCore {
        let mut switch = SwitchCore::default();
        switch.stopped();
        if key.is_some() {
            assert_eq!(switch.next(key, false), Some(Step::Start));
        }
        assert_eq!((switch.is_running(), switch.is_busy()), (key.is_some(), false));
        switch
    }

    #[test]
    fn new_switch_waits_for_the_end_of_a_former_child() {
        let mut switch = SwitchCore::default();
        assert_eq!((switch.next(Some(1), false), switch.next(None, true)), (None, None));
        assert!(switch.is_busy() && !switch.is_running());
        switch.stopped();
        assert_eq!(switch.next(Some(1), false), Some(Step::Start));
    }

    #[test]
    fn next_step_follows_from_child_value_and_preparation() {
        for (runs, wanted, needs_preparation, step) in [
            (None, None, false, None),
            (None, None, true, Some(Step::Prepare)),
            (None, Some(1), false, Some(Step::Start)),
            (None, Some(1), true, Some(Step::Prepare)),
            (Some(1), Some(1), false, None),
            // Nothing is prepared beside a child that is still wanted.
            (Some(1), Some(1), true, None),
            (Some(1), None, false, Some(Step::Stop)),
            (Some(1), None, true, Some(Step::Stop)),
            (Some(1), Some(2), false, Some(Step::Stop)),
            (Some(1), Some(2), true, Some(Step::Stop)),
        ] {
            let mut switch = running(runs);
            assert_eq!(switch.next(wanted, needs_preparation), step, "{runs:?} {wanted:?} {needs_preparation}");
            let busy = matches!(step, Some(Step::Stop | Step::Prepare));
            assert_eq!(switch.is_busy(), busy);
            assert_eq!(switch.is_running(), runs.is_some() || step == Some(Step::Start));
        }
    }

    #[test]
    fn nothing_begins_during_a_step() {
        let mut switch = running(Some(1));
        assert_eq!(switch.next(Some(2), true), Some(Step::Stop));
        assert_eq!(
            (switch.next(Some(2), true), switch.next(Some(1), false), switch.next(None, false)),
            (None, None, None)
        );
        switch.stopped();
        assert_eq!(switch.next(Some(2), true), Some(Step::Prepare));
        assert_eq!(switch.next(Some(2), false), None, "the preparation has not ended");
        switch.stopped();
        assert_eq!(switch.next(Some(2), true), Some(Step::Prepare), "until nothing is left to prepare");
        switch.stopped();
        assert_eq!((switch.next(Some(2), false), switch.next(Some(2), false)), (Some(Step::Start), None));
    }
}
