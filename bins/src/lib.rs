//! Muster's two programs as one library: `musterd`, the daemon, and `muster`, the command line.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod cli;
pub mod daemon;
pub mod guard;
pub mod open_files;
mod stderr;
mod unlock_text;

/// Threads that block on a disk start and end often. The C library's allocator keeps the memory that each has freed, in up to eight
/// arenas per processor; this one returns it (docs/decisions/0024). In the library: `muster` runs daemons too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
