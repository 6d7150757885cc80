//! Muster's two programs as one library: `musterd`, the daemon, and `muster`, the command line.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod cli;
pub mod daemon;
pub mod guard;
mod stderr;
