//! Hints: addresses at which managers may be found when those of the members fail. If all managers move at once, no
//! replica knows a current address.
//!
//! Owns        the addresses that this process was started with, and which is next.
//! Inputs      how many members have a session; the end of a query.
//! Outputs     the address to query.
//! Invariants  MESH-25  no hinted address is asked while a majority of the members is in session, or was a moment ago: an
//!                      outdated address costs nothing.
//! Why only a query: the node that answers presents a certificate, and is then dialled like any member at an address of its own.

use std::time::Duration;

use muster_messages::Moment;

/// How long a majority must be missing: an ordinary start or election has its sessions by then.
const NO_MAJORITY_DELAY: Duration = Duration::from_secs(2);
/// Pause between two addresses of a round.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Pause between two rounds, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Without a majority nothing can change, so a manager that is back at a hinted address must be found soon; a round of queries every 10 s
/// costs little.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// The most addresses kept; an operator typed them.
const MAX_HINTS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// Query this address, and report the end of the query.
    Ask(String),
    /// Call `next` again at this time.
    At(Moment),
}

#[derive(Clone, Debug, Default)]
pub struct Hints {
    addrs: Vec<String>,
    /// Index of the next address.
    next_index: usize,
    asking: bool,
    no_majority_since: Option<Moment>,
    not_before: Moment,
    pause: Duration,
}

impl Hints {
    pub fn new(mut addrs: Vec<String>) -> Self {
        let mut seen = std::collections::BTreeSet::new();
        addrs.retain(|addr| !addr.is_empty() && seen.insert(addr.clone()));
        addrs.truncate(MAX_HINTS);
        Self { addrs, pause: FIRST_PAUSE, ..Self::default() }
    }

    /// `in_session` of `members` have a session; both counts include this manager.
    pub fn next(&mut self, now: Moment, in_session: usize, members: usize) -> Next {
        if in_session * 2 > members || self.addrs.is_empty() {
            self.no_majority_since = None;
            self.pause = FIRST_PAUSE;
            return Next::Nothing;
        }
        let since = *self.no_majority_since.get_or_insert(now);
        let due = self.not_before.max(since + NO_MAJORITY_DELAY);
        if self.asking {
            return Next::Nothing;
        }
        if now < due {
            return Next::At(due);
        }
        self.asking = true;
        Next::Ask(self.addrs[self.next_index].clone())
    }

    /// The query ended, with or without an answer.
    pub fn asked(&mut self, now: Moment) {
        self.asking = false;
        self.next_index += 1;
        let mut wait = ADDRESS_INTERVAL;
        if self.next_index >= self.addrs.len() {
            self.next_index = 0;
            wait = self.pause;
            self.pause = MAX_PAUSE.min(self.pause * 2);
        }
        self.not_before = now + wait;
    }

    pub fn addrs(&self) -> &[String] {
        &self.addrs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment(ms * 1000)
    }

    #[test]
    fn hinted_addresses_rotate_and_rounds_slow_down() {
        let mut hints = Hints::new(vec!["a:1".into(), "b:1".into(), "a:1".into(), String::new()]);
        let mut now = at(0);
        let mut asked = Vec::new();
        while now < at(120_000) {
            match hints.next(now, 1, 3) {
                Next::Ask(addr) => {
                    asked.push(addr);
                    assert_eq!(hints.next(now, 1, 3), Next::Nothing, "one at a time");
                    hints.asked(now);
                }
                Next::At(later) => now = later,
                Next::Nothing => panic!("a majority is missing"),
            }
        }
        assert_eq!(asked[..4], ["a:1", "b:1", "a:1", "b:1"]);
        assert!((20..40).contains(&asked.len()), "{} queries in two minutes", asked.len());
    }

    /// MESH-25.
    #[test]
    fn hints_are_queried_only_after_majority_is_missing() {
        let mut hints = Hints::new(vec!["a:1".into()]);
        for (in_session, members) in [(2, 3), (3, 3), (1, 1), (1, 0), (3, 5)] {
            assert_eq!(hints.next(at(0), in_session, members), Next::Nothing, "{in_session} of {members}");
        }
        assert_eq!(hints.next(at(1000), 1, 2), Next::At(at(3000)));
        assert_eq!(hints.next(at(2900), 2, 2), Next::Nothing);
        assert_eq!(hints.next(at(3000), 1, 2), Next::At(at(5000)), "the delay starts when the majority was lost last");
        assert_eq!(hints.next(at(5000), 1, 2), Next::Ask("a:1".into()));
        assert_eq!(Hints::new(vec![]).next(at(9000), 1, 3), Next::Nothing);
    }
}
