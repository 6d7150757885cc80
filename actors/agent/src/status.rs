//! What the agent publishes to the rest of its process: small watched values.

use muster_messages::{RefusalReason, Trouble, WallTime};
use muster_pki::Ended;
use serde::{Deserialize, Serialize};

/// Why this node cannot do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleReason {
    /// Permanent: no manager talks to this node.
    Blocked,
    /// Permanent: the cluster no longer has a record of this node.
    Removed,
    /// Until the node is re-keyed.
    CertificateExpired,
}

impl From<TroubleReason> for Trouble {
    fn from(reason: TroubleReason) -> Self {
        match reason {
            TroubleReason::Blocked => Trouble::Blocked,
            TroubleReason::Removed => Trouble::Removed,
            TroubleReason::CertificateExpired => Trouble::CertificateExpired,
        }
    }
}

impl TroubleReason {
    /// Only a new identity ends it; the daemon exits 6 when it is started again.
    pub fn is_final(self) -> bool {
        matches!(self, TroubleReason::Blocked | TroubleReason::Removed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTrouble {
    pub reason: TroubleReason,
    pub message: String,
    pub at: WallTime,
}

impl NodeTrouble {
    pub fn new(reason: TroubleReason, message: String, at: WallTime) -> Self {
        Self { reason, message, at }
    }
    /// The certificate ended at this time.
    pub(crate) fn expired(not_after: WallTime) -> Self {
        let message = format!(
            "the certificate expired at {not_after}; if this machine's clock is right, restart with --join and --token to renew it \
             under the same node id"
        );
        Self::new(TroubleReason::CertificateExpired, message, not_after)
    }
}

/// What the node keeps of a final trouble.
pub(crate) fn ended_of(trouble: &NodeTrouble) -> Option<Ended> {
    let reason = match trouble.reason {
        TroubleReason::Blocked => RefusalReason::Blocked,
        TroubleReason::Removed => RefusalReason::Removed,
        TroubleReason::CertificateExpired => return None,
    };
    Some(Ended { reason, message: trouble.message.clone(), at: trouble.at })
}

/// The trouble of a kept final refusal.
pub fn trouble_of(ended: &Ended) -> Option<NodeTrouble> {
    let reason = match ended.reason {
        RefusalReason::Blocked => TroubleReason::Blocked,
        RefusalReason::Removed => TroubleReason::Removed,
        _ => return None,
    };
    Some(NodeTrouble::new(reason, ended.message.clone(), ended.at))
}

/// Why the manager runtime should or should not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WantedBecause {
    CertificateSaysManager,
    CertificateSaysWorker,
    /// A manager that has applied this certificate's grant reports that the role is revoked; the certificate
    /// follows.
    Demoted,
    /// A manager of a newer incarnation reports that the cluster was recovered; the certificate follows.
    OldIncarnation,
    Blocked,
    Removed,
}

/// Whether the manager runtime should run. A watched value: its supervisor compares it with what runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerWanted {
    pub wanted: bool,
    pub because: WantedBecause,
}

impl ManagerWanted {
    pub fn new(because: WantedBecause) -> Self {
        Self { wanted: because == WantedBecause::CertificateSaysManager, because }
    }
    /// Raft data left by an earlier manager runtime is worthless: its member was removed, and a later one has a
    /// new raft id.
    pub fn may_wipe(&self) -> bool {
        !self.wanted
    }
}
