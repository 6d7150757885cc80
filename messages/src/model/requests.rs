//! Outcomes of requests, kept apart by the caller that chose the id. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on; below,
//! outcomes are remembered by id only.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::{CommandRefusal, NodeId, Outcome, Principal, RequestId, Revision, Tables};

/// Outcomes by caller. The ids of one caller say nothing about those of another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// [`Principal::Cluster`] stands for Muster's actors: no caller can authenticate as it, so their ids cannot be taken.
    pub callers: OrdMap<Principal, Arc<CallerRequests>>,
    /// The sum of the weights of `callers`.
    pub weight: u64,
    /// The greatest id whose outcome was forgotten together with its caller, or with the table of feature level 2.
    pub floor: RequestId,
}

/// The remembered requests of one caller: every id above the floor that was ever applied or refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallerRequests {
    pub outcomes: OrdMap<RequestId, Answered>,
    /// The room that the outcomes take; see `muster_store::MAX_OUTCOMES`.
    pub weight: u64,
    /// The greatest id of this caller whose outcome was forgotten.
    pub floor: RequestId,
}

/// How one request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    pub revision: Revision,
    /// Of the request; see [`Guard::Request`](super::Guard::Request). 0 for the actors of Muster.
    pub digest: u64,
    /// The refusal, if it was refused. Boxed, because most are not and many thousands of outcomes are kept.
    pub refused: Option<Box<CommandRefusal>>,
}

/// A remembered outcome, of either feature level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled<'a> {
    /// Of its first attempt.
    pub revision: Revision,
    pub refused: Option<&'a CommandRefusal>,
    /// `None`: remembered at feature level 2, which knows only ids.
    pub digest: Option<u64>,
}

impl Requests {
    /// The outcome of this caller's request.
    pub fn get(&self, caller: &Principal, request: RequestId) -> Option<&Answered> {
        self.callers.get(caller)?.outcomes.get(&request)
    }
    /// The greatest id of this caller that may have been forgotten: an unknown id up to here may have been applied.
    pub fn floor_of(&self, caller: &Principal) -> RequestId {
        self.callers.get(caller).map_or(self.floor, |own| own.floor.max(self.floor))
    }
}

impl Recalled<'_> {
    /// The outcome for a request under this id with this digest: the revision at which it was applied.
    ///
    /// # Errors
    /// Its refusal; the id is of another request.
    pub fn of_request(&self, id: RequestId, digest: u64) -> Result<Revision, CommandRefusal> {
        match self.refused {
            _ if self.digest.is_some_and(|of_first| of_first != digest) => {
                Err(CommandRefusal::RequestReused(Box::new(id)))
            }
            Some(refusal) => Err(refusal.clone()),
            None => Ok(self.revision),
        }
    }
}

impl Tables {
    /// How this caller's request ended, if still remembered.
    pub fn outcome_of(&self, caller: &Principal, request: RequestId) -> Option<Recalled<'_>> {
        if let Some(answered) = self.requests.get(caller, request) {
            let Answered { revision, digest, refused } = answered;
            return Some(Recalled { revision: *revision, refused: refused.as_deref(), digest: Some(*digest) });
        }
        let Outcome { revision, refused, .. } = self.outcomes.get(&request)?;
        Some(Recalled { revision: *revision, refused: refused.as_deref(), digest: None })
    }
    /// The requests that were applied at these revisions, by caller: those that are still remembered. A revision has one
    /// request at most. Muster's own actors have none: their ids are nothing that a caller knows.
    ///
    /// What a caller has sent last is found first, so that a reader of new events searches little.
    pub fn requests_at<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a Principal, Revision)>,
    ) -> BTreeMap<Revision, RequestId> {
        let mut wanted: BTreeMap<&Principal, BTreeSet<Revision>> = BTreeMap::new();
        for (by, at) in changes.into_iter().filter(|(by, _)| **by != Principal::Cluster) {
            wanted.entry(by).or_default().insert(at);
        }
        let mut found = BTreeMap::new();
        for (by, mut revisions) in wanted {
            let own = self.requests.callers.get(by).into_iter().flat_map(|own| own.outcomes.iter().rev());
            for (id, answered) in own {
                if answered.refused.is_none() && revisions.remove(&answered.revision) {
                    found.insert(answered.revision, *id);
                }
                if revisions.is_empty() {
                    break;
                }
            }
        }
        found
    }
    /// Whether one of this caller's requests with these ids was applied.
    pub fn has_applied(&self, caller: &Principal, requests: Range<RequestId>) -> bool {
        let own = self.requests.callers.get(caller);
        own.is_some_and(|own| own.outcomes.range(requests.clone()).any(|(_, answered)| answered.refused.is_none()))
            || self.outcomes.range(requests).any(|(_, outcome)| outcome.refused.is_none())
    }
    /// Whether requests are remembered by caller.
    pub fn remembers_callers(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.feature_level >= super::IDENTITY_LEVEL)
    }
}

/// The digest of a removal: the role manager records it, and the API looks for it after the node is gone.
pub fn removal_digest(node: NodeId, force: bool) -> u64 {
    request_digest(&[b"remove", node.as_str().as_bytes(), &[u8::from(force)]])
}

/// Tells requests under the same id apart (FNV-1a, 64 bits). A caller that finds two requests with one digest deceives only
/// itself.
pub fn request_digest(parts: &[&[u8]]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let part = |hash, part: &&[u8]| {
        let length = (part.len() as u64).to_be_bytes();
        length.iter().chain(part.iter()).fold(hash, step)
    };
    parts.iter().fold(0xcbf2_9ce4_8422_2325, part)
}
