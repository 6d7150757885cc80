//! A client of one daemon, or of a cluster's managers, shared by the command line, benchmarks and tests.
//!
//! - [`Client`] calls over an admin socket or `muster-api/1`, and repeats a call of unknown outcome with the same request id.
//! - [`Connection`] is one native connection with one call in flight.
//! - [`Failure`] is a failed call or command: a code, a sentence, and the exit status that follows from the code.
//! - [`progress`] decides whether a role change has settled, [`rotation_progress`] how far a root rotation is,
//!   [`autolock_progress`] whether the managers have taken an unlock key.
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

pub use self::autolock::autolock_progress;
pub use self::client::{Client, Target, no_socket, parse};
pub use self::connection::{CallError, Connection};
pub use self::failure::{Failure, Outcome};
pub use self::identity::Identity;
pub use self::rotation::{RotationGoal, rotation_progress, unrevoked};
pub use self::settled::{Progress, progress, remaining_work};
/// Types in the signatures of this crate, so that a program needs no further crate for them.
pub use muster_gateway::{BoxStream, Dialer, Framed};
pub use muster_messages::wire::{ListOf, Request};
pub use muster_messages::{
    AutolockView, ErrorBody, ErrorCode, EventsView, Name, NodeListView, NodeView, RequestId, Revision, Role, RootId,
    RootView, RootsView, Secret, StatusView,
};
