//! Commands of reconcilers, run on this node: each under a keeper and a guardian of its own.
//!
//! Keeps  RUN-6  a command of a runner's term is told to end with the term or when it is not wanted any more, and is killed
//!               before the term can be another's; also when this process is killed or frozen.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::{BootTime, Timekeeper};
use muster_reconciler::{CommandEnd, CommandExit, CommandOrder, CommandRunner, GRACE, MOST_OUTPUT};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Duration;

use super::settings::Programs;
use crate::guard::{Exit, Guarded, Launch, News, Report, Streams};

/// KILL, as a number.
const KILL: u8 = 9;
/// How long the end of what a command wrote may take to arrive when nothing of it is left.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Commands {
    /// What `muster` in a command speaks to.
    pub socket: PathBuf,
    /// What may be run.
    pub programs: Programs,
}

impl CommandRunner for Commands {
    fn allows(&self, program: &str) -> bool {
        self.programs.allow(program)
    }

    fn run(&self, order: CommandOrder) -> BoxFuture<'static, CommandEnd> {
        // It is no candidate for others; the definition may have changed since.
        let program = order.argv.first().map(String::as_str).unwrap_or_default();
        if !self.programs.allow(program) {
            let why = format!(
                "this node does not run {program}: `[reconcilers] commands` of its configuration lists what it runs"
            );
            return std::future::ready(not_started(why)).boxed();
        }
        // The command may be anywhere by the time it asks.
        let socket = std::path::absolute(&self.socket).unwrap_or_else(|_| self.socket.clone());
        let socket = socket.to_string_lossy().into_owned();
        let (mut tell, end) = oneshot::channel();
        // Apart: whoever wants the end may stop waiting, but somebody must collect the process.
        tokio::spawn(async move {
            let end = run(order, socket, tell.closed()).await;
            let _unwanted = tell.send(end);
        });
        end.map(|end| end.unwrap_or_else(|_| not_started("this process is ending"))).boxed()
    }
}

fn not_started(why: impl ToString) -> CommandEnd {
    CommandEnd { exit: CommandExit::NotStarted(why.to_string()), output: String::new() }
}

/// From the start of the keeper until nothing is left of the command. `unwanted`: nobody waits for it any more.
async fn run(order: CommandOrder, socket: String, unwanted: impl Future<Output = ()>) -> CommandEnd {
    let CommandOrder { argv, env, mut hold, cancelled } = order;
    let mut environment = vec![("MUSTER_SOCKET".to_owned(), socket)];
    environment.extend(env);
    let launch = Launch::new(argv.into_iter().map(OsString::from).collect(), environment);
    let (mut guarded, written) = match start(&launch) {
        Ok(started) => started,
        Err(error) => return not_started(error),
    };
    let output = tokio::spawn(last_of(written));
    let mut unwanted = pin!(async {
        tokio::select! {
            () = unwanted => {}
            () = cancelled.cancelled() => {}
        }
    });
    let (mut ended, mut lapsed, mut kill_in) = (None, false, None);
    let mut killed = false;
    let first = *hold.borrow_and_update();
    guarded.until(first).await;
    loop {
        let impatient = async {
            match kill_in {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok(()) = hold.changed() => {
                let later = *hold.borrow_and_update();
                guarded.until(later).await;
            }
            () = &mut unwanted, if kill_in.is_none() && ended.is_none() => {
                guarded.end().await;
                kill_in = Some(tokio::time::Instant::now() + GRACE);
            }
            () = impatient => {
                if std::mem::replace(&mut killed, true) {
                    guarded.kill();
                } else {
                    guarded.signal(KILL).await;
                }
                kill_in = Some(tokio::time::Instant::now() + GRACE);
            }
            news = guarded.next() => match news {
                Some(News::Report(Report::Ended(exit))) => ended = Some(exit),
                Some(News::Report(Report::Lapsed)) => lapsed = true,
                Some(News::Started { .. }) => {}
                None => break,
            }
        }
    }
    let started = guarded.group().is_some();
    // It waits for a process that has closed its connection.
    let collected = tokio::task::spawn_blocking(move || guarded.collect()).await;
    if !matches!(collected, Ok(Ok(()))) {
        tracing::warn!(?collected, "cannot collect a command's keeper");
    }
    let exit = match ended {
        Some(Exit::Code(code)) => CommandExit::Code(code),
        Some(Exit::Signal(number)) => CommandExit::Signal(number),
        None if lapsed && !started => CommandExit::NotStarted("its time was over before it began".to_owned()),
        // The keeper was killed. The guardian has been told by that, and ends the command before its time is over; it may
        // have started one that nobody has heard of.
        None => {
            let over = hold.borrow().over_at;
            BootTime.until(over).await;
            match started {
                true => CommandExit::Signal(KILL),
                false => CommandExit::NotStarted("its keeper ended first".to_owned()),
            }
        }
    };
    let output = tokio::time::timeout(LAST_WORDS, output).await;
    CommandEnd { exit, output: output.ok().and_then(Result::ok).unwrap_or_default() }
}

fn start(launch: &Launch) -> io::Result<(Guarded, pipe::Receiver)> {
    let (ours, theirs) = io::pipe()?;
    let input = OwnedFd::from(File::open("/dev/null")?);
    let (output, errors) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
    let guarded = Guarded::start_kept(launch, Streams { input, output, errors })?;
    Ok((guarded, pipe::Receiver::from_owned_fd(OwnedFd::from(ours))?))
}

/// The end of what is written, once nobody writes any more.
async fn last_of(mut written: pipe::Receiver) -> String {
    let mut kept = Vec::with_capacity(MOST_OUTPUT);
    let mut chunk = vec![0; 8 * 1024];
    while let Ok(read @ 1..) = written.read(&mut chunk).await {
        kept.extend_from_slice(chunk.get(..read).unwrap_or_default());
        if kept.len() > 2 * MOST_OUTPUT {
            kept.drain(..kept.len() - MOST_OUTPUT);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::settings::Reconcilers;
    use muster_elector::Hold;
    use muster_messages::Moment;
    use tokio::sync::watch;

    #[tokio::test]
    async fn a_node_runs_no_program_that_it_was_not_told_to() {
        assert!(!Reconcilers::default().commands.any(), "by default none at all");
        let listed: Reconcilers = toml::from_str("commands = [\"/usr/local/bin/migrate\"]").unwrap();
        let all: Reconcilers = toml::from_str("commands = true").unwrap();
        assert!(listed.commands.any() && all.commands.allow("/bin/sh") && !listed.commands.allow("/bin/sh"));
        let here = Commands { socket: PathBuf::from("muster.sock"), programs: listed.commands };
        assert!(here.allows("/usr/local/bin/migrate") && !here.allows("migrate"));
        let order = CommandOrder {
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), "exit 0".to_owned()],
            env: Default::default(),
            hold: watch::channel(Hold { step_down_at: Moment(0), over_at: Moment(0) }).1,
            cancelled: Default::default(),
        };
        let CommandExit::NotStarted(why) = here.run(order).await.exit else { panic!("it was started") };
        assert!(why.contains("/bin/sh") && why.contains("[reconcilers] commands"), "{why}");
    }
}
