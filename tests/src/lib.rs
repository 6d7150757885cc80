//! A test kit for actors: any actor, alone, between probes. It knows the kernel and the messages, and no actor of Muster's.
//!
//! - [`Probe`]: a mailbox without behaviour, or with as much as a script gives it. It stands in for whoever the actor
//!   under test talks to.
//! - [`Universe`]: a real root supervisor for one test. When it ends, whatever went wrong unseen fails the test: an actor
//!   or task that outlived it, an ERROR in the log, a panic that nobody expected.
//! - [`history`]: what clients saw of registers, and whether there can have been such registers (linearizability). For stories of
//!   many processes, real or simulated.
//!
//! # A whole test
//! Everything that a test of a new actor needs; copy it and put your actor in the place of the waiter.
//!
//! ```ignore
#![doc = include_str!("../kit/examples/whole.rs")]
//! ```
//!
//! # A crash at every point
//! [`at_every_point`] tells a story once for each point at which its actor may crash: before and after each message that it handles, and
//! each thing that it does meanwhile.
//!
//! # Virtual time
//! Under `#[tokio::test(start_paused = true)]` (tokio's feature `test-util`) the clock stands still while any task has work,
//! and jumps to the next timer when none has: *auto-advance*. So the hour above takes no real time, a deadline never runs
//! out because the machine is slow, and what will never come is known at once. The kernel's timers, backoffs and deadlines
//! and [`Clock::now`](muster_kernel::Clock::now) follow it. These do not:
//! - wall time ([`Clock::wall`](muster_kernel::Clock::wall)) is the machine's;
//! - sockets and pipes of other processes are no timers: the clock jumps while they are waited for. Such tests run
//!   in real time, where [`PATIENCE`] is what a failure costs;
//! - factories, and whatever else runs on the blocking pool, hold the clock while they run.

mod heard;
pub mod history;
mod host;
mod journal;
mod points;
mod probe;
mod universe;

use std::time::Duration;

pub use host::{Host, Idle, Never};
pub use points::{at_every_point, at_every_point_twice};
pub use probe::{Probe, answered};
pub use universe::{Universe, eventually, insisting};

/// How long the kit waits for what should come: longer than any machine that does ten other things needs. Only a test
/// that fails waits for so long, and in virtual time not even that.
pub const PATIENCE: Duration = Duration::from_secs(300);
