//! Shares: how much one caller may hold of something at once, so that no caller takes it all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::Principal;

/// Clones count together.
#[derive(Clone)]
pub(crate) struct Shares {
    limit: usize,
    taken: Arc<Mutex<Taken>>,
}

/// Has an entry only for callers that hold some.
type Taken = BTreeMap<Principal, usize>;

/// One unit of a caller's share, held until dropped.
pub(crate) struct Share {
    caller: Principal,
    taken: Arc<Mutex<Taken>>,
}

fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shares {
    /// Shares of this many units per caller.
    pub fn of(limit: usize) -> Self {
        Self { limit, taken: Arc::default() }
    }

    /// Takes one more unit, unless this caller's share is used up.
    pub fn take(&self, caller: &Principal) -> Option<Share> {
        let caller = caller.account();
        let mut taken = locked(&self.taken);
        if taken.get(&caller).is_some_and(|count| *count >= self.limit) {
            return None;
        }
        *taken.entry(caller.clone()).or_default() += 1;
        Some(Share { caller, taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = locked(&self.taken);
        if let Some(count) = taken.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_a_share_and_returns_it() {
        let shares = Shares::of(2);
        let (ann, bob) = (Principal::User("ann".parse().unwrap()), Principal::User("bob".parse().unwrap()));
        let (first, _second) = (shares.take(&ann).unwrap(), shares.clone().take(&ann).unwrap());
        assert!(shares.take(&ann).is_none());
        let of_bob = shares.take(&bob).unwrap();
        drop(first);
        assert!(shares.take(&ann).is_some());
        drop(of_bob);
        assert_eq!(locked(&shares.taken).len(), 1, "a caller without units has no entry");
    }
}
