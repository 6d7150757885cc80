//! What the autopilot decides by: the leader's own applied state, its Raft progress, and how long it has itself seen each node ready or
//! down. Nothing that another leader observed counts (AUTO-8): clocks differ, and a leader that has just begun knows little.
//!
//! Owns        since when each node has been ready or down, as this leader saw it, and when maintenance ends.
//!
//! A voter's session may be down while the voter follows in Raft: that voter is not dead. The time for which a node counts as down
//! therefore begins anew with each acknowledgement. A session ends a while after the node's last heartbeat. A voter that this leader heard
//! within that while, and since it leads, counts as down from when it was last heard; any other node counts from when this leader sees that
//! it is down. After its maintenance the time until it is replaced begins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::{
    Autopilot, AutopilotAction, AutopilotChange, AutopilotOutcome, Drain, Liveness, Moment, NodeDoubts, NodeId,
    NodeRecord, RaftId, Release, Replica, Role, Tables, Triple, WallTime,
};

use super::promotions::Promotions;
use crate::Config;
use crate::bugs::{BugInjection, is_injected};

/// Since when this leader has seen a node in one state without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Ready(Moment),
    Down(Moment),
}

/// What this leader has observed itself. A crash or another leader begins anew, which delays a decision and never hastens one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sightings {
    seen: BTreeMap<NodeId, Seen>,
    /// When the maintenance of a node ends: of nodes that are in maintenance, and of those that have been down since.
    awaited: BTreeMap<NodeId, Moment>,
}

impl Sightings {
    /// Follows the newest state. A node whose recorded liveness this leader has not confirmed is neither ready nor down. `answered`: of
    /// `last_answers`. `from`: since when a state that is new counts; that a voter is down counts from its last answer, but not from before
    /// `earliest`.
    pub fn follow(
        &mut self,
        replica: &Replica,
        doubts: &NodeDoubts,
        answered: &BTreeMap<NodeId, Moment>,
        from: Moment,
        earliest: Moment,
        now: Now,
    ) {
        let nodes = &replica.tables.nodes;
        self.seen.retain(|id, _| nodes.contains_key(id));
        for (id, record) in nodes {
            let confirmed = !doubts.unconfirmed.contains(id);
            let is = match record.liveness {
                Liveness::Ready if confirmed && !doubts.no_contact.contains_key(id) => Some(Seen::Ready(from)),
                Liveness::Down if confirmed => Some(Seen::Down(from)),
                _ => None,
            };
            let answered = answered.get(id).copied();
            if is_injected(BugInjection::TrustTheRecord) && record.liveness == Liveness::Down {
                self.seen.insert(*id, Seen::Down(Moment(0)));
                continue;
            }
            match (self.seen.get(id), is) {
                (Some(Seen::Ready(_)), Some(Seen::Ready(_))) => {}
                (Some(Seen::Down(since)), Some(Seen::Down(_))) => {
                    let since = answered.map_or(*since, |at| at.max(*since));
                    self.seen.insert(*id, Seen::Down(since));
                }
                (_, Some(Seen::Down(from))) => {
                    let since = answered.map_or(from, |at| at.max(earliest));
                    self.seen.insert(*id, Seen::Down(since));
                }
                (_, Some(seen)) => drop(self.seen.insert(*id, seen)),
                (_, None) => drop(self.seen.remove(id)),
            }
        }
        self.follow_drains(replica, now);
    }

    /// Maintenance that an operator ends early has ended now.
    fn follow_drains(&mut self, replica: &Replica, now: Now) {
        let ends = |node: &NodeId| {
            // One that is to be replaced is not awaited: only its own silence counts.
            let drain = replica.tables.autopilot.drains.get(node).filter(|drain| !drain.replace)?;
            drain.until.map(|end| now.moment_of(end))
        };
        self.awaited.extend(replica.tables.autopilot.drains.keys().filter_map(|node| Some((*node, ends(node)?))));
        let seen = &self.seen;
        self.awaited.retain(|node, end| {
            let lasts = ends(node).is_some();
            *end = if lasts { *end } else { (*end).min(now.at) };
            lasts || matches!(seen.get(node), Some(Seen::Down(_)))
        });
    }

    /// This node may have answered until then, although the replica does not show it.
    pub fn answered(&mut self, node: NodeId, at: Moment) {
        if let Some(Seen::Down(since)) = self.seen.get_mut(&node) {
            *since = at.max(*since);
        }
    }
    pub fn of(&self, node: NodeId) -> Option<Seen> {
        self.seen.get(&node).copied()
    }
    /// Nodes that are down, as this leader has seen.
    pub fn down(&self) -> usize {
        self.seen.values().filter(|seen| matches!(seen, Seen::Down(_))).count()
    }
}

/// When each voter that can follow last acknowledged something. `seen_at`: when this replica was first seen.
pub fn last_answers(replica: &Replica, seen_at: Moment, now: Moment) -> BTreeMap<NodeId, Moment> {
    let voters = replica.tables.members.iter().filter(|(_, member)| member.voter);
    let answered = voters.filter_map(|(raft_id, member)| {
        let is_own = replica.raft.raft_id == Some(*raft_id);
        let at = if is_own { now } else { seen_at - answered_ago(replica, *raft_id)? };
        Some((member.node, at))
    });
    answered.collect()
}

/// The voters that answer, by a replica. `age`: how long ago that was first seen.
pub fn answering(replica: &Replica, age: Duration, config: &Config) -> BTreeSet<RaftId> {
    let answers = |id: &RaftId| {
        let answered = answered_ago(replica, *id);
        replica.raft.raft_id == Some(*id) || answered.is_some_and(|ago| ago + age <= config.election_timeout)
    };
    let voters = replica.tables.members.iter().filter(|(_, member)| member.voter);
    voters.map(|(raft_id, _)| *raft_id).filter(answers).collect()
}

/// How long before the replica was published a member last answered. `None`: never in this term, or it cannot follow.
fn answered_ago(replica: &Replica, id: RaftId) -> Option<Duration> {
    replica.raft.progress_of(id)?.answered_ago()
}

/// A voter.
#[derive(Clone, Debug, PartialEq)]
pub struct Voter {
    pub node: NodeId,
    pub name: String,
    /// It acknowledged something within an election timeout, and can follow.
    pub answers: bool,
    pub seen: Option<Seen>,
    pub zone: Option<String>,
    pub release: Triple,
    /// The node of this leader.
    pub leads: bool,
    /// An operator's last request for its role was manager.
    pub wanted_by_person: bool,
    pub never: bool,
    /// It is in maintenance.
    pub drain: Option<Maintenance>,
    /// The end of its present or last maintenance: its time as a node that is down begins then.
    pub awaited_until: Option<Moment>,
    /// The role manager is demoting or removing it.
    pub leaves: bool,
}

/// What a drain means for a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Another node takes its place first.
    pub replace: bool,
}

/// A worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    pub node: NodeId,
    pub name: String,
    pub seen: Option<Seen>,
    pub zone: Option<String>,
    pub release: Triple,
    pub eligible: bool,
    pub preference: muster_messages::ManagerPreference,
    /// An operator's last request for its role was worker.
    pub demoted_by_person: bool,
    /// Its promotion was taken back: passed over until then.
    pub backoff_until: Option<WallTime>,
    /// Why the node is not trusted with the role.
    pub doubt: Option<Doubt>,
    /// It is in maintenance.
    pub drained: bool,
}

/// Why a node is not trusted with the role of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    Duplicate,
    CertificateFailed,
    CertificateRevoked,
    NoRelease,
}

/// A role change that is not settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsettled {
    pub node: NodeId,
    pub name: String,
    pub to: Role,
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// By id.
    pub voters: Vec<Voter>,
    /// By id.
    pub workers: Vec<Worker>,
    /// Changes in progress, other than of nodes that are down.
    pub unsettled: Vec<Unsettled>,
    pub nodes: usize,
    pub down: usize,
    /// This leader has led long enough for acknowledgements from every voter that answers.
    pub known: bool,
    pub leads_since: Moment,
    /// When the node of the promotion that is under way last made progress, as this leader has seen.
    pub progressed_at: Option<Moment>,
    pub now: Moment,
    pub wall: WallTime,
}

/// What a leader has observed beside the newest replica.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// When the replica was first seen.
    pub seen_at: Moment,
    pub doubts: &'a NodeDoubts,
    pub sightings: &'a Sightings,
    pub promotions: &'a Promotions,
    pub leads_since: Moment,
}

/// The time of one decision.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub at: Moment,
    pub wall: WallTime,
}

impl Now {
    /// A wall time on the monotonic clock; now, if it has passed.
    pub(super) fn moment(self, at: WallTime) -> Moment {
        self.moment_of(at).max(self.at)
    }
    /// A wall time on the monotonic clock, also one that has passed.
    pub(super) fn moment_of(self, at: WallTime) -> Moment {
        let distance = Duration::from_millis(at.0.abs_diff(self.wall.0));
        if at < self.wall { self.at - distance } else { self.at + distance }
    }
}

impl Facts {
    pub fn of(replica: &Replica, observed: Observed<'_>, config: &Config, now: Now) -> Self {
        let Observed { seen_at, doubts, sightings, promotions, leads_since } = observed;
        let tables = &replica.tables;
        let autopilot = &tables.autopilot;
        let zone_label = autopilot.policy.as_ref().and_then(|policy| policy.zone_label.as_deref());
        let answering = answering(replica, now.at.since(seen_at), config);
        let members: BTreeMap<NodeId, (RaftId, bool)> =
            tables.members.values().map(|member| (member.node, (member.raft_id, member.voter))).collect();
        let (mut voters, mut workers, mut unsettled) = (Vec::new(), Vec::new(), Vec::new());
        for (id, record) in &tables.nodes {
            let seen = sightings.of(*id);
            let name = || record.name.to_string();
            let zone = zone_label.and_then(|label| tables.labels_of(record).remove(label));
            let requested = autopilot.requested.get(id).copied();
            let preference = autopilot.preference(*id);
            let member = members.get(id);
            let drain = autopilot.drains.get(id).filter(|drain| is_in_force(drain, now.wall));
            let is_down = matches!(seen, Some(Seen::Down(_)));
            let to = match (record.desired_role, member) {
                _ if record.removing.is_some() => Some(Role::Worker),
                (Role::Manager, Some((_, true))) => None,
                (Role::Manager, _) => Some(Role::Manager),
                (Role::Worker, Some(_)) => Some(Role::Worker),
                (Role::Worker, None) => (record.role == Role::Manager).then_some(Role::Worker),
            };
            if let Some(to) = to.filter(|_| !is_down) {
                unsettled.push(Unsettled { node: *id, name: name(), to });
            }
            if let Some((raft_id, true)) = member {
                voters.push(Voter {
                    node: *id,
                    name: name(),
                    answers: answering.contains(raft_id),
                    seen,
                    zone,
                    release: release_of(record),
                    leads: replica.raft.raft_id == Some(*raft_id),
                    wanted_by_person: requested == Some(Role::Manager),
                    never: preference == muster_messages::ManagerPreference::Never,
                    drain: drain.map(|drain| Maintenance { replace: drain.replace }),
                    awaited_until: sightings.awaited.get(id).copied(),
                    leaves: record.desired_role == Role::Worker || record.removing.is_some(),
                });
            } else if record.desired_role == Role::Worker && record.removing.is_none() && member.is_none() {
                workers.push(Worker {
                    node: *id,
                    name: name(),
                    seen,
                    zone,
                    release: release_of(record),
                    eligible: is_eligible(replica, record),
                    preference,
                    demoted_by_person: requested == Some(Role::Worker),
                    backoff_until: backoff_until(autopilot, promotions, *id, config),
                    doubt: doubt(tables, record, doubts),
                    drained: drain.is_some(),
                });
            }
        }
        Self {
            voters,
            workers,
            unsettled,
            nodes: tables.nodes.len(),
            down: sightings.down(),
            known: now.at >= known_at(leads_since, config),
            leads_since,
            progressed_at: promotions.progressed_at(),
            now: now.at,
            wall: now.wall,
        }
    }

    pub(super) fn clocks(&self) -> Now {
        Now { at: self.now, wall: self.wall }
    }
    /// When a change that has not settled is overdue: after its time by the wall clock, and not before this leader has waited for as long
    /// itself, since its term began and since the last progress that it saw.
    pub(super) fn due_at(&self, change: &AutopilotChange, config: &Config) -> Moment {
        let left = config.settle_within.saturating_sub(age(change.at, self.clocks(), self.leads_since));
        let waits_since = self.progressed_at.map_or(self.leads_since, |at| at.max(self.leads_since));
        (self.now + left).max(waits_since + config.settle_within)
    }
    /// Voters that answer.
    pub fn answering(&self) -> usize {
        self.voters.iter().filter(|voter| voter.answers).count()
    }
    /// How many of the voters may fail now.
    pub fn tolerance(&self) -> usize {
        self.answering().saturating_sub(majority(self.voters.len()))
    }
    /// Managers that answer, by zone.
    pub fn zones(&self) -> BTreeMap<&str, usize> {
        let mut zones = BTreeMap::new();
        for zone in self.voters.iter().filter(|voter| voter.answers).filter_map(|voter| voter.zone.as_deref()) {
            *zones.entry(zone).or_default() += 1;
        }
        zones
    }
}

/// Time since a change was recorded. Clocks of leaders differ: one that lies ahead was recorded before this term began.
pub(super) fn age(at: WallTime, now: Now, leads_since: Moment) -> Duration {
    match u64::try_from(now.wall.0.saturating_sub(at.0)) {
        Ok(millis) => Duration::from_millis(millis),
        Err(_) => now.at.since(leads_since),
    }
}

/// When a leader knows which voters answer.
pub(super) fn known_at(leads_since: Moment, config: &Config) -> Moment {
    leads_since + 2 * config.election_timeout
}

pub fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

/// Whether a drain has not ended yet.
pub(super) fn is_in_force(drain: &Drain, now: WallTime) -> bool {
    drain.until.is_none_or(|until| now < until)
}

fn is_eligible(replica: &Replica, record: &NodeRecord) -> bool {
    let Some(policy) = replica.tables.autopilot.policy.as_ref() else { return false };
    if policy.eligible.is_empty() {
        return true;
    }
    let labels = replica.tables.labels_of(record);
    policy.eligible.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn doubt(tables: &Tables, record: &NodeRecord, doubts: &NodeDoubts) -> Option<Doubt> {
    if doubts.duplicates.contains_key(&record.id) {
        return Some(Doubt::Duplicate);
    }
    if record.certificate_state() == muster_messages::CertificateState::Failed {
        return Some(Doubt::CertificateFailed);
    }
    // Its key may be stolen: the node is trusted again once it presents the next certificate.
    if tables.certificates.get(&record.id).is_some_and(|row| row.revoking) {
        return Some(Doubt::CertificateRevoked);
    }
    record.release.is_empty().then_some(Doubt::NoRelease)
}

/// One minute after the first promotion that was taken back or refused, then twice as long each time, up to an hour.
fn backoff_until(autopilot: &Autopilot, promotions: &Promotions, node: NodeId, config: &Config) -> Option<WallTime> {
    let of_node = autopilot.changes.iter().rev().filter(|change| change.node == node);
    let since_settled = of_node.take_while(|change| change.outcome != AutopilotOutcome::Settled);
    let failed: Vec<_> = since_settled
        .filter(|change| change.action == AutopilotAction::Promote)
        .filter(|change| matches!(change.outcome, AutopilotOutcome::TakenBack | AutopilotOutcome::Refused))
        .collect();
    let last = failed.first()?;
    let doublings = u32::try_from(failed.len() - 1).unwrap_or(u32::MAX);
    let (first, longest) = config.backoff;
    let pause: Duration = first.saturating_mul(2u32.saturating_pow(doublings)).min(longest);
    let took = if last.outcome == AutopilotOutcome::TakenBack { config.settle_within } else { Duration::ZERO };
    // When it ended is not recorded. A promotion that made progress took longer, and the leader of that time knows.
    let ended_at = last.at.plus(took);
    Some(promotions.ended_at(last.number).map_or(ended_at, |at| at.max(ended_at)).plus(pause))
}

/// A release that cannot be read is older than every other one.
fn release_of(record: &NodeRecord) -> Triple {
    record.release.parse::<Release>().map(|release| release.triple).unwrap_or_default()
}
