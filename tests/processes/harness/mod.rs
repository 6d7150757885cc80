//! Real processes: `musterd` and `muster` as cargo built them, started, killed, frozen, and never left behind.
//!
//! Invariants  HARNESS-1  whatever happens to a test, its processes end and its folder goes: dropping a [`World`] kills
//!                        them, and a test process that dies takes them along (`MUSTER_DIE_WITH_PARENT`).
//!             HARNESS-2  no wait for a condition is for a fixed time: its deadline is far above any budget. Fixed are only pauses
//!                        that are themselves the scenario, each with its reason (`scenario_pause`).
//!
//! The kernel ties a child to the *thread* that started it, so nodes are started from the test's own thread.

mod follower;
mod lead;
mod network;
mod node;
mod pause;
mod permit;
mod ran;
mod restored;
mod timing;
mod wall_clock;
mod world;
mod writer;

pub use muster_local_cluster::eventually;

pub use self::follower::{Follower, WAIT_MS};
pub use self::network::Network;
pub use self::node::Node;
pub use self::pause::{scenario_pause, scenario_pause_async};
pub use self::permit::{Permit, exclusive_use, permit, share};
pub use self::ran::{EndedMuster, ForegroundMuster, muster};
pub use self::timing::{SLOW_HEARTBEAT, SLOW_RAFT_TIMING};
pub use self::wall_clock::{WallClock, WallClocks};
pub use self::world::{UNANSWERED, World};
pub use self::writer::{Writer, assert_kept};

use std::time::Duration;

/// Time limit of every wait. Budgets are measured by `muster bench`, not here: a debug build
/// on a busy machine is slow.
pub const WAIT_LIMIT: Duration = muster_local_cluster::WAIT_LIMIT;

/// The command-line program.
pub const MUSTER: &str = env!("CARGO_BIN_EXE_muster");
/// The daemon.
pub const MUSTERD: &str = env!("CARGO_BIN_EXE_musterd");

/// [`eventually`] for a boolean condition.
#[track_caller]
pub fn eventually_so(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// Yields the processor between two checks.
pub fn between_checks() {
    std::thread::park_timeout(Duration::from_millis(10));
}
