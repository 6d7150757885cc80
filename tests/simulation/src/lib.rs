//! Deterministic simulation: whole nodes, made of the real cores of agent, sessions, dispatcher, certificate authority, role manager,
//! Raft member, blocklist and elections, and the gateway's decisions, over a simulated network, clocks and disks. A seed
//! determines a run.
//!
//! - [`Run`]: one random run of a [`Kind`]: a growing cluster under load and faults, many candidates for leases, a
//!   fleet under release gates, an upgrade of manager after manager, rotations of the root, changes of the unlock key, or a declared number of managers; afterwards it must settle. [`sweep`] runs many seeds. This package's binary does both.
//! - [`Simulation`] with the steps of `scenario`: a fault-free simulation with scripted faults.
//!   It drives the `world`: machines with their actors, connections and the processes of a fleet. `clients`, `candidates`,
//!   `registers`, `watchers`, `adversaries`, `recoveries`, the operators of `rotations` and `faults` act on it; it holds none of their state. Each part's
//!   functions take the world.
//! - [`Bug`]: injected bugs. `docs/invariants.md` lists the invariants.
//!
//! What a core cannot observe is simplified: connections between agents and hosts keep order and may break; the mesh
//! carries packets that arrive, late, twice, out of order, or not at all. The membership agent and the manager switch
//! belong to the daemon and are sketched in `agents`.

mod adversaries;
mod agents;
mod authority;
mod autopilot;
mod blocks;
mod bugs;
mod candidates;
mod checks;
mod clients;
mod connections;
mod disk;
mod dispatch;
mod events;
mod faults;
mod fleet;
mod hosts;
mod keyrings;
mod leaders;
mod lease_clock;
mod machine;
mod members;
mod model;
mod network;
mod outdated;
mod policies;
mod processes;
mod recoveries;
mod registers;
mod report;
mod rng;
mod roles;
mod root_operators;
mod roots;
mod rotation;
mod rotations;
mod run;
mod scenario;
mod schedule;
mod settings;
mod simulate;
mod simulation;
mod snapshots;
mod trace;
mod upgrades;
mod watchers;
mod world;

pub use self::bugs::Bug;
pub use self::clients::OpNumber;
pub use self::fleet::HoldPoint;
pub use self::report::{Failure, Report, Totals};
pub use self::run::ROLE_CHANGES;
pub use self::scenario::Link;
pub use self::simulate::{Kind, Run, Summary, sweep};
pub use self::simulation::Simulation;

/// Runs on several threads make and drop whole states; the C library's allocator spends a tenth of their time on asking the kernel
/// for the same memory again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
