//! The autopilot's decisions over time: one change after the other, each recorded before it is requested and again once it has ended.
//!
//! Owns        how long this leader has seen each node ready or down, the progress of a promotion, and which request of its own has been
//!             accepted.
//! Inputs      the newest state and doubts, results of its proposals, requests and offers, the clock.
//! Outputs     proposals of its own records, requests to the role manager, offers of leadership.
//! Invariants  those of the crate, AUTO-1 to AUTO-3, AUTO-5 and AUTO-7 to AUTO-9. One proposal, request or offer is in flight at most.
//! It looks when something that it decides by has changed, and at the next time at which its decision may: never periodically.
//! A crash costs time only: the change that has begun is in the state, and its request may be repeated.
//! The wall clock is read once for each term, when its leadership begins; from then on only the monotonic clock counts. All incarnations
//! of a term agree on the time, and a clock that is set meanwhile changes no decision.

mod candidates;
mod facts;
mod plan;
mod promotions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{
    AUTOPILOT_LEVEL, AutopilotAction, AutopilotActorView, AutopilotChange, AutopilotOutcome, AutopilotPolicy,
    AutopilotStep, ErrorBody, Membership, Moment, NodeDoubts, NodeId, RaftId, Replica, Revision, Role, Tables,
    WallTime,
};

pub use self::candidates::Candidate;
pub use self::facts::{Doubt, Facts, Now, Observed, Seen, Sightings, Unsettled, Voter, Worker, majority};
pub use self::plan::{Act, Decision, Plan, Wait, plan};
pub use self::promotions::Promotions;
use crate::Config;
use crate::bugs::{BugInjection, is_injected};

#[derive(Debug)]
pub enum Input {
    State {
        replica: Arc<Replica>,
        doubts: Arc<NodeDoubts>,
    },
    /// The proposal in flight has ended. `false`: not applied, or unknown.
    Proposed(bool),
    /// The role manager has answered the request in flight.
    Requested(Result<(), ErrorBody>),
    /// The offer of leadership has failed. One that succeeded ends the term, and this core with it.
    NotHandedOver,
    Woke,
}

#[derive(Debug, PartialEq)]
pub enum Effect {
    /// To be applied by this term's leader. Answered with `Proposed`.
    Propose {
        at: WallTime,
        step: AutopilotStep,
    },
    /// Answered with `Requested`.
    SetRole {
        node: NodeId,
        role: Role,
    },
    /// Answered with `NotHandedOver`, unless another node leads.
    HandOver {
        to: NodeId,
    },
    /// The decision has changed.
    Decided(String),
    WakeAt(Option<Moment>),
}

/// What was asked and is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum InFlight {
    /// `refusal`: it records that a change was refused.
    Proposal {
        refusal: bool,
    },
    /// The role that this change is about.
    Request(u64),
    /// The former role, because this change did not settle in time.
    TakingBack(u64),
    HandOver,
}

/// Whether a change that has begun is still to be requested.
enum Cause {
    Holds,
    /// This leader does not know yet.
    Unknown,
    Gone(&'static str),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Core {
    config: Config,
    leads_since: Now,
    replica: Arc<Replica>,
    doubts: Arc<NodeDoubts>,
    /// When this replica was first seen: its acknowledgements are older than now by what has passed since.
    seen_at: Moment,
    sightings: Sightings,
    promotions: Promotions,
    /// The voters that answered when it last looked.
    answering: BTreeSet<RaftId>,
    in_flight: Option<InFlight>,
    /// The change whose request was accepted.
    accepted: Option<u64>,
    /// Refused for now, or lost: not tried before.
    retry_at: Option<Moment>,
    /// Leadership is not offered again before.
    hand_over_at: Option<Moment>,
    /// The last node that leadership was offered to.
    offered_to: Option<NodeId>,
    /// Of the last decision, so that a repeated one is not logged again.
    decided: Option<Decision>,
    /// Changes that ended in this term, and the number of the last one.
    ended: BTreeMap<(AutopilotAction, AutopilotOutcome), u64>,
    counted: Option<u64>,
}

impl Core {
    /// For one term of leadership. `leads_since`: both clocks when it began, the same for all incarnations.
    pub fn new(config: Config, leads_since: Now) -> Self {
        Self {
            config,
            leads_since,
            replica: Arc::default(),
            doubts: Arc::default(),
            seen_at: leads_since.at,
            sightings: Sightings::default(),
            promotions: Promotions::default(),
            answering: BTreeSet::new(),
            in_flight: None,
            accepted: None,
            retry_at: None,
            hand_over_at: None,
            offered_to: None,
            decided: None,
            ended: BTreeMap::new(),
            counted: None,
        }
    }

    /// Both clocks, by the monotonic one.
    fn now(&self, at: Moment) -> Now {
        Now { at, wall: self.leads_since.wall.plus(at.since(self.leads_since.at)) }
    }

    /// Notes what a replica shows of the promotion that is under way. `true`: it differs in what a decision depends on, so it is to be
    /// handled as an input.
    pub fn observe(&mut self, at: Moment, replica: &Replica) -> bool {
        self.promotions.follow(replica, self.config.election_timeout, at);
        // Without a declaration only a drained leader depends on who answers.
        let autopilot = &replica.tables.autopilot;
        let watched = autopilot.policy.is_some() || !autopilot.drains.is_empty();
        let answering = || facts::answering(replica, Duration::ZERO, &self.config);
        !is_same(&self.replica.tables, &replica.tables) || (watched && answering() != self.answering)
    }

    /// Handles an input, and takes the next step if there is one.
    pub fn step(&mut self, at: Moment, input: Input, out: &mut Vec<Effect>) {
        let now = self.now(at);
        match input {
            Input::State { replica, doubts } => self.see(at, replica, doubts),
            Input::Proposed(applied) => {
                let refused = self.in_flight.take() == Some(InFlight::Proposal { refusal: true });
                if !applied || refused {
                    // The same plan would be refused again: facts change more slowly than the log takes entries.
                    let pause = if refused { self.config.between_changes } else { self.config.retry };
                    self.retry_at = Some(at + pause);
                }
            }
            Input::Requested(answer) => self.requested(now, answer, out),
            Input::NotHandedOver => {
                self.in_flight = None;
                self.hand_over_at = Some(at + self.config.between_changes);
            }
            Input::Woke => {}
        }
        self.advance(now, out);
    }

    fn see(&mut self, at: Moment, replica: Arc<Replica>, doubts: Arc<NodeDoubts>) {
        self.doubts = doubts;
        if Arc::ptr_eq(&self.replica, &replica) {
            return; // its acknowledgements grow older
        }
        self.promotions.follow(&replica, self.config.election_timeout, at);
        for progress in replica.raft.progress.iter().filter(|progress| progress.problem.is_some()) {
            // One that cannot follow does not answer. Until it had this problem it may have, since the last look.
            let before = self.replica.raft.progress_of(progress.raft_id);
            let is_new = before.is_none_or(|before| before.problem.is_none());
            if let Some(node) = progress.node.filter(|_| is_new) {
                self.sightings.answered(node, at);
            }
        }
        (self.replica, self.seen_at) = (replica, at);
        let wall = self.now(at).wall;
        let autopilot = &self.replica.tables.autopilot;
        let ended = autopilot.changes.iter().filter(|change| change.outcome != AutopilotOutcome::Begun);
        let newest = ended.clone().map(|change| change.number).max().unwrap_or(0);
        let counted = *self.counted.get_or_insert(newest);
        for change in ended.filter(|change| change.number > counted) {
            *self.ended.entry((change.action, change.outcome)).or_default() += 1;
            self.promotions.ended(change.number, wall);
        }
        self.promotions.forget_before(autopilot.changes.front().map_or(0, |change| change.number));
        self.counted = Some(newest.max(counted));
    }

    fn autopilot(&self) -> &muster_messages::Autopilot {
        &self.replica.tables.autopilot
    }

    /// The facts of this moment.
    pub fn facts(&self, at: Moment) -> Facts {
        self.facts_of(&self.replica, &self.sightings, self.now(at))
    }
    fn facts_of(&self, replica: &Replica, sightings: &Sightings, now: Now) -> Facts {
        Facts::of(replica, Observed { sightings, ..self.observed() }, &self.config, now)
    }
    fn observed(&self) -> Observed<'_> {
        let Self { seen_at, doubts, sightings, promotions, leads_since, .. } = self;
        Observed { seen_at: *seen_at, doubts, sightings, promotions, leads_since: leads_since.at }
    }
    /// The plan of this moment, as it would be under this policy. `None`: the one in force.
    pub fn plan(&self, at: Moment, policy: Option<AutopilotPolicy>) -> (Facts, Plan) {
        let Some(policy) = policy else {
            let facts = self.facts(at);
            let plan = plan(self.autopilot(), &facts, &self.config);
            return (facts, plan);
        };
        let mut replica = Replica::clone(&self.replica);
        replica.tables.autopilot.policy = Some(Arc::new(policy));
        let mut sightings = self.sightings.clone();
        // Without a declaration the nodes' states were not followed: the plan assumes that they have not changed in this term.
        let answered = facts::last_answers(&replica, self.seen_at, at);
        let from = self.leads_since.at;
        sightings.follow(&replica, &self.doubts, &answered, from, from, self.now(at));
        let facts = self.facts_of(&replica, &sightings, self.now(at));
        let plan = plan(&replica.tables.autopilot, &facts, &self.config);
        (facts, plan)
    }

    /// For metrics and `muster actors inspect`. `replica`: the newest one, which a core that has nothing to do was not shown.
    pub fn view(&self, at: Moment, replica: &Replica) -> AutopilotActorView {
        let facts = Facts::of(replica, Observed { seen_at: at, ..self.observed() }, &self.config, self.now(at));
        let autopilot = &replica.tables.autopilot;
        let plan = plan(autopilot, &facts, &self.config);
        let policy = autopilot.policy.as_deref();
        let paused = policy.and_then(|policy| policy.paused.as_ref());
        AutopilotActorView {
            declared: policy.map(|policy| policy.managers),
            paused: paused.is_some(),
            gave_up: paused.is_some_and(|pause| pause.gave_up),
            voters: facts.voters.len(),
            answering: facts.answering(),
            tolerance: facts.tolerance(),
            candidates: plan.candidates.iter().filter(|candidate| candidate.standing.is_ok()).count(),
            drained: autopilot.drains.len(),
            reason: match &plan.decision {
                Decision::Wait(wait) => Some(wait.reason.to_string()),
                Decision::Act(_) | Decision::GiveUp(_) => None,
            },
            decided: self.decided.as_ref().map_or(String::new(), |decided| text(decided).to_owned()),
            outstanding: autopilot.outstanding().map(|change| change.number),
            ended: self.ended.iter().map(|((action, outcome), count)| (*action, *outcome, *count)).collect(),
        }
    }

    fn advance(&mut self, now: Now, out: &mut Vec<Effect>) {
        // A build that knows the autopilot may run in a cluster that does not yet.
        let allowed = self.replica.tables.feature_level() >= AUTOPILOT_LEVEL;
        let is_declared = allowed && self.autopilot().policy.is_some();
        self.answering = facts::answering(&self.replica, now.at.since(self.seen_at), &self.config);
        if is_declared {
            let answered = facts::last_answers(&self.replica, self.seen_at, now.at);
            let earliest = self.leads_since.at.max(now.at - self.config.session_timeout);
            self.sightings.follow(&self.replica, &self.doubts, &answered, now.at, earliest, now);
        } else {
            // AUTO-1. What was seen is forgotten: a new declaration begins with what is seen from then on.
            (self.sightings, self.accepted, self.decided) = (Sightings::default(), None, None);
        }
        self.retry_at = self.retry_at.filter(|at| now.at < *at);
        if !allowed || self.in_flight.is_some() {
            return;
        }
        let maintained_at = self.maintain(now, out);
        if !is_declared {
            out.push(Effect::WakeAt(maintained_at.into_iter().chain(self.retry_at).min()));
            return;
        }
        let (facts, plan) = self.plan(now.at, None);
        if self.decided.as_ref() != Some(&plan.decision) {
            if self.decided.as_ref().map(reason) != Some(reason(&plan.decision)) {
                out.push(Effect::Decided(text(&plan.decision).to_owned()));
            }
            self.decided = Some(plan.decision.clone());
        }
        out.push(Effect::WakeAt(plan.wake_at.into_iter().chain(self.retry_at).chain(maintained_at).min()));
        if self.retry_at.is_some() || self.in_flight.is_some() {
            return;
        }
        let begun = self.autopilot().outstanding().filter(|_| !is_injected(BugInjection::ForgetBegun));
        if let Some(change) = begun.cloned() {
            return self.pursue(&facts, &change, out);
        }
        match plan.decision {
            Decision::Act(Act { action, node, replaces, why }) => {
                let policy = self.autopilot().policy.as_ref().map_or(Revision(0), |policy| policy.revision);
                self.propose(now, AutopilotStep::Begin { policy, action, node, replaces, why }, out);
            }
            Decision::GiveUp(why) => self.propose(now, AutopilotStep::Pause { why, gave_up: true }, out),
            Decision::Wait(_) if is_injected(BugInjection::ResumeByItself) && self.is_paused() => {
                self.propose(now, AutopilotStep::Resume, out);
            }
            Decision::Wait(_) => {}
        }
    }

    fn is_paused(&self) -> bool {
        self.autopilot().policy.as_ref().is_some_and(|policy| policy.paused.is_some())
    }

    /// Ends a drain whose time is over, or gives up leadership on a drained node. Returns when to look again.
    fn maintain(&mut self, now: Now, out: &mut Vec<Effect>) -> Option<Moment> {
        let drains = &self.autopilot().drains;
        if drains.is_empty() || self.retry_at.is_some() {
            return None;
        }
        if let Some((node, drain)) = drains.iter().find(|(_, drain)| !facts::is_in_force(drain, now.wall)) {
            let (node, ends) = (*node, drain.until);
            self.propose(now, AutopilotStep::Undrain { node, ends }, out);
            return None;
        }
        let ends = drains.values().filter_map(|drain| drain.until).map(|until| now.moment(until)).min();
        let facts = self.facts(now.at);
        let leads_drained = facts.voters.iter().any(|voter| voter.leads && voter.drain.is_some());
        if !leads_drained || !facts.known {
            let known_at = leads_drained.then(|| facts::known_at(self.leads_since.at, &self.config));
            return ends.into_iter().chain(known_at).min();
        }
        self.hand_over_at = self.hand_over_at.filter(|at| now.at < *at);
        let may_lead = |voter: &&Voter| voter.answers && voter.drain.is_none() && !voter.leads && !voter.leaves;
        let others = || facts.voters.iter().filter(may_lead).map(|voter| voter.node);
        // One that did not take over is asked again after all others.
        let target = others().find(|node| Some(*node) > self.offered_to).or_else(|| others().next());
        match (self.hand_over_at, target) {
            (None, Some(to)) => {
                (self.in_flight, self.offered_to) = (Some(InFlight::HandOver), Some(to));
                out.push(Effect::HandOver { to });
                ends
            }
            // No other manager may lead now: that one answers again is a change, and is observed.
            (later, _) => ends.into_iter().chain(later).min(),
        }
    }

    fn propose(&mut self, now: Now, step: AutopilotStep, out: &mut Vec<Effect>) {
        let refusal = matches!(step, AutopilotStep::End { outcome: AutopilotOutcome::Refused, .. });
        self.in_flight = Some(InFlight::Proposal { refusal });
        out.push(Effect::Propose { at: now.wall, step });
    }
    fn end(&mut self, now: Now, number: u64, outcome: AutopilotOutcome, why: impl Into<String>, out: &mut Vec<Effect>) {
        self.propose(now, AutopilotStep::End { number, outcome, why: why.into() }, out);
    }

    /// The change that has begun: requests it, and records its end.
    fn pursue(&mut self, facts: &Facts, change: &AutopilotChange, out: &mut Vec<Effect>) {
        let AutopilotChange { number, node, action, .. } = *change;
        let now = facts.clocks();
        let tables = &self.replica.tables;
        let Some(record) = tables.nodes.get(&node) else {
            return self.end(now, number, AutopilotOutcome::Dropped, "the node was removed", out);
        };
        let (desired, membership) = (record.desired_role, tables.membership_of(node));
        if tables.autopilot.requested.contains_key(&node) || record.removing.is_some() {
            // AUTO-6: a person has requested something since.
            let why = "an operator changed the node's role meanwhile";
            return self.end(now, number, AutopilotOutcome::Dropped, why, out);
        }
        let is_there = match action {
            AutopilotAction::Promote => membership == Membership::Voter,
            AutopilotAction::Demote => membership == Membership::None,
        };
        if desired == action.role() && is_there {
            return self.end(now, number, AutopilotOutcome::Settled, "", out);
        }
        let overdue = now.at >= facts.due_at(change, &self.config);
        if desired == action.role() {
            if overdue && action == AutopilotAction::Promote {
                self.in_flight = Some(InFlight::TakingBack(number));
                out.push(Effect::SetRole { node, role: Role::Worker });
            }
        } else if overdue && action == AutopilotAction::Promote {
            // Taken back, and the answer was lost; or it was never requested, which its node may be the reason for.
            self.end(now, number, AutopilotOutcome::TakenBack, "the node did not become a manager in time", out);
        } else if self.accepted == Some(number) {
            // It was applied, and another request has undone it. A manager of an older build does not record that an operator asked.
            self.end(now, number, AutopilotOutcome::Dropped, "the node's role was changed meanwhile", out);
        } else if overdue {
            self.end(now, number, AutopilotOutcome::Dropped, "not requested in time", out);
        } else {
            match self.cause_of(facts, change) {
                // It looks again when it will know, and what changes is shown.
                Cause::Unknown => {}
                Cause::Gone(why) => self.end(now, number, AutopilotOutcome::Dropped, why, out),
                Cause::Holds => {
                    self.in_flight = Some(InFlight::Request(number));
                    out.push(Effect::SetRole { node, role: action.role() });
                }
            }
        }
    }

    /// AUTO-5, AUTO-8: why a demotion began may be over when it is requested, and another leader may have begun it.
    fn cause_of(&self, facts: &Facts, change: &AutopilotChange) -> Cause {
        if change.action == AutopilotAction::Promote {
            return Cause::Holds;
        }
        let Some(voter) = facts.voters.iter().find(|voter| voter.node == change.node) else { return Cause::Holds };
        if change.replaces == Some(change.node) {
            return match voter.seen {
                _ if !facts.known => Cause::Unknown,
                _ if voter.answers => Cause::Gone("the manager has returned"),
                Some(Seen::Ready(_)) => Cause::Gone("the manager has returned"),
                Some(Seen::Down(_)) => Cause::Holds,
                None => Cause::Unknown,
            };
        }
        let goes = voter.drain.is_some_and(|drain| drain.replace);
        // Without those that leave already: an operator may have demoted another one since.
        let stay = facts.voters.iter().filter(|voter| !voter.leaves).count();
        let is_surplus = |policy: &AutopilotPolicy| stay > usize::from(policy.managers) && (policy.shrink || goes);
        match self.autopilot().policy.as_deref().is_some_and(is_surplus) {
            true => Cause::Holds,
            false => Cause::Gone("the manager is not surplus any more"),
        }
    }

    /// It has begun, and no person has requested a role of its node since.
    fn is_wanted(&self, number: u64) -> bool {
        let begun = self.autopilot().outstanding().filter(|change| change.number == number);
        begun.is_some_and(|change| !self.autopilot().requested.contains_key(&change.node))
    }

    fn requested(&mut self, now: Now, answer: Result<(), ErrorBody>, out: &mut Vec<Effect>) {
        let asked = self.in_flight.take();
        match (asked, answer) {
            (Some(InFlight::Request(number)), Ok(())) => self.accepted = Some(number),
            (Some(InFlight::TakingBack(number)), Ok(())) => {
                self.end(now, number, AutopilotOutcome::TakenBack, "the node did not become a manager in time", out);
            }
            // Whether it was applied is unknown, or the leader cannot tell yet: the state shows it, or the request is repeated.
            (Some(_), Err(error)) if error.code.is_transient() => self.retry_at = Some(now.at + self.config.retry),
            // The change has ended meanwhile, or an operator has requested another role. The state shows which.
            (Some(InFlight::Request(number)), Err(_)) if !self.is_wanted(number) => {}
            (Some(InFlight::Request(number)), Err(error)) => {
                self.end(now, number, AutopilotOutcome::Refused, error.message, out);
            }
            // The learner would be needed for a quorum now: later.
            (Some(InFlight::TakingBack(_)), Err(_)) => self.retry_at = Some(now.at + self.config.retry),
            (None | Some(InFlight::Proposal { .. } | InFlight::HandOver), _) => {}
        }
    }
}

/// Whether two states are the same in what it decides by.
fn is_same(a: &Tables, b: &Tables) -> bool {
    if !a.autopilot.drains.ptr_eq(&b.autopilot.drains) || a.feature_level() != b.feature_level() {
        return false;
    }
    let policy = |tables: &Tables| tables.autopilot.policy.as_ref().map(|policy| policy.revision);
    match (policy(a), policy(b)) {
        // Without a declaration only a drained leader matters: the managers that could lead instead of it.
        (None, None) => a.autopilot.drains.is_empty() || (a.members.ptr_eq(&b.members) && a.nodes.ptr_eq(&b.nodes)),
        (before, after) => {
            before == after
                && changes(a).eq(changes(b))
                && a.autopilot.preferences.ptr_eq(&b.autopilot.preferences)
                && a.autopilot.requested.ptr_eq(&b.autopilot.requested)
                && a.nodes.ptr_eq(&b.nodes)
                && a.members.ptr_eq(&b.members)
                && a.reported.ptr_eq(&b.reported)
                && a.certificates.ptr_eq(&b.certificates)
        }
    }
}

/// By pointer, and element by element: a short vector has its elements inside, so its own `ptr_eq` does not recognise a clone.
fn changes(tables: &Tables) -> impl Iterator<Item = *const AutopilotChange> {
    tables.autopilot.changes.iter().map(Arc::as_ptr)
}

fn reason(decision: &Decision) -> String {
    match decision {
        Decision::Act(act) => format!("{:?} {}", act.action, act.node),
        Decision::Wait(wait) => format!("{:?} {:?}", wait.reason, wait.node),
        Decision::GiveUp(_) => "gives up".to_owned(),
    }
}

fn text(decision: &Decision) -> &str {
    match decision {
        Decision::Act(act) => &act.why,
        Decision::Wait(wait) => &wait.message,
        Decision::GiveUp(why) => why,
    }
}
