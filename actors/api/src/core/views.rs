//! The JSON shapes of the contract, built from one consistent replica of the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{
    AuthorityOrigin, AutopilotPauseView, BlockedListView, CertificateView, ClusterView, Condition, ConditionKind,
    DeclaredView, DuplicateView, Duplicated, Event, EventView, EventsView, Liveness, MAX_DUPLICATES,
    MAX_NODE_LABEL_BYTES, MAX_NODE_LABELS, Membership, Name, NodeCounts, NodeDoubts, NodeId, NodeListView,
    NodeManagerView, NodeRecord, NodeView, PeerProblemKind, PeerProgress, QuorumView, ROOT_EXPIRES_SOON,
    RaftMemberView, RaftRole, RaftStatusView, RaftView, Replica, RequestId, Revision, Role, RoleView, RootExpiryView,
    SelfView, StatusView, Tables, WaitReason, WallTime,
};
use muster_store::MAX_EVENTS;

/// A peer that acknowledged within this time counts as reachable: two and a half election timeouts, so that a busy
/// machine is not shown as lost.
const REACHABLE_TIMEOUT: Duration = Duration::from_millis(1500);

/// What an answer is built from.
pub struct Source<'a> {
    pub replica: &'a Replica,
    /// From the role manager; empty unless this process leads.
    pub roles: Arc<RoleView>,
    /// The answering node.
    pub this: NodeId,
    /// Managers with a live mesh session, for replicas without a leader.
    pub peers: BTreeSet<NodeId>,
    /// From the dispatcher; empty unless this process leads.
    pub doubts: Arc<NodeDoubts>,
    /// `Some`: answered from the local replica without quorum; the time at which it was last current.
    pub stale: Option<WallTime>,
    /// For how long this node would sign nodes' certificates.
    pub certificate_lifetime: Option<Duration>,
}

impl Source<'_> {
    fn tables(&self) -> &Tables {
        &self.replica.tables
    }

    fn progress(&self, node: NodeId) -> Option<&PeerProgress> {
        self.replica.raft.progress.iter().find(|p| p.node == Some(node))
    }

    /// Whether a manager is reachable, as far as this replica can tell.
    fn reachable(&self, node: NodeId) -> bool {
        if node == self.this {
            return true;
        }
        if self.replica.raft.role == RaftRole::Leader {
            return self.progress(node).is_some_and(|p| p.answers_within(REACHABLE_TIMEOUT));
        }
        self.peers.contains(&node) && !self.replica.raft.silent.contains(&node)
    }

    /// NODE of the contract.
    pub fn node(&self, record: &NodeRecord) -> NodeView {
        let raft_member = self.tables().member_of(record.id);
        let leader = self.replica.raft.leader_node;
        let certificate = record.certificate.as_ref();
        let (labels, labels_left_out) = limited_labels(self.tables().labels_of(record));
        NodeView {
            id: record.id,
            name: record.name.clone(),
            addr: record.addr.clone(),
            release: record.release.clone(),
            labels,
            labels_left_out,
            desired_role: record.desired_role,
            role: record.role,
            state: record.liveness,
            state_since: record.liveness_since,
            stale: self.stale.is_some() || self.doubts.unconfirmed.contains(&record.id),
            membership: self.tables().membership_of(record.id),
            manager: raft_member.map(|raft_member| NodeManagerView {
                raft_id: raft_member.raft_id,
                leader: leader == Some(record.id),
                reachable: self.reachable(record.id),
            }),
            certificate: CertificateView {
                role: certificate.map(|c| c.role),
                state: record.certificate_state(),
                serial: certificate.map(|c| c.serial.clone()),
                not_after: certificate.map(|c| c.not_after),
            },
            conditions: self.conditions(record),
            generation: record.generation,
            revision: record.revision,
        }
    }

    fn conditions(&self, record: &NodeRecord) -> Vec<Condition> {
        let node = record.id;
        let mut conditions = self.roles.conditions.get(&node).cloned().unwrap_or_default();
        conditions.extend(self.doubts.duplicates.get(&node).map(|duplicated| Condition {
            kind: ConditionKind::DuplicateIdentity.into(),
            reason: WaitReason::DuplicateIdentity,
            message: format!(
                "these processes use its identity: {}; stop the one on the copied data directory, empty that directory, and join it as a \
                 node of its own",
                duplicated.named()
            ),
            since: duplicated.since,
            retry_at: None,
        }));
        conditions.extend(self.doubts.no_contact.get(&node).filter(|_| record.liveness == Liveness::Ready).map(
            |since| {
                let message =
                    "its connection is lost; it is reported down once its heartbeats have been missing for long enough";
                condition(ConditionKind::Contact, WaitReason::NoContact, message.to_owned(), *since)
            },
        ));
        conditions.extend(self.tables().autopilot.drains.get(&node).map(|drain| {
            let until = drain.until.map_or_else(String::new, |until| format!(", until {until}"));
            let replaced = if drain.replace { "; another node takes its place as manager" } else { "" };
            let message =
                format!("in maintenance{until}{replaced}; it ends with `muster node undrain {}`", short(node));
            condition(ConditionKind::Drained, WaitReason::Drained, message, drain.at)
        }));
        let reported = self.tables().reported.get(&node).filter(|reported| reported.name != record.name);
        conditions.extend(reported.map(|reported| {
            let holder = self.tables().mistaken_for(&reported.name, Some(node)).map(|other| self.name(other));
            let message = match holder {
                Some(other) => format!("it reports the name {}, which belongs to {other}", reported.name),
                None => {
                    let (id, name) = (short(node), &reported.name);
                    format!("it reports the name {name}; to adopt it: `muster node rename {id} {name}`")
                }
            };
            condition(ConditionKind::Name, WaitReason::ReportedNameDiffers, message, reported.named_at)
        }));
        conditions.extend(self.progress(node).and_then(|p| p.problem.as_ref()).map(|problem| {
            let (kind, reason) = match problem.kind {
                PeerProblemKind::SnapshotNotTaken => (ConditionKind::SnapshotNotTaken, WaitReason::SnapshotNotTaken),
                PeerProblemKind::StateDiverged => (ConditionKind::StateDiverged, WaitReason::StateDiverged),
            };
            condition(kind, reason, problem.message.clone(), problem.since)
        }));
        conditions
    }

    fn duplicates(&self) -> Vec<DuplicateView> {
        let view = |(node, what): (&NodeId, &Duplicated)| DuplicateView {
            node: *node,
            name: self.name(*node),
            since: what.since,
            processes: what.processes.clone(),
        };
        self.doubts.duplicates.iter().take(MAX_DUPLICATES).map(view).collect()
    }

    fn name(&self, id: NodeId) -> Name {
        self.tables().nodes.get(&id).map_or_else(|| Name::sanitized(id.as_str()), |node| node.name.clone())
    }

    /// `muster node ls` without its items.
    pub fn no_nodes(&self) -> NodeListView {
        let (revision, items) = (self.tables().revision, Vec::new());
        NodeListView { revision, stale: self.stale.is_some(), as_of: self.stale, items }
    }

    /// The unreachable voters.
    pub fn missing(&self) -> Vec<NodeId> {
        let voters = self.tables().members.values().filter(|m| m.voter);
        voters.map(|m| m.node).filter(|node| !self.reachable(*node)).collect()
    }

    pub fn quorum(&self) -> QuorumView {
        let voters = self.tables().members.values().filter(|m| m.voter).count();
        let mut missing: Vec<Name> = self.missing().into_iter().map(|id| self.name(id)).collect();
        missing.sort();
        QuorumView { needed: voters / 2 + 1, reachable: voters - missing.len(), missing }
    }

    /// `muster status`.
    pub fn status(&self, this: SelfView, now: WallTime) -> StatusView {
        let tables = self.tables();
        let raft = &self.replica.raft;
        let count = |want: &dyn Fn(&NodeRecord) -> bool| tables.nodes.values().filter(|n| want(n)).count();
        let with = |voter: bool| tables.members.values().filter(|m| m.voter == voter).map(|m| m.node).collect();
        let cluster = tables.cluster.as_ref();
        StatusView {
            cluster: ClusterView {
                id: cluster.map(|c| c.id.to_string()).unwrap_or_default(),
                name: cluster.map(|c| c.name.to_string()).unwrap_or_default(),
                incarnation: cluster.map_or(0, |c| c.incarnation.0),
                feature_level: cluster.map_or(0, |c| c.feature_level),
            },
            stale: self.stale.is_some(),
            as_of: self.stale,
            this,
            raft: RaftView {
                term: raft.term,
                leader: raft.leader_node,
                commit: raft.commit,
                applied: tables.revision,
                voters: with(true),
                learners: with(false),
            },
            quorum: self.quorum(),
            nodes: NodeCounts {
                total: tables.nodes.len(),
                managers: count(&|n| n.role == Role::Manager),
                workers: count(&|n| n.role == Role::Worker),
                ready: count(&|n| n.liveness == Liveness::Ready),
                down: count(&|n| n.liveness == Liveness::Down),
            },
            pending: self.roles.pending.clone(),
            duplicates: self.duplicates(),
            root_expires: expiring_root(tables, now),
            declared: tables.autopilot.policy.as_ref().map(|policy| DeclaredView {
                managers: policy.managers,
                paused: policy.paused.as_ref().map(AutopilotPauseView::from),
            }),
        }
    }

    /// `muster raft status`.
    pub fn raft_status(&self) -> RaftStatusView {
        let raft = &self.replica.raft;
        let member = |m: &muster_messages::Member| {
            let own = m.node == self.this;
            let matched = self.progress(m.node).map_or(if own { raft.applied.0 } else { 0 }, |p| p.matched);
            RaftMemberView {
                node: m.node,
                raft_id: m.raft_id,
                addr: m.addr.clone(),
                role: if m.voter { Membership::Voter } else { Membership::Learner },
                matched,
                reachable: self.reachable(m.node),
            }
        };
        RaftStatusView {
            term: raft.term,
            leader: raft.leader_node,
            commit: raft.commit,
            applied: self.tables().revision,
            stale: self.stale.is_some(),
            as_of: self.stale,
            members: self.tables().members.values().map(member).collect(),
            removed_raft_ids: self.tables().removed_raft_ids.iter().copied().collect(),
        }
    }

    /// `muster blocklist ls` without its items.
    pub fn no_blocks(&self) -> BlockedListView {
        BlockedListView { stale: self.stale.is_some(), as_of: self.stale, items: Vec::new() }
    }
}

/// The root that signs, if it ends soon.
fn expiring_root(tables: &Tables, now: WallTime) -> Option<RootExpiryView> {
    let pem = &tables.cluster.as_ref()?.root_cert_pem;
    let not_after =
        muster_pki::not_after_of_pem(pem).ok().filter(|not_after| *not_after < now.plus(ROOT_EXPIRES_SOON))?;
    let origin = tables.authorities.active().map_or(AuthorityOrigin::Founded, |(_, active)| active.origin);
    Some(RootExpiryView { root: muster_pki::root_id_of_pem(pem).ok()?, origin, not_after })
}

fn condition(kind: ConditionKind, reason: WaitReason, message: String, since: WallTime) -> Condition {
    Condition { kind: kind.into(), reason, message, since, retry_at: None }
}

/// The first digits of an id: enough for every command.
fn short(id: NodeId) -> String {
    id.as_str()[..8].to_owned()
}

/// The labels that a view of one node carries, and how many it omits: one node must not make a list too long. What
/// feature level 3 allows fits; an older state may hold more.
fn limited_labels(mut labels: BTreeMap<String, String>) -> (BTreeMap<String, String>, usize) {
    let (all, mut bytes) = (labels.len(), 0);
    if all > 2 * MAX_NODE_LABELS || size(&labels) > 2 * MAX_NODE_LABEL_BYTES {
        let mut shown = 0;
        labels.retain(|key, value| {
            bytes += key.len() + value.len();
            let fits = shown < 2 * MAX_NODE_LABELS && bytes <= 2 * MAX_NODE_LABEL_BYTES;
            shown += usize::from(fits);
            fits
        });
    }
    let left_out = all - labels.len();
    (labels, left_out)
}

fn size(labels: &BTreeMap<String, String>) -> usize {
    labels.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Bytes of a request's id in an event.
const REQUEST_BYTES: usize = r#","request":"""#.len() + 32;

/// Events after `since`, oldest first, as many as fit in `bytes`.
pub fn events_page(tables: &Tables, since: Revision, bytes: usize) -> EventsView<EventView> {
    let mut newer: Vec<&Arc<Event>> = tables.events_after(since).collect();
    newer.reverse();
    let (mut items, mut size, mut revision, mut more) = (Vec::new(), 0, tables.revision, false);
    let mut last = since;
    for of_one_revision in newer.chunk_by(|one, other| one.revision == other.revision) {
        let shown: Vec<EventView> = of_one_revision.iter().map(|event| EventView::from(&***event)).collect();
        size += shown.iter().map(size_of_event).sum::<usize>();
        if !items.is_empty() && size > bytes {
            (revision, more) = (last, true);
            break;
        }
        last = of_one_revision[0].revision;
        items.extend(shown);
    }
    // Oldest first: as many as there are items.
    let changes = newer.iter().take(items.len()).map(|event| (&event.by, event.revision));
    let requests = tables.requests_at(changes);
    for event in &mut items {
        event.request = requests.get(&event.revision).map(RequestId::to_string);
    }
    let full =
        [&tables.routine_events, &tables.frequent_events].into_iter().filter(|history| history.len() >= MAX_EVENTS);
    let oldest = full.filter_map(|history| history.front()).map(|event| event.revision).max();
    let incomplete_before = oldest.filter(|oldest| since.0.saturating_add(1) < oldest.0);
    EventsView { items, revision, more, incomplete_before, rest: serde_json::Map::new() }
}

/// Bytes of an event in a page, with a request's id and the comma after it.
fn size_of_event(event: &EventView) -> usize {
    serde_json::to_vec(event).map_or(0, |text| text.len() + 1 + REQUEST_BYTES)
}

#[cfg(test)]
#[path = "views_tests.rs"]
mod tests;
