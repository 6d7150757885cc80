//! Why a node cannot do its work, as its own `status` shows it: a kind, which scripts match, and a sentence where that is not enough.

use std::fmt;

use super::word::words;
use super::{ErrorCode, Words};

words! {
    /// What is wrong. Its word begins the text of the trouble.
    TroubleKind {
        /// Final: no manager talks to this node.
        Blocked => "blocked",
        /// Final: the cluster no longer has a record of this node.
        Removed => "removed",
        /// Until the node is re-keyed.
        CertificateExpired => "certificate_expired",
        FeatureLevelTooLow => "feature_level_too_low",
        /// The manager runtime cannot prepare its data directory.
        DiskFailed => "disk_failed",
        RaftDataMissing => "raft_data_missing",
        RaftDataDamaged => "raft_data_damaged",
        /// The leader does not reach this manager at its advertised address.
        DialBackFailed => "dial_back_failed",
        /// Restored from a backup, and not opened to others yet.
        AdmissionClosed => "admission_closed",
        AuditFailing => "audit_failing",
        /// The manager runtime keeps failing and is being restarted.
        ManagerFailing => "manager_half_failing",
    }
}

impl TroubleKind {
    /// The kind of a published trouble, by the word that begins its text. `None`: this release does not know the word.
    pub fn of_trouble(text: &str) -> Option<Self> {
        let word = text.split_once(':').map_or(text, |(word, _)| word);
        Self::of(word)
    }
    /// The code of every request, if the node will never serve one again. `None`: the trouble may pass.
    pub fn final_code(self) -> Option<ErrorCode> {
        match self {
            TroubleKind::Blocked => Some(ErrorCode::Blocked),
            TroubleKind::Removed => Some(ErrorCode::Removed),
            _ => None,
        }
    }
}

/// A trouble with what is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    Blocked,
    Removed,
    CertificateExpired,
    FeatureLevelTooLow(String),
    DiskFailed(String),
    RaftDataMissing,
    RaftDataDamaged,
    DialBackFailed(String),
    AdmissionClosed,
    AuditFailing(String),
    ManagerFailing(String),
}

impl Trouble {
    pub fn kind(&self) -> TroubleKind {
        match self {
            Trouble::Blocked => TroubleKind::Blocked,
            Trouble::Removed => TroubleKind::Removed,
            Trouble::CertificateExpired => TroubleKind::CertificateExpired,
            Trouble::FeatureLevelTooLow(_) => TroubleKind::FeatureLevelTooLow,
            Trouble::DiskFailed(_) => TroubleKind::DiskFailed,
            Trouble::RaftDataMissing => TroubleKind::RaftDataMissing,
            Trouble::RaftDataDamaged => TroubleKind::RaftDataDamaged,
            Trouble::DialBackFailed(_) => TroubleKind::DialBackFailed,
            Trouble::AdmissionClosed => TroubleKind::AdmissionClosed,
            Trouble::AuditFailing(_) => TroubleKind::AuditFailing,
            Trouble::ManagerFailing(_) => TroubleKind::ManagerFailing,
        }
    }
}

/// The published text: the word of the kind, and `: ` before the sentence, if there is one.
impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Trouble::Blocked
            | Trouble::Removed
            | Trouble::CertificateExpired
            | Trouble::RaftDataMissing
            | Trouble::RaftDataDamaged => write!(f, "{kind}"),
            Trouble::FeatureLevelTooLow(why)
            | Trouble::DialBackFailed(why)
            | Trouble::AuditFailing(why)
            | Trouble::ManagerFailing(why) => write!(f, "{kind}: {why}"),
            Trouble::DiskFailed(why) => write!(f, "{kind}: the manager runtime cannot start yet: {why}"),
            Trouble::AdmissionClosed => {
                write!(f, "{kind}: restored from a backup; run `muster recovery open` to admit others")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_troubles_keep_their_texts() {
        let why = || "no space: 28".to_owned();
        let published = [
            (Trouble::Blocked, "blocked"),
            (Trouble::Removed, "removed"),
            (Trouble::CertificateExpired, "certificate_expired"),
            (Trouble::FeatureLevelTooLow(why()), "feature_level_too_low: no space: 28"),
            (Trouble::DiskFailed(why()), "disk_failed: the manager runtime cannot start yet: no space: 28"),
            (Trouble::RaftDataMissing, "raft_data_missing"),
            (Trouble::RaftDataDamaged, "raft_data_damaged"),
            (Trouble::DialBackFailed(why()), "dial_back_failed: no space: 28"),
            (
                Trouble::AdmissionClosed,
                "admission_closed: restored from a backup; run `muster recovery open` to admit others",
            ),
            (Trouble::AuditFailing(why()), "audit_failing: no space: 28"),
            (Trouble::ManagerFailing(why()), "manager_half_failing: no space: 28"),
        ];
        assert_eq!(published.len(), TroubleKind::ALL.len());
        for (trouble, text) in published {
            assert_eq!(trouble.to_string(), text);
            assert_eq!(TroubleKind::of_trouble(text), Some(trouble.kind()), "{text}");
        }
    }

    #[test]
    fn kind_of_a_trouble_is_its_whole_first_word() {
        for unknown in ["", ": blocked", "blocked_for_now", "of_a_newer_release: blocked", "the node is blocked"] {
            assert_eq!(TroubleKind::of_trouble(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn only_blocked_and_removed_nodes_never_serve_again() {
        let last = TroubleKind::ALL.iter().filter_map(|kind| Some((*kind, kind.final_code()?)));
        let expected = [(TroubleKind::Blocked, ErrorCode::Blocked), (TroubleKind::Removed, ErrorCode::Removed)];
        assert_eq!(last.collect::<Vec<_>>(), expected);
    }
}
