//! Elections: the leader's clock over all leases, and, below it, coordinated election of one leader per contested lease.
//!
//! [`core`] decides, [`shell`] does. `OVERVIEW.md` tells the whole story on one page.

pub mod config;
mod contests;
pub mod core;
pub mod election;
pub mod shell;

pub use self::config::{CoordinationConfig, ElectionsConfig, KeeperConfig};
pub use self::shell::{ElectionsPorts, ElectionsShell, Msg, elections_address, elections_spec};
