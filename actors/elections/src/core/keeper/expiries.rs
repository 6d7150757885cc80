//! Expiries on their way through the log.
//!
//! One whose outcome is not known may still be applied, however long ago it was proposed. It is proposed again under its
//! request id until the log has said what became of it; what the log applies of the two is the first, or neither.

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
    /// It is not in the log, and this proposal will never be.
    NotTaken,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Under {
    /// An earlier proposal of it may lie in the log.
    lingering: bool,
    /// `None`: a proposal is under way.
    again: Option<Moment>,
}

#[derive(Clone, Debug)]
pub(super) struct Expiries {
    open: BTreeMap<ObjectKey, OpenExpiry>,
    under: BTreeMap<RequestId, (ObjectKey, Under)>,
    /// Found due, not proposed yet.
    due: BTreeSet<ObjectKey>,
    entropy: u128,
    made: u64,
}

impl Expiries {
    pub fn resumed(entropy: u128, open: BTreeMap<ObjectKey, OpenExpiry>, now: Moment) -> Self {
        let under = Under { lingering: true, again: Some(now) };
        let under = open.iter().map(|(key, expiry)| (expiry.request, (key.clone(), under))).collect();
        Self { open, under, due: BTreeSet::new(), entropy, made: 0 }
    }

    pub fn open(&self) -> &BTreeMap<ObjectKey, OpenExpiry> {
        &self.open
    }
    /// Whether a renewal under this token has to wait for an outcome.
    pub fn concern(&self, key: &ObjectKey, token: FencingToken) -> bool {
        self.open.get(key).is_some_and(|expiry| expiry.token == token)
    }
    /// When something has to be proposed again.
    pub fn again_at(&self) -> Option<Moment> {
        self.under.values().filter_map(|(_, under)| under.again).min()
    }

    /// These have been found due.
    pub fn judge(&mut self, due: Vec<ObjectKey>) {
        self.due.extend(due);
    }

    /// What a lease is now. One that was written since cannot be expired by an older expiry any more, and one that has
    /// expired has.
    pub fn see(&mut self, key: &ObjectKey, is: Option<&Object>) {
        let Some(expiry) = self.open.get(key) else { return };
        let open = is.is_some_and(|object| {
            object.meta.revision == expiry.revision && object.lease().is_some_and(|lease| lease.is_live())
        });
        if !open {
            self.under.remove(&expiry.request);
            self.open.remove(key);
        }
    }

    /// The lease, if its expiry is over with this.
    pub fn end(&mut self, request: RequestId, outcome: Outcome, again: Moment) -> Option<ObjectKey> {
        let (key, under) = self.under.get_mut(&request)?;
        let known = match outcome {
            Outcome::Applied | Outcome::Refused => true,
            Outcome::NotTaken => !under.lingering,
            Outcome::Unknown => false,
        };
        if !known {
            *under = Under { lingering: true, again: Some(again) };
            return None;
        }
        let key = key.clone();
        self.under.remove(&request);
        self.open.remove(&key);
        Some(key)
    }

    /// Proposes what is due, and again what has to be.
    pub fn propose(
        &mut self,
        now: Moment,
        wall: WallTime,
        term: Term,
        bound: usize,
        clocks: &mut Clocks,
        out: &mut Vec<Effect>,
    ) {
        for (key, under) in self.under.values_mut() {
            if under.again.is_some_and(|at| at <= now)
                && let Some(expiry) = self.open.get(key)
            {
                under.again = None;
                out.push(Effect::Propose(command(wall, term, key, expiry)));
            }
        }
        while self.open.len() < bound
            && let Some(key) = self.due.pop_first()
        {
            // Its end sees to the clock.
            if self.open.contains_key(&key) {
                continue;
            }
            let Some(clock) = clocks.get(&key).filter(|clock| clock.is_due(now)) else {
                clocks.look_again(&key);
                continue;
            };
            self.made += 1;
            // The upper 80 bits are what an id takes of its entropy.
            let request = RequestId::fresh(wall, self.entropy.wrapping_add(u128::from(self.made) << 48));
            let expiry = OpenExpiry { request, token: clock.token, revision: clock.revision };
            out.push(Effect::Propose(command(wall, term, &key, &expiry)));
            self.under.insert(request, (key.clone(), Under { lingering: false, again: None }));
            self.open.insert(key, expiry);
        }
    }
}

fn command(wall: WallTime, term: Term, key: &ObjectKey, expiry: &OpenExpiry) -> Box<Command> {
    let command = Command::idempotent(wall, Principal::Cluster, "the holder's time ran out")
        .with_request(expiry.request)
        .guard(Guard::InTerm(term))
        .guard(Guard::LeaseToken { key: key.clone(), token: expiry.token })
        .guard(Guard::ObjectRevision { key: key.clone(), revision: expiry.revision })
        .change(Change::ExpireLease(key.clone()));
    Box::new(command)
}
