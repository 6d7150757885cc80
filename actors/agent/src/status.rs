//! What the agent tells the rest of its process: small values on watches.

use muster_messages::WallTime;
use serde::{Deserialize, Serialize};

/// Why this node cannot do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleReason {
    /// For good: no manager talks to this node.
    Blocked,
    /// For good: the cluster does not know this node any more.
    Removed,
    /// Until the node is re-keyed.
    CertificateExpired,
}

impl TroubleReason {
    /// The word that `status` shows.
    pub fn word(self) -> &'static str {
        match self {
            TroubleReason::Blocked => "blocked",
            TroubleReason::Removed => "removed",
            TroubleReason::CertificateExpired => "certificate_expired",
        }
    }
    /// Nothing but a new identity ends it; the daemon exits 6 when it is started again.
    pub fn is_final(self) -> bool {
        matches!(self, TroubleReason::Blocked | TroubleReason::Removed)
    }
}

/// A trouble with its text.
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
}

/// Why the manager half should or should not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WantedBecause {
    CertificateSaysManager,
    CertificateSaysWorker,
    /// A manager that has applied this certificate's grant says that the role is gone; the certificate follows.
    Demoted,
    /// A manager of a newer incarnation says that the cluster was recovered; the certificate follows.
    OldIncarnation,
    Blocked,
    Removed,
}

/// Whether the manager half should run. A level: whoever keeps the manager half compares it with what runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerWanted {
    pub wanted: bool,
    pub because: WantedBecause,
}

impl ManagerWanted {
    pub fn new(because: WantedBecause) -> Self {
        Self { wanted: because == WantedBecause::CertificateSaysManager, because }
    }
    /// Raft data left from a manager half is worthless: its seat is gone, and a later one has a new raft id.
    pub fn may_wipe(&self) -> bool {
        !self.wanted
    }
}
