//! RaftMember: one participant of the replicated log.
//!
//! - [`core`]: decides. A pure state machine around the `raft` crate: proposals, reads, membership, snapshots.
//! - [`disk`]: stores the log, the hard state and the snapshot, on a thread of its own; damaged data is reported, never
//!   loaded.
//! - [`recovery`]: continues a cluster from one member's data.
//! - [`RaftMember`]: the actor that connects core, disk and network.

mod asks;
pub mod core;
pub mod disk;
mod drain;
mod feed;
mod log;
mod member_disk;
mod published;
pub mod recovery;
mod shell;
mod snapshots;
mod view;

pub use self::core::{Incompatible, RaftConfig};
pub use self::drain::logger;
pub use self::feed::{ObjectFeed, ObjectNews};
pub use self::published::ReplicaSenders;
pub use self::shell::{Msg, RaftArgs, RaftMember};
