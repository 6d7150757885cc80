//! The replicated state as bytes, for disks and for members that are too far behind for the log.
//!
//! The encoding is a versioned enum: a build reads every version that it knows, and writes a newer one only once the cluster's
//! feature level guarantees that every manager reads it. Integrity is up to the caller, which keeps a digest beside the bytes.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use muster_messages::wire::{WIRE_VERSION, WireError, decode_stored, encode_stored};
use muster_messages::{
    AccessToken, Authorities, Autolock, Autopilot, Blocked, ClusterRecord, DEFINITIONS_LEVEL, Definition, Event,
    GuardMode, GuardScope, IDENTITY_LEVEL, Member, Name, NodeCertificates, NodeId, NodeRecord, Object, ObjectKey,
    Outcome, RECONCILERS_LEVEL, RaftId, ReconcilerRecords, ReconcilerRuns, Reconcilers, ReportedNode, RequestId,
    Requests, Revision, Tables, Token, TokenRights, User, UserPin, Workloads,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
enum Snapshot {
    V1(Box<TablesV1>),
    V2(Box<TablesV2>),
    V3(Box<TablesV3>),
    V4(Box<TablesV4>),
    V5(Box<TablesV5>),
    V6(Box<Tables>),
}

/// The tables without reconcilers.
#[derive(Serialize, Deserialize)]
struct TablesV1 {
    revision: Revision,
    cluster: Option<Arc<ClusterRecord>>,
    nodes: OrdMap<NodeId, Arc<NodeRecord>>,
    members: OrdMap<RaftId, Member>,
    next_raft_id: RaftId,
    removed_raft_ids: OrdSet<RaftId>,
    tokens: OrdMap<String, Token>,
    users: OrdMap<Name, User>,
    blocklist: OrdMap<NodeId, Blocked>,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    guards: OrdMap<GuardScope, GuardMode>,
    access_tokens: OrdMap<String, AccessToken>,
    outcomes: OrdMap<RequestId, Outcome>,
    outcome_order: Vector<RequestId>,
    events: Vector<Arc<Event>>,
}

/// The tables without certificates, requests and labels by identity.
#[derive(Serialize, Deserialize)]
struct TablesV2 {
    revision: Revision,
    cluster: Option<Arc<ClusterRecord>>,
    nodes: OrdMap<NodeId, Arc<NodeRecord>>,
    members: OrdMap<RaftId, Member>,
    next_raft_id: RaftId,
    removed_raft_ids: OrdSet<RaftId>,
    tokens: OrdMap<String, Token>,
    users: OrdMap<Name, User>,
    blocklist: OrdMap<NodeId, Blocked>,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    guards: OrdMap<GuardScope, GuardMode>,
    access_tokens: OrdMap<String, AccessToken>,
    reconcilers: Reconcilers,
    outcomes: OrdMap<RequestId, Outcome>,
    outcome_order: Vector<RequestId>,
    events: Vector<Arc<Event>>,
}

/// The tables without authorities, autolock and workloads.
#[derive(Serialize, Deserialize)]
struct TablesV3 {
    revision: Revision,
    cluster: Option<Arc<ClusterRecord>>,
    nodes: OrdMap<NodeId, Arc<NodeRecord>>,
    members: OrdMap<RaftId, Member>,
    next_raft_id: RaftId,
    removed_raft_ids: OrdSet<RaftId>,
    tokens: OrdMap<String, Token>,
    users: OrdMap<Name, User>,
    blocklist: OrdMap<NodeId, Blocked>,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    guards: OrdMap<GuardScope, GuardMode>,
    access_tokens: OrdMap<String, AccessToken>,
    reconcilers: Reconcilers,
    reported: OrdMap<NodeId, Arc<ReportedNode>>,
    outcomes: OrdMap<RequestId, Outcome>,
    outcome_order: Vector<RequestId>,
    events: Vector<Arc<Event>>,
    requests: Requests,
    frequent_events: Vector<Arc<Event>>,
    token_rights: OrdMap<String, TokenRights>,
    certificates: OrdMap<NodeId, Arc<NodeCertificates>>,
    user_pins: OrdMap<Name, UserPin>,
    routine_events: Vector<Arc<Event>>,
}

/// The tables without what reconcilers' runs left: the fields of version 3 and three more, one after the other as in the bytes.
#[derive(Serialize, Deserialize)]
struct TablesV4 {
    version_3: TablesV3,
    authorities: Authorities,
    autolock: Autolock,
    workloads: Workloads,
}

/// The tables without the records of level 5, and without definitions that only that level has.
#[derive(Serialize, Deserialize)]
struct TablesV5 {
    version_4: TablesV4,
    runs: ReconcilerRuns,
}

/// Converts between two versions field by field: neither can gain or lose a field unnoticed.
macro_rules! same_fields {
    ($from:ident => $to:ident { $($field:ident),* } $(, $extra:ident: $value:expr)*) => {{
        let ($($field,)*) = ($($from.$field,)*);
        $to { $($field,)* $($extra: $value,)* }
    }};
}

impl From<Tables> for TablesV1 {
    fn from(t: Tables) -> Self {
        same_fields!(t => TablesV1 {
            revision, cluster, nodes, members, next_raft_id, removed_raft_ids, tokens, users, blocklist, objects, guards,
            access_tokens, outcomes, outcome_order, events
        })
    }
}
impl From<TablesV1> for Tables {
    fn from(t: TablesV1) -> Self {
        same_fields!(t => Tables {
            revision, cluster, nodes, members, next_raft_id, removed_raft_ids, tokens, users, blocklist, objects, guards,
            access_tokens, outcomes, outcome_order, events
        }, reconcilers: Reconcilers::default(), requests: Requests::default(), frequent_events: Vector::new(),
            token_rights: OrdMap::new(), reported: OrdMap::new(), certificates: OrdMap::new(),
            user_pins: OrdMap::new(), routine_events: Vector::new(), authorities: Authorities::default(), autolock: Autolock::default(), workloads: Workloads::default(),
            runs: ReconcilerRuns::default(), records: ReconcilerRecords::default(), autopilot: Autopilot::default())
    }
}

/// Below [`IDENTITY_LEVEL`] the tables that only later versions have are empty: nothing writes them.
impl From<Tables> for TablesV2 {
    fn from(t: Tables) -> Self {
        same_fields!(t => TablesV2 {
            revision, cluster, nodes, members, next_raft_id, removed_raft_ids, tokens, users, blocklist, objects, guards,
            access_tokens, reconcilers, outcomes, outcome_order, events
        })
    }
}
impl From<TablesV2> for Tables {
    fn from(t: TablesV2) -> Self {
        same_fields!(t => Tables {
            revision, cluster, nodes, members, next_raft_id, removed_raft_ids, tokens, users, blocklist, objects, guards,
            access_tokens, reconcilers, outcomes, outcome_order, events
        }, requests: Requests::default(), frequent_events: Vector::new(), token_rights: OrdMap::new(),
            reported: OrdMap::new(), certificates: OrdMap::new(), user_pins: OrdMap::new(),
            routine_events: Vector::new(), authorities: Authorities::default(), autolock: Autolock::default(), workloads: Workloads::default(),
            runs: ReconcilerRuns::default(), records: ReconcilerRecords::default(), autopilot: Autopilot::default())
    }
}

/// Without a rotation, no root is on record.
impl From<Tables> for TablesV3 {
    fn from(t: Tables) -> Self {
        same_fields!(t => TablesV3 {
            revision, cluster, nodes, members, next_raft_id, removed_raft_ids, tokens, users, blocklist, objects, guards,
            access_tokens, reconcilers, reported, outcomes, outcome_order, events, requests, frequent_events,
            token_rights, certificates, user_pins, routine_events
        })
    }
}
impl From<TablesV3> for Tables {
    fn from(t: TablesV3) -> Self {
        same_fields!(t => Tables {
            revision, cluster, nodes, members, next_raft_id, removed_raft_ids, tokens, users, blocklist, objects, guards,
            access_tokens, reconcilers, reported, outcomes, outcome_order, events, requests, frequent_events,
            token_rights, certificates, user_pins, routine_events
        }, authorities: Authorities::default(), autolock: Autolock::default(), workloads: Workloads::default(),
            runs: ReconcilerRuns::default(), records: ReconcilerRecords::default(), autopilot: Autopilot::default())
    }
}

impl From<Tables> for TablesV4 {
    fn from(mut t: Tables) -> Self {
        let (authorities, autolock, workloads) =
            (std::mem::take(&mut t.authorities), std::mem::take(&mut t.autolock), std::mem::take(&mut t.workloads));
        Self { version_3: t.into(), authorities, autolock, workloads }
    }
}
impl From<TablesV4> for Tables {
    fn from(t: TablesV4) -> Self {
        let TablesV4 { version_3, authorities, autolock, workloads } = t;
        Self { authorities, autolock, workloads, ..version_3.into() }
    }
}

impl From<Tables> for TablesV5 {
    fn from(mut t: Tables) -> Self {
        let runs = std::mem::take(&mut t.runs);
        Self { version_4: t.into(), runs }
    }
}
impl From<TablesV5> for Tables {
    fn from(t: TablesV5) -> Self {
        let TablesV5 { version_4, runs } = t;
        Self { runs, ..version_4.into() }
    }
}

/// The newest version that this build reads.
const NEWEST_VERSION: u8 = 6;

/// Why this build cannot read the bytes as a snapshot.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFault {
    /// Not damaged: a build that supports a higher feature level wrote it.
    #[error(
        "a snapshot of version {version}, which a newer build wrote; this one reads versions up to {NEWEST_VERSION}"
    )]
    Newer { version: u8 },
    #[error("unreadable snapshot of {bytes} bytes")]
    Unreadable {
        bytes: usize,
        #[source]
        source: WireError,
    },
}

/// Encodes the tables as the cluster's feature level allows. Equal tables give equal bytes, on every member.
pub fn encode(tables: &Tables) -> Vec<u8> {
    let level = tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
    let tables = tables.clone();
    let snapshot = match level {
        ..RECONCILERS_LEVEL => Snapshot::V1(Box::new(tables.into())),
        RECONCILERS_LEVEL..IDENTITY_LEVEL => Snapshot::V2(Box::new(tables.into())),
        IDENTITY_LEVEL.. if is_version_six(&tables) => Snapshot::V6(Box::new(tables)),
        IDENTITY_LEVEL.. if is_version_three(&tables) => Snapshot::V3(Box::new(tables.into())),
        IDENTITY_LEVEL.. if tables.runs == ReconcilerRuns::default() => Snapshot::V4(Box::new(tables.into())),
        IDENTITY_LEVEL.. => Snapshot::V5(Box::new(tables.into())),
    };
    encode_stored(&snapshot).expect("every table can be encoded")
}

/// Version 4 only after the first rotation, or once autolock was switched on or a workload set: then every manager's build supports it.
/// Version 5 only once a run has failed or a gate was deleted, which the state records from `RUNS_LEVEL` on.
fn is_version_three(tables: &Tables) -> bool {
    let Tables { authorities, autolock, workloads, runs, .. } = tables;
    *authorities == Authorities::default()
        && *autolock == Autolock::default()
        && *workloads == Workloads::default()
        && *runs == ReconcilerRuns::default()
}

/// Version 6 only with records of level 5, or with a definition that a build of a lower level reads as damage.
fn is_version_six(tables: &Tables) -> bool {
    let is_newer = |definition: &Arc<Definition>| definition.needs_level() >= DEFINITIONS_LEVEL;
    tables.records != ReconcilerRecords::default()
        || tables.autopilot != Autopilot::default()
        || tables.reconcilers.definitions.values().any(is_newer)
}

/// Decodes what [`encode`] wrote, in this and in earlier releases.
pub fn decode(bytes: &[u8]) -> Result<Tables, SnapshotFault> {
    match decode_stored(bytes) {
        Ok(Snapshot::V1(tables)) => Ok((*tables).into()),
        Ok(Snapshot::V2(tables)) => Ok((*tables).into()),
        Ok(Snapshot::V3(tables)) => Ok((*tables).into()),
        Ok(Snapshot::V4(tables)) => Ok((*tables).into()),
        Ok(Snapshot::V5(tables)) => Ok((*tables).into()),
        Ok(Snapshot::V6(tables)) => Ok(*tables),
        Err(source) => Err(match version(bytes) {
            Some(version) if version > NEWEST_VERSION => SnapshotFault::Newer { version },
            _ => SnapshotFault::Unreadable { bytes: bytes.len(), source },
        }),
    }
}

/// The version that the bytes name. The digest beside them proves that they are what was written.
fn version(bytes: &[u8]) -> Option<u8> {
    match bytes {
        // The number of the variant takes one byte for the first 251 variants.
        [WIRE_VERSION, variant @ 0..=250, ..] => Some(variant + 1),
        _ => None,
    }
}
