//! The replicated state: typed tables in persistent maps, so that a snapshot or a consistent read is a cheap clone.
//!
//! Owned by the Raft member, written only by applying committed entries (`muster-store`), read by everyone.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use serde::{Deserialize, Serialize};

use super::{
    AccessToken, Authorities, Autolock, Autopilot, Blocked, CertificateState, ClusterRecord, Definition, Event,
    GatePath, GuardMode, GuardScope, Hold, Member, Membership, Name, NodeCertificates, NodeId, NodeRecord, Object,
    ObjectKey, Outcome, RaftId, ReconcilerRecords, ReconcilerRuns, Reconcilers, ReportedNode, RequestId, Requests,
    Revision, Role, Token, TokenRights, User, UserPin, Workloads,
};

/// The shortest id prefix that stands for a node. Shorter ones are names, as in `a` and `b`.
pub const MIN_ID_PREFIX: usize = 4;

/// All replicated tables at one revision. Cloning is O(tables), not O(rows).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tables {
    /// The Raft index of the last applied entry.
    pub revision: Revision,
    pub cluster: Option<Arc<ClusterRecord>>,
    pub nodes: OrdMap<NodeId, Arc<NodeRecord>>,
    /// The Raft configuration, by member id. MEMBER-1: every member's node exists.
    pub members: OrdMap<RaftId, Member>,
    /// The counter's next member id. RAFTID-1: never reused.
    pub next_raft_id: RaftId,
    pub removed_raft_ids: OrdSet<RaftId>,
    pub tokens: OrdMap<String, Token>,
    pub users: OrdMap<Name, User>,
    pub blocklist: OrdMap<NodeId, Blocked>,
    /// Leases, candidates, config maps, endpoints.
    pub objects: OrdMap<ObjectKey, Arc<Object>>,
    pub guards: OrdMap<GuardScope, GuardMode>,
    pub access_tokens: OrdMap<String, AccessToken>,
    pub reconcilers: Reconcilers,
    /// Each node's last report about itself. Empty below `IDENTITY_LEVEL`.
    pub reported: OrdMap<NodeId, Arc<ReportedNode>>,
    /// Outcomes of recent requests, and their order (bounded by count). From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on nothing is
    /// added: the outcomes of feature level 2 are gradually forgotten.
    pub outcomes: OrdMap<RequestId, Outcome>,
    pub outcome_order: Vector<RequestId>,
    /// Recent events, oldest first (bounded by count).
    pub events: Vector<Arc<Event>>,
    // ---- from `IDENTITY_LEVEL` on; empty below ----
    /// Outcomes of recent requests, by caller.
    pub requests: Requests,
    /// Events of leases and of nodes' reports, which they can cause at any rate: kept apart from `events`, so that they never push
    /// those out. Oldest first (bounded by count).
    pub frequent_events: Vector<Arc<Event>>,
    /// The rights of each access token: those of its user when it was made.
    pub token_rights: OrdMap<String, TokenRights>,
    /// From feature level 3 on; empty below.
    pub certificates: OrdMap<NodeId, Arc<NodeCertificates>>,
    /// From feature level 3 on; empty below, and without users whose certificate was signed below.
    pub user_pins: OrdMap<Name, UserPin>,
    /// Events of certificates, tokens, users and gates: kept apart from `events`, so that a node that keeps requesting certificates
    /// pushes out no event of roles and membership. Oldest first (bounded by count).
    pub routine_events: Vector<Arc<Event>>,
    /// From feature level 3 on; empty below, and until the first rotation.
    pub authorities: Authorities,
    /// From feature level 3 on; empty below, and until autolock is on for the first time.
    pub autolock: Autolock,
    /// From feature level 3 on; empty below, and until a workload is set for the first time.
    pub workloads: Workloads,
    /// From feature level 4 on; empty below, and until a run fails or an operator deletes a gate.
    pub runs: ReconcilerRuns,
    /// From feature level 5 on; empty below, and until an operator declares a number of managers.
    pub autopilot: Autopilot,
    /// From feature level 5 on; empty below, and until a step of a chain or a run is recorded.
    pub records: ReconcilerRecords,
}

impl Tables {
    /// The cluster's feature level; 0 before it is founded.
    pub fn feature_level(&self) -> u32 {
        self.cluster.as_ref().map_or(0, |cluster| cluster.feature_level)
    }
    /// The path of a definition, or what an operator must do first. Serving members are checked elsewhere.
    pub fn way(&self, definition: &Definition) -> Result<GatePath, Hold> {
        self.records.check_chain(definition)?;
        self.reconcilers.way(definition)
    }
    /// A node's labels: its reported ones, overridden by the operator's.
    pub fn labels_of(&self, node: &NodeRecord) -> BTreeMap<String, String> {
        let mut labels = self.reported.get(&node.id).map(|reported| reported.labels.clone()).unwrap_or_default();
        labels.extend(node.labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        labels
    }
    /// The node for which a name would be mistaken: one with that name, or one whose id begins with it.
    pub fn mistaken_for(&self, name: &Name, except: Option<NodeId>) -> Option<NodeId> {
        let text = name.as_str();
        let begins = |id: &NodeId| text.len() >= MIN_ID_PREFIX && id.as_str().starts_with(text);
        let matches_name = |n: &&Arc<NodeRecord>| Some(n.id) != except && (n.name == *name || begins(&n.id));
        self.nodes.values().find(matches_name).map(|n| n.id)
    }
    /// The node's entry in the Raft configuration.
    pub fn member_of(&self, node: NodeId) -> Option<&Member> {
        self.members.values().find(|m| m.node == node)
    }
    /// The node's membership in the Raft configuration.
    pub fn membership_of(&self, node: NodeId) -> Membership {
        match self.member_of(node) {
            None => Membership::None,
            Some(m) if m.voter => Membership::Voter,
            Some(_) => Membership::Learner,
        }
    }
    /// Whether desired role, role, certificate and membership of a node agree: nothing is left of its last role change.
    pub fn is_settled(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|record| {
            let certified = record.certificate_state() == CertificateState::Issued;
            let membership = self.membership_of(node) == record.desired_role.membership();
            record.role == record.desired_role && certified && membership
        })
    }
    /// Nodes whose granted role is manager.
    pub fn managers(&self) -> impl Iterator<Item = &Arc<NodeRecord>> {
        self.nodes.values().filter(|n| n.role == Role::Manager)
    }
    /// The guard in force for a lease: its own, its namespace's, or the default.
    pub fn guard_of(&self, key: &ObjectKey) -> GuardMode {
        let scope = |lease| GuardScope { namespace: key.namespace.clone(), lease };
        let own = self.guards.get(&scope(Some(key.name.clone())));
        own.or_else(|| self.guards.get(&scope(None))).copied().unwrap_or_default()
    }
    /// All remembered events after a revision, newest first.
    pub fn events_after(&self, since: Revision) -> impl Iterator<Item = &Arc<Event>> {
        let newer = move |event: &&Arc<Event>| event.revision > since;
        // Events of one revision come in this order.
        let mut histories = [&self.events, &self.routine_events, &self.frequent_events]
            .map(|history| history.iter().rev().take_while(newer).peekable());
        std::iter::from_fn(move || {
            let heads = histories.iter_mut().map(|history| history.peek().map(|event| event.revision));
            let newest = heads.enumerate().max_by_key(|(n, head)| (*head, std::cmp::Reverse(*n)));
            newest.and_then(|(n, _)| histories[n].next())
        })
    }
    /// The newest event.
    pub fn last_event(&self) -> Option<&Arc<Event>> {
        self.events_after(Revision(0)).next()
    }
    /// The default token of a role.
    pub fn default_token(&self, role: Role) -> Option<&Token> {
        self.tokens.values().find(|t| t.default && t.role == role)
    }
}
