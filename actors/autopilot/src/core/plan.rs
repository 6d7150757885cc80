//! The plan: one step, or why there is none.
//!
//! The cases are tried in order; the first one that applies decides. At most one change is under way, so the number of voters is also the
//! number of nodes that are to be managers.
//!
//! A dead manager is demoted *before* another node takes its place. It does not answer, so without it the same number may still fail;
//! added first, the newcomer would be needed for a quorum of three out of four.

use std::time::Duration;

use muster_messages::{
    Autopilot, AutopilotAction, AutopilotChange, AutopilotOutcome, AutopilotPause, AutopilotPolicy, AutopilotReason,
    Moment, NodeId, WallTime, answering as part_that_answers, counted,
};

use super::candidates::{Candidate, candidates};
use super::facts::{Facts, Seen, Voter, age, known_at, majority};
use crate::Config;
use crate::bugs::{BugInjection, is_injected, planned};

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Act(Act),
    Wait(Wait),
    /// The rate of replacements is that of a fault of the network or of the autopilot, not of machines: it pauses itself.
    GiveUp(String),
}

/// One request to the role manager.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    pub action: AutopilotAction,
    pub node: NodeId,
    pub replaces: Option<NodeId>,
    /// For people, with the numbers.
    pub why: String,
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    pub reason: AutopilotReason,
    /// The node that it waits for, if it is one.
    pub node: Option<NodeId>,
    /// When time may change the decision although no fact changes.
    pub not_before: Option<Moment>,
    pub message: String,
}

/// The decision and what it was made by.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub decision: Decision,
    pub candidates: Vec<Candidate>,
    /// When to plan again although no fact has changed.
    pub wake_at: Option<Moment>,
}

fn wait(reason: AutopilotReason, message: impl Into<String>) -> Decision {
    Decision::Wait(Wait { reason, node: None, not_before: None, message: message.into() })
}

/// AUTO-7: the same state and facts give the same plan.
pub fn plan(autopilot: &Autopilot, facts: &Facts, config: &Config) -> Plan {
    let Some(policy) = autopilot.policy.as_deref() else {
        let message = "no number of managers is declared: roles are changed by operators only";
        return Plan { decision: wait(AutopilotReason::Off, message), candidates: Vec::new(), wake_at: None };
    };
    let candidates = candidates(policy, facts, config);
    let planner = Planner { policy, autopilot, facts, config, candidates: &candidates };
    let decision = planner.decide();
    let wake_at = planner.wake_at(&decision);
    Plan { decision, candidates, wake_at }
}

struct Planner<'a> {
    policy: &'a AutopilotPolicy,
    autopilot: &'a Autopilot,
    facts: &'a Facts,
    config: &'a Config,
    candidates: &'a [Candidate],
}

impl Planner<'_> {
    fn decide(&self) -> Decision {
        if let Some(decision) = self.before_any_step() {
            return decision;
        }
        let decision = match (self.replace(), self.grow()) {
            // A dead manager that cannot be replaced now does not delay promotions. Nor does one for which no candidate is left, because
            // the managers that are missing take them all.
            (Some(replaced), Some(grown @ Decision::Act(_)))
                if matches!(replaced, Decision::Wait(_)) || self.needs_every_candidate() =>
            {
                grown
            }
            (Some(replaced), _) => replaced,
            (None, Some(grown)) => grown,
            (None, None) => {
                let surplus = self.leaving().or_else(|| self.relieve()).or_else(|| self.shrink());
                surplus.unwrap_or_else(|| self.rest())
            }
        };
        match decision {
            Decision::Act(_) | Decision::GiveUp(_) if 2 * self.facts.down > self.facts.nodes => {
                let message = format!(
                    "{} of {} nodes are down: probably the network has failed, or this manager's part of it",
                    self.facts.down, self.facts.nodes
                );
                wait(AutopilotReason::TooManyDown, message)
            }
            decision => decision,
        }
    }

    /// Reasons to begin nothing at all.
    fn before_any_step(&self) -> Option<Decision> {
        let Self { facts, .. } = *self;
        if let Some(pause) = self.pause() {
            return Some(wait(AutopilotReason::Paused, format!("{} has paused it: {}", pause.by, pause.why)));
        }
        if !facts.known {
            return Some(wait(AutopilotReason::Settling, "this leader does not know yet which managers answer"));
        }
        let (voters, answering) = (facts.voters.len(), facts.answering());
        if answering < majority(voters) {
            let message = format!("{answering} of {voters} managers answer: no change can be committed");
            return Some(wait(AutopilotReason::NoQuorum, message));
        }
        if is_injected(BugInjection::ForgetBegun) {
            return None;
        }
        if let Some(change) = self.autopilot.outstanding() {
            let what = format!("{} of {}", noun(change.action), self.name(change.node));
            // A promotion is taken back then.
            let not_before = self.due_at(change).filter(|_| change.action == AutopilotAction::Promote);
            return Some(Decision::Wait(Wait { not_before, ..busy(change.node, &what) }));
        }
        let unsettled = facts.unsettled.first()?;
        let what = format!("{} is becoming a {}", unsettled.name, unsettled.to);
        Some(Decision::Wait(busy(unsettled.node, &what)))
    }

    fn pause(&self) -> Option<&AutopilotPause> {
        self.policy.paused.as_ref().filter(|_| !is_injected(BugInjection::ActWhilePaused))
    }

    /// Whether the managers that are missing take every candidate.
    fn needs_every_candidate(&self) -> bool {
        self.facts.voters.len() + self.placed() <= self.declared()
    }

    /// A manager that is dead.
    fn replace(&self) -> Option<Decision> {
        let (voters, answering) = (self.facts.voters.len(), self.facts.answering());
        // A manager that an operator has demoted or removed leaves in any case.
        let dead = self.facts.voters.iter().find(|voter| self.is_dead(voter) && !voter.leaves)?;
        if self.placed() == 0 && voters <= self.declared() {
            let message = format!("{} is down, and no worker can take its place{}", dead.name, self.exclusions());
            return Some(self.with_node(AutopilotReason::NoCandidate, dead.node, message));
        }
        if let Some(held_back) = self.rate_of_replacements(dead) {
            return Some(held_back);
        }
        let what = format!("without {}, which is down, {}", dead.name, part_that_answers(answering, voters - 1));
        if answering < majority(voters - 1) {
            return Some(self.with_node(AutopilotReason::QuorumAtRisk, dead.node, what));
        }
        if is_injected(BugInjection::PromoteFirst)
            && voters >= self.declared()
            && let Some(first) = self.first_candidate()
        {
            let (action, replaces) = (AutopilotAction::Promote, Some(dead.node));
            return Some(Decision::Act(Act { action, node: first, replaces, why: what }));
        }
        let why = format!("{} has been down for {} or more; {what}", dead.name, time(self.policy.replace_after()));
        let replaces = Some(dead.node);
        Some(Decision::Act(Act { action: AutopilotAction::Demote, node: dead.node, replaces, why }))
    }

    /// Fewer managers than declared.
    fn grow(&self) -> Option<Decision> {
        let (voters, declared) = (self.facts.voters.len(), self.declared());
        if voters >= declared {
            return None;
        }
        if is_injected(BugInjection::OnlyDemote) && self.half_replaced().is_some() {
            return Some(wait(AutopilotReason::Content, "nothing is left to do"));
        }
        let number = format!("{voters} of {declared} declared managers");
        let even = voters.is_multiple_of(2);
        if self.placed() == 0 {
            return Some(wait(
                AutopilotReason::NoCandidate,
                format!("{number}, and no worker can be promoted{}", self.exclusions()),
            ));
        }
        if !even && self.placed() == 1 {
            let message = format!(
                "{number}, and one candidate: {} managers would tolerate no more failures than {voters}, and need one more to answer; \
                 they are promoted in pairs{}",
                voters + 1,
                self.exclusions()
            );
            return Some(wait(AutopilotReason::NoPair, message));
        }
        if !even && let Some(held_back) = self.between_changes() {
            return Some(held_back);
        }
        if let Some(risk) = self.risk_of_promotion() {
            return Some(wait(AutopilotReason::QuorumAtRisk, format!("{number}; {risk}")));
        }
        let node = self.first_candidate()?;
        let replaces = self.half_replaced();
        let why = format!("{number}; {} is the first candidate", self.name(node));
        Some(Decision::Act(Act { action: AutopilotAction::Promote, node, replaces, why }))
    }

    /// Why one more manager might cost the quorum, if it might: a new manager does not answer yet. A single manager is the exception: every
    /// way from it to others leads over two.
    fn risk_of_promotion(&self) -> Option<String> {
        let (voters, answering) = (self.facts.voters.len(), self.facts.answering());
        let needed = majority(voters + 1);
        (voters > 1 && answering < needed).then(|| format!("with one more, {needed} must answer and {answering} do"))
    }

    fn first_candidate(&self) -> Option<NodeId> {
        let mut placed = self.candidates.iter().filter(|candidate| candidate.standing.is_ok());
        let first = match is_injected(BugInjection::PickAnyCandidate) && planned().is_multiple_of(2) {
            true => placed.next_back(),
            false => placed.next(),
        };
        first.map(|candidate| candidate.node)
    }

    /// A manager that is being demoted or removed still counts. No other one is surplus, or gives its place away, before it has left.
    fn leaving(&self) -> Option<Decision> {
        let leaves = self.facts.voters.iter().find(|voter| voter.leaves)?;
        Some(Decision::Wait(busy(leaves.node, &format!("{} is becoming a worker", leaves.name))))
    }

    /// A manager that is drained gives its place to another node. That one comes first: the drained one still answers.
    fn relieve(&self) -> Option<Decision> {
        let (voters, declared) = (self.facts.voters.len(), self.declared());
        let to_replace = |voter: &&Voter| voter.answers && voter.drain.is_some_and(|drain| drain.replace);
        let drained = self.facts.voters.iter().find(to_replace)?;
        if voters > declared {
            let left = self.facts.answering() - 1;
            if left < majority(voters - 1) {
                let message =
                    format!("without {}, which is drained, {left} of {} would answer", drained.name, voters - 1);
                return Some(self.with_node(AutopilotReason::QuorumAtRisk, drained.node, message));
            }
            let why = format!("{} is drained, and {voters} managers are more than declared", drained.name);
            // Does not count for the rate of replacements: nothing has failed.
            let (action, replaces) = (AutopilotAction::Demote, None);
            return Some(Decision::Act(Act { action, node: drained.node, replaces, why }));
        }
        let Some(node) = self.first_candidate() else {
            let message = format!("{} is drained, and no worker can take its place{}", drained.name, self.exclusions());
            return Some(self.with_node(AutopilotReason::NoCandidate, drained.node, message));
        };
        if let Some(held_back) = self.between_changes() {
            return Some(held_back);
        }
        if let Some(risk) = self.risk_of_promotion() {
            return Some(self.with_node(AutopilotReason::QuorumAtRisk, drained.node, risk));
        }
        let why = format!("{} is drained; {} is the first candidate", drained.name, self.name(node));
        let (action, replaces) = (AutopilotAction::Promote, Some(drained.node));
        Some(Decision::Act(Act { action, node, replaces, why }))
    }

    /// More managers than declared.
    fn shrink(&self) -> Option<Decision> {
        let (voters, declared) = (self.facts.voters.len(), self.declared());
        if voters <= declared || !self.policy.shrink {
            return None;
        }
        // While a manager is silent, the surplus one may be that one.
        if let Some(silent) = self.facts.voters.iter().find(|voter| !voter.answers) {
            let message = format!(
                "{voters} managers, {declared} declared; surplus ones stay while {} does not answer",
                silent.name
            );
            let (node, not_before) = (Some(silent.node), self.dead_at(silent));
            let reason = AutopilotReason::MoreThanDeclared;
            return Some(Decision::Wait(Wait { reason, node, not_before, message }));
        }
        let zones = self.facts.zones();
        // A manager that an operator promoted stays, and so does the leader while another one can go.
        let may_go = self.facts.voters.iter().filter(|voter| !voter.wanted_by_person && voter.answers);
        let goes = may_go.max_by_key(|voter| {
            let in_zone = voter.zone.as_deref().and_then(|zone| zones.get(zone)).copied().unwrap_or(0);
            let ready_since = match voter.seen {
                Some(Seen::Ready(since)) => Some(since),
                _ => None,
            };
            (!voter.leads, voter.never, in_zone, ready_since, voter.node)
        })?;
        if !voters.is_multiple_of(2)
            && let Some(held_back) = self.between_changes()
        {
            return Some(held_back);
        }
        let left = self.facts.answering() - 1;
        let number = format!("{voters} managers, {declared} declared");
        if left < majority(voters - 1) {
            let message = format!("{number}; without {}, {left} of {} would answer", goes.name, voters - 1);
            return Some(self.with_node(AutopilotReason::QuorumAtRisk, goes.node, message));
        }
        let why = format!("{number}, and the policy shrinks");
        Some(Decision::Act(Act { action: AutopilotAction::Demote, node: goes.node, replaces: None, why }))
    }

    /// Nothing to do, or nothing yet.
    fn rest(&self) -> Decision {
        let (voters, declared) = (self.facts.voters.len(), self.declared());
        if voters > declared {
            let message = format!(
                "{voters} managers, {declared} declared; surplus ones stay (shrink=false, or operators promoted them)"
            );
            return wait(AutopilotReason::MoreThanDeclared, message);
        }
        let suspect = self
            .facts
            .voters
            .iter()
            .filter(|voter| !voter.answers)
            .find_map(|voter| Some((voter, self.dead_at(voter)?)));
        if let Some((voter, dead_at)) = suspect {
            let left = dead_at.since(self.facts.now);
            let message = format!("{} is down; it is replaced in {} unless it returns", voter.name, time(left));
            let (node, not_before) = (Some(voter.node), Some(dead_at));
            return Decision::Wait(Wait { reason: AutopilotReason::NotDeadYet, node, not_before, message });
        }
        if let Some(silent) = self.facts.voters.iter().find(|voter| !voter.answers) {
            let message = format!(
                "{} does not answer; once its session has ended, it is replaced {} after its last answer",
                silent.name,
                time(self.policy.replace_after())
            );
            return self.with_node(AutopilotReason::NotDeadYet, silent.node, message);
        }
        let unmatched = self.unmatched().map(|labels| format!("; none could be replaced: {labels}"));
        wait(
            AutopilotReason::Content,
            format!("{}, as declared{}", counted(voters, "manager"), unmatched.unwrap_or_default()),
        )
    }

    fn declared(&self) -> usize {
        usize::from(self.policy.managers)
    }
    /// Workers with a place.
    fn placed(&self) -> usize {
        self.candidates.iter().filter(|candidate| candidate.standing.is_ok()).count()
    }
    fn name(&self, node: NodeId) -> String {
        let voter = self.facts.voters.iter().find(|voter| voter.node == node).map(|voter| voter.name.clone());
        let worker = || self.facts.workers.iter().find(|worker| worker.node == node).map(|worker| worker.name.clone());
        let unsettled = || self.facts.unsettled.iter().find(|other| other.node == node).map(|other| other.name.clone());
        voter.or_else(worker).or_else(unsettled).unwrap_or_else(|| node.to_string())
    }
    fn with_node(&self, reason: AutopilotReason, node: NodeId, message: String) -> Decision {
        Decision::Wait(Wait { reason, node: Some(node), not_before: None, message })
    }
    /// When a voter counts as dead, if it stays as it is: down and silent, as this leader has seen itself.
    fn dead_at(&self, voter: &Voter) -> Option<Moment> {
        if is_injected(BugInjection::DemoteSilent) && !voter.answers {
            return Some(self.facts.now);
        }
        let Some(Seen::Down(since)) = voter.seen.filter(|_| !voter.answers) else { return None };
        let counts_from = voter.awaited_until.map_or(since, |until| since.max(until));
        Some(counts_from + self.policy.replace_after())
    }
    fn is_dead(&self, voter: &Voter) -> bool {
        self.dead_at(voter).is_some_and(|at| self.facts.now >= at)
    }

    /// The reasons of the workers that have no place, for people.
    fn exclusions(&self) -> String {
        if let Some(labels) = self.unmatched() {
            return format!("; {labels}");
        }
        let excluded = || self.candidates.iter().filter_map(|it| Some((it.node, it.standing.as_ref().err()?)));
        let first: Vec<String> = excluded().take(3).map(|(node, why)| format!("{}: {why}", self.name(node))).collect();
        match (first.as_slice(), excluded().count()) {
            ([], _) => "; there are no other workers".to_owned(),
            (few, all) if few.len() == all => format!(" ({})", few.join(", ")),
            (few, all) => format!(" ({}, and {} more)", few.join(", "), all - few.len()),
        }
    }

    /// Probably a mistake: workers exist, and none has the labels that `eligible=` requires.
    fn unmatched(&self) -> Option<String> {
        let AutopilotPolicy { eligible, .. } = self.policy;
        let none = !self.facts.workers.is_empty() && !self.facts.workers.iter().any(|worker| worker.eligible);
        let labels = || eligible.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        (none && !eligible.is_empty()).then(|| format!("no worker has the labels that eligible={} requires", labels()))
    }

    /// The manager in whose place the next one comes: the last change took it out.
    fn half_replaced(&self) -> Option<NodeId> {
        let last = self.autopilot.changes.iter().rev().find(|change| took_effect(change))?;
        last.replaces.filter(|_| last.action == AutopilotAction::Demote)
    }

    /// Time since a change, by the clocks of the leaders that wrote and read it: it only ever limits a rate.
    fn since(&self, at: WallTime) -> Duration {
        age(at, self.facts.clocks(), self.facts.leads_since)
    }
    fn moment_after(&self, at: WallTime, pause: Duration) -> Option<Moment> {
        let left = pause.checked_sub(self.since(at)).filter(|left| !left.is_zero())?;
        Some(self.facts.now + left)
    }
    fn slowed(&self, until: Moment, message: String) -> Decision {
        Decision::Wait(Wait { reason: AutopilotReason::Slowed, node: None, not_before: Some(until), message })
    }

    fn between_changes(&self) -> Option<Decision> {
        let last = self.autopilot.changes.iter().rev().find(|change| took_effect(change))?;
        let until = self.moment_after(last.at, self.config.between_changes)?;
        Some(self.slowed(until, format!("the last change was {} ago", time(self.since(last.at)))))
    }

    fn rate_of_replacements(&self, dead: &Voter) -> Option<Decision> {
        let replaced = || {
            let demoted =
                |change: &&AutopilotChange| change.action == AutopilotAction::Demote && change.replaces.is_some();
            self.autopilot.changes.iter().rev().map(AsRef::as_ref).filter(|change| took_effect(change)).filter(demoted)
        };
        let limit = (self.declared().saturating_sub(1) / 2).max(1);
        let counts = |change: &&AutopilotChange| {
            change.number > self.autopilot.forgiven && self.since(change.at) < self.config.replacement_window
        };
        let recent = replaced().filter(counts).count();
        if recent >= limit {
            return Some(Decision::GiveUp(format!(
                "{} is down, and {recent} managers were replaced within {} already: find out what ends them, then `muster autopilot resume`",
                dead.name,
                time(self.config.replacement_window)
            )));
        }
        let last = replaced().next()?;
        let until = self.moment_after(last.at, self.config.between_replacements)?;
        Some(self.slowed(
            until,
            format!("{} is down; the last manager was replaced {} ago", dead.name, time(self.since(last.at))),
        ))
    }

    /// When time ends a change that has begun. `None`: it is overdue, and what follows is under way, or the role manager is carrying it out.
    fn due_at(&self, change: &AutopilotChange) -> Option<Moment> {
        let leaves = self.facts.voters.iter().any(|voter| voter.node == change.node && voter.leaves);
        let is_requested = change.action == AutopilotAction::Demote && leaves;
        Some(self.facts.due_at(change, self.config)).filter(|at| !is_requested && *at > self.facts.now)
    }

    /// When the decision may change next although no fact does, or what has begun is overdue. All else that it depends on is watched.
    fn wake_at(&self, decision: &Decision) -> Option<Moment> {
        let Self { facts, .. } = *self;
        let outstanding = self.autopilot.outstanding();
        // What has begun is finished during a pause, too.
        let waits_to_know = !facts.known && (self.pause().is_none() || outstanding.is_some());
        let settling = waits_to_know.then(|| known_at(facts.leads_since, self.config));
        let before_any_step = settling.into_iter().chain(outstanding.and_then(|change| self.due_at(change)));
        let reason = match decision {
            Decision::Wait(wait) => wait.reason,
            // Done at once, or again after a pause.
            Decision::Act(_) | Decision::GiveUp(_) => return before_any_step.min(),
        };
        if self.before_any_step().is_some() {
            return before_any_step.min();
        }
        // Of the case that was passed over, too: while the one that decided waits for longer, the other one may act.
        let cases = [Some(decision.clone()), self.replace(), self.grow()];
        let cases = cases.into_iter().flatten().filter_map(|case| match case {
            Decision::Wait(wait) => wait.not_before,
            Decision::Act(_) | Decision::GiveUp(_) => None,
        });
        let dead = facts.voters.iter().filter_map(|voter| self.dead_at(voter));
        // No worker is promoted while there are as many managers as declared and none is dead.
        use AutopilotReason::{Content, MoreThanDeclared, NotDeadYet};
        let promotes = !matches!(reason, Content | MoreThanDeclared | NotDeadYet);
        let stable = self.candidates.iter().filter_map(|candidate| candidate.stable_at);
        let backoff = facts.workers.iter().filter_map(|it| Some(facts.clocks().moment(it.backoff_until?)));
        let candidates = stable.chain(backoff).filter(|_| promotes);
        let all = cases.chain(dead).chain(candidates).chain(before_any_step);
        all.filter(|at| *at > facts.now).min()
    }
}

/// Whether it counts for the limits on the rate: refused and dropped changes had no effect.
fn took_effect(change: &AutopilotChange) -> bool {
    !matches!(change.outcome, AutopilotOutcome::Refused | AutopilotOutcome::Dropped)
}

fn busy(node: NodeId, what: &str) -> Wait {
    let message = format!("a change of roles is under way: {what}");
    Wait { reason: AutopilotReason::Busy, node: Some(node), not_before: None, message }
}

fn noun(action: AutopilotAction) -> &'static str {
    match action {
        AutopilotAction::Promote => "the promotion",
        AutopilotAction::Demote => "the demotion",
    }
}

/// For people: `90 s`, `12 min`.
fn time(duration: Duration) -> String {
    match duration.as_secs() {
        secs @ 0..120 => format!("{secs} s"),
        secs @ 120..7200 => format!("{} min", secs / 60),
        secs => format!("{} h", secs / 3600),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
