//! Writes of runners, and their terms.

use std::collections::BTreeMap;

/// The last write of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub object: String,
    pub revision: u64,
    /// 0: by hand.
    pub term: u64,
}

/// Whether each write of a runner was made within its term: after its begin and before a later term's begin.
/// `terms`: the begin of each.
pub fn fenced(writes: &[Write], terms: &BTreeMap<u64, u64>) -> Result<(), String> {
    for write in writes.iter().filter(|write| write.term > 0) {
        let Some(begun) = terms.get(&write.term) else { return Err(format!("{write:?} has an unknown term")) };
        if write.revision <= *begun {
            return Err(format!("{write:?} was made before its term began, at {begun}"));
        }
        if let Some((later, over)) = terms.range(write.term + 1..).next().filter(|(_, over)| **over < write.revision) {
            return Err(format!("{write:?} was made after term {later} had begun, at {over}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(revision: u64, term: u64) -> Result<(), String> {
        let write = Write { object: "a".to_owned(), revision, term };
        fenced(&[write], &BTreeMap::from([(10, 10), (20, 21)]))
    }

    #[test]
    fn write_is_valid_only_within_its_term() {
        for (revision, term) in [(11, 10), (20, 10), (22, 20), (5, 0), (99, 20)] {
            judged(revision, term).expect("the write is within its term");
        }
        for (revision, term) in [(9, 10), (22, 10), (20, 20), (30, 15)] {
            judged(revision, term).expect_err("the write is outside its term");
        }
    }
}
