//! Muster's two programs as one library: `musterd`, the daemon, and `muster`, the command line.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod cli;
pub mod daemon;
pub mod guard;
mod stderr;

/// Threads that block on a disk come and go. The C library's allocator keeps what each of them has freed, in up to eight arenas for each
/// processor; this one gives it back (docs/decisions/0024). Of the library: `muster` runs daemons too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
