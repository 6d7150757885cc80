//! One message enum per actor. Each variant states what acceptance means and what happens when it is lost, repeated or
//! late; a tidy test checks that.
//!
//! - *Lost*: the mailbox was full, the receiver was not running, or it crashed with the message in its mailbox. A message
//!   with a reply port then ends in an error for the asker: not delivered, or a closed port.
//! - *Repeated*: the sender sends it again, because it does not know the outcome of the first one.
//! - *Late*: it rests on facts that have changed, or its sender has given up waiting.

#[cfg(feature = "model")]
mod agent;
#[cfg(feature = "model")]
mod audit;
#[cfg(feature = "model")]
mod autopilot;
#[cfg(feature = "model")]
mod cert_authority;
#[cfg(feature = "model")]
mod elections;
#[cfg(feature = "model")]
mod gateway;
#[cfg(feature = "model")]
mod mesh;
#[cfg(feature = "model")]
mod raft_member;
#[cfg(feature = "model")]
mod role_manager;
#[cfg(feature = "model")]
mod root_rotation;
#[cfg(feature = "model")]
mod sessions;

#[cfg(feature = "model")]
pub use self::agent::*;
#[cfg(feature = "model")]
pub use self::audit::*;
#[cfg(feature = "model")]
pub use self::autopilot::*;
#[cfg(feature = "model")]
pub use self::cert_authority::*;
#[cfg(feature = "model")]
pub use self::elections::*;
#[cfg(feature = "model")]
pub use self::gateway::*;
#[cfg(feature = "model")]
pub use self::mesh::*;
#[cfg(feature = "model")]
pub use self::raft_member::*;
#[cfg(feature = "model")]
pub use self::role_manager::*;
#[cfg(feature = "model")]
pub use self::root_rotation::*;
#[cfg(feature = "model")]
pub use self::sessions::*;
pub use crate::base::{AskError, Undeliverable};

/// A reply port. Dropped without an answer: the asker sees a closed port.
pub type Reply<T> = ractor::RpcReplyPort<T>;

/// Derives the name of each variant: `#[strum(serialize_all = "snake_case")]` gives it the form that the live tree shows, and
/// `#[strum(transparent)]` the name of the message inside.
pub use strum::IntoStaticStr as Named;

/// A message with a name, for logs, spans and the live tree.
pub trait Named {
    /// The name of the variant.
    fn name(&self) -> &'static str;
}

impl<M> Named for M
where
    for<'a> &'a M: Into<&'static str>,
{
    fn name(&self) -> &'static str {
        self.into()
    }
}
