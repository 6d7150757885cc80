//! A test kit for actors: any actor, in isolation, between probes. It depends on the kernel, and on no actor of Muster.
//!
//! - [`Probe`]: a mailbox without behaviour, or with a script's. It stands in for the collaborators of the actor
//!   under test.
//! - [`ActorHarness`]: a real root supervisor for one test. At its end every unnoticed error fails the test: an actor
//!   or task that outlived it, an ERROR in the log, an unexpected panic.
//! - [`history`]: decides whether what clients saw of registers is linearizable. For scenarios with
//!   several processes, real or simulated.
//! - `company`, with the feature `authorities`: certificate authorities above a cluster.
//! - `Schemas`, with the feature `schemas`: whether an answer conforms to the description of an HTTP API.
//!
#![doc = include_str!("../README.md")]
//!
//! # A whole test
//! Everything that a test of a new actor needs; copy it and replace the waiter by your actor.
//!
//! ```ignore
#![doc = include_str!("../tests/it/examples/whole.rs")]
//! ```
//!
//! # A crash at every point
//! [`at_every_point`] runs a scenario once for each point at which its actor may crash: before and after each message that it handles, and
//! each effect in between.
//!
//! # Virtual time
//! Under `#[tokio::test(start_paused = true)]` (tokio's feature `test-util`) the clock stands still while any task has work,
//! and jumps to the next timer when none has: *auto-advance*. So the hour above takes no real time, a deadline never runs
//! out because the machine is slow, and a message that will never arrive is known at once. The kernel's timers, backoffs and deadlines
//! and [`Clock::now`](muster_kernel::Clock::now) follow it. These do not:
//! - wall time ([`Clock::wall`](muster_kernel::Clock::wall)) is the machine's;
//! - sockets and pipes of other processes are no timers: the clock jumps while a test waits for them. Such tests run
//!   in real time, where a failure costs [`WAIT_LIMIT`];
//! - factories, and whatever else runs on the blocking pool, hold the clock while they run.

#![deny(missing_docs)]

#[cfg(feature = "authorities")]
pub mod company;
mod events;
mod harness;
pub mod history;
mod host;
mod journal;
mod observed;
mod points;
mod probe;
#[cfg(feature = "schemas")]
mod schema;

use std::time::Duration;

pub use events::LoggedLevels;
pub use harness::{ActorHarness, eventually, eventually_some, insisting, insisting_until_known};
pub use host::{Host, Idle, Never};
pub use points::{at_every_point, at_every_point_twice};
pub use probe::{Probe, answered};
#[cfg(feature = "schemas")]
pub use schema::Schemas;

/// How long the kit waits for a condition: longer than a machine with ten other jobs needs. Only a failing
/// test waits this long, and in virtual time not even that.
pub const WAIT_LIMIT: Duration = Duration::from_secs(300);
