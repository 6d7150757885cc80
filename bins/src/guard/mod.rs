//! Commands that run only while something is held: a lease, an admission, a runner's term.
//!
//! ```text
//! muster  ────────────── guardian ── command
//! musterd ── keeper ──── guardian ── command
//! ```
//! The owner of a command gives its guardian the time until which it may run, again with each confirmed renewal, and inherits the
//! processes of a killed guardian. `muster` runs one command and inherits them itself. A daemon runs several and has children of its
//! own: for each command it starts a *keeper*, which does `muster`'s part.

mod attributes;
mod carried;
mod family;
mod guarded;
mod guardian;
mod inherited;
mod keeper;
mod limited;
mod line;
mod overdue;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::ExitCode;

use rustix::process::setsid;
use tokio::net::UnixStream;

use crate::stderr::say;

pub use self::attributes::{Attributes, UserIds};
pub use self::family::adopt;
pub use self::guarded::{Guarded, Launch, Streams};
pub use self::guardian::{Exit, NOT_FOUND, NOT_RUNNABLE, Number, Report};
pub use self::inherited::become_daemon;
pub use self::limited::{Ended, Reading, run_within};
pub use self::line::News;

/// This process's part, if it is a keeper, a guardian, or about to become a command: arguments not meant for users.
pub fn hidden(args: &[OsString]) -> Option<ExitCode> {
    let rest = args.get(2..).unwrap_or_default();
    match args.get(1)?.to_str()? {
        keeper::CLOSING => Some(keeper::close(rest)),
        keeper::KEEPER => Some(keeper::main(rest)),
        guardian::GUARDIAN => Some(guardian::main(rest)),
        guardian::COMMAND => Some(guardian::become_command(rest)),
        _ => None,
    }
}

/// Runs a keeper or a guardian, detached from its starter: no terminal, no job control, no shared group, so that a signal to the
/// starter's group does not reach it. It inherits the processes that its children leave behind. Its standard input is the control
/// socket; the command's own input is the first message. One thread: the command dies with the thread that started it.
fn apart(role: &str, work: impl AsyncFnOnce(UnixStream, OwnedFd) -> io::Result<()>) -> ExitCode {
    let worked = || -> io::Result<()> {
        setsid()?;
        family::adopt()?;
        let socket = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let Some(input) = line::receive_input(&socket)? else { return Ok(()) };
        socket.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { work(UnixStream::from_std(socket)?, input).await })
    };
    match worked() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("muster: the {role} failed: {error}"));
            ExitCode::FAILURE
        }
    }
}
