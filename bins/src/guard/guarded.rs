//! This end of a guardian or keeper: starts it, moves its deadline, receives its reports, and takes over when the guardian itself is
//! killed.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_elector::{BootTime, Hold, Timekeeper};
use muster_local_cluster::parent;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;

use super::attributes::Attributes;
use super::carried;
use super::family;
use super::guardian::{GUARDIAN, Input, KILL_RETRY_PAUSE, Number};
use super::inherited;
use super::keeper::CLOSING;
use super::line::{FRAME, Frame, News, news_of, order_frame, send_input};
use super::overdue::Overdue;

/// How long an order may wait for a process that does not read, after some hundreds of unread orders.
const ORDER_TIMEOUT: Duration = Duration::from_secs(1);
/// How much later than due a guardian may end; and a keeper, which itself waits for a guardian.
const GUARDIAN_GRACE: Duration = Duration::from_millis(100);
const KEEPER_GRACE: Duration = Duration::from_secs(2);

/// A command to run under a guardian.
#[derive(Clone, Debug)]
pub struct Launch {
    /// `muster` or `musterd`.
    pub program: PathBuf,
    pub command: Vec<OsString>,
    /// What the command gets beside what it inherits. It is not in force in the processes that start it.
    pub environment: Vec<(String, String)>,
}

/// Input and output of a kept command.
pub struct Streams {
    pub input: OwnedFd,
    pub output: OwnedFd,
    pub errors: OwnedFd,
}

impl Launch {
    /// With this very program as guardian, even if its file was replaced meanwhile.
    pub fn new(command: Vec<OsString>, environment: Vec<(String, String)>) -> Self {
        Self { program: "/proc/self/exe".into(), command, environment }
    }
}

/// A guardian and its command. When this is dropped or its process ends, the guardian ends the command in time.
pub struct Guarded {
    /// `None`: the sender of orders is gone, and the guardian knows it.
    orders: Option<OwnedWriteHalf>,
    news: mpsc::Receiver<News>,
    process: Child,
    group: Option<Pid>,
    overdue: Overdue,
    /// It was killed because it had hung.
    hung: bool,
}

impl Guarded {
    /// Starts the guardian of a command that reads from `input`. The command starts with the first [`Guarded::until`].
    pub fn start(launch: &Launch, input: impl AsFd) -> io::Result<Self> {
        Self::through(GUARDIAN, launch, input, |_| {})
    }

    /// Starts a keeper, for a process that has other children: no process of the command becomes a child of this one. The
    /// command does not see this process's configuration in the environment.
    pub fn start_with_keeper(launch: &Launch, streams: Streams) -> io::Result<Self> {
        Self::start_with_attributes(launch, &Attributes::default(), streams)
    }

    /// The same, for a command with attributes of its own.
    pub fn start_with_attributes(launch: &Launch, attributes: &Attributes, streams: Streams) -> io::Result<Self> {
        let Streams { input, output, errors } = streams;
        let kept = Self::through(CLOSING, launch, input, |command| {
            inherited::pass_on(command);
            command.envs(attributes.to_variable());
            command.stdout(Stdio::from(output)).stderr(Stdio::from(errors));
        })?;
        Ok(Self { overdue: Overdue::new(KEEPER_GRACE), ..kept })
    }

    fn through(role: &str, launch: &Launch, input: impl AsFd, prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let mut command = Command::new(&launch.program);
        command.arg0("muster").arg(role).args(&launch.command);
        prepare(&mut command);
        carried::carry(&mut command, &launch.environment);
        // It must outlive this process, whatever parent-death signal this one has.
        parent::untie(&mut command);
        let process = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
        drop(command); // and with it our copy of the other end
        send_input(&ours, input)?;
        ours.set_nonblocking(true)?;
        let (mut reader, orders) = UnixStream::from_std(ours)?.into_split();
        let (tell, news) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut frame: Frame = [0; FRAME];
            while reader.read_exact(&mut frame).await.is_ok() {
                let Some(event) = news_of(&frame) else { return };
                if tell.send(event).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            orders: Some(orders),
            news,
            process,
            group: None,
            overdue: Overdue::new(GUARDIAN_GRACE),
            hung: false,
        })
    }

    /// The process id of the guardian, or the keeper.
    pub fn guardian(&self) -> u32 {
        self.process.id()
    }
    /// The command's process group, once it runs.
    pub fn group(&self) -> Option<Pid> {
        self.group
    }

    /// Whether it was killed because its command should have been gone: the command's time is over.
    pub fn has_hung(&self) -> bool {
        self.hung
    }

    /// The command may run until then.
    pub async fn until(&mut self, hold: Hold) {
        self.order(Input::Until(hold)).await;
    }
    /// Forwards a signal.
    pub async fn signal(&mut self, number: Number) {
        self.order(Input::Signal(number)).await;
    }
    /// The command must end.
    pub async fn end(&mut self) {
        self.order(Input::End).await;
    }

    pub(super) async fn order(&mut self, order: Input) {
        self.overdue.ordered(BootTime.now(), order);
        let (Some(orders), Some(frame)) = (&mut self.orders, order_frame(order)) else { return };
        // The reports show that a guardian is gone. A frozen one does not read, and must not block the caller.
        if tokio::time::timeout(ORDER_TIMEOUT, orders.write_all(&frame)).await.is_err() {
            self.kill();
        }
    }
    /// No more orders follow: the guardian ends the command in time.
    pub(super) fn close_orders(&mut self) {
        self.orders = None;
    }
    pub(super) fn orders_closed(&self) -> bool {
        self.orders.is_none()
    }

    /// The guardian's next report; `None` once it is gone. Cancel-safe. A guardian that should have ended and reports nothing has hung
    /// or is frozen: it is killed together with the command.
    pub async fn next(&mut self) -> Option<News> {
        let news = loop {
            let alarm = async {
                match self.overdue.wake_at().filter(|_| !self.hung) {
                    Some(at) => BootTime.until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // A process that was stopped for a moment may find both ready. A report that has arrived shows that the guardian is not hung.
                biased;
                news = self.news.recv() => break news,
                () = alarm => if self.overdue.woke(BootTime.now()) {
                    self.hung = true;
                    self.kill();
                }
            }
        };
        if let Some(News::Started { group }) = news {
            self.group = Pid::from_raw(group);
        }
        news
    }

    /// Kills a guardian or a keeper that no longer reacts, and the command's group. A guardian's command would die with it; a keeper's
    /// guardian sees the connection close and ends the command, unless it is frozen itself.
    pub fn kill(&mut self) {
        if let Some(group) = self.group {
            family::signal(group, Signal::KILL);
        }
        let _gone = self.process.kill();
    }

    /// Collects a keeper's process, for a parent that does not collect all children. Blocks until it has ended.
    pub fn collect(mut self) -> io::Result<()> {
        self.process.wait().map(drop)
    }

    /// Replaces a killed guardian: kills what it guarded, and waits until no process of it is left. The kernel has already killed the
    /// command itself; its children became ours ([`family::adopt`]).
    pub async fn end_orphans(&self) {
        while family::reap().left {
            family::kill(self.group);
            tokio::time::sleep(KILL_RETRY_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use muster_messages::Moment;

    use super::*;
    use crate::guard::Report;

    /// A guardian that reads nothing and never ends, like a frozen one.
    fn unresponsive_guardian(folder: &std::path::Path) -> Guarded {
        let program = folder.join("deaf");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").expect("the folder is writable");
        std::fs::set_permissions(&program, Permissions::from_mode(0o700)).expect("the file is ours");
        let launch = Launch { program, command: vec![], environment: vec![] };
        Guarded::start(&launch, File::open("/dev/null").expect("it is there")).expect("a shell can be started")
    }
    fn hold(over_at: Moment) -> Hold {
        Hold { step_down_at: over_at, over_at }
    }

    #[tokio::test]
    async fn overdue_silent_guardian_is_killed() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut guarded = unresponsive_guardian(folder.path());
        guarded.until(hold(BootTime.now())).await;
        assert_eq!(guarded.next().await, None);
        assert!(guarded.has_hung());
        guarded.collect().expect("it has ended");
    }

    #[tokio::test]
    async fn report_that_has_arrived_precedes_the_alarm() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut guarded = unresponsive_guardian(folder.path());
        let (tell, news) = mpsc::channel(1);
        guarded.news = news;
        guarded.overdue = Overdue::new(Duration::ZERO);
        let now = BootTime.now();
        guarded.overdue.ordered(now, Input::Until(hold(now)));
        assert!(!guarded.overdue.woke(now), "from now on the alarm is due");
        // A choice without an order would take the alarm in half of the rounds.
        for _ in 0..20 {
            tell.send(News::Report(Report::Lapsed)).await.expect("the receiver is ours");
            assert_eq!(guarded.next().await, Some(News::Report(Report::Lapsed)));
        }
        assert!(!guarded.has_hung());
        guarded.kill();
        guarded.collect().expect("it has ended");
    }

    /// GUARD-4, also long before its time: the caller is not blocked.
    #[tokio::test]
    async fn guardian_that_does_not_read_never_blocks_the_sender() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut guarded = unresponsive_guardian(folder.path());
        let far = BootTime.now() + Duration::from_secs(1_000);
        let mut orders = 0;
        while guarded.process.try_wait().expect("it is our child").is_none() {
            guarded.until(hold(far)).await;
            orders += 1;
            assert!(orders < 1_000_000, "the socket accepts orders without limit");
        }
        assert_eq!((guarded.next().await, guarded.has_hung()), (None, false));
    }
}
