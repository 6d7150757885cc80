//! The certificates that this node holds for its workloads: one for each workload that a process asked for.
//!
//! Owns        keys and certificates, when each is renewed, requests in flight, pauses after failures.
//! Inputs      the entries and roots of a view, signatures, the workloads that open streams want.
//! Outputs     which workloads are to be signed now.
//! Invariants  SPIFFE-4  private keys of workloads never leave the node, and never reach its disk: they are here, in messages on the
//!                       node's own socket, and nowhere else.
//! Why for each workload and not for each process: the processes of a workload are alike to other programs, and a thousand of them must
//! not cost the leader a thousand signatures. Why only for those asked for: an entry may apply to ten thousand nodes and run on three.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{Moment, RetryPause, Rng, WallTime, WorkloadEntry, WorkloadName};
use zeroize::Zeroizing;

use super::View;
use super::attempts::{Attempts, SignFailure, SignId};

/// Certificates and keys held at a time. The leader counts twice as many: one that was evicted counts until it expires.
pub const MAX_HELD: usize = 200;
/// Requests to the leader in flight. The host of a node's session accepts four, and the node's own certificate and membership must not
/// wait. A node that starts has many to make, and so have all others after a power cut: they follow each other.
pub const MAX_SIGNINGS: usize = 2;
/// The shortest time between two certificates of a workload, whatever the reason for another one is.
pub const RENEWAL_PAUSE: Duration = Duration::from_secs(2);
/// The renewal is planned by wall time, as certificates are. It is compared this often, because a wall clock may be set.
pub const CLOCK_CHECK: Duration = Duration::from_secs(30);

/// Identifies a root's key: the key identifier in the certificates that it signs.
pub type KeyId = Vec<u8>;

/// A certificate with its key: an X.509-SVID.
#[derive(PartialEq, Eq)]
pub struct Svid {
    /// The certificate and those that lead from it to older roots, DER, one after the other.
    pub chain_der: Vec<u8>,
    /// PKCS #8, DER.
    pub key_der: Zeroizing<Vec<u8>>,
    pub not_after: WallTime,
    /// The root that signed it.
    pub issuer: KeyId,
}

impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Svid(until {})", self.not_after)
    }
}

/// What an entry demands of its certificates: another one is needed when that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Profile {
    ttl: Duration,
    dns: Vec<String>,
}

#[derive(Clone, Debug)]
struct Held {
    svid: Arc<Svid>,
    by: SignId,
    renew_at: WallTime,
    profile: Profile,
    /// Its root was in the bundle when it was signed. Otherwise it cannot have left it.
    root_known: bool,
}

impl Held {
    fn is_orphan(&self, roots: &BTreeSet<KeyId>) -> bool {
        self.root_known && !roots.is_empty() && !roots.contains(&self.svid.issuer)
    }
}

#[derive(Clone, Debug)]
struct Slot {
    entry: Arc<WorkloadEntry>,
    held: Option<Held>,
    /// Each with what its certificate was asked to say: the entry may change until the answer.
    attempts: Attempts<Profile>,
}

impl Slot {
    fn empty(entry: &WorkloadEntry) -> Self {
        Self { entry: Arc::new(entry.clone()), held: None, attempts: Attempts::default() }
    }
    fn profile(&self) -> Profile {
        Profile { ttl: self.entry.ttl, dns: self.entry.dns.clone() }
    }
    /// When another certificate is needed; now, unless the one that is held will do for a while.
    fn due(&self, wall: WallTime, roots: &BTreeSet<KeyId>) -> WallTime {
        match &self.held {
            // A root that left the bundle signed nothing that a program trusts.
            Some(held) if held.profile == self.profile() && !held.is_orphan(roots) => held.renew_at,
            _ => wall,
        }
    }
}

/// The certificate of a workload, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Valid, and by which signature.
    Held(Arc<Svid>, SignId),
    /// Being signed, or about to be.
    Pending,
    Failed(SignFailure),
}

/// See the header of this file.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    slots: BTreeMap<WorkloadName, Slot>,
    /// Counts what happened to keys and certificates: a copy of them is replaced when it differs.
    changes: u64,
}

impl Certificates {
    /// What an earlier incarnation held. Its streams and its requests are gone.
    #[must_use]
    pub fn resume(mut self) -> Self {
        for slot in self.slots.values_mut() {
            slot.attempts.forget_request();
        }
        self
    }

    /// The entries that apply to this node. What is no longer among them is forgotten, with its key.
    pub fn view(&mut self, entries: &[WorkloadEntry]) {
        let before = self.slots.len();
        self.slots.retain(|name, slot| {
            let Some(entry) = entries.iter().find(|entry| entry.name == *name) else { return false };
            if *slot.entry != *entry {
                slot.entry = Arc::new(entry.clone());
                slot.attempts.forgive();
            }
            true
        });
        self.changes += u64::from(self.slots.len() < before);
    }

    /// The certificate of a workload that a stream wants.
    pub fn state(&self, now: Moment, name: &WorkloadName) -> State {
        let Some(slot) = self.slots.get(name) else { return State::Pending };
        match (&slot.held, slot.attempts.final_failure(now)) {
            (Some(held), _) => State::Held(Arc::clone(&held.svid), held.by),
            (None, Some(failure)) => State::Failed(failure.clone()),
            (None, None) => State::Pending,
        }
    }

    /// Forgets what has expired, and returns its workloads.
    pub fn expire(&mut self, wall: WallTime) -> Vec<WorkloadName> {
        let mut expired = Vec::new();
        for (name, slot) in &mut self.slots {
            if slot.held.as_ref().is_some_and(|held| held.svid.not_after <= wall) {
                slot.held = None;
                expired.push(name.clone());
            }
        }
        self.changes += u64::from(!expired.is_empty());
        expired
    }

    /// An answer of the leader. Returns the workload, unless the request is forgotten.
    pub fn signed(
        &mut self,
        now: Moment,
        wall: WallTime,
        (rng, roots): (&mut Rng, &BTreeSet<KeyId>),
        (by, outcome): (SignId, Result<Svid, SignFailure>),
    ) -> Option<WorkloadName> {
        let (name, slot) = self.slots.iter_mut().find(|(_, slot)| slot.attempts.awaits(by))?;
        let profile = slot.attempts.answered(by)?;
        self.changes += 1;
        let expired = |svid: &Svid| SignFailure {
            refused: false,
            why: format!("the certificate was signed until {}, which has passed by this node's clock", svid.not_after),
        };
        match outcome {
            Ok(svid) if svid.not_after > wall => {
                let life = until(wall, svid.not_after);
                let renew_at = wall.plus(rng.around(life / 2, 0.1));
                let root_known = roots.contains(&svid.issuer);
                slot.held = Some(Held { svid: Arc::new(svid), by, renew_at, profile, root_known });
                slot.attempts.succeeded(RetryPause::until(now + RENEWAL_PAUSE));
            }
            Ok(svid) => slot.attempts.failed(now, expired(&svid)),
            Err(failure) => slot.attempts.failed(now, failure),
        }
        Some(name.clone())
    }

    /// The workloads whose certificates are to be signed now. `wanted`: those of open streams. An entry that was removed and set again
    /// is among them while its streams are not decided about. `room`: for more requests in flight. `last`: the last request
    /// of the node.
    pub fn plan(
        &mut self,
        (now, wall): (Moment, WallTime),
        (view, wanted): (&View, &BTreeSet<WorkloadName>),
        room: usize,
        last: &mut SignId,
    ) -> Vec<(SignId, WorkloadName)> {
        for name in wanted {
            if !self.slots.contains_key(name)
                && let Some(entry) = view.entry(name)
            {
                self.slots.insert(name.clone(), Slot::empty(entry));
            }
        }
        self.slots.retain(|name, slot| {
            let attempts = &slot.attempts;
            wanted.contains(name) || slot.held.is_some() || attempts.is_in_flight() || attempts.failed_lately(now)
        });
        let due = |(name, slot): &(&WorkloadName, &Slot)| {
            slot.attempts.is_free(now) && slot.due(wall, &view.roots.keys) <= wall && wanted.contains(name)
        };
        let due: Vec<WorkloadName> = self.slots.iter().filter(due).map(|(name, _)| name.clone()).collect();
        let mut planned = Vec::new();
        for name in due {
            if planned.len() >= room {
                break; // the next one follows an answer
            }
            let has_room = self.make_room(&name, wanted);
            let slot = self.slots.get_mut(&name).expect("a slot that is due");
            if !has_room {
                let why = format!("this node has certificates of {MAX_HELD} workloads in use, which is the limit");
                slot.attempts.failed(now, SignFailure { refused: false, why });
                continue;
            }
            let (by, profile) = (last.advance(), slot.profile());
            slot.attempts.begin(by, profile);
            planned.push((by, name));
        }
        planned
    }

    /// Whether another certificate may be held, after evicting one that no stream wants.
    fn make_room(&mut self, name: &WorkloadName, wanted: &BTreeSet<WorkloadName>) -> bool {
        let counts = |slot: &Slot| slot.held.is_some() || slot.attempts.is_in_flight();
        let others = self.slots.iter().filter(|(other, slot)| *other != name && counts(slot)).count();
        if others < MAX_HELD {
            return true;
        }
        let unused = self.slots.iter().filter(|(other, slot)| !slot.attempts.is_in_flight() && !wanted.contains(other));
        let ends = |(_, slot): &(&WorkloadName, &Slot)| slot.held.as_ref().map(|held| held.svid.not_after);
        let Some(first) = unused.filter(|of| ends(of).is_some()).min_by_key(ends).map(|(name, _)| name.clone()) else {
            return false;
        };
        self.slots.remove(&first);
        self.changes += 1;
        true
    }

    /// When to look again.
    pub fn wake_at(&self, now: Moment, wall: WallTime, view: &View, wanted: &BTreeSet<WorkloadName>) -> Option<Moment> {
        let check = (!self.slots.is_empty()).then(|| now + CLOCK_CHECK);
        let later = |at: WallTime| now + until(wall, at);
        let wakes = self.slots.iter().flat_map(|(name, slot)| {
            let free_at = slot.attempts.free_at().filter(|_| wanted.contains(name));
            let renewal = free_at.map(|at| later(slot.due(wall, &view.roots.keys)).max(at));
            // One that is due now and was not planned waits for an answer to another.
            let renewal = renewal.filter(|at| *at > now);
            let expiry = slot.held.as_ref().map(|held| later(held.svid.not_after));
            renewal.into_iter().chain(expiry)
        });
        wakes.chain(check).min()
    }

    /// Differs from what it was before if a key was added or forgotten since.
    pub fn changes(&self) -> u64 {
        self.changes
    }
    /// The last request of those whose certificates are held.
    pub(super) fn last(&self) -> SignId {
        self.slots.values().filter_map(|slot| Some(slot.held.as_ref()?.by)).max().unwrap_or_default()
    }
    /// How many are held, are being signed, and have failed.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |of: fn(&Slot) -> bool| self.slots.values().filter(|slot| of(slot)).count();
        (count(|s| s.held.is_some()), count(|s| s.attempts.is_in_flight()), count(|s| s.attempts.failure().is_some()))
    }
    /// The workloads with a certificate, and until when.
    pub fn held(&self) -> impl Iterator<Item = (&WorkloadName, WallTime)> {
        self.slots.iter().filter_map(|(name, slot)| Some((name, slot.held.as_ref()?.svid.not_after)))
    }
    /// The workload of a request in flight, and whether the last one for it failed.
    pub fn asked_for(&self, by: SignId) -> Option<(&WorkloadName, bool)> {
        let (name, slot) = self.slots.iter().find(|(_, slot)| slot.attempts.awaits(by))?;
        Some((name, slot.attempts.failure().is_some()))
    }
    pub fn in_flight(&self) -> usize {
        self.slots.values().filter(|slot| slot.attempts.is_in_flight()).count()
    }
    /// The last failure, with its workload.
    pub fn failing(&self) -> impl Iterator<Item = (&WorkloadName, &SignFailure)> {
        self.slots.iter().filter_map(|(name, slot)| Some((name, slot.attempts.failure()?)))
    }
}

/// From one wall time to a later one; zero if it is not later.
pub(super) fn until(from: WallTime, to: WallTime) -> Duration {
    Duration::from_millis(u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0))
}
