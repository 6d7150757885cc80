//! What people see of the autopilot.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{
    AutopilotCandidateView, AutopilotChangeView, AutopilotManagerView, AutopilotNextView, AutopilotPolicy,
    AutopilotPolicyView, AutopilotView, Moment, Name, NodeId, Tables, WallTime,
};

use crate::core::{Decision, Facts, Plan, Seen, Worker};

pub(crate) fn view(tables: &Tables, policy: Option<&AutopilotPolicy>, facts: &Facts, plan: &Plan) -> AutopilotView {
    let (voters, answering) = (facts.voters.len(), facts.answering());
    let declared = policy.map_or(voters, |policy| usize::from(policy.managers));
    let name =
        |node: NodeId| tables.nodes.get(&node).map_or_else(|| Name::sanitized("removed"), |record| record.name.clone());
    let managers = facts.voters.iter().map(|voter| AutopilotManagerView {
        node: voter.node,
        name: name(voter.node),
        zone: voter.zone.clone(),
        answers: voter.answers,
        down_since: match voter.seen {
            Some(Seen::Down(since)) => Some(wall(facts, since)),
            _ => None,
        },
        drain: tables.autopilot.drains.get(&voter.node).map(|drain| drain.as_ref().into()),
    });
    let workers: BTreeMap<NodeId, &Worker> = facts.workers.iter().map(|worker| (worker.node, worker)).collect();
    let candidates = plan.candidates.iter().map(|candidate| AutopilotCandidateView {
        node: candidate.node,
        name: name(candidate.node),
        zone: workers.get(&candidate.node).and_then(|worker| worker.zone.clone()),
        preference: tables.autopilot.preference(candidate.node),
        rank: candidate.standing.as_ref().ok().copied(),
        excluded: candidate.standing.as_ref().err().map(|exclusion| (*exclusion).into()),
    });
    let placed = plan.candidates.iter().filter(|candidate| candidate.standing.is_ok()).count();
    AutopilotView {
        policy: policy.map(AutopilotPolicyView::from),
        healthy: policy.is_some() && answering == declared && voters == declared,
        tolerance: facts.tolerance(),
        // Without one that may fail now, the first failure ends the quorum, and nothing is replaced.
        optimistic_tolerance: if facts.tolerance() > 0 { facts.tolerance() + placed } else { 0 },
        voters,
        answering,
        zones: facts.zones().into_iter().map(|(zone, count)| (zone.to_owned(), count)).collect(),
        managers: managers.collect(),
        candidates: candidates.collect(),
        next: next(facts, plan),
        history: tables
            .autopilot
            .changes
            .iter()
            .map(|change| AutopilotChangeView {
                at: change.at,
                action: change.action,
                node: change.node,
                replaces: change.replaces,
                outcome: change.outcome,
                why: change.why.clone(),
            })
            .collect(),
    }
}

fn next(facts: &Facts, plan: &Plan) -> AutopilotNextView {
    let waits = AutopilotNextView { action: None, reason: None, node: None, not_before: None, message: String::new() };
    match &plan.decision {
        Decision::Act(act) => {
            AutopilotNextView { action: Some(act.action), node: Some(act.node), message: act.why.clone(), ..waits }
        }
        Decision::Wait(wait) => AutopilotNextView {
            reason: Some(wait.reason.into()),
            node: wait.node,
            not_before: wait.not_before.map(|at| wall(facts, at)),
            message: wait.message.clone(),
            ..waits
        },
        Decision::GiveUp(why) => AutopilotNextView {
            reason: Some(muster_messages::AutopilotReason::Paused.into()),
            message: why.clone(),
            ..waits
        },
    }
}

/// A moment of this leader's clock, as wall time.
fn wall(facts: &Facts, at: Moment) -> WallTime {
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match at >= facts.now {
        true => WallTime(facts.wall.0.saturating_add(ms(at.since(facts.now)))),
        false => WallTime(facts.wall.0.saturating_sub(ms(facts.now.since(at)))),
    }
}
