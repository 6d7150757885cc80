//! Outcomes of requests, by caller.
//!
//! Owns        nothing: writes [`Requests`] when an entry is applied, from `IDENTITY_LEVEL` on.
//! Inputs      commands with a request id.
//! Outputs     the first outcome for a retry; a refusal for an id that is used twice, may be forgotten, or is of the future.
//! Invariants  APPLY-3 and APPLY-4; see `lib.rs`.
//! Why the greatest ids and not the latest: ids begin with the time. Every applied id above the floor is remembered, so an
//! unknown id above it is new, and an unknown id below it may be old. No order of arrival is needed for that.
//! Why not by session and sequence number, as in the Raft thesis: every client would need a session before its first request.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::{
    Answered, CallerRequests, Command, CommandRefusal, Guard, Principal, RequestId, Requests, Revision, Tables,
};

use crate::bugs::BugInjection;
use crate::injected;
use crate::limits::Limits;

/// One outcome in so many is evicted at once, so that one search for the callers with most of them serves many commands.
const EVICTION_DIVISOR: u64 = 64;
/// Bytes of a refusal that count as one outcome.
const REFUSAL_BYTES: usize = 256;
/// How far the clock that made an id may be ahead of the leader's. Ids of the far future would raise their caller's floor
/// above its later ids; a clock that is off by a day is noticed elsewhere first.
const MAX_ID_AHEAD: Duration = Duration::from_secs(24 * 3600);

/// The space of the command's id (its caller), and the digest of the request.
fn space(command: &Command) -> (&Principal, Option<u64>) {
    let digest = command.guards.iter().find_map(|guard| match guard {
        Guard::Request { digest } => Some(*digest),
        _ => None,
    });
    if injected(BugInjection::ShareRequestIds) {
        return (&Principal::Cluster, None);
    }
    if digest.is_some() { (&command.by, digest) } else { (&Principal::Cluster, None) }
}

/// The earlier outcome of this request, or why it must not be applied; `None`: it is new.
pub(crate) fn recall(tables: &Tables, command: &Command) -> Option<Result<(), CommandRefusal>> {
    let (caller, digest) = space(command);
    let id = command.request;
    if let Some(first) = tables.outcome_of(caller, id) {
        return Some(first.of_request(id, digest.unwrap_or(0)).map(drop));
    }
    digest?;
    // A leader that had not yet applied the raise of the level proposed it without a digest; or it is an id of Muster's own
    // actors.
    if tables.requests.get(&Principal::Cluster, id).is_some() {
        return Some(Err(CommandRefusal::OutcomeForgotten(Box::new(id))));
    }
    if id.time() > command.at.plus(MAX_ID_AHEAD) {
        return Some(Err(CommandRefusal::RequestAhead { id: Box::new(id), now: command.at }));
    }
    let forgotten = id <= tables.requests.floor_of(caller) && !injected(BugInjection::ReapplyForgotten);
    forgotten.then_some(Err(CommandRefusal::OutcomeForgotten(Box::new(id))))
}

/// Remembers the outcome of a new request, and forgets others if there is no room.
pub(crate) fn remember(
    limits: &Limits,
    tables: &mut Tables,
    command: &Command,
    revision: Revision,
    refused: Option<&CommandRefusal>,
) {
    let (caller, digest) = space(command);
    if injected(BugInjection::ReapplyForgotten) && command.request <= tables.requests.floor_of(caller) {
        return;
    }
    forget_one_of_level_2(tables, command);
    let requests = &mut tables.requests;
    let answered = Answered { revision, digest: digest.unwrap_or(0), refused: refused.cloned().map(Box::new) };
    let weight = weight(&answered);
    if !requests.callers.contains_key(caller) {
        requests.callers.insert(caller.clone(), Arc::default());
    }
    let own = requests.callers.get_mut(caller).expect("it was inserted where it was missing");
    let own = Arc::make_mut(own);
    own.outcomes.insert(command.request, answered);
    own.weight += weight;
    requests.weight += weight;
    if requests.weight > limits.outcomes as u64 {
        evict(limits, requests);
    }
    if requests.callers.len() > limits.callers {
        forget_callers(limits, requests);
    }
}

/// The outcomes of feature level 2 are evicted one by one. Their ids were in one space.
fn forget_one_of_level_2(tables: &mut Tables, command: &Command) {
    let Some(oldest) = tables.outcome_order.pop_front() else { return };
    tables.outcomes.remove(&oldest);
    if oldest.time() <= command.at {
        tables.requests.floor = tables.requests.floor.max(oldest);
    }
}

fn weight(answered: &Answered) -> u64 {
    1 + answered.refused.as_ref().map_or(0, |refusal| refusal.to_string().len() / REFUSAL_BYTES) as u64
}

/// APPLY-4: evicts from the callers with most, until all have at most the same.
fn evict(limits: &Limits, requests: &mut Requests) {
    let outcomes = limits.outcomes as u64;
    let share = fair_share(requests, outcomes - outcomes / EVICTION_DIVISOR);
    let above = requests.callers.iter().filter(|(_, own)| own.weight > share).map(|(caller, _)| caller.clone());
    for caller in above.collect::<Vec<_>>() {
        let Some(own) = requests.callers.get_mut(&caller) else { continue };
        let own = Arc::make_mut(own);
        let before = own.weight;
        while own.weight > share
            && let Some((oldest, answered)) = own.outcomes.get_min().cloned()
        {
            own.outcomes.remove(&oldest);
            own.weight -= weight(&answered);
            own.floor = own.floor.max(oldest);
        }
        requests.weight -= before - own.weight;
    }
}

/// The limit per caller that leaves `room` in total.
fn fair_share(requests: &Requests, room: u64) -> u64 {
    let mut weights: Vec<u64> = requests.callers.values().map(|own| own.weight).collect();
    weights.sort_unstable();
    let (mut left, mut others) = (room, weights.len() as u64);
    for weight in weights {
        if weight > left / others {
            return left / others;
        }
        left -= weight;
        others -= 1;
    }
    room
}

/// Forgets the callers whose newest ids are oldest; afterwards no id of that time is accepted as new.
fn forget_callers(limits: &Limits, requests: &mut Requests) {
    let newest = |own: &CallerRequests| own.outcomes.get_max().map_or(own.floor, |(id, _)| *id);
    let callers = requests.callers.iter().filter(|(caller, _)| **caller != Principal::Cluster);
    let mut callers: Vec<(RequestId, Principal)> = callers.map(|(caller, own)| (newest(own), caller.clone())).collect();
    callers.sort_unstable();
    for (newest, caller) in callers.into_iter().take(limits.callers / 16) {
        let Some(gone) = requests.callers.remove(&caller) else { continue };
        requests.weight -= gone.weight;
        requests.floor = requests.floor.max(newest);
    }
}
