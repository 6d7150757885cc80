//! Which workers may be promoted, and in which order. The same facts give the same list: nothing here is random.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use muster_messages::{AutopilotPolicy, Exclusion, ManagerPreference, Moment, NodeId, Triple};

use super::facts::{Doubt, Facts, Seen, Worker};
use crate::Config;

/// A worker's place: first, second, …, or why it has none.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub node: NodeId,
    pub standing: Result<usize, Exclusion>,
    /// When it will be stable, if that is all that it lacks.
    pub stable_at: Option<Moment>,
}

/// All workers: those with a place first, in their order.
pub fn candidates(policy: &AutopilotPolicy, facts: &Facts, config: &Config) -> Vec<Candidate> {
    let lowest = facts.voters.iter().filter(|voter| voter.answers).map(|voter| voter.release).min();
    let zones = facts.zones();
    let mut placed: Vec<(Order, &Worker)> = Vec::new();
    let mut excluded = Vec::new();
    for worker in &facts.workers {
        match excluded_for(policy, facts, worker, lowest) {
            None => placed.push((order(facts, worker, &zones, config), worker)),
            Some((exclusion, stable_at)) => {
                excluded.push(Candidate { node: worker.node, standing: Err(exclusion), stable_at });
            }
        }
    }
    placed.sort_by_key(|(order, _)| *order);
    let placed = placed.into_iter().enumerate();
    let mut all: Vec<Candidate> = placed
        .map(|(at, (_, worker))| Candidate { node: worker.node, standing: Ok(at + 1), stable_at: None })
        .collect();
    all.extend(excluded);
    all
}

/// Smaller comes first: preferred, in the zone with the fewest managers that answer, of the newest release, longest ready, lowest id.
type Order = (bool, usize, Reverse<Triple>, Reverse<u128>, NodeId);

fn order(facts: &Facts, worker: &Worker, zones: &BTreeMap<&str, usize>, config: &Config) -> Order {
    // Without the label a node is a zone of its own.
    let in_zone = worker.zone.as_deref().and_then(|zone| zones.get(zone)).copied().unwrap_or(0);
    let ready = match worker.seen {
        Some(Seen::Ready(since)) => facts.now.since(since).as_millis() / config.readiness_step.as_millis().max(1),
        _ => 0,
    };
    let later = worker.preference != ManagerPreference::Prefer;
    (later, in_zone, Reverse(worker.release), Reverse(ready), worker.node)
}

fn excluded_for(
    policy: &AutopilotPolicy,
    facts: &Facts,
    worker: &Worker,
    lowest: Option<Triple>,
) -> Option<(Exclusion, Option<Moment>)> {
    let never = |exclusion| Some((exclusion, None));
    if worker.preference == ManagerPreference::Never {
        return never(Exclusion::Never);
    }
    if !worker.eligible {
        return never(Exclusion::NotEligible);
    }
    if worker.drained {
        return never(Exclusion::Drained);
    }
    if worker.demoted_by_person && worker.preference != ManagerPreference::Prefer {
        return never(Exclusion::DemotedByOperator);
    }
    match worker.doubt {
        Some(Doubt::Duplicate) => return never(Exclusion::Duplicate),
        Some(Doubt::CertificateFailed) => return never(Exclusion::CertificateFailed),
        Some(Doubt::CertificateRevoked) => return never(Exclusion::CertificateRevoked),
        Some(Doubt::NoRelease) => return never(Exclusion::ReleaseUnknown),
        None => {}
    }
    if lowest.is_some_and(|lowest| worker.release < lowest) {
        return never(Exclusion::OlderRelease);
    }
    if worker.backoff_until.is_some_and(|until| facts.wall < until) {
        return never(Exclusion::Backoff);
    }
    let Some(Seen::Ready(since)) = worker.seen else { return never(Exclusion::NotReady) };
    let stable_at = since + policy.stabilize();
    (facts.now < stable_at).then_some((Exclusion::NotStable, Some(stable_at)))
}
