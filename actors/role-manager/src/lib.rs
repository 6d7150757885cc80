//! The role manager: a leader's actor that turns wishes about roles into facts, one guarded step at a time.
//!
//! [`core`] decides, `shell` does.

pub mod core;

pub use self::core::{Config, RoleManager, conditions};
