//! RoleManager: promotion, demotion, removal.
//!
//! Owns        its parts, each with its own state: see the fields of [`RoleManager`]. Together they are what remains to be done
//!             between requests and facts. `advance` is the one place that orders them.
//! Inputs      requests, membership requests, the newest replicated state, outcomes of its steps.
//! Outputs     guarded commands, membership changes, dial-backs, offers of leadership, answers.
//! Invariants  INTENT-1 and INTENT-2 (see `role_requests`); the store keeps ROLE-1, a member's node is a manager.
//!             ROLE-2  all plans together have at most one membership change in flight.
//!             ROLE-3  no membership change loses the quorum of the current or the resulting configuration; before one that adds
//!                     or removes a voter, a majority of the resulting voters has responded after it was decided on (the Raft
//!                     member waits for that as part of the proposal: REACH-2).
//!             ROLE-4  no role older than the newest request is ever written.
//!             ROLE-5  every node that is not settled reports what it waits for.
//! Why level-triggered: everything follows from the four facts of a node as they are now. A request that flips half-way, a
//! lost answer, a crash or a new leader lead back to the same facts, and so to the same plan.

mod backoff;
mod config;
mod membership;
mod membership_requests;
mod membership_slot;
mod observations;
mod observe;
mod outbox;
mod outcomes;
mod plan;
mod plans;
mod queues;
mod quorum;
mod reachability;
mod role_requests;
mod serving;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_messages::{
    Command, Condition, ErrorBody, ErrorCode, ErrorMark, Moment, NodeId, Principal, Replica, RequestId, RoleView,
    Tables, Term, WaitReason,
};

use self::backoff::Backoff;
#[cfg(feature = "bug-injection")]
pub use self::config::BugInjection;
pub use self::config::Config;
use self::membership_requests::MembershipRequests;
pub use self::membership_slot::MembershipSlot;
pub use self::observations::{EarlyDial, EarlyDialPhase, Learner, Observation, Observations, Proven};
pub use self::outbox::{Outbox, Outgoing, Sent};
use self::plan::{Next, Scene};
use self::plans::Plans;
pub use self::queues::{Pending, Queues};
use self::quorum::Electorate;
use self::reachability::{Checked, Reachability, Required};
use self::role_requests::RoleRequests;
pub use self::role_requests::{RequestedChange, RoleRequest};
pub use self::values::*;

/// Decides which node holds which role. Works only on values.
#[derive(Clone, Debug)]
pub struct RoleManager {
    me: NodeId,
    config: Config,
    checkpoint: Checkpoint,
    seen: Arc<Replica>,
    seen_at: Now,
    /// It has taken over in `checkpoint.term`.
    started: bool,
    /// No request is refused for quorum before this: a young leader lacks acknowledgements.
    fresh_until: Option<Moment>,
    role_requests: RoleRequests,
    membership_requests: MembershipRequests,
    reachability: Reachability,
    plans: Plans,
    backoff: Backoff,
    armed: Option<Moment>,
}

impl RoleManager {
    /// A role manager of the leader `me`. `before` is what the last incarnation left.
    pub fn new(me: NodeId, config: Config, before: Option<Checkpoint>) -> Self {
        Self {
            me,
            config,
            checkpoint: before.unwrap_or_default(),
            seen: Arc::default(),
            seen_at: Now::default(),
            started: false,
            fresh_until: None,
            role_requests: RoleRequests::default(),
            membership_requests: MembershipRequests::default(),
            reachability: Reachability::default(),
            plans: Plans::default(),
            backoff: Backoff::default(),
            armed: None,
        }
    }

    /// Handles one input. The effects are applied after [`RoleManager::checkpoint`] has been kept.
    pub fn step(&mut self, now: Now, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::RoleRequested(role_request) => self.role_requests.keep_undecided(now.at, role_request),
            Input::MembershipRequested { ask, node, request } => {
                if let Some(older) = self.membership_requests.open(now.at, ask, node, request) {
                    let (reason, again) = (WaitReason::WaitingForJoin, self.config.ask_again);
                    let reply = membership_requests::wait(reason, "replaced by a newer request", again);
                    out.push(Effect::Answer(older, Answer::Membership(Ok(reply))));
                }
            }
            Input::Reported { ask, node, report } => self.membership_requests.report(ask, node, report),
            Input::Seen(replica) => self.see(now, replica, out),
            Input::Committed { step, outcome } => self.end_proposal(now, step, outcome, out),
            Input::Probed { step, result } => self.end_probe(now, step, result, out),
            Input::ReachabilityChecked { step, reachable } => {
                self.reachability.end(step, reachable, now.at + self.config.ask_again / 5);
            }
            Input::Transferred { step, taken } => self.end_transfer(now, step, taken),
            Input::Woke => self.armed = None,
        }
        self.advance(now, out);
        self.reachability.forget_result();
    }

    /// The state from which the next incarnation starts.
    pub fn checkpoint(&self) -> Checkpoint {
        self.checkpoint.clone()
    }

    /// What is pending, by node.
    pub fn queues(&self) -> &Queues {
        &self.checkpoint.queues
    }

    /// The steps in flight.
    pub fn outbox(&self) -> &Outbox {
        &self.checkpoint.outbox
    }

    /// What is pending and why, for all other readers.
    pub fn view(&self) -> RoleView {
        self.checkpoint.queues.view(&self.seen.tables, &self.checkpoint.settled)
    }

    /// The only place that starts steps. Steps that the observed state contains end first, because everything below decides by the facts.
    /// Requests come before plans: one that is written now keeps its node from getting another step, and what nodes ask or report
    /// (lost data, a failure) is a fact for their plans. `explain` comes when no step is started any more, and the requests that are
    /// answered after it get its reasons.
    fn advance(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.end_observed_steps(now, out);
        if !self.started || !self.leads() {
            self.role_requests.reject(out);
            self.membership_requests.reject(out);
            self.reachability = Reachability::default();
            return;
        }
        self.backoff.expire(now.at);
        self.decide_requests(now, out);
        self.role_requests.answer_removals(&self.seen.tables, out);
        self.take_reports(now, out);
        self.serve_open_requests(now, out);
        self.replan(now);
        self.begin_early_dials(now, out);
        self.write(now, out);
        self.change_membership(now, out);
        self.explain(now);
        self.answer_waiting_requests(now, out);
        self.arm(now, out);
    }

    fn leads(&self) -> bool {
        self.seen.raft.leading
    }

    fn electorate(&self, now: Now, checked: Option<Checked>) -> Electorate {
        Electorate::of(&self.seen, self.seen_at, now, self.fresh_until, checked, &self.config)
    }

    // ---- the replicated state -------------------------------------------------------------------------------------

    fn see(&mut self, now: Now, replica: Arc<Replica>, out: &mut Vec<Effect>) {
        let old = std::mem::replace(&mut self.seen, replica);
        self.seen_at = now;
        if !self.leads() {
            return;
        }
        let term = self.seen.raft.term;
        if !self.started || self.checkpoint.term != term {
            self.take_over(now, term, out);
        } else {
            for node in observe::changed_nodes(&old.tables, &self.seen.tables) {
                self.backoff.release(node);
                self.plans.mark(node);
            }
        }
        let seen = Arc::clone(&self.seen);
        self.checkpoint.observations.refresh(&seen, now);
        self.checkpoint.observations.nodes().for_each(|node| self.plans.mark(node));
    }

    /// Takes one consistent view. Steps of this term continue; those of older terms are applied or lost, because a leader
    /// that decides has applied an entry of its own term.
    fn take_over(&mut self, now: Now, term: Term, out: &mut Vec<Effect>) {
        if self.checkpoint.term != term {
            // Step numbers continue: the result of an earlier term's step must not end a step of this one.
            let (queues, steps) = (std::mem::take(&mut self.checkpoint.queues), self.checkpoint.steps);
            self.checkpoint = Checkpoint { term, queues, steps, ..Checkpoint::default() };
        }
        self.checkpoint.outbox.repeat(now.at, &self.config, out);
        self.started = true;
        self.backoff.release_all();
        self.reachability = Reachability::default();
        self.fresh_until = Some(now.at + self.config.election_timeout);
        let tables = &self.seen.tables;
        let everybody = tables.nodes.keys().copied().chain(tables.members.values().map(|m| m.node));
        self.plans.start_over(everybody.chain(self.checkpoint.queues.iter().map(|(n, _)| n)).collect());
    }

    // ---- plans ----------------------------------------------------------------------------------------------------

    fn replan(&mut self, now: Now) {
        let (checkpoint, tables) = (&mut self.checkpoint, &self.seen.tables);
        let scene = Scene { tables, commit: self.seen.raft.commit.0, config: &self.config, now };
        self.plans.renew(&scene, &checkpoint.observations, |node| {
            if let Some(settled) = checkpoint.queues.remove_node(node) {
                // Below zero if the clock was set back.
                let took = u64::try_from(now.wall.0.saturating_sub(settled.began.0)).unwrap_or(0);
                checkpoint.settled.entry(settled.wants).or_default().add(took);
            }
        });
    }

    fn write(&mut self, now: Now, out: &mut Vec<Effect>) {
        let outbox = &self.checkpoint.outbox;
        let idle =
            |node: &NodeId| !outbox.has_write(*node) && !outbox.has_role_request(*node) && !self.backoff.is_held(*node);
        let due: Vec<(NodeId, Next)> = (self.plans.iter())
            .filter(|(node, _)| idle(node))
            .filter_map(|(node, p)| p.next.clone().map(|next| (node, next)))
            .collect();
        for (node, next) in due {
            let Next::Write { reason, guards, changes } = next else { continue };
            let command = Command {
                request: self.next_request(now),
                at: now.wall,
                by: self.on_behalf_of(node),
                reason: reason.to_owned(),
                guards,
                changes,
            };
            self.send(now, node, Sent::Write(Box::new(command)), out);
        }
    }

    /// The id of the next step. It carries no `Guard::Request`: it differs from the ids of callers.
    fn next_request(&self, now: Now) -> RequestId {
        let (term, step) = (u128::from(self.checkpoint.term.0), u128::from(self.checkpoint.steps + 1));
        // The upper 80 bits are what an id uses of its entropy: 40 of each.
        RequestId::fresh(now.wall, term << 88 | (step & ((1 << 40) - 1)) << 48)
    }

    /// Removals name their requester; role changes name the cluster itself.
    fn on_behalf_of(&self, node: NodeId) -> Principal {
        let removal = self.seen.tables.nodes.get(&node).and_then(|r| r.removing.as_ref());
        removal.map_or(Principal::Cluster, |r| r.by.clone())
    }

    fn next_step(&mut self) -> StepId {
        self.checkpoint.steps += 1;
        StepId(self.checkpoint.steps)
    }

    fn send(&mut self, now: Now, node: NodeId, sent: Sent, out: &mut Vec<Effect>) -> StepId {
        let step = self.next_step();
        let outgoing = Outgoing { node, sent, since: now, applied: None, again_at: None };
        out.push(outgoing.effect(step, &self.config));
        self.checkpoint.outbox.put(step, outgoing);
        step
    }

    /// A check for a request that removes a voter.
    fn check_reachable(&mut self, now: Now, required: Required, out: &mut Vec<Effect>) {
        if self.reachability.may_begin(now.at) {
            let step = self.next_step();
            out.push(self.reachability.begin(now.at, step, required, self.config.election_timeout));
        }
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    /// Sets a wake-up at the next deadline. Without pending work no timer is set.
    fn arm(&mut self, now: Now, out: &mut Vec<Effect>) {
        let c = &self.config;
        let retry_at = self.backoff.plan_retry(now, self.checkpoint.queues.want_retry(), c.retry);
        self.checkpoint.queues.set_retry(retry_at);
        let membership = self.checkpoint.outbox.membership().map(|(_, o)| o);
        let slow = membership.map(|o| o.since.at + c.slow_change);
        let again = membership.and_then(|o| o.again_at);
        let fresh = self.fresh_until.filter(|_| self.role_requests.has_undecided() || !self.plans.is_empty());
        let silences = (self.checkpoint.observations.values())
            .filter_map(|n| n.learner.as_ref())
            .map(|l| l.last_ack + c.learner_silence);
        let early_dials = self.checkpoint.observations.values().filter_map(Observation::early_dial_at);
        let deadlines = (self.backoff.deadlines())
            .chain(early_dials)
            .chain(self.membership_requests.deadlines(c.membership_timeout))
            .chain(silences)
            .chain([slow, again, self.reachability.again_at(), fresh].into_iter().flatten());
        let next = deadlines.filter(|at| *at > now.at).min();
        self.armed.take_if(|at| *at <= now.at);
        if let Some(next) = next
            && self.armed.is_none_or(|at| next < at)
        {
            self.armed = Some(next);
            out.push(Effect::WakeAt(next));
        }
    }
}

fn refuse(role_request: &RoleRequest, error: ErrorBody) -> Effect {
    Effect::Answer(
        role_request.ask,
        match role_request.change {
            RequestedChange::Role(_) => Answer::Role(Err(error)),
            RequestedChange::Remove { .. } => Answer::Removed(Err(error)),
        },
    )
}

fn not_leading() -> ErrorBody {
    let again = std::time::Duration::from_millis(100);
    // The mark makes the API follow the leader: the caller's node may have just handed leadership over.
    ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead; retry at the leader")
        .marked(ErrorMark::NotLeading)
        .retry_after(again)
}

/// Conditions derived from the replicated state alone, as a member that does not lead shows them. The leader's own view
/// knows more (dial-backs, quorum, the order of changes).
pub fn conditions(tables: &Tables) -> BTreeMap<NodeId, Vec<Condition>> {
    let config = Config::default();
    let member_nodes = tables.members.values().map(|m| m.node);
    let nodes: BTreeSet<NodeId> = tables.nodes.keys().copied().chain(member_nodes).collect();
    let mut conditions = BTreeMap::new();
    for node in nodes {
        let Some(plan) = plan::bare(tables, node, &config) else { continue };
        let condition = Condition {
            kind: queues::condition_kind(plan.wants).into(),
            reason: plan.wait.reason,
            since: plan::since(tables, node, &plan),
            message: plan.wait.message,
            retry_at: None,
        };
        conditions.insert(node, vec![condition]);
    }
    conditions
}
