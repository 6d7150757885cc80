//! A client of one daemon, or of a cluster's managers, shared by the command line, benchmarks and tests.
//!
//! - [`Client`] calls over an admin socket or `muster-api/1`, and repeats a call of unknown outcome with the same request id.
//! - [`Connection`] is one native connection with one call in flight.
//! - [`Failure`] is a failed call or command: a code, a sentence, and the exit status that follows from the code.
//! - [`EventWatch`] follows the cluster's events over lost connections and changes of managers.
//! - [`Client::wait_until_settled`] waits until a role change is in force; others wait for a root rotation, for the managers' seals, and until
//!   a node may be stopped.
//!
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod autolock;
mod client;
mod connection;
mod failure;
mod identity;
mod rotation;
mod settled;
mod waiting;
mod watch;

pub use self::client::{Client, Target, no_socket, parse};
pub use self::connection::{CallError, Connection};
pub use self::failure::{Failure, Outcome};
pub use self::identity::Identity;
pub use self::rotation::{RotationGoal, unrevoked};
pub use self::settled::{Progress, progress};
pub use self::waiting::Settled;
pub use self::watch::EventWatch;
/// Types in the signatures of this crate, so that a program needs no further crate for them.
pub use muster_gateway::{BoxStream, Dialer, Framed};
pub use muster_messages::wire::{ListOf, Request};
pub use muster_messages::{
    DetailField, Details, ErrorBody, ErrorCode, EventKind, EventView, EventsView, Name, NodeListView, NodeView,
    PrincipalKind, PrincipalView, RequestId, Revision, Role, RoleChangeView, RootId, RootView, RootsView, Secret,
    StatusView, Word, detail,
};
