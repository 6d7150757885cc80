//! RaftMember: one participant of the replicated log.
//!
//! - [`core`]: decides. A pure state machine around the `raft` crate: proposals, reads, membership, snapshots.
//! - [`disk`]: keeps. The log, the hard state and the snapshot, on a thread of its own; damaged data is named, never loaded.
//! - [`recovery`]: going on alone with a member's data.
//! - [`RaftMember`]: the actor that joins the two with the network.

pub mod core;
pub mod disk;
mod drain;
mod feed;
pub mod recovery;
mod shell;

pub use self::core::{Outgrown, RaftConfig};
pub use self::drain::logger;
pub use self::feed::{ObjectFeed, ObjectNews};
pub use self::shell::{Msg, RaftArgs, RaftMember};
