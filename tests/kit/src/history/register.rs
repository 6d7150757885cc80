//! Linearizability: whether what clients saw of one register is possible.
//!
//! A history is linearizable if each operation can be assigned one moment between its begin and its end such that, in the order of these
//! moments, each read sees the last written value. An operation without a known end may have its moment at any time after its begin,
//! or never.
//!
//! The search is Wing and Gong's as Lowe made it affordable ("Testing for linearizability", 2017): one pass over the history
//! keeps every possible state of the register, each with the open operations that already had their moment. An operation must have had
//! its moment only when it ends; only there others get theirs, in every order. Equal states are merged. With
//! `n` open operations there are at most 2ⁿ states per possible value, hence [`MAX_OPEN`].

use std::collections::{BTreeMap, BTreeSet};

/// A register's value: nothing, or a number.
pub type Value = Option<u64>;

/// An operation's id within its history.
pub type OpId = u64;

/// With this many open operations a step costs tens of thousands of states at worst, and usually a few.
pub const MAX_OPEN: usize = 10;

/// An observation, in the order of the history.
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
    ReadValue {
        op: OpId,
        value: Value,
    },
}

/// The effect of an open operation at its moment.
#[derive(Clone, Copy)]
enum Moment {
    Sets(Value),
    Sees(Value),
}

/// A possible state: the register's value, and the open operations that have had their moment.
type State = (Value, BTreeSet<OpId>);

/// The first impossible step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub at: usize,
    /// The register's possible values before it.
    pub possible: Vec<Value>,
}

/// Searches for a register that starts empty and behaves like this.
pub fn check(history: &[Step]) -> Result<(), Violation> {
    let seen: BTreeMap<OpId, Value> = history
        .iter()
        .filter_map(|step| if let Step::ReadValue { op, value } = step { Some((*op, *value)) } else { None })
        .collect();
    let mut open: BTreeMap<OpId, Moment> = BTreeMap::new();
    let mut states: BTreeSet<State> = BTreeSet::from([(None, BTreeSet::new())]);
    for (at, step) in history.iter().enumerate() {
        match *step {
            Step::Writes { op, value } => {
                open.insert(op, Moment::Sets(value));
            }
            // A read without an answer constrains nothing.
            Step::Reads { op } => open.extend(seen.get(&op).map(|value| (op, Moment::Sees(*value)))),
            Step::Wrote { op } | Step::ReadValue { op, .. } => {
                let after = states_after_effect(&states, &open, op);
                if after.is_empty() {
                    let mut possible: Vec<Value> = states.into_iter().map(|(value, _)| value).collect();
                    possible.dedup();
                    return Err(Violation { at, possible });
                }
                states = after;
                open.remove(&op);
            }
        }
        assert!(open.len() <= MAX_OPEN, "{} operations are open at once", open.len());
    }
    Ok(())
}

/// Every state in which this operation has had its moment. It is removed there, because it ends.
fn states_after_effect(states: &BTreeSet<State>, open: &BTreeMap<OpId, Moment>, ends: OpId) -> BTreeSet<State> {
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
    use muster_messages::Rng;

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
                _ => Step::ReadValue { op, value: value.unwrap() },
            }
        };
        text.split(',').map(step).collect()
    }

    fn holds(text: &str) {
        assert_eq!(check(&history(text)), Ok(()), "{text}");
    }

    /// The violation is detected at its last step.
    fn is_detected(text: &str, possible: &[Value]) {
        let history = history(text);
        let (at, possible) = (history.len() - 1, possible.to_vec());
        assert_eq!(check(&history), Err(Violation { at, possible }), "{text}");
    }

    #[test]
    fn linearizable_histories_are_accepted() {
        holds("r1, r1 -, w2 1, w2, r3, r3 1");
        holds("w1 1, r2, r2 1, w1");
        holds("w1 1, r2, r2 -, w1");
        // Two concurrent writes happen in either order, and readers agree on it.
        holds("w1 1, w2 2, w1, w2, r3, r3 1, r4, r4 1");
        holds("w1 1, w2 2, w1, w2, r3, r3 2, r4, r4 2");
        // A long read may or may not see concurrent writes.
        holds("w1 1, w1, r2, w3 2, w3, r4, r4 2, r2 1");
        // A removal is a write.
        holds("w1 1, w1, w2 -, w2, r3, r3 -");
    }

    #[test]
    fn unknown_outcome_takes_effect_at_most_once() {
        holds("w1 1, w2 2, w2, r3, r3 2");
        holds("w1 1, w2 2, w2, r3, r3 1");
        holds("w1 1, r2, r2 -, r3, r3 1, w4 2, w4, r5, r5 2");
        is_detected("w1 1, r2, r2 1, w4 2, w4, r5, r5 1", &[Some(2)]);
    }

    #[test]
    fn stale_lost_and_invented_values_are_detected() {
        is_detected("w1 1, w1, w2 2, w2, r3, r3 1", &[Some(2)]);
        is_detected("w1 1, w1, r2, r2 -", &[Some(1)]);
        is_detected("w1 1, w1, r2, r2 7", &[Some(1)]);
        is_detected("w1 1, w1, w2 -, w2, r3, r3 1", &[None]);
    }

    #[test]
    fn observed_value_cannot_be_unobserved() {
        // The write was still open, but a read had seen it.
        is_detected("w1 1, r2, r2 1, r3, r3 -", &[Some(1)]);
        // Two concurrent writes; the readers disagree on the order.
        is_detected("w1 1, w2 2, w1, w2, r3, r3 1, r4, r4 2", &[Some(1)]);
        // Two concurrent reads may see both sides of a write; two sequential ones may not.
        holds("w1 1, r2, r3, r2 1, r3 -");
        is_detected("w1 1, r2, r2 1, r3, r3 -", &[Some(1)]);
    }

    /// Tries every order of all ended operations and some of the others that respects their ends.
    fn brute_force(history: &[Step]) -> bool {
        let at = |find: &dyn Fn(&Step) -> bool| history.iter().position(find);
        let ops: Vec<(usize, Option<usize>, Moment)> = history
            .iter()
            .filter_map(|step| match *step {
                Step::Writes { op, value } => {
                    let end = at(&|s| matches!(s, Step::Wrote { op: o } if *o == op));
                    Some((at(&|s| s == step)?, end, Moment::Sets(value)))
                }
                Step::Reads { op } => {
                    let end = at(&|s| matches!(s, Step::ReadValue { op: o, .. } if *o == op))?;
                    let Step::ReadValue { value, .. } = history[end] else { unreachable!() };
                    Some((at(&|s| s == step)?, Some(end), Moment::Sees(value)))
                }
                _ => None,
            })
            .collect();
        fn go(ops: &[(usize, Option<usize>, Moment)], done: u32, value: Value) -> bool {
            let remaining = || (0..ops.len()).filter(|i| done & (1 << i) == 0);
            if remaining().all(|i| ops[i].1.is_none()) {
                return true;
            }
            let first_end = remaining().filter_map(|i| ops[i].1).min().unwrap_or(usize::MAX);
            remaining().filter(|i| ops[*i].0 < first_end).any(|i| match ops[i].2 {
                Moment::Sets(next) => go(ops, done | (1 << i), next),
                Moment::Sees(what) => what == value && go(ops, done | (1 << i), value),
            })
        }
        go(&ops, 0, None)
    }

    /// A few clients with random operations; the register answers correctly, or sometimes wrongly.
    fn random(rng: &mut Rng, wrong_answers: bool) -> Vec<Step> {
        let (mut history, mut open, mut value) = (Vec::new(), Vec::<(OpId, Option<Value>, Option<Value>)>::new(), None);
        for op in 0..8 {
            if rng.one_in(2) {
                let sets = Some(1 + rng.below(3));
                history.push(Step::Writes { op, value: sets });
                open.push((op, Some(sets), None));
            } else {
                history.push(Step::Reads { op });
                open.push((op, None, None));
            }
            for _ in 0..rng.below(4) {
                let Some(index) = (!open.is_empty()).then(|| rng.index(open.len())) else { break };
                match open[index] {
                    // Its moment.
                    (_, Some(sets), None) => {
                        value = sets;
                        open[index].2 = Some(sets);
                    }
                    (_, None, None) => {
                        let wrong = wrong_answers && rng.one_in(6);
                        open[index].2 = Some(if wrong { Some(1 + rng.below(3)) } else { value });
                    }
                    // Its end.
                    (op, sets, Some(had)) => {
                        history.push(if sets.is_some() {
                            Step::Wrote { op }
                        } else {
                            Step::ReadValue { op, value: had }
                        });
                        open.remove(index);
                    }
                }
            }
        }
        history
    }

    #[test]
    fn checker_agrees_with_brute_force() {
        let (mut rng, mut found) = (Rng::seeded(7), 0);
        for round in 0..4000 {
            let wrong_answers = round % 2 == 0;
            let history = random(&mut rng, wrong_answers);
            let result = check(&history);
            assert_eq!(result.is_ok(), brute_force(&history), "{history:?}");
            assert!(wrong_answers || result.is_ok(), "{history:?}");
            found += u32::from(result.is_err());
        }
        assert!(found > 100, "{found} wrong answers were detected");
    }
}
