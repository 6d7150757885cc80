//! The role manager: a leader's actor that carries out requested role changes, one guarded step at a time.
//!
//! [`core`] decides, [`shell`] applies. `OVERVIEW.md` describes it on one page.

mod asks;
pub mod core;
mod outcomes;
pub mod shell;
mod view;

pub use self::core::{Checkpoint, Config, RoleManager, conditions};
pub use self::shell::{Msg, Ports, RoleManagerShell};
