//! An attempt to join, kept on disk until it succeeds, so that a retry is the same request.

use muster_messages::{NodeId, RequestId, Secret};
use serde::{Deserialize, Serialize};

use muster_messages::protocol::NodeCredentials;

use crate::csr::{key_pair, new_key};
use crate::random::entropy;
use crate::store::{HELP_JOIN, IdentityFault, IdentityStore};

/// The constants of all attempts to become one node. The cluster recognises a retry by all three together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAttempt {
    pub request_id: RequestId,
    pub node: NodeId,
    pub key_pem: Secret,
}

impl IdentityStore {
    /// The current attempt, or a new one. `node`: the id to re-key; `None`: a new node.
    pub fn join_attempt(&self, node: Option<NodeId>) -> Result<JoinAttempt, IdentityFault> {
        let path = self.path("join.json");
        let found: Option<JoinAttempt> = self.read_json(&path, HELP_JOIN)?;
        let fits = |a: &JoinAttempt| node.is_none_or(|node| node == a.node) && key_pair(&a.key_pem).is_some();
        if let Some(attempt) = found.filter(fits) {
            return Ok(attempt);
        }
        let attempt = JoinAttempt {
            request_id: RequestId(entropy()),
            node: node.unwrap_or_else(|| NodeId::from_entropy(entropy())),
            key_pem: new_key(),
        };
        self.write_secret("join.json", &attempt)?;
        Ok(attempt)
    }

    /// Saves the credentials from the attempt, then deletes the attempt.
    pub fn joined(&self, creds: &NodeCredentials) -> Result<(), IdentityFault> {
        self.save_credentials(creds)?;
        self.forget_join_attempt()
    }

    /// Abandons the attempt: the next one is another node with another key.
    pub fn forget_join_attempt(&self) -> Result<(), IdentityFault> {
        let _only_writer = self.writing();
        self.remove(&self.path("join.json"))
    }
}
