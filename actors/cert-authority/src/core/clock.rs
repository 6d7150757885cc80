//! Whether the clock of this manager may date certificates.
//!
//! Owns        the last comparison with the clocks of the other managers.
//! Inputs      how far their clocks are from this one; both times of this process.
//! Outputs     a refusal that names the clock, or nothing; when the result of the check changed.
//! Invariants  CERT-9  nothing is signed while most of the other managers' clocks differ from this one's by more than
//!                     [`CLOCK_TOLERANCE`], nor after this clock was set by more, until they are compared again.
//! Why: a leader whose clock is a day ahead signs certificates that begin tomorrow. A node that installs one is refused everywhere.
//! Recorded times would not do: one clock that was ahead once would make every right clock look wrong.

use std::time::Duration;

use muster_messages::{ErrorBody, ErrorCode, Moment, WallTime};

use super::RETRY_AFTER;

/// Certificates are back-dated by an hour: half of it for this clock, half for the reader's.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(30 * 60);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct ClockCheck {
    compared: Option<Compared>,
    /// A comparison was requested and has not been answered.
    pub(super) asked: bool,
    /// Why nothing could be signed at the last comparison.
    trouble: Option<String>,
}

/// The result of a comparison, if it differs from that of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClockNews {
    Failed { why: String },
    Passed,
}

#[derive(Clone, Copy, Debug)]
struct Compared {
    now: Moment,
    wall: WallTime,
    /// How far the clocks of the others are ahead of this one, if most of them differ.
    off_ms: Option<i64>,
}

impl ClockCheck {
    /// The clocks of the answering managers are this many milliseconds ahead of this one.
    pub fn compare(&mut self, now: Moment, wall: WallTime, mut ahead_ms: Vec<i64>) -> Option<ClockNews> {
        ahead_ms.sort_unstable();
        let wrong = ahead_ms.iter().filter(|ms| is_off(**ms)).count();
        // This clock counts as one that agrees: of two clocks, it is unknown which one is right.
        let is_wrong = 2 * wrong > ahead_ms.len() + 1;
        let off_ms = ahead_ms.get(ahead_ms.len() / 2).copied().filter(|_| is_wrong);
        self.compared = Some(Compared { now, wall, off_ms });
        self.asked = false;
        let trouble = self.may_sign(now, wall).err().map(|refusal| refusal.message);
        let before = std::mem::replace(&mut self.trouble, trouble.clone());
        match (trouble, before) {
            (Some(why), None) => Some(ClockNews::Failed { why }),
            (None, Some(_)) => Some(ClockNews::Passed),
            _ => None,
        }
    }

    /// Why nothing could be signed at the last comparison.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether certificates may be signed now. Before the first comparison they may: a single manager has no other clock to ask.
    pub fn may_sign(&self, now: Moment, wall: WallTime) -> Result<(), ErrorBody> {
        let Some(last) = &self.compared else { return Ok(()) };
        if let Some(off) = last.off_ms {
            let way = if off > 0 { "behind" } else { "ahead of" };
            let by = Duration::from_millis(off.unsigned_abs()).as_secs();
            return Err(refusal(format!(
                "the leader's clock shows {wall} and is {by} s {way} the clocks of most other managers; correct it, or \
                 transfer leadership (`muster raft transfer-leader`)"
            )));
        }
        if self.was_set(now, wall) {
            return Err(refusal(format!(
                "the leader's clock was set to {wall} and is being compared with the other managers' clocks"
            )));
        }
        Ok(())
    }

    /// Since the last comparison the wall clock has moved differently from elapsed time.
    pub fn was_set(&self, now: Moment, wall: WallTime) -> bool {
        self.compared.is_some_and(|last| {
            let passed = i64::try_from(now.since(last.now).as_millis()).unwrap_or(i64::MAX);
            is_off(wall.0.saturating_sub(last.wall.0).saturating_sub(passed))
        })
    }
}

fn is_off(ms: i64) -> bool {
    u128::from(ms.unsigned_abs()) > CLOCK_TOLERANCE.as_millis()
}

fn refusal(text: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::NotKnownHereYet, format!("certificates cannot be signed: {text}"))
        .retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3_600_000;

    fn compared(ahead_ms: &[i64]) -> bool {
        let mut check = ClockCheck::default();
        check.compare(Moment(0), WallTime(DAY), ahead_ms.to_vec());
        check.may_sign(Moment(0), WallTime(DAY)).is_ok()
    }

    #[test]
    fn clock_that_most_others_contradict_signs_nothing() {
        assert!(compared(&[]), "a manager alone");
        assert!(compared(&[200, -200]));
        assert!(!compared(&[-DAY, -DAY]), "this one is a day ahead");
        assert!(!compared(&[DAY, DAY, 0, DAY]));
        assert!(compared(&[-DAY, 0]), "another one is wrong");
        assert!(compared(&[-DAY]), "of two clocks either may be wrong");
    }

    #[test]
    fn a_clock_that_was_set_waits_for_a_comparison() {
        let mut check = ClockCheck::default();
        check.compare(Moment(0), WallTime(0), vec![0, 0]);
        let hour = Moment(3_600_000_000);
        assert!(check.may_sign(hour, WallTime(3_600_000)).is_ok(), "time has passed");
        assert!(check.may_sign(hour, WallTime(3_600_000 + DAY)).is_err());
        check.compare(hour, WallTime(3_600_000 + DAY), vec![0, 0]);
        assert!(check.may_sign(hour, WallTime(3_600_000 + DAY)).is_ok(), "the others were set too");
    }

    #[test]
    fn only_changes_of_the_result_are_news() {
        let mut check = ClockCheck::default();
        let mut news = |ahead_ms: &[i64]| check.compare(Moment(0), WallTime(DAY), ahead_ms.to_vec());
        assert_eq!(news(&[0, 0]), None);
        assert!(matches!(news(&[DAY, DAY]), Some(ClockNews::Failed { .. })));
        assert_eq!((news(&[DAY, DAY]), news(&[0, 0]), news(&[0, 0])), (None, Some(ClockNews::Passed), None));
    }
}
