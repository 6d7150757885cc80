//! What the autopilot decides by: the leader's own applied state, its Raft progress, and how long it has itself seen each node ready or
//! down. Nothing that another leader observed counts (AUTO-8): clocks differ, and a leader that has just begun knows little.
//!
//! A voter's session may be down while the voter follows in Raft: that voter is not dead. The time for which a node counts as down
//! therefore begins anew with each acknowledgement, and does not begin before the end of its maintenance.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{
    Autopilot, AutopilotAction, AutopilotOutcome, Drain, Liveness, Moment, NodeDoubts, NodeId, NodeRecord, RaftId,
    Release, Replica, Role, Tables, Triple, WallTime,
};

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
pub struct Sightings(BTreeMap<NodeId, Seen>);

impl Sightings {
    /// Follows the newest state. A node whose recorded liveness this leader has not confirmed is neither ready nor down. `excused`: of
    /// [`excused`].
    pub fn follow(&mut self, replica: &Replica, doubts: &NodeDoubts, excused: &BTreeMap<NodeId, Moment>, now: Moment) {
        let nodes = &replica.tables.nodes;
        self.0.retain(|id, _| nodes.contains_key(id));
        for (id, record) in nodes {
            let confirmed = !doubts.unconfirmed.contains(id);
            let is = match record.liveness {
                Liveness::Ready if confirmed && !doubts.no_contact.contains_key(id) => Some(Seen::Ready(now)),
                Liveness::Down if confirmed => Some(Seen::Down(now)),
                _ => None,
            };
            let excused = excused.get(id).copied().unwrap_or_default();
            if is_injected(BugInjection::TrustTheRecord) && record.liveness == Liveness::Down {
                self.0.insert(*id, Seen::Down(Moment(0)));
                continue;
            }
            match (self.0.get(id), is) {
                (Some(Seen::Ready(_)), Some(Seen::Ready(_))) => {}
                (Some(Seen::Down(since)), Some(Seen::Down(_))) => {
                    let since = (*since).max(excused);
                    self.0.insert(*id, Seen::Down(since));
                }
                (_, Some(Seen::Down(now))) => drop(self.0.insert(*id, Seen::Down(now.max(excused)))),
                (_, Some(seen)) => drop(self.0.insert(*id, seen)),
                (_, None) => drop(self.0.remove(id)),
            }
        }
    }
    pub fn of(&self, node: NodeId) -> Option<Seen> {
        self.0.get(&node).copied()
    }
    /// Nodes that are down, as this leader has seen.
    pub fn down(&self) -> usize {
        self.0.values().filter(|seen| matches!(seen, Seen::Down(_))).count()
    }
}

/// Until when a node does not count as down: the last acknowledgement of a voter that can follow, and the end of maintenance that has one.
/// Never later than now. `seen_at`: when this replica was first seen.
pub fn excused(replica: &Replica, seen_at: Moment, now: Now) -> BTreeMap<NodeId, Moment> {
    let mut excused = BTreeMap::new();
    let mut until = |node: NodeId, at: Moment| {
        let latest = excused.entry(node).or_insert(at);
        *latest = at.max(*latest);
    };
    for (raft_id, member) in replica.tables.members.iter().filter(|(_, member)| member.voter) {
        if replica.raft.raft_id == Some(*raft_id) {
            until(member.node, now.at);
        }
        if let Some(ago) = answered_ago(replica, *raft_id) {
            until(member.node, seen_at - ago);
        }
    }
    for (node, drain) in &replica.tables.autopilot.drains {
        if let Some(end) = drain.until {
            let over = u64::try_from(now.wall.0.saturating_sub(end.0)).unwrap_or(0);
            until(*node, now.at - Duration::from_millis(over));
        }
    }
    excused
}

/// How long before the replica was published a member last answered. `None`: never in this term, or it cannot follow.
fn answered_ago(replica: &Replica, id: RaftId) -> Option<Duration> {
    replica.raft.progress.iter().find(|progress| progress.raft_id == id)?.answered_ago()
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
    /// The role manager is demoting or removing it.
    pub leaves: bool,
}

/// What a drain means for a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// It does not count as dead before.
    pub until: Option<WallTime>,
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
    pub now: Moment,
    pub wall: WallTime,
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
        let left = u64::try_from(at.0.saturating_sub(self.wall.0)).unwrap_or(0);
        self.at + Duration::from_millis(left)
    }
}

impl Facts {
    pub fn of(
        replica: &Replica,
        seen_at: Moment,
        doubts: &NodeDoubts,
        sightings: &Sightings,
        leads_since: Moment,
        config: &Config,
        now: Now,
    ) -> Self {
        let tables = &replica.tables;
        let autopilot = &tables.autopilot;
        let zone_label = autopilot.policy.as_ref().and_then(|policy| policy.zone_label.as_deref());
        let age = now.at.since(seen_at);
        let members: BTreeMap<NodeId, (RaftId, bool)> =
            tables.members.values().map(|member| (member.node, (member.raft_id, member.voter))).collect();
        let answers = |id: RaftId| {
            let answered = answered_ago(replica, id);
            replica.raft.raft_id == Some(id) || answered.is_some_and(|ago| ago + age <= config.election_timeout)
        };
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
                    answers: answers(*raft_id),
                    seen,
                    zone,
                    release: release_of(record),
                    leads: replica.raft.raft_id == Some(*raft_id),
                    wanted_by_person: requested == Some(Role::Manager),
                    never: preference == muster_messages::ManagerPreference::Never,
                    drain: drain.map(|drain| Maintenance { until: drain.until, replace: drain.replace }),
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
                    backoff_until: backoff_until(autopilot, *id, config),
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
            known: now.at.since(leads_since) >= 2 * config.election_timeout,
            leads_since,
            now: now.at,
            wall: now.wall,
        }
    }

    pub(super) fn clocks(&self) -> Now {
        Now { at: self.now, wall: self.wall }
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
fn backoff_until(autopilot: &Autopilot, node: NodeId, config: &Config) -> Option<WallTime> {
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
    Some(last.at.plus(took).plus(pause))
}

/// A release that cannot be read is older than every other one.
fn release_of(record: &NodeRecord) -> Triple {
    record.release.parse::<Release>().map(|release| release.triple).unwrap_or_default()
}
