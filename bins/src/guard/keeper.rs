//! The keeper of one command of a daemon: passes on what the daemon says to the guardian and what the guardian says to the
//! daemon, and takes over when the guardian is killed.
//!
//! The daemon killed: the guardian is told by a closed connection, and ends the command in time; the keeper leaves with it.
//! The keeper killed: the same. The guardian frozen past its time: the keeper kills it. What the command has written goes where
//! the daemon has led it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::thread::set_no_new_privs;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::apart;
use super::guarded::{Guarded, Launch};
use super::guardian::{Exit, Report, ignored, orders};
use super::line::{News, news_frame};
use super::umask;

use crate::stderr::say;

/// The first argument of what a daemon starts: it becomes a keeper. The command follows.
pub const CLOSING: &str = "guard-closing";
/// The first argument that makes a process a keeper. The command follows.
pub const KEEPER: &str = "guard-keeper";
/// What a command that was killed with its guardian is said to have ended by.
const KILLED: Exit = Exit::Signal(9);

/// Becomes a keeper that has nothing of the daemon's: not every library opens its files so that they are closed by `exec`, and a
/// command may be less trusted than a manager's log. Nor does the command become somebody whom the daemon cannot kill: programs
/// that take another user's rights when they are run do not get them (`PR_SET_NO_NEW_PRIVS`).
pub fn close(command: &[OsString]) -> ExitCode {
    close_fds::set_fds_cloexec(3, &[]);
    let bound = set_no_new_privs(true).map_err(io::Error::from);
    let error = bound.map_or_else(
        |error| error,
        |()| {
            let mut keeper = Command::new("/proc/self/exe");
            umask::take(&mut keeper);
            keeper.arg0("muster").arg(KEEPER).args(command).exec()
        },
    );
    say(format_args!("muster: cannot become a keeper: {error}"));
    ExitCode::FAILURE
}

/// Runs the keeper of this command, until nothing is left to guard.
pub fn main(command: &[OsString]) -> ExitCode {
    apart("keeper", async |socket, input| {
        let _deaf = ignored()?;
        let guarded = Guarded::start(&Launch::new(command.to_vec(), Vec::new()), input)?;
        keep(socket, guarded).await;
        Ok(())
    })
}

async fn keep(socket: UnixStream, mut guarded: Guarded) {
    let (reader, mut writer) = socket.into_split();
    let mut orders = orders(reader);
    let mut ended = false;
    loop {
        let news = tokio::select! {
            order = orders.recv(), if !guarded.is_let_go() => {
                match order {
                    Some(order) => guarded.order(order).await,
                    None => guarded.let_go(),
                }
                continue;
            }
            news = guarded.next() => news,
        };
        let Some(news) = news else { break };
        ended = matches!(news, News::Report(Report::Ended(_)));
        let _gone = writer.write_all(&news_frame(news)).await; // heard as the end of its orders
    }
    guarded.end_orphans().await;
    if !ended && guarded.group().is_some() {
        let _gone = writer.write_all(&news_frame(News::Report(Report::Ended(KILLED)))).await;
    }
}
