//! The role manager: a leader's actor that carries out requested role changes, one guarded step at a time.
//!
//! [`core`] decides, `shell` (with the feature of that name) applies. `OVERVIEW.md` describes it on one page.
//!
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

#[cfg(feature = "shell")]
mod asks;
pub mod core;
#[cfg(feature = "shell")]
mod log;
#[cfg(feature = "shell")]
mod outcomes;
#[cfg(feature = "shell")]
pub mod shell;
#[cfg(feature = "shell")]
mod view;

pub use self::core::{Checkpoint, Config, RoleManager, conditions};
#[cfg(feature = "shell")]
pub use self::shell::{Msg, Ports, RoleManagerShell};
