//! Elections: the leader's clock over all leases, and, below it, the coordinated election of one leader per contended lease.
//!
//! [`core`] decides, [`shell`] has the effects. `OVERVIEW.md` describes the whole on one page.

pub mod config;
mod contended;
pub mod core;
pub mod election;
mod outcomes;
pub mod shell;

pub use self::config::{CoordinationConfig, ElectionsConfig, KeeperConfig};
pub use self::shell::{ElectionsPorts, ElectionsShell, Msg, elections_address, elections_spec};
