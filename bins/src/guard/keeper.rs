//! The keeper of one command of a daemon: passes on what the daemon says to the guardian and what the guardian says to the
//! daemon, and takes over when the guardian is killed.
//!
//! The daemon killed: the guardian is told by a closed connection, and ends the command in time; the keeper leaves with it.
//! The keeper killed: the same. What the command has written goes where the daemon has led it.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::ExitCode;

use rustix::process::setsid;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::family;
use super::guarded::{Guarded, Launch};
use super::guardian::{Exit, Report, ignored, orders};
use super::line::{News, news_frame, receive_input};

/// The first argument that makes a process a keeper. The command follows.
pub const KEEPER: &str = "guard-keeper";
/// What a command that was killed with its guardian is said to have ended by.
const KILLED: Exit = Exit::Signal(9);

/// Runs the keeper of this command, until nothing is left to guard. Its standard input is the socket to the daemon.
pub fn main(command: &[OsString]) -> ExitCode {
    let kept = || -> io::Result<()> {
        setsid()?;
        family::adopt()?;
        let socket = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let Some(input) = receive_input(&socket)? else { return Ok(()) };
        socket.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let _deaf = ignored()?;
            let guarded = Guarded::start(&Launch::new(command.to_vec(), Vec::new()), input)?;
            keep(UnixStream::from_std(socket)?, guarded).await;
            Ok(())
        })
    };
    match kept() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("musterd: the keeper failed: {error}");
            ExitCode::FAILURE
        }
    }
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
