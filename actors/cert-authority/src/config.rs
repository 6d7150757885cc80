//! Settings that an operator may choose.

use std::time::Duration;

use muster_pki::{MIN_NODE_LIFETIME, NODE_LIFETIME};

/// The settings of the certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Lifetime of a node's certificate; it never outlives the root's.
    pub node_lifetime: Duration,
    /// Lifetime of a user's certificate if the request names none.
    pub user_lifetime: Duration,
    /// How long after its certificate expired a node may re-key with a token. A machine that was off for longer joins as a new
    /// node, unless the operator allows more: an old disk must not be worth a certificate without limit.
    pub rekey_within: Duration,
    /// Requests in progress. Each takes a few milliseconds and a few kilobytes: this many are a second's work.
    pub max_pending: usize,
    /// Joins among them: unauthenticated clients must not crowd out the renewals of members.
    pub max_joins: usize,
    /// Certificates of workloads among them. Each is in progress for one read: a round trip, or seconds without a quorum. This many at once
    /// are thousands a second, and three quarters of the places stay free for nodes and users.
    pub max_workloads: usize,
    /// Maximum number of nodes. A token of unlimited uses must not fill the state: a node takes a few kilobytes of it.
    pub max_nodes: usize,
    /// A request that is not done by then is answered as timed out: longer than an election, shorter than the callers'
    /// timeouts.
    pub deadline: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_lifetime: NODE_LIFETIME,
            user_lifetime: Duration::from_secs(365 * 24 * 3600),
            rekey_within: Duration::from_secs(30 * 24 * 3600),
            max_pending: 256,
            max_joins: 128,
            max_workloads: 64,
            max_nodes: 20_000,
            deadline: Duration::from_secs(8),
        }
    }
}

/// Why a configuration is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    #[error("certificate lifetime of {} s: the minimum is {} s", .0.as_secs(), MIN_NODE_LIFETIME.as_secs())]
    Lifetime(Duration),
}

impl Config {
    /// The configuration, if it can work.
    pub fn checked(self) -> Result<Self, BadConfig> {
        if self.node_lifetime < MIN_NODE_LIFETIME {
            return Err(BadConfig::Lifetime(self.node_lifetime));
        }
        Ok(self)
    }
}
