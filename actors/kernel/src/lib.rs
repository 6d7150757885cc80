//! Supervised actors: the base of every actor of Muster.
//!
//! - [`Shell`]: an actor's thin shell; [`Cx`] is what its handler may use.
//! - [`Address`], [`Recipient`]: counted, bounded mailboxes that survive the restarts of their actor.
//! - [`Parked`]: the reply ports of requests that an actor's core has not answered yet.
//! - [`Alarm`]: one timer for an actor whose core says when to wake it.
//! - [`Supervisor`], [`Spec`]: the supervision tree.
//! - [`Tree`]: the live tree, answered while the actors themselves are busy or stuck.
//! - [`Beside`]: threads and tasks that work for an actor without being one, in the same tree.
//! - `UnixSocket`: a socket that a daemon serves on its machine; with the feature `sockets`.
//! - [`Slot`]: state that outlives a crash. [`Fuse`]: crashes half-way through a message, for tests.
//!
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

#[cfg(feature = "sockets")]
mod accept;
mod address;
mod alarm;
mod beside;
mod clock;
mod context;
mod fence;
mod fuse;
mod host;
mod launch;
mod panicked;
mod parked;
mod shell;
mod slot;
mod spec;
mod supervisor;
mod tenancy;
mod tree;
#[cfg(feature = "sockets")]
mod unix_socket;
mod vitals;

#[cfg(feature = "sockets")]
pub use accept::Acceptor;
pub use address::{Address, Recipient};
pub use alarm::Alarm;
pub use beside::{AtWork, Beside};
pub use clock::Clock;
pub use context::{Arrived, Cx};
pub use fuse::Fuse;
pub use parked::Parked;
pub use shell::{Fault, Shell};
pub use slot::Slot;
pub use spec::{Backoff, Group, Intensity, Restart, Spec, Strategy};
pub use supervisor::{Children, Supervisor};
pub use tree::{ActorNumbers, AdminAction, Tree};
#[cfg(feature = "sockets")]
pub use unix_socket::{Access, SocketFault, UnixSocket};

/// Types in the signatures of this crate, so that a program needs no further crate for them.
pub use muster_messages::{
    ActorExit, ActorNode, ActorState, AskError, AskId, CrashHow, ErrorBody, ErrorCode, ExitKind, HandlerTimes,
    Handling, Moment, Named, Reply, Undeliverable, WallTime,
};
pub use serde_json::Value;
pub use tokio_util::sync::CancellationToken;
