//! The agent half of every node: one session to some manager, the node's certificate, and the decision whether the
//! manager half runs. Joining, which comes before there is an agent, is here too.
//!
//! See `OVERVIEW.md`.

pub mod config;
pub mod core;
mod status;

pub use self::status::{ManagerWanted, NodeTrouble, TroubleReason, WantedBecause};
