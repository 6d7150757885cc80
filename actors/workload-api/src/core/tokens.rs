//! The JWTs that this node holds for its workloads: one for each workload and audience that a process asked for.
//!
//! Owns        tokens in memory, requests for them in flight, pauses after failures.
//! Inputs      the entries of a view, signatures, the tokens that open calls want.
//! Outputs     which tokens are to be signed now.
//! Why a token is handed out again until half of its life has passed: programs ask for one before each call, and the leader must not sign
//! for each. Why so few for a workload: an audience is any text, and a program must not fill the node's memory, or use up what the leader
//! signs for the node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use muster_messages::{Moment, RetryPause, WallTime, WorkloadEntry, WorkloadName};

use super::certificates::until;
use super::{SIGN_PAUSES, SignFailure, SignId};

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
    held: Option<(Arc<Token>, WallTime)>,
    signing: Option<SignId>,
    pause: RetryPause,
    failure: Option<SignFailure>,
}

/// See the header of this file.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    slots: BTreeMap<TokenKey, Slot>,
    last: SignId,
}

impl Tokens {
    /// The entries that apply to this node: tokens of others are forgotten.
    pub fn view(&mut self, entries: &[WorkloadEntry]) {
        self.slots.retain(|(name, _), _| entries.iter().any(|entry| entry.name == *name && entry.jwt));
    }
    /// One that is held may be of a root that was withdrawn.
    pub fn roots_changed(&mut self) {
        self.slots.values_mut().for_each(|slot| slot.held = None);
    }

    /// The token for a call. One whose second half has begun is handed out only while no other one can be had.
    pub fn state(&self, (now, wall): (Moment, WallTime), key: &TokenKey) -> TokenState {
        let Some(slot) = self.slots.get(key) else {
            return if self.is_full(&key.0) { TokenState::Failed(too_many()) } else { TokenState::Pending };
        };
        let failure = slot.failure.as_ref().filter(|_| slot.signing.is_none() && !slot.pause.is_over(now));
        let held = slot.held.as_ref().filter(|(token, _)| token.not_after > wall);
        match (held, failure) {
            (Some((token, renew_at)), failure) if *renew_at > wall || failure.is_some_and(|of| !of.refused) => {
                TokenState::Held(Arc::clone(token))
            }
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
        let ((name, _), slot) = self.slots.iter_mut().find(|(_, slot)| slot.signing == Some(by))?;
        slot.signing = None;
        match outcome {
            Ok(token) if token.not_after > wall => {
                let renew_at = wall.plus(until(wall, token.not_after) / 2);
                slot.held = Some((Arc::new(token), renew_at));
                (slot.failure, slot.pause) = (None, RetryPause::default());
            }
            Ok(token) => {
                let why =
                    format!("the token was signed until {}, which has passed by this node's clock", token.not_after);
                slot.failure = Some(SignFailure { refused: false, why });
            }
            Err(failure) => slot.failure = Some(failure),
        }
        if slot.failure.is_some() {
            slot.pause.failed(now, SIGN_PAUSES);
        }
        Some(name.clone())
    }

    /// The tokens to be signed now, at most `room` of them.
    pub fn plan(
        &mut self,
        (now, wall): (Moment, WallTime),
        wanted: &BTreeSet<TokenKey>,
        room: usize,
    ) -> Vec<(SignId, TokenKey)> {
        for key in wanted {
            if !self.slots.contains_key(key) && !self.is_full(&key.0) {
                self.slots.insert(key.clone(), Slot::default());
            }
        }
        // A failure is remembered beyond its pause even when no call waits: otherwise each call would ask the leader.
        let failed_lately = |slot: &Slot| slot.failure.is_some() && now < slot.pause.ends() + SIGN_PAUSES.1;
        let holds = |slot: &Slot| slot.held.as_ref().is_some_and(|(token, _)| token.not_after > wall);
        self.slots
            .retain(|key, slot| wanted.contains(key) || slot.signing.is_some() || holds(slot) || failed_lately(slot));
        let mut planned = Vec::new();
        for (key, slot) in &mut self.slots {
            let is_due = slot.held.as_ref().is_none_or(|(_, renew_at)| *renew_at <= wall);
            let is_free = slot.signing.is_none() && slot.pause.is_over(now);
            if planned.len() < room && is_due && is_free && wanted.contains(key) {
                self.last = SignId(self.last.0 + 1);
                slot.signing = Some(self.last);
                planned.push((self.last, key.clone()));
            }
        }
        planned
    }

    /// When to look again.
    pub fn wake_at(&self, (now, wall): (Moment, WallTime), wanted: &BTreeSet<TokenKey>) -> Option<Moment> {
        let wakes = self.slots.iter().flat_map(|(key, slot)| {
            let retry = (slot.signing.is_none() && wanted.contains(key)).then(|| slot.pause.ends());
            let expiry = slot.held.as_ref().map(|(token, _)| now + until(wall, token.not_after));
            retry.into_iter().chain(expiry).filter(|at| *at > now)
        });
        wakes.min()
    }

    pub fn in_flight(&self) -> usize {
        self.slots.values().filter(|slot| slot.signing.is_some()).count()
    }
    /// How many are held.
    pub fn held(&self) -> usize {
        self.slots.values().filter(|slot| slot.held.is_some()).count()
    }
    fn is_full(&self, name: &WorkloadName) -> bool {
        self.slots.keys().filter(|(of, _)| of == name).count() >= MAX_TOKENS_OF_WORKLOAD
    }
}

fn too_many() -> SignFailure {
    let why = format!("this workload has JWTs for {MAX_TOKENS_OF_WORKLOAD} audiences, which is the limit; retry later");
    SignFailure { refused: false, why }
}
