//! A command whose time is limited, and of which nothing is left afterwards: one question to another program.

use std::io;
use std::pin::pin;
use std::time::Duration;

use muster_elector::Hold;
use tokio::task::JoinHandle;

use super::guarded::Guarded;
use super::guardian::{Exit, Report};
use super::line::News;

/// How long the end of a command's output may take to arrive after all its processes have ended.
const OUTPUT_END_TIMEOUT: Duration = Duration::from_secs(1);

/// What is read of a command's output while it runs. Dropping it ends the reading: a process that escaped its supervision may hold the
/// other end.
#[derive(Debug)]
pub struct Reading<T>(JoinHandle<T>);

impl<T: Send + 'static> Reading<T> {
    pub fn start(read: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(read))
    }
    /// Called when the command's processes have ended. `None`: the output has no end.
    pub async fn end(mut self) -> Option<T> {
        tokio::time::timeout(OUTPUT_END_TIMEOUT, &mut self.0).await.ok().and_then(Result::ok)
    }
}

impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// `None`: its end was not reported, because what watched it was killed.
    pub exit: Option<Exit>,
    /// Its time was over.
    pub lapsed: bool,
}

/// Runs a command that was started with a keeper, until its last process has ended. `unwanted`: it is asked to end before its time is over.
pub async fn run_within(mut guarded: Guarded, time: Hold, unwanted: impl Future<Output = ()>) -> Ended {
    guarded.until(time).await;
    let (mut unwanted, mut withdrawn) = (pin!(unwanted), false);
    let mut ended = Ended { exit: None, lapsed: false };
    loop {
        tokio::select! {
            () = &mut unwanted, if !withdrawn => {
                withdrawn = true;
                guarded.end().await;
            }
            news = guarded.next() => match news {
                Some(News::Report(Report::Ended(exit))) => ended.exit = Some(exit),
                Some(News::Report(Report::Lapsed)) => ended.lapsed = true,
                Some(News::Started { .. }) => {}
                None => break,
            }
        }
    }
    // It waits for a process that has closed its connection.
    let collected = tokio::task::spawn_blocking(move || guarded.collect()).await;
    if let Err(why) = collected.map_err(io::Error::other).and_then(|collected| collected) {
        tracing::warn!(%why, "cannot reap the supervisor process of a command");
    }
    ended
}
