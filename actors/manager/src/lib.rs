//! The actors that make a node's manager runtime: whether it runs, its Raft membership, its feature level, and the calls that
//! other managers send it. See `OVERVIEW.md`.

pub mod feature_level;
pub mod membership;
pub mod router;
pub mod runs;
pub mod switch;

use std::fmt;
use std::sync::Arc;

use muster_messages::RaftId;

/// Ends the manager runtime for good, with a reason: handed to the actors that may detect one.
pub type ReportIncompatible = Arc<dyn Fn(&str) + Send + Sync>;

/// The state of this node's Raft data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaftData {
    /// Never had any.
    None,
    Present,
    /// The data of this member is gone.
    Missing {
        held: RaftId,
    },
    /// The data cannot be trusted: file and reason.
    Damaged {
        held: Option<RaftId>,
        file: String,
        why: String,
    },
}

impl fmt::Display for RaftData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Present => f.write_str("present"),
            Self::Missing { held } => write!(f, "missing: that of Raft member {held} is gone"),
            Self::Damaged { held: Some(held), file, why } => write!(f, "damaged, of Raft member {held}: {file}: {why}"),
            Self::Damaged { held: None, file, why } => write!(f, "damaged: {file}: {why}"),
        }
    }
}

impl RaftData {
    /// The member whose data is gone or cannot be trusted. `None`: no data is lost, or it is not known whose it was.
    pub fn lost_member(&self) -> Option<RaftId> {
        match self {
            Self::None | Self::Present => None,
            Self::Missing { held } => Some(*held),
            Self::Damaged { held, .. } => *held,
        }
    }
}
