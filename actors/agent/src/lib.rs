//! The agent of every node: one session to some manager, the node's certificate, and the decision whether the
//! manager runtime runs. Joining, which precedes the agent, is here too.
//!
//! See `OVERVIEW.md`.

mod asks;
pub mod config;
pub mod core;
mod install;
mod join;
mod line;
mod log;
mod memory;
mod ports;
mod shell;
mod status;
mod workloads;

pub use self::config::{AgentConfig, JoinConfig};
pub use self::core::SessionStatus;
pub use self::install::issued_at;
pub use self::join::{JoinArgs, JoinError, JoinProgress, JoinStage, Joined, join};
pub use self::line::{Dial, Dialled, Incoming};
pub use self::memory::NodeMemory;
pub use self::ports::{AgentPorts, AgentSetup, Inspected, Inspector};
pub use self::shell::{AgentShell, Msg, agent_address, agent_spec};
pub use self::status::{ManagerWanted, NodeTrouble, TroubleReason, WantedBecause, trouble_of};
