//! A model of a cluster around the autopilot's core: virtual time, nodes that die and return, leaders that change, and a role manager that
//! carries out requests as the real one does, where the gates allow it. Time jumps to the next moment at which something is due, the
//! core's own wake-up among them: a core that forgets to wake itself does nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_autopilot::Config;
use muster_autopilot::core::{Core, Effect, Input, Now, majority};
use muster_messages::*;

pub const MINUTE: Duration = Duration::from_secs(60);

/// A node that misses heartbeats for this long is recorded as down.
const DOWN_AFTER: Duration = Duration::from_secs(10);
/// A leader publishes acknowledgements this often, so that it knows this long after the election timeout that a voter is silent.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// From a request until the membership has changed.
const CATCHES_UP: Duration = Duration::from_secs(2);

pub fn id(n: u8) -> NodeId {
    NodeId::from_entropy(u128::from(n) << 64)
}

/// What a member does instead of following.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Copying {
    /// It receives a snapshot.
    Snapshot,
    /// It receives the log, one entry each second.
    Log,
    /// Nothing that it receives brings it nearer.
    Stalled,
}

/// The commit index, while a member copies.
const COMMIT: u64 = 600;

pub struct World {
    pub tables: Tables,
    pub now: Now,
    pub core: Core,
    pub leader: NodeId,
    leads_since: Now,
    dead: BTreeMap<NodeId, Moment>,
    /// Requests of roles that the role manager is carrying out, since when.
    pending: BTreeMap<NodeId, Moment>,
    effects: Vec<Effect>,
    /// Whether the next proposal or request is lost.
    pub loses: bool,
    /// Whether the next request is lost before the role manager has it.
    pub loses_request: bool,
    /// Members that do not follow, but copy: since when, and from which index. As learners they do not become voters meanwhile.
    copying: BTreeMap<NodeId, (Copying, Moment, u64)>,
    /// It acknowledges everything, and cannot follow.
    diverged: Option<NodeId>,
    /// What the role manager refuses.
    pub refuses: Option<(NodeId, Role)>,
    /// Every request of the autopilot.
    pub requests: Vec<(NodeId, Role)>,
    pub decided: Vec<String>,
    pub lost_quorum: bool,
    /// When the core asked to be woken.
    wakes_at: Option<Moment>,
    /// How often it was woken, and how often it was shown a state in which something had changed.
    pub wakes: usize,
    pub observed: usize,
    /// Offers of leadership.
    pub offers: Vec<NodeId>,
}

impl World {
    /// Managers 1 to `managers`, and workers after them, all ready.
    pub fn new(managers: u8, workers: u8) -> Self {
        let mut tables = Tables::default();
        let now = Now { at: Moment(10_000_000_000), wall: WallTime(1_800_000_000_000) };
        tables.cluster = Some(Arc::new(ClusterRecord {
            id: ClusterId::from_entropy(1),
            name: Name::sanitized("c"),
            incarnation: FIRST_INCARNATION,
            feature_level: AUTOPILOT_LEVEL,
            root_cert_pem: String::new(),
            root_key_pem: Secret::new(""),
            founded_at: now.wall,
            revision: Revision(0),
        }));
        for n in 1..=managers + workers {
            let role = if n <= managers { Role::Manager } else { Role::Worker };
            let record = NodeRecord {
                release: "1.0.0".into(),
                liveness: Liveness::Ready,
                ..NodeRecord::new(id(n), Name::sanitized(&format!("n{n}")), role, now.wall)
            };
            tables.nodes.insert(id(n), Arc::new(record));
            if role == Role::Manager {
                add_voter(&mut tables, id(n));
            }
        }
        let mut world = Self {
            tables,
            now,
            core: Core::new(Config::default(), now),
            leader: id(1),
            leads_since: now,
            dead: BTreeMap::new(),
            pending: BTreeMap::new(),
            effects: Vec::new(),
            loses: false,
            loses_request: false,
            copying: BTreeMap::new(),
            diverged: None,
            refuses: None,
            requests: Vec::new(),
            decided: Vec::new(),
            lost_quorum: false,
            wakes_at: None,
            wakes: 0,
            observed: 0,
            offers: Vec::new(),
        };
        world.observe();
        world
    }

    pub fn declare(&mut self, change: impl FnOnce(&mut AutopilotPolicy)) {
        let current = self.tables.autopilot.policy.as_deref().cloned();
        let mut policy = current.unwrap_or_else(|| AutopilotPolicy::new(3));
        change(&mut policy);
        self.apply(&Principal::Operator, Change::Autopilot(Box::new(AutopilotStep::Declare(Box::new(policy)))))
            .unwrap();
        self.observe();
    }
    pub fn operator(&mut self, step: AutopilotStep) {
        self.apply(&Principal::Operator, Change::Autopilot(Box::new(step))).unwrap();
        self.observe();
    }
    /// `time`: when the drain ends. `None`: an operator ends it.
    pub fn drain(&mut self, node: NodeId, time: Option<Duration>, replace: bool) {
        let until = time.map(|time| self.now.wall.plus(time));
        self.operator(AutopilotStep::Drain { node, until, replace });
    }
    pub fn undrain(&mut self, node: NodeId) {
        self.operator(AutopilotStep::Undrain { node, ends: None });
    }
    pub fn apply(&mut self, by: &Principal, change: Change) -> Result<(), CommandRefusal> {
        let command = Command::idempotent(self.now.wall, by.clone(), "test").change(change);
        let at = self.tables.revision.next();
        muster_store::apply(&mut self.tables, at, &command)
    }

    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.tables.members.values().filter(|member| member.voter).map(|member| member.node).collect()
    }
    pub fn answering(&self) -> usize {
        self.voters().iter().filter(|node| !self.dead.contains_key(node)).count()
    }
    pub fn has_quorum(&self) -> bool {
        self.answering() >= majority(self.voters().len())
    }
    pub fn is_dead(&self, node: NodeId) -> bool {
        self.dead.contains_key(&node)
    }
    /// A worker's place among the candidates, or why it has none.
    pub fn standing(&self, node: NodeId) -> Result<usize, Exclusion> {
        let (_, plan) = self.core.plan(self.now.at, None);
        plan.candidates.into_iter().find(|candidate| candidate.node == node).expect("it is a worker").standing
    }
    pub fn outcome(&self) -> Option<AutopilotOutcome> {
        self.tables.autopilot.changes.last().map(|change| change.outcome)
    }

    pub fn kill(&mut self, node: NodeId) {
        self.dead.entry(node).or_insert(self.now.at);
        if node == self.leader {
            self.elect();
        }
    }
    pub fn revive(&mut self, node: NodeId) {
        if self.dead.remove(&node).is_some() {
            self.liveness(node, Liveness::Ready);
            if self.dead.contains_key(&self.leader) {
                self.elect();
            }
            self.observe();
        }
    }
    /// Its session ends and is recorded as down, while it follows in Raft.
    pub fn lose_session(&mut self, node: NodeId) {
        self.liveness(node, Liveness::Down);
        self.observe();
    }
    /// It follows in Raft again; its session is as it was.
    pub fn follows_again(&mut self, node: NodeId) {
        self.dead.remove(&node);
        self.publish();
    }
    /// From now on a member copies in this way; `None`: it follows.
    pub fn copies(&mut self, node: NodeId, how: Option<Copying>) {
        let matched = self.matched(node);
        match how {
            Some(how) => drop(self.copying.insert(node, (how, self.now.at, matched))),
            None => drop(self.copying.remove(&node)),
        }
        self.publish();
    }
    /// What a member that copies has.
    pub fn matched(&self, node: NodeId) -> u64 {
        match self.copying.get(&node) {
            Some((Copying::Log, since, from)) => from + self.now.at.since(*since).as_secs(),
            Some((_, _, from)) => *from,
            None => 0,
        }
    }
    /// From now on it acknowledges everything, and cannot follow.
    pub fn diverges(&mut self, node: NodeId) {
        self.diverged = Some(node);
        self.publish();
    }
    /// Another voter leads; without a quorum none does.
    pub fn elect(&mut self) {
        let others = self.voters();
        let next = others.iter().find(|node| **node != self.leader && !self.dead.contains_key(node));
        if let Some(next) = next.copied().filter(|_| self.has_quorum()) {
            self.leader = next;
            self.leads_since = self.now;
            self.restart();
        }
    }
    /// The actor crashes: its answers are lost, and what it has requested is carried out.
    pub fn restart(&mut self) {
        self.effects.clear();
        self.core = Core::new(Config::default(), self.leads_since);
        self.observe();
    }

    pub fn pass(&mut self, time: Duration) {
        let until = self.now.at + time;
        loop {
            let next = self.due().filter(|at| *at < until).unwrap_or(until).max(self.now.at);
            self.now = Now { at: next, wall: self.now.wall.plus(next.since(self.now.at)) };
            self.tick();
            if next >= until {
                return self.check_that_nothing_is_due();
            }
        }
    }

    /// Lets seconds pass until this holds.
    pub fn pass_until(&mut self, what: &str, holds: impl Fn(&World) -> bool) {
        for _ in 0..3600 {
            if holds(self) {
                return;
            }
            self.pass(Duration::from_secs(1));
        }
        panic!("an hour later, still not: {what}; {:?}", self.decided);
    }

    /// A look at a moment of the test's choice finds nothing to do: else the core should have been woken before.
    fn check_that_nothing_is_due(&mut self) {
        self.publish();
        if !self.leads() {
            return;
        }
        // A copy of it: else later looks would depend on this one.
        let mut effects = Vec::new();
        self.core.clone().step(self.now.at, self.newest(), &mut effects);
        effects.retain(|effect| !matches!(effect, Effect::WakeAt(_)));
        for effect in &effects {
            if let Effect::Propose { step, .. } = effect {
                self.check_proposal(step); // a broken invariant is reported as such
            }
        }
        assert!(effects.is_empty(), "nothing has woken it for {effects:?}");
    }

    fn leads(&self) -> bool {
        !self.dead.contains_key(&self.leader) && self.has_quorum()
    }

    /// When the next event of the model is due.
    fn due(&self) -> Option<Moment> {
        let is_recorded =
            |node: &NodeId| self.tables.nodes.get(node).is_none_or(|record| record.liveness == Liveness::Down);
        let down = self.dead.iter().filter(|(node, _)| !is_recorded(node)).map(|(_, since)| *since + DOWN_AFTER);
        let pending = self.pending.values().map(|since| *since + CATCHES_UP);
        // What a member that copies has is published meanwhile.
        let published = (!self.copying.is_empty()).then(|| self.now.at + Duration::from_secs(1));
        let silent = self.dead.values().map(|since| *since + silence_is_known_after());
        let wakes = self.wakes_at.filter(|_| self.leads());
        // What is overdue waits: for a quorum, or for a node to return.
        down.chain(pending).chain(silent).chain(published).chain(wakes).filter(|at| *at > self.now.at).min()
    }

    fn tick(&mut self) {
        self.lost_quorum |= !self.has_quorum();
        if !self.leads() {
            self.elect();
            if !self.leads() {
                return;
            }
        }
        let is_down = |(node, since): &(&NodeId, &Moment)| {
            self.now.at.since(**since) >= DOWN_AFTER
                && self.tables.nodes.get(*node).is_some_and(|record| record.liveness != Liveness::Down)
        };
        let down: Vec<NodeId> = self.dead.iter().filter(is_down).map(|(node, _)| *node).collect();
        let mut changed = !down.is_empty();
        down.into_iter().for_each(|node| self.liveness(node, Liveness::Down));
        changed |= self.reconcile();
        if changed {
            self.observe();
        }
        self.publish();
        if self.wakes_at.is_some_and(|at| at <= self.now.at) {
            (self.wakes_at, self.wakes) = (None, self.wakes + 1);
            self.step(self.newest());
        }
    }

    /// What the role manager does: one change of the membership at a time, where the gates allow it.
    fn reconcile(&mut self) -> bool {
        let mut changed = false;
        let due: Vec<NodeId> = (self.pending.iter())
            .filter(|(_, since)| self.now.at.since(**since) >= CATCHES_UP)
            .map(|(node, _)| *node)
            .collect();
        for node in due {
            let Some(record) = self.tables.nodes.get(&node).cloned() else { continue };
            let is_voter = self.voters().contains(&node);
            match record.desired_role {
                Role::Manager if !is_voter => {
                    let joined = self.voters().len() + 1;
                    if self.dead.contains_key(&node) || self.answering() + 1 < majority(joined) {
                        continue;
                    }
                    let learner = self.tables.member_of(node).map(|member| member.raft_id);
                    if self.copying.contains_key(&node) {
                        if learner.is_none() {
                            add_member(&mut self.tables, node, false);
                            changed = true;
                        }
                        continue;
                    }
                    match learner.and_then(|learner| self.tables.members.get_mut(&learner)) {
                        Some(learner) => learner.voter = true,
                        None => add_voter(&mut self.tables, node),
                    }
                }
                Role::Worker => {
                    // The gates are asked again: a voter may have died since the request.
                    if is_voter && !self.may_lose(node) {
                        continue;
                    }
                    self.remove_member(node);
                    self.apply(&Principal::Cluster, Change::GrantRole { node, role: Role::Worker }).unwrap();
                }
                Role::Manager => {}
            }
            self.pending.remove(&node);
            changed = true;
        }
        changed
    }

    fn may_lose(&self, node: NodeId) -> bool {
        let left = self.answering() - usize::from(!self.dead.contains_key(&node));
        self.voters().len() > 1 && left >= majority(self.voters().len() - 1)
    }

    fn remove_member(&mut self, node: NodeId) {
        let gone = self.tables.members.iter().find(|(_, member)| member.node == node).map(|(raft_id, _)| *raft_id);
        if let Some(gone) = gone {
            self.tables.members.remove(&gone);
        }
        if node == self.leader {
            self.elect();
        }
    }

    fn set_role(&mut self, by: &Principal, node: NodeId, role: Role) -> Result<(), ErrorBody> {
        let Some(record) = self.tables.nodes.get(&node).cloned() else {
            return Err(ErrorBody::new(ErrorCode::NotFound, "no such node"));
        };
        if record.desired_role == role {
            if *by != Principal::Cluster {
                self.apply(by, Change::SetDesiredRole { node, role }).unwrap();
            }
            return Ok(());
        }
        if role == Role::Worker && self.voters().contains(&node) && !self.may_lose(node) {
            return Err(ErrorBody::new(ErrorCode::QuorumAtRisk, "the others would be no quorum"));
        }
        self.apply(by, Change::SetDesiredRole { node, role }).unwrap();
        if role == Role::Manager {
            self.apply(by, Change::GrantRole { node, role }).unwrap();
        }
        self.pending.insert(node, self.now.at);
        Ok(())
    }

    /// An operator requests a role. `false`: refused.
    pub fn asks(&mut self, node: NodeId, role: Role) -> bool {
        let done = self.set_role(&Principal::Operator, node, role).is_ok();
        self.observe();
        done
    }

    pub fn label(&mut self, node: NodeId, key: &str, value: &str) {
        let record = self.tables.nodes.get(&node).cloned().unwrap();
        let labels = [(key.to_owned(), value.to_owned())].into();
        self.tables.nodes.insert(node, Arc::new(NodeRecord { labels, ..(*record).clone() }));
        self.observe();
    }

    pub fn liveness(&mut self, node: NodeId, liveness: Liveness) {
        if let Some(record) = self.tables.nodes.get(&node).cloned() {
            self.tables.nodes.insert(node, Arc::new(NodeRecord { liveness, ..(*record).clone() }));
        }
    }

    pub fn replica(&self) -> Arc<Replica> {
        let silent = |node: NodeId| self.dead.get(&node).map_or(Duration::ZERO, |since| self.now.at.since(*since));
        let mut replica = replica_of(&self.tables, self.leader, silent);
        let newest = Arc::make_mut(&mut replica);
        newest.raft.commit = Revision(COMMIT);
        for progress in &mut newest.raft.progress {
            let node = progress.node.expect("each member has a node");
            progress.matched = self.matched(node);
            progress.in_snapshot = self.copying.get(&node).is_some_and(|(how, ..)| *how == Copying::Snapshot);
            let (kind, since) = (PeerProblemKind::StateDiverged, self.now.wall);
            let problem = PeerProblem { kind, message: String::new(), since };
            progress.problem = Some(problem).filter(|_| self.diverged == Some(node));
        }
        replica
    }

    /// The core sees the newest state, and what follows from it is carried out.
    pub fn observe(&mut self) {
        self.observed += 1;
        self.step(self.newest());
    }

    /// The leader publishes acknowledgements: as the actor, the core is passed those that change something.
    fn publish(&mut self) {
        if self.leads() && self.core.observe(self.now.at, &self.replica()) {
            self.observe();
        }
    }

    fn newest(&self) -> Input {
        Input::State { replica: self.replica(), doubts: Arc::default() }
    }

    fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.core.step(self.now.at, input, &mut effects);
        self.effects.extend(effects);
        let mut carried_out = 0;
        while let Some(effect) = (!self.effects.is_empty()).then(|| self.effects.remove(0)) {
            carried_out += 1;
            assert!(
                carried_out < 1_000,
                "its steps at one moment have no end: {:?}",
                self.tables.autopilot.changes.iter().rev().take(3).collect::<Vec<_>>()
            );
            match effect {
                Effect::Propose { at, step } => {
                    assert_eq!(at, self.now.wall, "one clock");
                    self.check_proposal(&step);
                    let lost = std::mem::take(&mut self.loses);
                    let applied = self.apply(&Principal::Cluster, Change::Autopilot(Box::new(step))).is_ok();
                    self.answer(Input::Proposed(applied && !lost));
                }
                Effect::SetRole { node, role } => {
                    let begun = self.tables.autopilot.outstanding().expect("AUTO-2: it requests what it has begun");
                    assert_eq!(begun.node, node, "AUTO-2");
                    let replaced = begun.action == AutopilotAction::Demote && begun.replaces == Some(node);
                    assert!(!replaced || self.is_dead(node), "AUTO-5: {node} answers");
                    if std::mem::take(&mut self.loses_request) {
                        self.answer(Input::Requested(Err(ErrorBody::unknown_outcome("the request is lost"))));
                        continue;
                    }
                    if self.refuses == Some((node, role)) {
                        self.answer(Input::Requested(Err(ErrorBody::new(ErrorCode::Conflict, "refused"))));
                        continue;
                    }
                    let lost = std::mem::take(&mut self.loses);
                    self.requests.push((node, role));
                    let done = self.set_role(&Principal::Cluster, node, role);
                    let lost = lost.then(|| ErrorBody::unknown_outcome("the answer is lost"));
                    self.answer(Input::Requested(lost.map_or(done, Err)));
                }
                Effect::HandOver { to } => {
                    self.offers.push(to);
                    if self.dead.contains_key(&to) || std::mem::take(&mut self.loses) {
                        self.answer(Input::NotHandedOver);
                    } else {
                        self.leader = to;
                        self.leads_since = self.now;
                        self.restart();
                    }
                }
                Effect::Decided(message) => self.decided.push(message),
                Effect::WakeAt(at) => self.wakes_at = at,
            }
        }
    }

    /// AUTO-1, AUTO-2, AUTO-3, AUTO-5 and AUTO-8, whenever a change begins.
    fn check_proposal(&self, step: &AutopilotStep) {
        let autopilot = &self.tables.autopilot;
        match step {
            AutopilotStep::Begin { action, node, replaces, .. } => {
                let policy = autopilot.policy.as_ref().expect("AUTO-1: nothing begins without a policy");
                assert!(policy.paused.is_none(), "AUTO-1: nothing begins while it is paused");
                assert!(autopilot.outstanding().is_none(), "AUTO-4: one change at a time");
                let voters = self.voters().len();
                let left = match action {
                    AutopilotAction::Demote => {
                        let surplus = voters > usize::from(policy.managers);
                        let drained = autopilot.drains.get(node).is_some_and(|drain| drain.replace);
                        let led = self.now.at.since(self.leads_since.at);
                        let silent = self.dead.get(node).map(|since| self.now.at.since(*since)).unwrap_or_default();
                        let dead = silent >= policy.replace_after() && led >= policy.replace_after();
                        // A surplus manager that is replaced must be dead, too.
                        let replaced = *replaces == Some(*node);
                        let allowed = if replaced { dead } else { surplus && (policy.shrink || drained) };
                        assert!(allowed, "AUTO-5, AUTO-8: {node} after {led:?}");
                        let left = self.answering() - usize::from(!self.is_dead(*node));
                        let tolerance = |answering: usize, voters| answering.saturating_sub(majority(voters));
                        let falls = tolerance(left, voters - 1) < tolerance(self.answering(), voters);
                        assert!(!replaced || !falls, "AUTO-3: fewer may fail without {node}");
                        (voters - 1, left)
                    }
                    AutopilotAction::Promote => (voters + 1, self.answering() + usize::from(voters == 1)),
                };
                // What has died less than a moment ago may be missing: the role manager asks the voters.
                let recent = self.dead.values().filter(|since| self.now.at.since(**since) < DOWN_AFTER).count();
                assert!(left.1 + recent >= majority(left.0), "AUTO-3: {left:?} after {step:?}");
            }
            AutopilotStep::End { number, .. } => {
                assert_eq!(autopilot.outstanding().map(|change| change.number), Some(*number), "AUTO-2");
            }
            AutopilotStep::Pause { gave_up: true, .. } => {
                let paused = autopilot.policy.as_ref().and_then(|policy| policy.paused.as_ref());
                assert_eq!(paused, None, "AUTO-1: it decides nothing while it is paused");
            }
            AutopilotStep::Undrain { node, .. } => {
                let until = autopilot.drains.get(node).and_then(|drain| drain.until);
                assert!(until.is_some_and(|until| until <= self.now.wall), "AUTO-2: the drain of {node} is not over");
            }
            other => panic!("AUTO-2: {other:?}"),
        }
    }

    fn answer(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.core.step(self.now.at, self.newest(), &mut effects);
        self.core.step(self.now.at, input, &mut effects);
        self.effects.extend(effects);
    }
}

fn silence_is_known_after() -> Duration {
    Config::default().election_timeout + PUBLISH_INTERVAL
}

/// The replica of this leader, whose peers have been silent for so long.
pub fn replica_of(tables: &Tables, leader: NodeId, silent: impl Fn(NodeId) -> Duration) -> Arc<Replica> {
    let own = tables.member_of(leader).map(|member| member.raft_id);
    let progress = tables.members.values().filter(|member| Some(member.raft_id) != own).map(|member| PeerProgress {
        raft_id: member.raft_id,
        node: Some(member.node),
        voter: member.voter,
        matched: 0,
        acked_ago: Some(silent(member.node)),
        in_snapshot: false,
        problem: None,
    });
    let raft = RaftStatus { raft_id: own, leading: true, progress: progress.collect(), ..RaftStatus::default() };
    Arc::new(Replica { tables: tables.clone(), raft })
}

pub fn add_voter(tables: &mut Tables, node: NodeId) {
    add_member(tables, node, true);
}

fn add_member(tables: &mut Tables, node: NodeId, voter: bool) {
    let raft_id = RaftId(tables.next_raft_id.0 + 1);
    tables.next_raft_id = raft_id;
    tables.members.insert(raft_id, Member { node, raft_id, addr: String::new(), voter });
}
