//! The keeper of one command of a daemon: forwards the daemon's orders to the guardian and the guardian's reports to the daemon,
//! and takes over when the guardian is killed.
//!
//! The daemon is killed: the guardian sees a closed connection and ends the command in time; the keeper ends with it. The keeper is
//! killed: the same. The guardian is frozen past its time: the keeper kills it. The command's output goes where the daemon
//! directed it.

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
use super::inherited;
use super::line::{News, news_frame};

use crate::stderr::say;

/// The first argument of the process that a daemon starts: it becomes a keeper. The command follows.
pub const CLOSING: &str = "guard-closing";
/// The first argument that makes a process a keeper. The command follows.
pub const KEEPER: &str = "guard-keeper";
/// The reported end of a command that was killed with its guardian.
const KILLED: Exit = Exit::Signal(9);

/// Becomes a keeper without the daemon's files: not every library opens its files as close-on-exec, and a command may be less
/// trusted than a manager's log. The command must also stay killable for the daemon: programs that take another user's rights when
/// run do not get them (`PR_SET_NO_NEW_PRIVS`).
pub fn close(command: &[OsString]) -> ExitCode {
    close_fds::set_fds_cloexec(3, &[]);
    let bound = set_no_new_privs(true).map_err(io::Error::from);
    let error = bound.map_or_else(
        |error| error,
        |()| {
            let mut keeper = Command::new("/proc/self/exe");
            inherited::apply(&mut keeper);
            keeper.arg0("muster").arg(KEEPER).args(command).exec()
        },
    );
    say(format_args!("muster: cannot become a keeper: {error}"));
    ExitCode::FAILURE
}

/// Runs the keeper of this command until nothing is left to guard.
pub fn main(command: &[OsString]) -> ExitCode {
    apart("keeper", async |socket, input| {
        let _ignored = ignored()?;
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
            order = orders.recv(), if !guarded.orders_closed() => {
                match order {
                    Some(order) => guarded.order(order).await,
                    None => guarded.close_orders(),
                }
                continue;
            }
            news = guarded.next() => news,
        };
        let Some(news) = news else { break };
        ended = matches!(news, News::Report(Report::Ended(_)));
        let _gone = writer.write_all(&news_frame(news)).await; // a closed connection also ends its orders
    }
    guarded.end_orphans().await;
    if !ended && guarded.group().is_some() {
        let _gone = writer.write_all(&news_frame(News::Report(Report::Ended(KILLED)))).await;
    }
}
