//! `muster`'s end of a guardian: starts one, moves its deadline, hears what became of the command, and takes over when the
//! guardian itself is killed.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use muster_elector::Hold;
use rustix::process::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;

use super::family;
use super::guardian::{AGAIN, GUARDIAN, Input, Number};
use super::line::{FRAME, Frame, News, news_of, order_frame, send_input};
use crate::cli::parent;

/// A command that is to run under a guardian.
#[derive(Clone, Debug)]
pub struct Launch {
    /// `muster`.
    pub program: PathBuf,
    pub command: Vec<OsString>,
    pub environment: Vec<(String, String)>,
}

impl Launch {
    /// With this very program as guardian, also when its file was replaced meanwhile.
    pub fn new(command: Vec<OsString>, environment: Vec<(String, String)>) -> Self {
        Self { program: "/proc/self/exe".into(), command, environment }
    }
}

/// A guardian and its command. Dropped, or gone with this process: the guardian ends the command in time.
pub struct Guarded {
    orders: OwnedWriteHalf,
    news: mpsc::Receiver<News>,
    guardian: u32,
    group: Option<Pid>,
}

impl Guarded {
    /// Starts the guardian. The command starts with the first [`Guarded::until`].
    pub fn start(launch: &Launch) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let mut command = Command::new(&launch.program);
        command.arg0("muster").arg(GUARDIAN).args(&launch.command);
        command.envs(launch.environment.iter().map(|(key, value)| (key, value)));
        // It must outlive us, whatever we were told to die with.
        parent::untie(&mut command);
        let guardian = command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).spawn()?.id();
        drop(command); // and with it our copy of the other end
        send_input(&ours, io::stdin())?;
        ours.set_nonblocking(true)?;
        let (mut reader, orders) = UnixStream::from_std(ours)?.into_split();
        let (tell, news) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut frame: Frame = [0; FRAME];
            while reader.read_exact(&mut frame).await.is_ok() {
                let Some(heard) = news_of(&frame) else { return };
                if tell.send(heard).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { orders, news, guardian, group: None })
    }

    /// The guardian's process id.
    pub fn guardian(&self) -> u32 {
        self.guardian
    }
    /// The command's process group, once it runs.
    pub fn group(&self) -> Option<Pid> {
        self.group
    }

    /// The command may run until then.
    pub async fn until(&mut self, hold: Hold) {
        self.order(Input::Until(hold)).await;
    }
    /// Passes a signal on.
    pub async fn signal(&mut self, number: Number) {
        self.order(Input::Signal(number)).await;
    }
    /// The command must end.
    pub async fn end(&mut self) {
        self.order(Input::End).await;
    }

    async fn order(&mut self, order: Input) {
        if let Some(frame) = order_frame(order) {
            let _gone = self.orders.write_all(&frame).await; // that a guardian is gone is heard as news
        }
    }

    /// What the guardian says next; `None` once it is gone. Nothing is lost when the wait is abandoned.
    pub async fn next(&mut self) -> Option<News> {
        let news = self.news.recv().await;
        if let Some(News::Started { group }) = news {
            self.group = Pid::from_raw(group);
        }
        news
    }

    /// In place of a guardian that was killed: kills what it guarded, and waits until nothing of it is left. The kernel has
    /// killed the command itself already; what that has started became ours ([`family::adopt`]).
    pub async fn end_orphans(&self) {
        while family::reap().left {
            family::kill(self.group);
            tokio::time::sleep(AGAIN).await;
        }
    }
}
