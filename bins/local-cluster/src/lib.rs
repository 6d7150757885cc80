//! Nodes as processes of this machine: `muster dev`, benchmarks and tests start their clusters with it.
//!
//! - [`LocalNode`] is a data directory with an address, a log, and the process that serves it.
//! - [`NodeProcess`] is that process. It is polled without blocking ([`NodeProcess::try_ready`], [`NodeProcess::try_exit`]): by
//!   [`eventually`] on a thread, by [`until`] in async code.
//! - [`ProcessId`] is a process that may not be a child: known by pid and start time, and so safe to signal later.
//! - [`parent`] makes a process end with the one that started it.
//! - [`answers`] reads what a cluster says of its nodes, its leader and its tokens.
//! - [`free_address`] and [`temporary_folder`] are what a node needs before it starts.

pub mod answers;
mod folder;
mod node;
pub mod parent;
mod ports;
mod process;
mod process_id;
mod ready;
mod wait;

pub use self::folder::temporary_folder;
pub use self::node::{Entry, LocalNode};
pub use self::ports::free_address;
pub use self::process::{Lifetime, NodeProcess};
pub use self::process_id::{ProcessId, stop_all};
pub use self::ready::Ready;
pub use self::wait::{WAIT_LIMIT, eventually, pause, until};
