//! Whether what was seen of one register from outside can have been one register: linearizability.
//!
//! A history is linearizable if each operation can be given one moment between its begin and its end so that, in the order of these
//! moments, each read sees what was written last. An operation whose end nobody saw may have its moment at any time from its begin on,
//! or never.
//!
//! The search is Wing and Gong's as Lowe made it affordable ("Testing for linearizability", 2017): it goes through the history once and
//! keeps every state that the register may be in, each with the open operations that have had their moment already. Only where
//! an operation ends must it have had it; so only there are others given theirs, in every order. States that come out alike are one. With
//! `n` operations open at once there are at most 2ⁿ states for each value that they may leave behind, hence [`MOST_OPEN`].

use std::collections::{BTreeMap, BTreeSet};

/// What a register holds: nothing, or a number.
pub type Value = Option<u64>;

/// An operation, as long as the history lasts.
pub type OpId = u64;

/// With this many operations open a step costs tens of thousands of states at the very worst, and usually a few.
pub const MOST_OPEN: usize = 10;

/// What was seen from outside, in the order in which it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Writes {
        op: OpId,
        value: Value,
    },
    Reads {
        op: OpId,
    },
    /// A write was acknowledged.
    Wrote {
        op: OpId,
    },
    /// A read was answered.
    Saw {
        op: OpId,
        value: Value,
    },
}

/// What an open operation does in its moment.
#[derive(Clone, Copy)]
enum Moment {
    Sets(Value),
    Sees(Value),
}

/// One state that the register may be in: its value, and which of the open operations have had their moment.
type State = (Value, BTreeSet<OpId>);

/// The first step at which no register can have behaved so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub at: usize,
    /// What the register may have held before it.
    pub possible: Vec<Value>,
}

/// Looks for a register that starts with nothing and behaves like this.
pub fn check(history: &[Step]) -> Result<(), Violation> {
    let seen: BTreeMap<OpId, Value> = history
        .iter()
        .filter_map(|step| if let Step::Saw { op, value } = step { Some((*op, *value)) } else { None })
        .collect();
    let mut open: BTreeMap<OpId, Moment> = BTreeMap::new();
    let mut states: BTreeSet<State> = BTreeSet::from([(None, BTreeSet::new())]);
    for (at, step) in history.iter().enumerate() {
        match *step {
            Step::Writes { op, value } => {
                open.insert(op, Moment::Sets(value));
            }
            // A read without an answer says nothing.
            Step::Reads { op } => open.extend(seen.get(&op).map(|value| (op, Moment::Sees(*value)))),
            Step::Wrote { op } | Step::Saw { op, .. } => {
                let after = after_its_moment(&states, &open, op);
                if after.is_empty() {
                    let mut possible: Vec<Value> = states.into_iter().map(|(value, _)| value).collect();
                    possible.dedup();
                    return Err(Violation { at, possible });
                }
                states = after;
                open.remove(&op);
            }
        }
        assert!(open.len() <= MOST_OPEN, "{} operations are open at once", open.len());
    }
    Ok(())
}

/// Every state in which this operation has had its moment; it is forgotten there, because it ends.
fn after_its_moment(states: &BTreeSet<State>, open: &BTreeMap<OpId, Moment>, ends: OpId) -> BTreeSet<State> {
    let (mut after, mut known) = (BTreeSet::new(), states.clone());
    let mut todo: Vec<State> = states.iter().cloned().collect();
    while let Some((value, mut done)) = todo.pop() {
        if done.remove(&ends) {
            after.insert((value, done));
            continue;
        }
        for (op, moment) in open.iter().filter(|(op, _)| !done.contains(op)) {
            let next = match *moment {
                Moment::Sets(next) => next,
                Moment::Sees(what) if what == value => value,
                Moment::Sees(_) => continue,
            };
            let mut done = done.clone();
            done.insert(*op);
            if known.insert((next, done.clone())) {
                todo.push((next, done));
            }
        }
    }
    after
}

#[cfg(test)]
mod tests {
    use muster_messages::Dice;

    use super::*;

    /// `w1 1`: operation 1 begins to write 1. `w1`: it was acknowledged. `r2`: 2 begins to read. `r2 1`: it saw 1; `r2 -`: nothing.
    fn history(text: &str) -> Vec<Step> {
        let mut begun = BTreeSet::new();
        let step = |part: &str| {
            let mut words = part.split_whitespace();
            let (kind, op) = words.next().unwrap().split_at(1);
            let op = op.parse().unwrap();
            let value = words.next().map(|word| word.parse().ok());
            match (kind, begun.insert(op)) {
                ("w", true) => Step::Writes { op, value: value.unwrap() },
                ("w", false) => Step::Wrote { op },
                ("r", true) => Step::Reads { op },
                _ => Step::Saw { op, value: value.unwrap() },
            }
        };
        text.split(',').map(step).collect()
    }

    fn holds(text: &str) {
        assert_eq!(check(&history(text)), Ok(()), "{text}");
    }

    /// It is found at its last step, and nowhere before.
    fn is_found(text: &str, possible: &[Value]) {
        let history = history(text);
        let (at, possible) = (history.len() - 1, possible.to_vec());
        assert_eq!(check(&history), Err(Violation { at, possible }), "{text}");
    }

    #[test]
    fn what_one_register_can_do_is_accepted() {
        holds("r1, r1 -, w2 1, w2, r3, r3 1");
        holds("w1 1, r2, r2 1, w1");
        holds("w1 1, r2, r2 -, w1");
        // Two writes at once happen in either order, and readers agree on it.
        holds("w1 1, w2 2, w1, w2, r3, r3 1, r4, r4 1");
        holds("w1 1, w2 2, w1, w2, r3, r3 2, r4, r4 2");
        // A read that lasts sees what was written meanwhile, or not.
        holds("w1 1, w1, r2, w3 2, w3, r4, r4 2, r2 1");
        // A removal is a write.
        holds("w1 1, w1, w2 -, w2, r3, r3 -");
    }

    #[test]
    fn an_outcome_that_nobody_knows_may_come_late_or_never_but_once() {
        holds("w1 1, w2 2, w2, r3, r3 2");
        holds("w1 1, w2 2, w2, r3, r3 1");
        holds("w1 1, r2, r2 -, r3, r3 1, w4 2, w4, r5, r5 2");
        is_found("w1 1, r2, r2 1, w4 2, w4, r5, r5 1", &[Some(2)]);
    }

    #[test]
    fn stale_lost_and_invented_values_are_found() {
        is_found("w1 1, w1, w2 2, w2, r3, r3 1", &[Some(2)]);
        is_found("w1 1, w1, r2, r2 -", &[Some(1)]);
        is_found("w1 1, w1, r2, r2 7", &[Some(1)]);
        is_found("w1 1, w1, w2 -, w2, r3, r3 1", &[None]);
    }

    #[test]
    fn what_was_seen_is_not_unseen() {
        // The write was still open, but somebody had seen it.
        is_found("w1 1, r2, r2 1, r3, r3 -", &[Some(1)]);
        // Two writes at once; the readers do not agree on the order.
        is_found("w1 1, w2 2, w1, w2, r3, r3 1, r4, r4 2", &[Some(1)]);
        // Two reads at once may see both sides of a write, one after the other may not.
        holds("w1 1, r2, r3, r2 1, r3 -");
        is_found("w1 1, r2, r2 1, r3, r3 -", &[Some(1)]);
    }

    /// Every order of all operations that have ended and of some of the others, in which nothing moves before what ended earlier.
    fn by_force(history: &[Step]) -> bool {
        let at = |find: &dyn Fn(&Step) -> bool| history.iter().position(find);
        let ops: Vec<(usize, Option<usize>, Moment)> = history
            .iter()
            .filter_map(|step| match *step {
                Step::Writes { op, value } => {
                    let end = at(&|s| matches!(s, Step::Wrote { op: o } if *o == op));
                    Some((at(&|s| s == step)?, end, Moment::Sets(value)))
                }
                Step::Reads { op } => {
                    let end = at(&|s| matches!(s, Step::Saw { op: o, .. } if *o == op))?;
                    let Step::Saw { value, .. } = history[end] else { unreachable!() };
                    Some((at(&|s| s == step)?, Some(end), Moment::Sees(value)))
                }
                _ => None,
            })
            .collect();
        fn go(ops: &[(usize, Option<usize>, Moment)], done: u32, value: Value) -> bool {
            let left = || (0..ops.len()).filter(|i| done & (1 << i) == 0);
            if left().all(|i| ops[i].1.is_none()) {
                return true;
            }
            let first_end = left().filter_map(|i| ops[i].1).min().unwrap_or(usize::MAX);
            left().filter(|i| ops[*i].0 < first_end).any(|i| match ops[i].2 {
                Moment::Sets(next) => go(ops, done | (1 << i), next),
                Moment::Sees(what) => what == value && go(ops, done | (1 << i), value),
            })
        }
        go(&ops, 0, None)
    }

    /// A few clients that do what comes to mind; the register itself answers right, or now and then something else.
    fn random(dice: &mut Dice, lies: bool) -> Vec<Step> {
        let (mut history, mut open, mut value) = (Vec::new(), Vec::<(OpId, Option<Value>, Option<Value>)>::new(), None);
        for op in 0..8 {
            if dice.one_in(2) {
                let sets = Some(1 + dice.below(3));
                history.push(Step::Writes { op, value: sets });
                open.push((op, Some(sets), None));
            } else {
                history.push(Step::Reads { op });
                open.push((op, None, None));
            }
            for _ in 0..dice.below(4) {
                let Some(index) = (!open.is_empty()).then(|| dice.index(open.len())) else { break };
                match open[index] {
                    // Its moment.
                    (_, Some(sets), None) => {
                        value = sets;
                        open[index].2 = Some(sets);
                    }
                    (_, None, None) => {
                        let wrong = lies && dice.one_in(6);
                        open[index].2 = Some(if wrong { Some(1 + dice.below(3)) } else { value });
                    }
                    // Its end.
                    (op, sets, Some(had)) => {
                        history.push(if sets.is_some() { Step::Wrote { op } } else { Step::Saw { op, value: had } });
                        open.remove(index);
                    }
                }
            }
        }
        history
    }

    #[test]
    fn every_answer_is_the_one_that_brute_force_gives() {
        let (mut dice, mut found) = (Dice::seeded(7), 0);
        for round in 0..4000 {
            let lies = round % 2 == 0;
            let history = random(&mut dice, lies);
            let verdict = check(&history);
            assert_eq!(verdict.is_ok(), by_force(&history), "{history:?}");
            assert!(lies || verdict.is_ok(), "{history:?}");
            found += u32::from(verdict.is_err());
        }
        assert!(found > 100, "{found} lies were found");
    }
}
