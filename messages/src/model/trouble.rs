//! Why a node cannot do its work, as its own `status` shows it.

use super::ErrorCode;

/// The first word of its text is what scripts match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Final: no manager talks to this node.
    #[error("blocked")]
    Blocked,
    /// Final: the cluster no longer has a record of this node.
    #[error("removed")]
    Removed,
    /// Until the node is re-keyed.
    #[error("certificate_expired")]
    CertificateExpired,
    #[error("feature_level_too_low: {0}")]
    FeatureLevelTooLow(String),
    /// The manager runtime cannot prepare its data directory.
    #[error("disk_failed: the manager runtime cannot start yet: {0}")]
    DiskFailed(String),
    #[error("raft_data_missing")]
    RaftDataMissing,
    #[error("raft_data_damaged")]
    RaftDataDamaged,
    /// The leader does not reach this manager at its advertised address.
    #[error("dial_back_failed: {0}")]
    DialBackFailed(String),
    #[error("admission_closed: restored from a backup; run `muster recovery open` to admit others")]
    AdmissionClosed,
    #[error("audit_failing: {0}")]
    AuditFailing(String),
    /// The manager runtime keeps failing and is being restarted.
    #[error("manager_half_failing: {0}")]
    ManagerFailing(String),
}

impl Trouble {
    /// The code of every request, if this node will never serve one again. `None`: the trouble may pass.
    pub fn final_code(&self) -> Option<ErrorCode> {
        match self {
            Trouble::Blocked => Some(ErrorCode::Blocked),
            Trouble::Removed => Some(ErrorCode::Removed),
            _ => None,
        }
    }
}
