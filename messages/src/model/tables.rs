//! The replicated state: typed tables in persistent maps, so that a snapshot or a consistent read is a cheap clone.
//!
//! Owned by the raft member, written only by applying committed entries (`muster-store`), read by everyone.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use serde::{Deserialize, Serialize};

use super::{
    AccessToken, Blocked, ClusterRecord, Event, GuardMode, GuardScope, Member, Membership, Name, NodeId, NodeRecord,
    Object, ObjectKey, Outcome, RaftId, Reconcilers, RequestId, Revision, Role, Token, User,
};

/// All replicated tables at one revision. Cloning is O(tables), not O(rows).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tables {
    /// The Raft index of the last applied entry.
    pub revision: Revision,
    pub cluster: Option<Arc<ClusterRecord>>,
    pub nodes: OrdMap<NodeId, Arc<NodeRecord>>,
    /// The Raft configuration, by seat. MEMBER-1: every member's node exists.
    pub members: OrdMap<RaftId, Member>,
    /// The seat the counter hands out next. RAFTID-1: never reused.
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
    /// Outcomes of recent requests, and the order they came in (bounded by count).
    pub outcomes: OrdMap<RequestId, Outcome>,
    pub outcome_order: Vector<RequestId>,
    /// Recent events, oldest first (bounded by count).
    pub events: Vector<Arc<Event>>,
}

impl Tables {
    /// The seat that a node holds.
    pub fn seat_of(&self, node: NodeId) -> Option<&Member> {
        self.members.values().find(|m| m.node == node)
    }
    /// The node's place in the Raft configuration.
    pub fn membership_of(&self, node: NodeId) -> Membership {
        match self.seat_of(node) {
            None => Membership::None,
            Some(m) if m.voter => Membership::Voter,
            Some(_) => Membership::Learner,
        }
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
    /// The default token of a role.
    pub fn default_token(&self, role: Role) -> Option<&Token> {
        self.tokens.values().find(|t| t.default && t.role == role)
    }
}
