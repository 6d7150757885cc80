//! Hints: addresses at which some manager may be found when those of the members lead nowhere. Every manager may have moved
//! at once, and then no copy of the state knows where anybody is.
//!
//! Owns   the addresses that this process was started with, and whose turn it is.
//! Hears  how many members have a session; that an address was asked.     Says  which address to ask who is there.
//! Keeps  MESH-25  nobody is asked while a majority of the members is in session, or was a moment ago: an address that
//!                 outlived its use costs nothing.
//! Why only asked: who answers shows a certificate, and is then dialled like any member at an address of its own.

use std::time::Duration;

use muster_messages::Moment;

/// Without a majority for this long: an ordinary start, or an election, has its sessions by then.
const LONELY: Duration = Duration::from_secs(2);
/// Between two addresses of a round.
const GAP: Duration = Duration::from_millis(100);
/// Between two rounds, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The most addresses kept. Somebody typed them.
const MOST: usize = 32;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// Ask who is there, and say when that has ended.
    Ask(String),
    /// Look again then.
    At(Moment),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    addrs: Vec<String>,
    /// Whose turn it is.
    turn: usize,
    asking: bool,
    lonely_since: Option<Moment>,
    not_before: Moment,
    pause: Duration,
}

impl Hints {
    pub fn new(mut addrs: Vec<String>) -> Self {
        let mut seen = std::collections::BTreeSet::new();
        addrs.retain(|addr| !addr.is_empty() && seen.insert(addr.clone()));
        addrs.truncate(MOST);
        Self { addrs, pause: FIRST_PAUSE, ..Self::default() }
    }

    /// `in_session` of `members` have a session, both with this one itself.
    pub fn next(&mut self, now: Moment, in_session: usize, members: usize) -> Next {
        if in_session * 2 > members || self.addrs.is_empty() {
            self.lonely_since = None;
            self.pause = FIRST_PAUSE;
            return Next::Nothing;
        }
        let since = *self.lonely_since.get_or_insert(now);
        let due = self.not_before.max(since + LONELY);
        if self.asking {
            return Next::Nothing;
        }
        if now < due {
            return Next::At(due);
        }
        self.asking = true;
        Next::Ask(self.addrs[self.turn].clone())
    }

    /// The address whose turn it was has answered, or has not.
    pub fn asked(&mut self, now: Moment) {
        self.asking = false;
        self.turn += 1;
        let mut wait = GAP;
        if self.turn >= self.addrs.len() {
            self.turn = 0;
            wait = self.pause;
            self.pause = LONGEST_PAUSE.min(self.pause * 2);
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
    fn each_address_has_its_turn_and_rounds_grow_apart() {
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
                Next::Nothing => panic!("it is lonely"),
            }
        }
        assert_eq!(asked[..4], ["a:1", "b:1", "a:1", "b:1"]);
        assert!((20..40).contains(&asked.len()), "{} questions in two minutes", asked.len());
    }

    /// MESH-25.
    #[test]
    fn nobody_is_asked_with_a_majority_nor_before_it_was_missed_for_a_while() {
        let mut hints = Hints::new(vec!["a:1".into()]);
        for (in_session, members) in [(2, 3), (3, 3), (1, 1), (1, 0), (3, 5)] {
            assert_eq!(hints.next(at(0), in_session, members), Next::Nothing, "{in_session} of {members}");
        }
        assert_eq!(hints.next(at(1000), 1, 2), Next::At(at(3000)));
        assert_eq!(hints.next(at(2900), 2, 2), Next::Nothing);
        assert_eq!(hints.next(at(3000), 1, 2), Next::At(at(5000)), "it is counted from the last time");
        assert_eq!(hints.next(at(5000), 1, 2), Next::Ask("a:1".into()));
        assert_eq!(Hints::new(vec![]).next(at(9000), 1, 3), Next::Nothing);
    }
}
