//! The invariants, checked after every turn of every member. `docs/invariants.md` is their home.

use std::collections::BTreeMap;

use muster_messages::{
    Event, EventKind, Incarnation, NodeId, Principal, RaftId, Revision, Role, SeatChangeKind, Tables, WallTime,
};
use muster_store::invariants::{self, Broken, CERT_1, RAFTID_1};

use crate::blocks;
use crate::fleet;
use crate::machine::Place;
use crate::model::Model;
use crate::recoveries::RECOVER_3;

pub const LEADER_1: &str = "LEADER-1";
pub const WRITE_1: &str = "WRITE-1";
pub const READ_1: &str = "READ-1";
pub const WISH_1: &str = "WISH-1";
pub const PROPOSE_1: &str = "PROPOSE-1";
pub const QUORUM_1: &str = "QUORUM-1";
pub const APPLY_1: &str = "APPLY-1";
pub const TOLD_1: &str = "TOLD-1";
pub const DOWN_1: &str = "DOWN-1";
pub const MEMBER_2: &str = "MEMBER-2";
pub const EVENT_1: &str = "EVENT-1";
pub const CONVERGE_1: &str = "CONVERGE-1";

/// Two states of one revision are compared in full once in so many; their small tables are compared always.
const IN_FULL: u64 = 32;

pub type Verdict = Result<(), Broken>;

pub fn broken(name: &'static str, detail: impl Into<String>) -> Broken {
    Broken { name, detail: detail.into() }
}

/// What was seen so far, of the whole universe.
#[derive(Default)]
pub struct Checks {
    /// The state at every revision at which some member's turn ended.
    states: BTreeMap<Revision, Tables>,
    leaders: BTreeMap<u64, (Place, u32)>,
    seats: BTreeMap<RaftId, NodeId>,
    /// Which role was written at which revision.
    grants: BTreeMap<(NodeId, Revision), Role>,
    /// How long the newest certificate lives that was ever handed out to a node.
    signed: BTreeMap<NodeId, WallTime>,
    /// How many events of each sort are kept.
    events: usize,
    /// Of the newest recovery. What members of before still apply is another history's.
    incarnation: Incarnation,
    /// The greatest revision that anybody had before the last recovery.
    past: Revision,
    /// Membership changes seen.
    pub changes: Vec<SeatChangeKind>,
}

impl Checks {
    /// So many events of each sort are kept.
    pub fn new(events: usize) -> Self {
        Self { events, ..Self::default() }
    }

    /// The newest state that any member has applied.
    pub fn newest(&self) -> Option<&Tables> {
        self.states.last_key_value().map(|(_, tables)| tables)
    }

    /// Another history begins with this state. RECOVER-3: nothing in it repeats what was seen of those before.
    pub fn recovered(&mut self, tables: &Tables) -> Verdict {
        let newest = self.states.last_key_value().map_or(Revision(0), |(revision, _)| *revision);
        self.past = self.past.max(newest);
        self.incarnation = incarnation_of(tables);
        self.states.clear();
        self.leaders.clear();
        self.changes.clear();
        self.after_the_past(tables.revision)?;
        invariants::check(tables)?;
        self.own_seats(tables)?;
        self.states.insert(tables.revision, tables.clone());
        Ok(())
    }

    fn after_the_past(&self, at: Revision) -> Verdict {
        if at > self.past {
            return Ok(());
        }
        let detail = format!("revision {at} comes after a recovery, and there was {} before it", self.past);
        Err(broken(RECOVER_3, detail))
    }

    fn own_seats(&mut self, tables: &Tables) -> Verdict {
        for (seat, member) in &tables.members {
            let owner = *self.seats.entry(*seat).or_insert(member.node);
            if owner != member.node {
                return Err(broken(RAFTID_1, format!("seat {seat} was {owner}'s and is {}'s", member.node)));
            }
        }
        Ok(())
    }

    /// LEADER-1: a term has one leader, and one that crashed does not lead its term again.
    pub fn leads(&mut self, term: u64, place: Place, half: u32) -> Verdict {
        let first = *self.leaders.entry(term).or_insert((place, half));
        if first == (place, half) {
            return Ok(());
        }
        Err(broken(LEADER_1, format!("term {term} is led by n{} and by n{}", first.0 + 1, place + 1)))
    }

    /// A member has applied up to here.
    pub fn applied(&mut self, tables: &Tables, model: &Model, today: WallTime) -> Verdict {
        if incarnation_of(tables) < self.incarnation {
            return Ok(());
        }
        let at = tables.revision;
        if let Some(known) = self.states.get(&at) {
            return same(known, tables);
        }
        self.after_the_past(at)?;
        invariants::check(tables)?;
        let before = self.states.range(..at).next_back().map(|(_, t)| t);
        let after = self.states.range(at..).next().map(|(_, t)| t);
        if let Some(before) = before {
            step(before, tables, model)?;
            events_stay(before, tables, self.events)?;
            blocks::outlives(before, tables, &self.signed, today)?;
        }
        if let Some(after) = after {
            step(tables, after, model)?;
            events_stay(tables, after, self.events)?;
        } else if let Some(before) = before {
            self.changes.extend(membership_changes(before, tables));
        }
        self.own_seats(tables)?;
        for (id, node) in &tables.nodes {
            let role = *self.grants.entry((*id, node.granted)).or_insert(node.role);
            if role != node.role {
                let at = node.granted;
                return Err(broken(APPLY_1, format!("{id} was granted {role} and {} at {at}", node.role)));
            }
        }
        self.states.insert(at, tables.clone());
        Ok(())
    }

    /// MEMBER-2: the Raft configuration is what the applied seat changes say.
    pub fn configured(&self, tables: &Tables, (voters, learners): (Vec<u64>, Vec<u64>)) -> Verdict {
        let seats = |voter| tables.members.values().filter(move |m| m.voter == voter).map(|m| m.raft_id.0);
        if voters.iter().copied().eq(seats(true)) && learners.iter().copied().eq(seats(false)) {
            return Ok(());
        }
        let detail = format!("raft has {voters:?} and {learners:?}, the tables have {:?}", tables.members);
        Err(broken(MEMBER_2, detail))
    }

    /// CERT-1: a certificate that reached its node is for the role that was written at the revision it carries.
    pub fn certified(&self, node: NodeId, role: Role, granted: Revision) -> Verdict {
        match self.grants.get(&(node, granted)) {
            Some(written) if *written != role => Err(broken(
                CERT_1,
                format!("{node} got a certificate as {role}, but was granted {written} at {granted}"),
            )),
            _ => Ok(()),
        }
    }

    /// A certificate is handed out.
    pub fn signed(&mut self, node: NodeId, not_after: WallTime) {
        let newest = self.signed.entry(node).or_insert(not_after);
        *newest = not_after.max(*newest);
    }

    /// TOLD-1: nobody is told that it is demoted or removed unless it is so in some applied state newer than its grant.
    pub fn told(&self, node: NodeId, granted: Option<Revision>, removed: bool) -> Verdict {
        let since = granted.unwrap_or_default();
        let so = self.states.range(since..).any(|(_, t)| match t.nodes.get(&node) {
            None => t.cluster.is_some(),
            Some(record) => !removed && record.role == Role::Worker && record.granted > since,
        });
        if so {
            return Ok(());
        }
        let what = if removed { "removed" } else { "demoted" };
        Err(broken(TOLD_1, format!("{node} was told that it is {what}, and nobody wrote that")))
    }

    /// Whose a seat is, as far as anybody has applied.
    pub fn owner(&self, seat: RaftId) -> Option<NodeId> {
        self.seats.get(&seat).copied()
    }
}

fn incarnation_of(tables: &Tables) -> Incarnation {
    tables.cluster.as_ref().map_or(Incarnation(0), |cluster| cluster.incarnation)
}

fn same(known: &Tables, tables: &Tables) -> Verdict {
    let small = known.members == tables.members
        && known.next_raft_id == tables.next_raft_id
        && known.nodes == tables.nodes
        && known.blocklist == tables.blocklist
        && known.reconcilers.changed == tables.reconcilers.changed
        && known.reconcilers.gates == tables.reconcilers.gates
        && known.removed_raft_ids == tables.removed_raft_ids
        && known.events.len() == tables.events.len()
        && known.routine_events.len() == tables.routine_events.len()
        && known.frequent_events.len() == tables.frequent_events.len()
        && known.requests.weight == tables.requests.weight
        && known.outcomes.len() == tables.outcomes.len();
    let whole = !tables.revision.0.is_multiple_of(IN_FULL) || known == tables;
    if small && whole {
        return Ok(());
    }
    Err(broken(APPLY_1, format!("two members disagree about revision {}", tables.revision)))
}

/// What happened between two states, and that nothing acknowledged went backwards on the way.
fn step(before: &Tables, after: &Tables, model: &Model) -> Verdict {
    invariants::check_step(before, after)?;
    fleet::check_step(before, after)?;
    match model.backwards(before, after) {
        Some((key, was, is)) => Err(broken(WRITE_1, format!("k{key} went from {was} to {is} at {}", after.revision))),
        None => Ok(()),
    }
}

/// EVENT-1: an event is gone only when there are as many younger ones as are kept that no lease and no silence has caused.
fn events_stay(before: &Tables, after: &Tables, kept: usize) -> Verdict {
    let oldest = |tables: &Tables| tables.events.front().map(|event| event.revision);
    if oldest(before).is_none() || oldest(before) == oldest(after) {
        return Ok(());
    }
    // One that an operator made (a recovery tells of all leases at once) is none of these.
    let frequent = |event: &Event| match event.kind {
        EventKind::Lease => event.by != Principal::Operator,
        kind => kind == EventKind::Liveness,
    };
    let younger = after.events.iter().filter(|event| !frequent(event)).count();
    if younger >= kept {
        return Ok(());
    }
    let detail = format!("at {} events are forgotten, and {younger} of {kept} are left", after.revision);
    Err(broken(EVENT_1, detail))
}

fn membership_changes(before: &Tables, after: &Tables) -> Vec<SeatChangeKind> {
    let mut changes = Vec::new();
    if before.members == after.members {
        return changes;
    }
    for (raft_id, member) in &after.members {
        let (node, raft_id) = (member.node, *raft_id);
        match before.members.get(&raft_id) {
            None => {
                changes.push(SeatChangeKind::AddLearner { node, raft_id, addr: member.addr.clone() });
                if member.voter {
                    changes.push(SeatChangeKind::PromoteLearner { node, raft_id });
                }
            }
            Some(was) if was.voter != member.voter => changes.push(SeatChangeKind::PromoteLearner { node, raft_id }),
            Some(was) if was.addr != member.addr => {
                changes.push(SeatChangeKind::SetAddress { raft_id, addr: member.addr.clone() });
            }
            Some(_) => {}
        }
    }
    let gone = before.members.keys().filter(|id| !after.members.contains_key(id));
    changes.extend(gone.map(|id| SeatChangeKind::Remove { raft_id: *id }));
    changes
}
