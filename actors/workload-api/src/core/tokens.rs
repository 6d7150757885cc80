//! The JWTs that this node holds for its workloads: one for each workload and audience that a process asked for.
//!
//! Owns        tokens in memory, the attempts to have them signed.
//! Inputs      the entries of a view, signatures, the tokens that open calls want.
//! Outputs     which tokens are to be signed now.
//! Why a token is handed out again until half of its life has passed: programs ask for one before each call, and the leader must not sign
//! for each. After that it is handed out only while another one cannot be had: a leader that is silent must not take from programs what is
//! still good. Why so few for a workload: an audience is any text, and a program must not fill the node's memory, or use up what the leader
//! signs for the node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use muster_messages::{Moment, RetryPause, WallTime, WorkloadEntry, WorkloadName};

use super::attempts::{Attempts, SignFailure, SignId};
use super::certificates::until;

/// Audiences for which a workload has tokens at a time. A token lives for five minutes.
pub const MAX_TOKENS_OF_WORKLOAD: usize = 32;

/// Who is to accept a token, in the order in which its program named them.
pub type Audience = Arc<Vec<String>>;
/// Which token.
pub type TokenKey = (WorkloadName, Audience);

/// A JWT-SVID. Its holder can use it, whichever program that is.
#[derive(PartialEq, Eq)]
pub struct Token {
    /// In the compact form.
    pub text: String,
    pub not_after: WallTime,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(until {})", self.not_after)
    }
}

/// The token of a workload, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenState {
    Held(Arc<Token>),
    /// Being signed, or about to be.
    Pending,
    Failed(SignFailure),
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// With the time from which another one is wanted.
    held: Option<(Arc<Token>, WallTime)>,
    /// Each with the number of changes of the roots that came before it.
    attempts: Attempts<u64>,
}

/// See the header of this file.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    slots: BTreeMap<TokenKey, Slot>,
    /// Counts the changes of the roots.
    roots_changed: u64,
}

impl Tokens {
    /// The entries that apply to this node, and those that did before. Tokens of others are forgotten.
    pub fn view(&mut self, before: &[WorkloadEntry], entries: &[WorkloadEntry]) {
        self.slots.retain(|(name, _), slot| {
            let of = |entries: &[WorkloadEntry]| entries.iter().position(|entry| entry.name == *name);
            let Some(entry) = of(entries).map(|at| &entries[at]).filter(|entry| entry.jwt) else { return false };
            if of(before).map(|at| &before[at]) != Some(entry) {
                slot.attempts.forgive();
            }
            true
        });
    }
    /// A token that is held, or is being signed, may be of a root that was withdrawn.
    pub fn roots_changed(&mut self) {
        self.roots_changed += 1;
        self.slots.values_mut().for_each(|slot| slot.held = None);
    }

    /// The token for a call. `late`: it cannot wait any longer. A token whose second half has begun is handed out then, and while the
    /// leader does not answer: of the calls that come after a failure, one in each pause waits for the next attempt.
    pub fn state(&self, (now, wall): (Moment, WallTime), key: &TokenKey, late: bool) -> TokenState {
        let Some(slot) = self.slots.get(key) else {
            return if self.is_full(&key.0) { TokenState::Failed(too_many()) } else { TokenState::Pending };
        };
        let held = slot.held.as_ref().filter(|(token, _)| token.not_after > wall);
        let will_do = |renew_at: WallTime| match slot.attempts.failure() {
            _ if renew_at > wall => true,
            Some(failure) => !failure.refused && (late || !slot.attempts.is_free(now)),
            None => late,
        };
        match (held, slot.attempts.final_failure(now)) {
            (Some((token, renew_at)), _) if will_do(*renew_at) => TokenState::Held(Arc::clone(token)),
            (_, Some(failure)) => TokenState::Failed(failure.clone()),
            (_, None) => TokenState::Pending,
        }
    }

    /// An answer of the leader. Returns the workload, unless the request is forgotten.
    pub fn signed(
        &mut self,
        (now, wall): (Moment, WallTime),
        by: SignId,
        outcome: Result<Token, SignFailure>,
    ) -> Option<WorkloadName> {
        let ((name, _), slot) = self.slots.iter_mut().find(|(_, slot)| slot.attempts.awaits(by))?;
        let roots_changed = slot.attempts.answered(by)?;
        match outcome {
            // Which root has signed it is not known: it is asked for again.
            Ok(_) if roots_changed != self.roots_changed => slot.attempts.forgive(),
            Ok(token) if token.not_after > wall => {
                let renew_at = wall.plus(until(wall, token.not_after) / 2);
                slot.held = Some((Arc::new(token), renew_at));
                slot.attempts.succeeded(RetryPause::default());
            }
            Ok(token) => {
                let why =
                    format!("the token was signed until {}, which has passed by this node's clock", token.not_after);
                slot.attempts.failed(now, SignFailure { refused: false, why });
            }
            Err(failure) => slot.attempts.failed(now, failure),
        }
        Some(name.clone())
    }

    /// The tokens to be signed now, at most `room` of them. `last`: the last request of the node.
    pub fn plan(
        &mut self,
        (now, wall): (Moment, WallTime),
        wanted: &BTreeSet<TokenKey>,
        room: usize,
        last: &mut SignId,
    ) -> Vec<(SignId, TokenKey)> {
        for key in wanted {
            if !self.slots.contains_key(key) && !self.is_full(&key.0) {
                self.slots.insert(key.clone(), Slot::default());
            }
        }
        let holds = |slot: &Slot| slot.held.as_ref().is_some_and(|(token, _)| token.not_after > wall);
        self.slots.retain(|key, slot| {
            let attempts = &slot.attempts;
            wanted.contains(key) || holds(slot) || attempts.is_in_flight() || attempts.failed_lately(now)
        });
        let mut planned = Vec::new();
        for (key, slot) in &mut self.slots {
            let is_due = slot.held.as_ref().is_none_or(|(_, renew_at)| *renew_at <= wall);
            if planned.len() < room && is_due && slot.attempts.is_free(now) && wanted.contains(key) {
                let by = last.advance();
                slot.attempts.begin(by, self.roots_changed);
                planned.push((by, key.clone()));
            }
        }
        planned
    }

    /// When to look again.
    pub fn wake_at(&self, (now, wall): (Moment, WallTime), wanted: &BTreeSet<TokenKey>) -> Option<Moment> {
        let wakes = self.slots.iter().flat_map(|(key, slot)| {
            let retry = slot.attempts.free_at().filter(|_| wanted.contains(key));
            let expiry = slot.held.as_ref().map(|(token, _)| now + until(wall, token.not_after));
            retry.into_iter().chain(expiry).filter(|at| *at > now)
        });
        wakes.min()
    }

    pub fn in_flight(&self) -> usize {
        self.slots.values().filter(|slot| slot.attempts.is_in_flight()).count()
    }
    /// How many are held, are being signed, and have failed.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |of: fn(&Slot) -> bool| self.slots.values().filter(|slot| of(slot)).count();
        (count(|s| s.held.is_some()), self.in_flight(), count(|s| s.attempts.failure().is_some()))
    }
    /// The workload of a request in flight, and whether the last one for this token failed.
    pub fn asked_for(&self, by: SignId) -> Option<(&WorkloadName, bool)> {
        let ((name, _), slot) = self.slots.iter().find(|(_, slot)| slot.attempts.awaits(by))?;
        Some((name, slot.attempts.failure().is_some()))
    }
    /// The last failure of each token, with its workload.
    pub fn failing(&self) -> impl Iterator<Item = (&WorkloadName, &SignFailure)> {
        self.slots.iter().filter_map(|((name, _), slot)| Some((name, slot.attempts.failure()?)))
    }
    fn is_full(&self, name: &WorkloadName) -> bool {
        self.slots.keys().filter(|(of, _)| of == name).count() >= MAX_TOKENS_OF_WORKLOAD
    }
}

fn too_many() -> SignFailure {
    let why = format!("this workload has JWTs for {MAX_TOKENS_OF_WORKLOAD} audiences, which is the limit; retry later");
    SignFailure { refused: false, why }
}
