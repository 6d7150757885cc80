//! RoleManager: promotion, demotion, removal.
//!
//! Owns   what is left to do between wishes and facts: two queues, and the steps under way.
//! Hears  wishes, requests for a seat, the newest replicated state, how its steps ended.
//! Says   guarded commands, seat changes, dial-backs, offers of leadership, answers.
//! Keeps  WISH-1 and WISH-2 (see `wishes`); the store keeps ROLE-1, a node with a seat is manager.
//!        ROLE-2  of all plans together at most one membership change is in flight.
//!        ROLE-3  no membership change loses the quorum, of the current or of the resulting configuration. A majority of the
//!                resulting voters responds after the change was decided on.
//!        ROLE-4  no role older than the newest wish is ever written.
//!        ROLE-5  every node that is not settled says what it waits for.
//! Why level-triggered: everything follows from the four facts of a node as they are now. A wish that flips half-way,
//! a lost answer, a crash or a new leader lead back to the same facts, and so to the same plan.

mod config;
mod endings;
mod membership;
mod notes;
mod outbox;
mod plan;
mod queues;
mod quorum;
mod reachability;
mod seats;
mod sight;
mod vocabulary;
mod wishes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_messages::{
    Command, Condition, ErrorBody, ErrorCode, ErrorMark, Moment, NodeId, Principal, Replica, RequestId, RoleView,
    Tables,
};

pub use self::config::Config;
#[cfg(feature = "sabotage")]
pub use self::config::Sabotage;
pub use self::notes::{Learner, Note, Notes, Proven};
pub use self::outbox::{Outbox, Outgoing, Sent};
use self::plan::{Next, Plan, Scene, Wait};
pub use self::queues::{Pending, Queues};
use self::quorum::Electorate;
use self::reachability::Reachability;
use self::seats::Seats;
pub use self::vocabulary::*;
use self::wishes::Wishes;
pub use self::wishes::{Wish, Wished};

/// A node whose last step failed: left alone until its facts change or the moment comes.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    until: Moment,
    wait: Option<Wait>,
}

/// Decides who holds which role. Speaks only in values.
#[derive(Clone, Debug)]
pub struct RoleManager {
    me: NodeId,
    config: Config,
    kept: Checkpoint,
    seen: Arc<Replica>,
    seen_at: Now,
    /// It has taken over in `kept.term`.
    started: bool,
    wishes: Wishes,
    seats: Seats,
    reachability: Reachability,
    /// One per node that is not settled.
    plans: BTreeMap<NodeId, Plan>,
    /// Nodes whose facts changed since they were last planned for.
    dirty: BTreeSet<NodeId>,
    held: BTreeMap<NodeId, Held>,
    /// Nodes whose last write was applied and changed nothing.
    fruitless: BTreeSet<NodeId>,
    retry: Option<Now>,
    armed: Option<Moment>,
}

impl RoleManager {
    /// A role manager of the leader `me`. `before` is what the last incarnation left.
    pub fn new(me: NodeId, config: Config, before: Option<Checkpoint>) -> Self {
        Self {
            me,
            config,
            kept: before.unwrap_or_default(),
            seen: Arc::default(),
            seen_at: Now::default(),
            started: false,
            wishes: Wishes::default(),
            seats: Seats::default(),
            reachability: Reachability::default(),
            plans: BTreeMap::new(),
            dirty: BTreeSet::new(),
            held: BTreeMap::new(),
            fruitless: BTreeSet::new(),
            retry: None,
            armed: None,
        }
    }

    /// Takes one input. The effects are to be performed after [`RoleManager::checkpoint`] has been kept.
    pub fn step(&mut self, now: Now, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Wished(wished) => self.wishes.parked.push_back((now.at, wished)),
            Input::Knocked { ask, node, request } => self.knock(now, ask, node, request, out),
            Input::Reported { ask, node, report } => self.seats.reports.push((ask, node, report)),
            Input::Seen(replica) => self.see(now, replica, out),
            Input::Committed { step, outcome } => self.end_proposal(now, step, outcome, out),
            Input::Probed { step, result } => self.end_probe(now, step, result, out),
            Input::ReachabilityChecked { step, reachable } => self.end_reachability_check(now, step, reachable),
            Input::Transferred { step, taken } => self.end_transfer(now, step, taken),
            Input::Woke => self.armed = None,
        }
        self.advance(now, out);
        self.reachability.checked = None;
    }

    /// What the next incarnation is to start from.
    pub fn checkpoint(&self) -> Checkpoint {
        self.kept.clone()
    }

    /// The two queues.
    pub fn queues(&self) -> &Queues {
        &self.kept.queues
    }

    /// The steps under way.
    pub fn outbox(&self) -> &Outbox {
        &self.kept.outbox
    }

    /// What is pending and why, for everybody else.
    pub fn view(&self) -> RoleView {
        self.kept.queues.view(&self.seen.tables, &self.kept.settled)
    }

    /// The only place that starts anything.
    fn advance(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.end_seen_steps(now, out);
        if !self.started || !self.leads() {
            self.turn_away(out);
            return;
        }
        if self.retry.is_some_and(|at| at.at <= now.at) {
            self.retry = None;
            self.held.clear();
        }
        self.held.retain(|_, held| now.at < held.until);
        self.judge_wishes(now, out);
        self.answer_removals(out);
        self.take_reports(out);
        self.serve_knocks(now, out);
        self.replan(now);
        self.write(now, out);
        self.change_membership(now, out);
        self.explain(now);
        self.lose_patience(now, out);
        self.arm(now, out);
    }

    fn leads(&self) -> bool {
        self.seen.raft.leading
    }

    fn electorate(&self, now: Now) -> Electorate {
        let checked = self.reachability.checked.clone();
        Electorate::of(&self.seen, self.seen_at, now, self.wishes.fresh_until, checked, &self.config)
    }
    // ---- plans ----------------------------------------------------------------------------------------------------

    fn replan(&mut self, now: Now) {
        let tables = &self.seen.tables;
        let scene = Scene { tables, commit: self.seen.raft.commit.0, config: &self.config, now };
        let mut concerned = std::mem::take(&mut self.dirty);
        concerned.extend(self.plans.keys());
        for node in concerned {
            match plan::plan(&scene, node, &self.kept.notes.of(node)) {
                Some(plan) => self.plans.insert(node, plan),
                None => {
                    if let Some(settled) = self.kept.queues.drop_one(node) {
                        // Below zero where the clock was set back.
                        let took = u64::try_from(now.wall.0.saturating_sub(settled.began.0)).unwrap_or(0);
                        self.kept.settled.entry(settled.wants).or_default().add(took);
                    }
                    self.plans.remove(&node)
                }
            };
        }
    }

    fn write(&mut self, now: Now, out: &mut Vec<Effect>) {
        let outbox = &self.kept.outbox;
        let idle = |node: &NodeId| !outbox.write_for(*node) && !outbox.wish_for(*node) && !self.held.contains_key(node);
        let due: Vec<(NodeId, Next)> = (self.plans.iter())
            .filter(|(node, _)| idle(node))
            .filter_map(|(node, p)| p.next.clone().map(|next| (*node, next)))
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

    /// The id of the next step. It carries no `Guard::Request`: it is apart from the ids of callers.
    fn next_request(&self, now: Now) -> RequestId {
        let (term, step) = (u128::from(self.kept.term.0), u128::from(self.kept.steps + 1));
        // The upper 80 bits are what an id takes of its entropy: 40 of each.
        RequestId::fresh(now.wall, term << 88 | (step & ((1 << 40) - 1)) << 48)
    }

    /// Removals are shown as whoever asked for them; role changes as the cluster's own.
    fn on_behalf_of(&self, node: NodeId) -> Principal {
        let removal = self.seen.tables.nodes.get(&node).and_then(|r| r.removing.as_ref());
        removal.map_or(Principal::Cluster, |r| r.by.clone())
    }

    fn next_step(&mut self) -> StepId {
        self.kept.steps += 1;
        StepId(self.kept.steps)
    }

    fn send(&mut self, now: Now, node: NodeId, sent: Sent, out: &mut Vec<Effect>) -> StepId {
        let step = self.next_step();
        let outgoing = Outgoing { node, sent, since: now, applied: None, again_at: None };
        out.push(outgoing.effect(step));
        self.kept.outbox.0.insert(step, outgoing);
        step
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    /// Asks to be woken at the next deadline. Nothing pending: no timer.
    fn arm(&mut self, now: Now, out: &mut Vec<Effect>) {
        if !self.kept.queues.want_retry() {
            self.retry = None;
        } else if self.retry.is_none() {
            self.retry = Some(now.plus(self.config.retry));
        }
        self.kept.queues.set_retry(self.retry.map(|at| at.wall));
        let c = &self.config;
        let slow = self.kept.outbox.membership().map(|(_, o)| o.since.at + c.slow_change);
        let fresh = self.wishes.fresh_until.filter(|_| !self.wishes.parked.is_empty() || !self.plans.is_empty());
        let silences =
            (self.kept.notes.values()).filter_map(|n| n.learner.as_ref()).map(|l| l.heard + c.learner_silence);
        let knocks = self.seats.knocks.values().map(|k| k.since + c.seat_patience);
        let held = self.held.values().map(|h| h.until);
        let again =
            self.kept.outbox.membership().and_then(|(_, o)| o.again_at).into_iter().chain(self.reachability.again_at);
        let deadlines = (self.retry.map(|at| at.at).into_iter())
            .chain(slow)
            .chain(again)
            .chain(fresh)
            .chain(silences)
            .chain(knocks)
            .chain(held);
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

fn refuse(wished: &Wished, error: ErrorBody) -> Effect {
    Effect::Answer(
        wished.ask,
        match wished.wish {
            Wish::Role(_) => Answer::Role(Err(error)),
            Wish::Remove { .. } => Answer::Removed(Err(error)),
        },
    )
}

fn not_leading() -> ErrorBody {
    let again = std::time::Duration::from_millis(100);
    // The mark makes the API follow the leader: the caller's node may have handed leadership over a moment ago.
    ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead; ask again")
        .marked(ErrorMark::NotLeading)
        .retry_after(again)
}

/// Conditions as they follow from the replicated state alone: what a member that does not lead shows. The leader's
/// own view knows more (dial-backs, quorum, whose turn it is).
pub fn conditions(tables: &Tables) -> BTreeMap<NodeId, Vec<Condition>> {
    let config = Config::default();
    let seated = tables.members.values().map(|m| m.node);
    let nodes: BTreeSet<NodeId> = tables.nodes.keys().copied().chain(seated).collect();
    let mut conditions = BTreeMap::new();
    for node in nodes {
        let Some(plan) = plan::bare(tables, node, &config) else { continue };
        let condition = Condition {
            kind: queues::condition_kind(plan.wants).to_owned(),
            reason: plan.wait.reason,
            since: plan::since(tables, node, &plan),
            message: plan.wait.message,
            retry_at: None,
        };
        conditions.insert(node, vec![condition]);
    }
    conditions
}
