//! Expiries in progress through the log.
//!
//! Owns        the leases whose expiry is due, proposed, or of unknown outcome.
//!
//! One of unknown outcome may still be applied, however long ago it was proposed. It is proposed again under its request id
//! until the log has its outcome; of the two proposals the log applies the first, or neither.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{
    Change, Command, FencingToken, Guard, Moment, Object, ObjectKey, Principal, RequestId, Revision, Term, WallTime,
};

use super::Effect;
use super::clocks::Clocks;

/// An expiry that may still be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenExpiry {
    pub request: RequestId,
    pub token: FencingToken,
    pub revision: Revision,
}

/// How a proposal of an expiry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Applied,
    /// A guard did not hold.
    Refused,
    /// It is not in the log, and this proposal never will be.
    NotTaken,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct InProgress {
    /// An earlier proposal of it may be in the log.
    lingering: bool,
    /// `None`: a proposal is in progress.
    again: Option<Moment>,
}

#[derive(Clone, Debug)]
pub(super) struct Expiries {
    open: BTreeMap<ObjectKey, OpenExpiry>,
    in_progress: BTreeMap<RequestId, (ObjectKey, InProgress)>,
    /// Found due, not proposed yet.
    due: BTreeSet<ObjectKey>,
    entropy: u128,
    made: u64,
}

impl Expiries {
    pub fn resumed(entropy: u128, open: BTreeMap<ObjectKey, OpenExpiry>, now: Moment) -> Self {
        let in_progress = InProgress { lingering: true, again: Some(now) };
        let in_progress = open.iter().map(|(key, expiry)| (expiry.request, (key.clone(), in_progress))).collect();
        Self { open, in_progress, due: BTreeSet::new(), entropy, made: 0 }
    }

    pub fn open(&self) -> &BTreeMap<ObjectKey, OpenExpiry> {
        &self.open
    }
    /// Whether a renewal under this token must wait for an outcome.
    pub fn concern(&self, key: &ObjectKey, token: FencingToken) -> bool {
        self.open.get(key).is_some_and(|expiry| expiry.token == token)
    }
    /// When a proposal must be repeated.
    pub fn again_at(&self) -> Option<Moment> {
        self.in_progress.values().filter_map(|(_, in_progress)| in_progress.again).min()
    }

    /// Adds leases that were found due.
    pub fn judge(&mut self, due: Vec<ObjectKey>) {
        self.due.extend(due);
    }

    /// Applies a lease's change. One written since cannot be expired by an older expiry; an expired one is done.
    pub fn see(&mut self, key: &ObjectKey, is: Option<&Object>) {
        let Some(expiry) = self.open.get(key) else { return };
        let open = is.is_some_and(|object| {
            object.meta.revision == expiry.revision && object.lease().is_some_and(|lease| lease.is_live())
        });
        if !open {
            self.in_progress.remove(&expiry.request);
            self.open.remove(key);
        }
    }

    /// The lease, if this outcome ends its expiry.
    pub fn end(&mut self, request: RequestId, outcome: Outcome, again: Moment) -> Option<ObjectKey> {
        let (key, in_progress) = self.in_progress.get_mut(&request)?;
        let known = match outcome {
            Outcome::Applied | Outcome::Refused => true,
            Outcome::NotTaken => !in_progress.lingering,
            Outcome::Unknown => false,
        };
        if !known {
            *in_progress = InProgress { lingering: true, again: Some(again) };
            return None;
        }
        let key = key.clone();
        self.in_progress.remove(&request);
        self.open.remove(&key);
        Some(key)
    }

    /// Proposes due leases, and repeats proposals.
    pub fn propose(
        &mut self,
        now: Moment,
        wall: WallTime,
        term: Term,
        bound: usize,
        clocks: &mut Clocks,
        out: &mut Vec<Effect>,
    ) {
        for (key, in_progress) in self.in_progress.values_mut() {
            if in_progress.again.is_some_and(|at| at <= now)
                && let Some(expiry) = self.open.get(key)
            {
                in_progress.again = None;
                out.push(Effect::Propose(command(wall, term, key, expiry)));
            }
        }
        while self.open.len() < bound
            && let Some(key) = self.due.pop_first()
        {
            // The end of the open expiry handles the clock.
            if self.open.contains_key(&key) {
                continue;
            }
            let Some(clock) = clocks.get(&key).filter(|clock| clock.is_due(now)) else {
                clocks.recheck(&key);
                continue;
            };
            self.made += 1;
            // An id uses the upper 80 bits of its entropy.
            let request = RequestId::fresh(wall, self.entropy.wrapping_add(u128::from(self.made) << 48));
            let expiry = OpenExpiry { request, token: clock.token, revision: clock.revision };
            out.push(Effect::Propose(command(wall, term, &key, &expiry)));
            self.in_progress.insert(request, (key.clone(), InProgress { lingering: false, again: None }));
            self.open.insert(key, expiry);
        }
    }
}

fn command(wall: WallTime, term: Term, key: &ObjectKey, expiry: &OpenExpiry) -> Box<Command> {
    let command = Command::idempotent(wall, Principal::Cluster, "lease expired")
        .with_request(expiry.request)
        .guard(Guard::InTerm(term))
        .guard(Guard::LeaseToken { key: key.clone(), token: expiry.token })
        .guard(Guard::ObjectRevision { key: key.clone(), revision: expiry.revision })
        .change(Change::ExpireLease(key.clone()));
    Box::new(command)
}
