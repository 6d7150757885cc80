//! Members compare their states.
//!
//! Owns        the digests of this member's last states, and those of the others while it leads.
//! Inputs      applied entries, computed digests, digests of other members, the leader's decision.
//! Outputs     states to digest, members whose state differs, members to inform; whether this member's own state differs.
//! Invariants  STATE-1  a member whose state differs from that of the majority of the voters at the same revision stops serving.
//!             STATE-2  without a majority for either state no member is stopped: the difference is reported.
//! Why at all: every member applies the same entries by the same code, and a flipped bit in memory, or two builds that differ
//! in one case, would go unnoticed. Why only from feature level 3 on: an earlier build cannot read the packet. Why every few
//! thousand entries: encoding a state costs as much as a snapshot of it.

use std::collections::BTreeMap;

use muster_messages::{Moment, PeerProblem, PeerProblemKind, RaftId, Tables, WallTime};

use super::digest;

pub(crate) type StateDigest = [u8; 32];

/// States that are remembered: a member that applies late can still compare.
const MAX_DIGESTS: usize = 4;

#[derive(Default)]
pub(crate) struct StateDigests {
    own: BTreeMap<u64, StateDigest>,
    computing: bool,
    /// Of the other members, by index and member. While leading.
    others: BTreeMap<u64, BTreeMap<u64, StateDigest>>,
    diverged: BTreeMap<u64, (u64, Moment)>,
}

/// A state to digest. Encoding it takes milliseconds to seconds, too long for a core.
#[derive(Clone, Debug)]
pub struct DigestJob {
    pub index: u64,
    pub tables: Tables,
}

impl DigestJob {
    /// Pure; run it where blocking is allowed.
    pub fn run(&self) -> StateDigest {
        digest(&muster_store::snapshot::encode(&self.tables))
    }
}

/// What this leader's digest shows about the others.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Comparison {
    /// STATE-1: a majority of the voters has another state than this member.
    pub own_is_wrong: bool,
    /// Members found to differ for the first time.
    pub diverged: Vec<u64>,
    /// Members to inform that a majority has this state, which is not theirs.
    pub inform: Option<(StateDigest, Vec<u64>)>,
}

impl StateDigests {
    /// The state at an index that members compare was applied. `None` while an earlier one is being digested.
    pub fn begin(&mut self, index: u64, tables: &Tables) -> Option<DigestJob> {
        let begins = !std::mem::replace(&mut self.computing, true);
        begins.then(|| DigestJob { index, tables: tables.clone() })
    }
    /// `None`: it could not be computed.
    pub fn computed(&mut self, index: u64, digest: Option<StateDigest>) -> Option<StateDigest> {
        self.computing = false;
        self.own.insert(index, digest?);
        remember(&mut self.own);
        digest
    }
    /// While leading: the digest of another member.
    pub fn received(&mut self, index: u64, from: u64, digest: StateDigest) {
        self.others.entry(index).or_default().insert(from, digest);
        remember(&mut self.others);
    }
    /// Whether this member had another state at this index.
    pub fn contradicts(&self, index: u64, digest: StateDigest) -> bool {
        self.own.get(&index).is_some_and(|own| *own != digest)
    }
    /// This member starts or stops leading.
    pub fn forget_others(&mut self) {
        self.others.clear();
        self.diverged.clear();
    }
    /// A snapshot replaced the applied state.
    pub fn forget_all(&mut self) {
        *self = Self { computing: self.computing, ..Self::default() };
    }

    /// STATE-1, STATE-2.
    pub fn compare(&mut self, now: Moment, index: u64, me: RaftId, voters: &[u64]) -> Comparison {
        let mut comparison = Comparison::default();
        let (Some(own), Some(others)) = (self.own.get(&index).copied(), self.others.get(&index)) else {
            return comparison;
        };
        let with = |wanted: &StateDigest| {
            let has = |id: &&u64| if **id == me.0 { own == *wanted } else { others.get(id) == Some(wanted) };
            voters.iter().filter(has).count() * 2 > voters.len()
        };
        let (right, wrong): (Vec<u64>, Vec<u64>) = others.keys().copied().partition(|id| others[id] == own);
        self.diverged.retain(|id, _| !right.contains(id));
        comparison.own_is_wrong = others.values().any(|theirs| *theirs != own && with(theirs));
        if !comparison.own_is_wrong {
            comparison.diverged = wrong.iter().copied().filter(|id| !self.diverged.contains_key(id)).collect();
            comparison.inform = with(&own).then(|| (own, wrong.clone()));
            for id in wrong {
                let since = self.diverged.get(&id).map_or(now, |(_, since)| *since);
                self.diverged.insert(id, (index, since));
            }
        }
        comparison
    }

    pub fn is_diverged(&self, member: u64) -> bool {
        self.diverged.contains_key(&member)
    }
    pub fn problem(&self, wall: impl Fn(Moment) -> WallTime, member: u64) -> Option<PeerProblem> {
        let (index, since) = self.diverged.get(&member)?;
        Some(PeerProblem {
            kind: PeerProblemKind::StateDiverged,
            message: format!(
                "its state at revision {index} is not the leader's; if its data is not replaced automatically, demote it and \
                 promote it again, and report this"
            ),
            since: wall(*since),
        })
    }
    #[cfg(test)]
    pub fn received_count(&self) -> usize {
        self.others.values().map(BTreeMap::len).sum()
    }
}

fn remember<T>(of: &mut BTreeMap<u64, T>) {
    while of.len() > MAX_DIGESTS {
        of.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOTERS: [u64; 3] = [1, 2, 3];

    fn compared(own: u8, others: &[(u64, u8)]) -> (StateDigests, Comparison) {
        let mut digests = StateDigests::default();
        digests.computed(8, Some([own; 32]));
        for (from, digest) in others {
            digests.received(8, *from, [*digest; 32]);
        }
        let comparison = digests.compare(Moment(5), 8, RaftId(1), &VOTERS);
        (digests, comparison)
    }

    #[test]
    fn majority_decides_which_state_is_wrong() {
        let (digests, comparison) = compared(1, &[(2, 1), (3, 9)]);
        assert_eq!((comparison.diverged, comparison.inform), (vec![3], Some(([1; 32], vec![3]))));
        assert!(digests.is_diverged(3) && !digests.is_diverged(2));
        let (digests, comparison) = compared(1, &[(2, 9), (3, 9)]);
        assert!(comparison.own_is_wrong && comparison.inform.is_none() && !digests.is_diverged(2));
    }

    #[test]
    fn without_a_majority_a_difference_is_only_reported() {
        let (mut digests, comparison) = compared(1, &[(2, 9)]);
        assert_eq!(comparison, Comparison { diverged: vec![2], ..Comparison::default() });
        let again = digests.compare(Moment(6), 8, RaftId(1), &VOTERS);
        assert_eq!(again, Comparison::default(), "it is reported once");
        digests.computed(16, Some([1; 32]));
        digests.received(16, 2, [9; 32]);
        assert_eq!(digests.compare(Moment(7), 16, RaftId(1), &VOTERS), Comparison::default());
        let problem = digests.problem(|at| WallTime(at.0 as i64), 2).expect("it differs");
        assert_eq!(problem.since, WallTime(5), "since the first comparison");
        assert!(problem.message.contains("revision 16"), "{}", problem.message);
    }
}
