//! The role manager: a leader's actor that turns wishes about roles into facts, one guarded step at a time.
//!
//! [`core`] decides, [`shell`] does. `OVERVIEW.md` tells the whole story on one page.

pub mod core;
pub mod shell;

pub use self::core::{Checkpoint, Config, RoleManager, conditions};
pub use self::shell::{Msg, Ports, RoleManagerShell};
