//! The JSON shapes of the contract. Field names are promises to scripts.
//!
//! The API builds its answers from these types, and the command line reads them. A reader ignores unknown fields, so a newer
//! daemon may add some; a field that an earlier release lacks has a default.

mod actors;
mod autolock;
mod autopilot;
mod cluster;
mod events;
mod leases;
mod nodes;
mod reconcilers;
mod roles;
mod roots;
mod security;
mod workloads;

pub use self::actors::*;
pub use self::autolock::*;
pub use self::autopilot::*;
pub use self::cluster::*;
pub use self::events::*;
pub use self::leases::*;
pub use self::nodes::*;
pub use self::reconcilers::*;
pub use self::roles::*;
pub use self::roots::*;
pub use self::security::*;
pub use self::workloads::*;

use serde::{Deserialize, Serialize};

use super::Revision;

/// A list in an answer. The lists that may be stale have types of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListView<T> {
    /// The replicated state that is listed. Absent in lists whose answer does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
    /// The last field: pages are written item by item.
    pub items: Vec<T>,
}

impl<T> ListView<T> {
    /// A list whose answer has no revision.
    pub fn of(items: impl IntoIterator<Item = T>) -> Self {
        Self { revision: None, items: items.into_iter().collect() }
    }
    /// A list of the replicated state at this revision.
    pub fn at(revision: Revision, items: impl IntoIterator<Item = T>) -> Self {
        Self { revision: Some(revision), items: items.into_iter().collect() }
    }
}
