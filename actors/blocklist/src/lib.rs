//! Blocklist: on every manager, ends the live connections of principals that lost the right to them, and cleans up the
//! table of blocked nodes. See [`core`] for its decisions and [`shell`] for its effects.

pub mod core;
mod msg;
pub mod shell;

pub use self::core::{Cut, Memory, decision, due};
pub use self::msg::Msg;
pub use self::shell::BlocklistShell;
