//! The simulated universe: whole nodes, of the real cores of agent, sessions, dispatcher, certificate authority, role manager,
//! raft member, blocklist and elections, and the gateway's decisions, over a simulated network, clocks and disks. One seed, one universe:
//! it can be had again.
//!
//! - [`Run`]: one random run of a [`Kind`]: a cluster that grows and is used while faults are injected, many candidates for leases, or a
//!   fleet under release gates; afterwards it must settle. [`sweep`] runs many seeds. The binary of this package does both.
//! - [`Universe`] with the verbs of `story`: a calm universe in which exactly what is told goes wrong.
//! - [`Break`]: promises broken on purpose. The invariants are listed in `docs/invariants.md`.
//!
//! What is simulated is what a core cannot see: lines between agents and hosts keep the order and break; the mesh is packets
//! that arrive, late, twice, out of order or not at all. The seat keeper and the switch of the manager half are told in a few
//! words (`agents`): they belong to the daemon.

mod agents;
mod authority;
mod blocks;
mod breaks;
mod candidates;
mod checks;
mod clients;
mod dice;
mod disk;
mod dispatch;
mod events;
mod faults;
mod fleet;
mod hosts;
mod leaders;
mod liars;
mod lines;
mod machine;
mod members;
mod model;
mod network;
mod outdated;
mod recoveries;
mod registers;
mod report;
mod roles;
mod run;
mod schedule;
mod simulate;
mod snapshots;
mod story;
mod trace;
mod watchers;
mod world;

pub use self::breaks::Break;
pub use self::clients::OpNumber;
pub use self::fleet::Said;
use self::fleet::run_gates;
pub use self::report::{Failure, Report, Totals};
pub use self::run::ROLE_CHANGES;
use self::run::{run, run_leases};
pub use self::simulate::{Kind, Run, Summary, sweep};
use self::snapshots::run_snapshots;
pub use self::story::Link;
pub use self::world::Universe;
