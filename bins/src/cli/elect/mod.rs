//! `muster elect`: runs a command only while holding a lease.
//!
//! Keeps  ELECT-5  the command runs only while the lease is held: it is told to end when leadership is lost, and killed before
//!                 the lease can be another's, also when this process is killed or frozen (its guardian does it).
//!        ELECT-6  the lease is released only when nothing of the command is left.

mod args;
pub(super) mod command;
mod family;
pub mod guarded;
pub mod guardian;
pub mod line;
mod run;

use std::ffi::OsString;
use std::process::ExitCode;

pub use self::args::ElectArgs;
pub use self::family::adopt;
pub(super) use self::run::default_identity;
pub(super) use self::run::run;

/// What this process is, if it is a guardian or about to become a command: neither is for people to type.
pub fn hidden(args: &[OsString]) -> Option<ExitCode> {
    let rest = args.get(2..).unwrap_or_default();
    match args.get(1)?.to_str()? {
        guardian::GUARDIAN => Some(guardian::main(rest)),
        guardian::COMMAND => Some(guardian::become_command(rest)),
        _ => None,
    }
}
