//! Shares: what one caller may have of something at once, so that none takes it all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::Principal;

/// Clones count together.
#[derive(Clone)]
pub(crate) struct Shares {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

/// An entry for whoever has some.
type Taken = BTreeMap<Principal, usize>;

/// One of a caller's, until dropped.
pub(crate) struct Share {
    whose: Principal,
    taken: Arc<Mutex<Taken>>,
}

fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shares {
    /// So many for each.
    pub fn of(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// One more, unless this caller has all of its own.
    pub fn take(&self, whose: &Principal) -> Option<Share> {
        let whose = whose.account();
        let mut taken = locked(&self.taken);
        if taken.get(&whose).is_some_and(|count| *count >= self.most) {
            return None;
        }
        *taken.entry(whose.clone()).or_default() += 1;
        Some(Share { whose, taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = locked(&self.taken);
        if let Some(count) = taken.get_mut(&self.whose) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.whose);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_and_gives_it_back() {
        let shares = Shares::of(2);
        let (ann, bob) = (Principal::User("ann".parse().unwrap()), Principal::User("bob".parse().unwrap()));
        let (first, _second) = (shares.take(&ann).unwrap(), shares.clone().take(&ann).unwrap());
        assert!(shares.take(&ann).is_none());
        let of_bob = shares.take(&bob).unwrap();
        drop(first);
        assert!(shares.take(&ann).is_some());
        drop(of_bob);
        assert_eq!(locked(&shares.taken).len(), 1, "whoever has none is forgotten");
    }
}
