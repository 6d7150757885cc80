//! Nodes as local processes, for `muster dev`, benchmarks and tests.
//!
//! - [`LocalNode`] is a data directory with an address, a log, and the process that serves it.
//! - [`NodeProcess`] is that process. It is polled without blocking ([`NodeProcess::try_ready`], [`NodeProcess::try_exit`]): by
//!   [`eventually`] on a thread, by [`until`] and [`until_within`] in async code.
//! - [`ProcessId`] identifies a process, child or not, by pid and start time: it stays safe to signal.
//! - [`parent`] makes a process end with its parent.
//! - [`answers`] reads nodes, leader and tokens from a cluster's answers.
//! - [`free_address`], [`temporary_folder`] and [`memory_folder`] prepare the start of a node.

pub mod answers;
mod folder;
mod node;
pub mod parent;
mod ports;
mod process;
mod process_id;
mod ready;
mod wait;

pub use self::folder::{memory_folder, temporary_folder};
pub use self::node::{Entry, LocalNode};
pub use self::ports::free_address;
pub use self::process::{Lifetime, NodeProcess};
pub use self::process_id::{ProcessId, stop_all};
pub use self::ready::Ready;
pub use self::wait::{WAIT_LIMIT, eventually, pause, until, until_within};
