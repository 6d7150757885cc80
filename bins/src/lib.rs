//! Muster's two programs as one library: `musterd`, the daemon, and `muster`, the command line.

pub mod cli;
pub mod daemon;
pub mod guard;
