//! Commands that run only as long as something is held: a lease, an admission, a runner's term.
//!
//! ```text
//! muster  ────────────── guardian ── command
//! musterd ── keeper ──── guardian ── command
//! ```
//! Whoever wants the command tells its guardian until when it may run, again with each confirmed renewal, and inherits what
//! a killed guardian leaves behind. `muster` runs one command and inherits it itself. A daemon runs several, and has
//! children of its own: for each command it starts a *keeper*, which does `muster`'s part.

mod family;
mod guarded;
mod guardian;
mod keeper;
mod line;

use std::ffi::OsString;
use std::process::ExitCode;

pub use self::family::adopt;
pub use self::guarded::{Guarded, Launch, Streams};
pub use self::guardian::{Exit, Number, Report};
pub use self::line::News;

/// What this process is, if it is a keeper, a guardian, or about to become a command: none is for people to type.
pub fn hidden(args: &[OsString]) -> Option<ExitCode> {
    let rest = args.get(2..).unwrap_or_default();
    match args.get(1)?.to_str()? {
        keeper::KEEPER => Some(keeper::main(rest)),
        guardian::GUARDIAN => Some(guardian::main(rest)),
        guardian::COMMAND => Some(guardian::become_command(rest)),
        _ => None,
    }
}
