//! Recovery: a cluster that has lost its quorum for good, or is restored from a backup, continues as one manager.
//!
//! Invariants  RECOVER-1  one manager and one voter: every other manager becomes a worker, in desired role and role, and leaves the Raft group.
//!             RECOVER-2  the incarnation grows, and the later of two recoveries has the higher number, whatever replicas they
//!                        started from: it carries the time.
//!             RECOVER-3  revisions and raft ids leap ahead of all that may have been handed out unknown to this replica, also in an
//!                        earlier recovery from the same replica: they begin at the incarnation's time. A fencing token stays the
//!                        highest ever issued, and a watch notices that it missed something.
//!             RECOVER-9  no lease is held by the holder in the replica, and none can be acquired before its duration has passed
//!                        since the recovery, not even one missing from the replica: another may have acquired it since.
//! Pure: repeating a recovery from the same replica with the same [`Recovery`] gives the same tables.

use std::sync::Arc;

use muster_messages::{
    ClusterRecord, EventKind, FIRST_INCARNATION, FencingToken, Generation, Holding, Incarnation, Lease,
    MEMBERS_NAMESPACE, Member, MicroTime, Name, NodeId, NodeRecord, Object, ObjectBody, ObjectKey, ObjectMeta,
    Principal, RaftId, Revision, Role, Tables, Term, WallTime,
};
use serde::Serialize;

use crate::apply::Stamp;
use crate::bugs::BugInjection;
use crate::changes::{allow_unrecorded, create, pause_after_recovery, renew_unlock_key};
use crate::injected;
use crate::limits::Limits;

/// Revisions per millisecond of an incarnation's time. No cluster writes a million entries a second, so its revisions never
/// reach the start of a later incarnation. Below 2⁵³, which JavaScript counts to, until the year 2255.
const REVISIONS_PER_MS: u64 = 1_000;
/// How far both leap if the time would take them back: after recoveries by earlier releases.
const REVISION_LEAP: u64 = 1_000_000_000_000;
const RAFT_ID_LEAP: u64 = 1_000_000;
/// The holder that a recovered lease shows.
pub const UNKNOWN_HOLDER: &str = "not known since the recovery";

/// The decision, made before anything is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The only manager from now on.
    pub node: NodeId,
    /// The name under which a node without a record in the replica is admitted, or the nearest free one.
    pub admit_as: Option<Name>,
    /// The address at which others reach it.
    pub addr: String,
    /// See [`next_incarnation`].
    pub incarnation: Incarnation,
    pub at: WallTime,
    /// For the events.
    pub reason: String,
}

/// The consequences of a recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Consequences {
    pub node: NodeId,
    pub name: Name,
    pub raft_id: RaftId,
    pub incarnation: Incarnation,
    pub incarnation_before: Incarnation,
    pub revision: Revision,
    pub revision_before: Revision,
    /// Managers, current or desired, that are workers afterwards.
    pub lost: Vec<LostManager>,
    /// The other nodes, which do not change.
    pub workers: usize,
    /// Leases that cannot be acquired before their duration has passed.
    pub leases: usize,
}

/// A manager that the cluster continues without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostManager {
    pub node: NodeId,
    pub name: Name,
    pub addr: String,
    pub raft_id: Option<RaftId>,
}

/// Why a cluster cannot continue from a replica.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotRecover {
    #[error("the replica is empty: it never received the cluster's state")]
    Empty,
    #[error("node {0} was removed from the cluster and is blocked")]
    Blocked(NodeId),
    #[error("node {0} is not part of the cluster in this replica")]
    Unknown(NodeId),
    #[error("the replica is already at incarnation {found}, not older than {wanted}")]
    Incarnation { found: Incarnation, wanted: Incarnation },
    #[error(
        "this machine's clock shows {clock}, but the replica's incarnation began at {began}: set the clock right first, because the \
         revisions and fencing tokens of the recovered cluster begin at its time"
    )]
    ClockBehind { clock: WallTime, began: WallTime },
}

/// The incarnation that a recovery at this time begins.
pub fn next_incarnation(cluster: &ClusterRecord, at: WallTime) -> Incarnation {
    cluster.incarnation.next().max(Incarnation(at.0.unsigned_abs()))
}

/// When this incarnation began, if a recovery began it. One by an early release carries no time and counts as long ago.
pub fn recovered_at(cluster: &ClusterRecord) -> Option<WallTime> {
    let at = WallTime(i64::try_from(cluster.incarnation.0).ok()?);
    (cluster.incarnation > FIRST_INCARNATION).then_some(at)
}

/// Recovers, or changes nothing and returns the reason.
pub fn recover(tables: &mut Tables, recovery: &Recovery) -> Result<Consequences, CannotRecover> {
    let cluster = tables.cluster.clone().ok_or(CannotRecover::Empty)?;
    check(tables, &cluster, recovery)?;
    let revision_before = tables.revision;
    let revision =
        Revision(leap(revision_before.0, recovery.incarnation.0.saturating_mul(REVISIONS_PER_MS), REVISION_LEAP));
    tables.revision = revision;
    let by = Principal::Operator;
    let (wall, reason, limits) = (recovery.at, recovery.reason.as_str(), &Limits::DEFAULT);
    let stamp = Stamp { at: revision, term: Term(0), wall, by: &by, reason, limits };
    let text = |incarnation| Some(format!("incarnation {incarnation}"));
    stamp.log(tables, EventKind::Cluster, None, text(cluster.incarnation), text(recovery.incarnation));
    let record = ClusterRecord { incarnation: recovery.incarnation, revision, ..(*cluster).clone() };
    tables.cluster = Some(Arc::new(record));

    let lost = demote_managers(tables, &stamp, recovery.node);
    let name = restore_survivor(tables, &stamp, recovery);
    let raft_id = replace_members(tables, &stamp, recovery);
    let leases = withhold_leases(tables, &stamp);
    allow_unrecorded(tables);
    // What nodes trust may be older or newer than this state: they acknowledge its roots anew.
    if !tables.authorities.roots.is_empty() {
        tables.authorities.trusted_by.clear();
        tables.authorities.generation = revision;
    }
    renew_unlock_key(tables, &stamp);
    pause_after_recovery(tables, &stamp);
    let workers = tables.nodes.len() - 1 - lost.len();
    Ok(Consequences {
        node: recovery.node,
        name,
        raft_id,
        incarnation: recovery.incarnation,
        incarnation_before: cluster.incarnation,
        revision,
        revision_before,
        lost,
        workers,
        leases,
    })
}

/// RECOVER-3. To the incarnation's time, or by a fixed distance if that is not ahead.
fn leap(from: u64, time: u64, far: u64) -> u64 {
    if time > from && !injected(BugInjection::ConstantRevisionJump) { time } else { from.saturating_add(far) }
}

fn check(tables: &Tables, cluster: &ClusterRecord, recovery: &Recovery) -> Result<(), CannotRecover> {
    let (node, wanted) = (recovery.node, recovery.incarnation);
    if wanted <= cluster.incarnation {
        return Err(CannotRecover::Incarnation { found: cluster.incarnation, wanted });
    }
    let began = WallTime(i64::try_from(cluster.incarnation.0).unwrap_or(i64::MAX)).max(cluster.founded_at);
    if recovery.at < began {
        return Err(CannotRecover::ClockBehind { clock: recovery.at, began });
    }
    if tables.blocklist.contains_key(&node) {
        return Err(CannotRecover::Blocked(node));
    }
    if recovery.admit_as.is_none() && !tables.nodes.contains_key(&node) {
        return Err(CannotRecover::Unknown(node));
    }
    Ok(())
}

/// RECOVER-1. Their certificates are of the old incarnation: they fetch new ones, as workers.
fn demote_managers(tables: &mut Tables, stamp: &Stamp<'_>, survivor: NodeId) -> Vec<LostManager> {
    let managers = tables.nodes.values().filter(|n| n.id != survivor);
    let managers = managers.filter(|n| n.role == Role::Manager || n.desired_role == Role::Manager);
    let managers: Vec<Arc<NodeRecord>> = managers.cloned().collect();
    let mut lost = Vec::with_capacity(managers.len());
    for record in managers {
        let raft_id = tables.member_of(record.id).map(|m| m.raft_id);
        let (id, was) = (record.id, record.role);
        lost.push(LostManager { node: id, name: record.name.clone(), addr: record.addr.clone(), raft_id });
        let mut worker = (*record).clone();
        if was == Role::Manager {
            worker.role = Role::Worker;
            worker.granted = stamp.at;
            let text = (Some(Role::Manager.to_string()), Some(Role::Worker.to_string()));
            stamp.log(tables, EventKind::Role, Some(id), text.0, text.1);
        }
        set_desired_role(&mut worker, Role::Worker);
        worker.revision = stamp.at;
        tables.nodes.insert(id, Arc::new(worker));
    }
    lost
}

/// The survivor becomes manager, whatever was pending: the cluster needs one.
fn restore_survivor(tables: &mut Tables, stamp: &Stamp<'_>, recovery: &Recovery) -> Name {
    let id = recovery.node;
    let mut record = match (tables.nodes.get(&id), &recovery.admit_as) {
        (Some(record), _) => (**record).clone(),
        (None, name) => {
            let requested = name.clone().unwrap_or_else(|| Name::sanitized("recovered"));
            let record = NodeRecord::new(id, free_name(tables, &requested), Role::Manager, stamp.wall);
            create(tables, stamp, &record);
            tables.nodes.get(&id).map_or(record, |created| (**created).clone())
        }
    };
    if record.role != Role::Manager {
        record.role = Role::Manager;
        record.granted = stamp.at;
    }
    set_desired_role(&mut record, Role::Manager);
    record.removing = None;
    record.addr = recovery.addr.clone();
    record.revision = stamp.at;
    let name = record.name.clone();
    tables.nodes.insert(id, Arc::new(record));
    name
}

fn set_desired_role(record: &mut NodeRecord, role: Role) {
    if record.desired_role != role {
        record.desired_role = role;
        record.generation = Generation::next(record.generation);
    }
}

/// RECOVER-9. Earlier renewals are lost, and all candidates wait, also the former holder; the next holder has a greater token.
/// A lease without a duration is not waited for: no clock would end it. A participant's lease is its own by its key, and stays.
fn withhold_leases(tables: &mut Tables, stamp: &Stamp<'_>) -> usize {
    let is_contended =
        |key: &ObjectKey, object: &Object| object.lease().is_some() && key.namespace != MEMBERS_NAMESPACE;
    let leases: Vec<_> = tables.objects.iter().filter(|(key, object)| is_contended(key, object)).collect();
    let leases: Vec<_> = leases.into_iter().map(|(key, object)| (key.clone(), Arc::clone(object))).collect();
    if injected(BugInjection::ReviveLeases) {
        return 0;
    }
    let count = leases.len();
    for (key, object) in leases {
        let Some(was) = object.lease() else { continue };
        let mut lease = Lease { spec: was.spec.clone(), holding: Holding { session: None, ..was.holding } };
        lease.spec.preferred_holder = None;
        if lease.spec.duration_ms.is_some() {
            let now = MicroTime::from(stamp.wall);
            lease.spec.holder = Some(UNKNOWN_HOLDER.to_owned());
            (lease.spec.acquired, lease.spec.renewed) = (Some(now), Some(now));
            lease.holding.expired = false;
        }
        lease.holding.token = FencingToken(stamp.at.0);
        let meta = ObjectMeta { revision: stamp.at, ..object.meta.clone() };
        let object = Object { meta, body: ObjectBody::Lease(lease), ..(*object).clone() };
        tables.objects.insert(key, Arc::new(object));
    }
    // One event for all of them: they must not evict the others.
    let text = (count > 0).then(|| format!("{count} leases cannot be acquired until their duration has passed"));
    if text.is_some() {
        stamp.log(tables, EventKind::Lease, None, None, text);
    }
    count
}

/// RECOVER-1, RECOVER-3. The survivor, too, gets a new raft id: the promises of its old one belong to another cluster now.
fn replace_members(tables: &mut Tables, stamp: &Stamp<'_>, recovery: &Recovery) -> RaftId {
    for (id, member) in std::mem::take(&mut tables.members) {
        tables.removed_raft_ids.insert(id);
        let was = if member.voter { "voter" } else { "learner" };
        stamp.log(tables, EventKind::Membership, Some(member.node), Some(was.to_owned()), Some("none".to_owned()));
    }
    let raft_id = RaftId(leap(tables.next_raft_id.0, recovery.incarnation.0, RAFT_ID_LEAP));
    tables.next_raft_id = raft_id.next();
    let member = Member { node: recovery.node, raft_id, addr: recovery.addr.clone(), voter: true };
    tables.members.insert(raft_id, member);
    let (was, is) = (Some("none".to_owned()), Some("voter".to_owned()));
    stamp.log(tables, EventKind::Membership, Some(recovery.node), was, is);
    raft_id
}

/// The requested name, or that name with a number.
fn free_name(tables: &Tables, requested: &Name) -> Name {
    let taken = |name: &Name| tables.nodes.values().any(|node| node.name == *name);
    let stem: String = requested.as_str().chars().take(50).collect();
    let numbered = (2u64..).map(|n| Name::sanitized(&format!("{stem}-{n}")));
    let mut candidates = std::iter::once(requested.clone()).chain(numbered);
    candidates.find(|name| !taken(name)).expect("RECOVER-1: there are more numbers than nodes")
}
