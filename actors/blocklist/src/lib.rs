//! Blocklist: on every manager, ends the live connections of those who lost the right to them, and cleans up the
//! table of blocked nodes. See [`core`] for what it decides and [`shell`] for what it does.

pub mod core;
pub mod shell;

pub use self::core::{Cut, Memory, due, verdict};
pub use self::shell::{BlocklistShell, Msg};
