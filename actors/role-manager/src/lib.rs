//! The role manager: a leader's actor that carries out requested role changes, one guarded step at a time.
//!
//! [`core`] decides, [`shell`] applies. `OVERVIEW.md` describes it on one page.

pub mod core;
pub mod shell;

pub use self::core::{Checkpoint, Config, RoleManager, conditions};
pub use self::shell::{Msg, Ports, RoleManagerShell};
