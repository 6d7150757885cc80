//! Commands of reconcilers, run on this node: each under its own keeper and guardian.
//!
//! Invariants  RUN-6  a command of a runner's term is asked to end with the term or when it is cancelled, and is killed before
//!                    another runner can hold the term, also when this process is killed or frozen.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::{BootTime, Timekeeper};
use muster_messages::CommandOptions;
use muster_reconciler::{
    CommandEnd, CommandExit, CommandOrder, CommandRunner, GRACE, MAX_HEAD_BYTES, MAX_OUTPUT_BYTES,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, oneshot, watch};

use super::command_setup::{self, CommandSetup, OwnUser};
use super::run_logs::{RunLog, RunLogs};
use super::settings::Reconcilers;
use crate::guard::{Attributes, Exit, Guarded, Launch, News, Reading, Report, Streams};

/// KILL, as a number.
const KILL: u8 = 9;

/// Commands that are set up at a time. One takes milliseconds, unless a file system hangs: then it holds one of the 512 threads that tokio
/// has for all files of this process, also when its command is no longer wanted.
static SETUPS: Semaphore = Semaphore::const_new(32);

/// What this node runs for definitions, as configured now.
pub(super) struct Allowed {
    own: Arc<OwnUser>,
    configured: Mutex<Reconcilers>,
    changes: watch::Sender<()>,
}

impl Allowed {
    pub fn new(configured: Reconcilers) -> Self {
        let own = Arc::new(OwnUser::of_this_process());
        Self { own, configured: Mutex::new(configured), changes: watch::Sender::new(()) }
    }

    /// Replaces it.
    pub fn replace(&self, configured: Reconcilers) {
        let is_news = *self.configured() != configured;
        *self.configured() = configured;
        if is_news {
            self.changes.send_replace(());
        }
    }

    fn configured(&self) -> MutexGuard<'_, Reconcilers> {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(super) struct Commands {
    /// The socket for `muster` within a command.
    pub socket: PathBuf,
    pub allowed: Arc<Allowed>,
    pub logs: Arc<RunLogs>,
}

impl CommandRunner for Commands {
    fn allows(&self, program: &str) -> bool {
        self.allowed.configured().commands.allow(program)
    }

    fn permits(&self, options: &CommandOptions) -> bool {
        command_setup::permits(&self.allowed.own, &self.allowed.configured(), options).is_ok()
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.allowed.changes.subscribe()
    }

    fn lost_log_bytes(&self) -> u64 {
        self.logs.lost_bytes()
    }

    fn run(&self, order: CommandOrder) -> BoxFuture<'static, CommandEnd> {
        // This node is a candidate only for programs that it allows, but the definition may have changed since.
        let program = order.argv.first().map(String::as_str).unwrap_or_default();
        if !self.allows(program) {
            let why = format!(
                "this node does not run {program}: `[reconcilers] commands` of its configuration lists what it runs"
            );
            return std::future::ready(not_started(why)).boxed();
        }
        let (own, configured) = (Arc::clone(&self.allowed.own), self.allowed.configured().clone());
        // The command may change its directory before it connects.
        let socket = std::path::absolute(&self.socket).unwrap_or_else(|_| self.socket.clone());
        let socket = socket.to_string_lossy().into_owned();
        let log = self.logs.begin(&order.run);
        let (mut tell, end) = oneshot::channel();
        // In its own task: the caller may stop waiting, but the process must be collected.
        tokio::spawn(async move {
            let (options, cancelled) = (order.options.clone(), order.cancelled.clone());
            let setup = match options == CommandOptions::default() {
                true => command_setup::set_up(&own, &configured, &options), // reads nothing
                false => {
                    let set_up = move || command_setup::set_up(&own, &configured, &options);
                    ready(set_up, unwanted(&mut tell, cancelled.cancelled())).await
                }
            };
            let end = match setup {
                Ok(_) if cancelled.is_cancelled() || tell.is_closed() => {
                    not_started("it was cancelled before it started")
                }
                Ok(setup) => run(order, setup, socket, log, unwanted(&mut tell, cancelled.cancelled())).await,
                Err(why) => not_started(why),
            };
            let _unwanted = tell.send(end);
        });
        end.map(|end| end.unwrap_or_else(|_| not_started("this process is ending"))).boxed()
    }
}

fn not_started(why: impl ToString) -> CommandEnd {
    CommandEnd { exit: CommandExit::NotStarted(why.to_string()), head: String::new(), output: String::new() }
}

/// Ends when the command is no longer wanted: it was cancelled, or the caller stopped waiting.
async fn unwanted(tell: &mut oneshot::Sender<CommandEnd>, cancelled: impl Future<Output = ()>) {
    tokio::select! {
        () = tell.closed() => {}
        () = cancelled => {}
    }
}

/// What `set_up` answers, in a thread of its own: files may be on a slow disk. It is not waited for when the command is no longer wanted,
/// since the term lasts until this ends and a file system may hang.
async fn ready(
    set_up: impl FnOnce() -> Result<CommandSetup, String> + Send + 'static,
    unwanted: impl Future<Output = ()>,
) -> Result<CommandSetup, String> {
    let answered = async {
        let permit = SETUPS.acquire().await.expect("SETUPS is never closed");
        let answer = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            set_up()
        });
        answer.await.unwrap_or_else(|error| Err(error.to_string()))
    };
    tokio::select! {
        biased;
        () = unwanted => Err("it was cancelled while its working directory and the files with its environment were looked up; if that \
                              took long, a file system of this node hangs"
            .to_owned()),
        answer = answered => answer,
    }
}

/// From the start of the keeper until the command's last process has ended.
async fn run(
    order: CommandOrder,
    setup: CommandSetup,
    socket: String,
    log: RunLog,
    unwanted: impl Future<Output = ()>,
) -> CommandEnd {
    let CommandOrder { argv, env, mut hold, .. } = order;
    let CommandSetup { attributes, mut environment } = setup;
    environment.push(("MUSTER_SOCKET".to_owned(), socket));
    environment.extend(env);
    let launch = Launch::new(argv.into_iter().map(OsString::from).collect(), environment);
    let (mut guarded, written) = match start(&launch, &attributes) {
        Ok(started) => started,
        Err(error) => return not_started(error),
    };
    let output = Reading::start(ends_of_output(written, log));
    let mut unwanted = pin!(unwanted);
    let (mut ended, mut lapsed, mut kill_in) = (None, false, None);
    let mut killed = false;
    let first = *hold.borrow_and_update();
    guarded.until(first).await;
    loop {
        let kill_timer = async {
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
            () = kill_timer => {
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
    if let Err(why) = collected.map_err(io::Error::other).and_then(|collected| collected) {
        tracing::warn!(%why, "cannot reap the supervisor process of a command");
    }
    let exit = match ended {
        Some(Exit::Code(code)) => CommandExit::Code(code),
        Some(Exit::Signal(number)) => CommandExit::Signal(number),
        None if lapsed && !started => CommandExit::NotStarted("its time was over before it started".to_owned()),
        // The keeper was killed. The guardian learns that from the closed connection and ends the command before its time is over;
        // it may have started one that was not reported.
        None => {
            let over = hold.borrow().over_at;
            BootTime.until(over).await;
            match started {
                true => CommandExit::Signal(KILL),
                false => CommandExit::NotStarted("its keeper ended first".to_owned()),
            }
        }
    };
    let (head, output) = output.end().await.unwrap_or_default();
    CommandEnd { exit, head, output }
}

fn start(launch: &Launch, attributes: &Attributes) -> io::Result<(Guarded, pipe::Receiver)> {
    let (ours, theirs) = io::pipe()?;
    let input = OwnedFd::from(File::open("/dev/null")?);
    let (output, errors) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
    let guarded = Guarded::start_with_attributes(launch, attributes, Streams { input, output, errors })?;
    Ok((guarded, pipe::Receiver::from_owned_fd(OwnedFd::from(ours))?))
}

/// The beginning and the end of the output, once its writers have closed it. All of it goes to its log.
async fn ends_of_output(mut written: pipe::Receiver, mut log: RunLog) -> (String, String) {
    let (mut head, mut kept) = (Vec::new(), Vec::with_capacity(MAX_OUTPUT_BYTES));
    let mut chunk = vec![0; 8 * 1024];
    while let Ok(read @ 1..) = written.read(&mut chunk).await {
        let output = chunk.get(..read).unwrap_or_default();
        let room = MAX_HEAD_BYTES - head.len();
        head.extend_from_slice(output.get(..room.min(read)).unwrap_or_default());
        kept.extend_from_slice(output);
        if kept.len() > 2 * MAX_OUTPUT_BYTES {
            kept.drain(..kept.len() - MAX_OUTPUT_BYTES);
        }
        log.write(output).await;
    }
    (String::from_utf8_lossy(&head).into_owned(), String::from_utf8_lossy(&kept).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::settings::Programs;
    use muster_elector::Hold;
    use muster_messages::wire::RunKey;
    use muster_messages::{FencingToken, Moment};

    #[tokio::test]
    async fn node_runs_only_configured_programs() {
        assert!(!Reconcilers::default().commands.allow("/bin/sh"), "none by default");
        let listed: Reconcilers = toml::from_str("commands = [\"/usr/local/bin/migrate\"]").unwrap();
        let all: Reconcilers = toml::from_str("commands = true").unwrap();
        assert!(all.commands.allow("/bin/sh") && !listed.commands.allow("/bin/sh"));
        let folder = tempfile::tempdir().unwrap();
        let logs = RunLogs::new(folder.path());
        let allowed = Arc::new(Allowed::new(listed));
        let here = Commands { socket: PathBuf::from("muster.sock"), allowed, logs };
        assert!(here.allows("/usr/local/bin/migrate") && !here.allows("migrate"));
        let changes = here.changes();
        let only = |program: &str| Reconcilers {
            commands: Programs::Listed(vec![program.to_owned()]),
            ..Reconcilers::default()
        };
        here.allowed.replace(only("/usr/local/bin/migrate"));
        assert!(!changes.has_changed().unwrap(), "they are the same");
        here.allowed.replace(only("migrate"));
        assert!(changes.has_changed().unwrap() && here.allows("migrate") && !here.allows("/usr/local/bin/migrate"));
        let CommandExit::NotStarted(why) = here.run(shell()).await.exit else { panic!("it was started") };
        assert!(why.contains("/bin/sh") && why.contains("[reconcilers] commands"), "{why}");
    }

    fn shell() -> CommandOrder {
        CommandOrder {
            run: RunKey { reconciler: "schema".to_owned(), term: FencingToken(1), of_term: 1 },
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), "exit 0".to_owned()],
            env: Default::default(),
            options: CommandOptions::default(),
            hold: watch::channel(Hold { step_down_at: Moment(0), over_at: Moment(0) }).1,
            cancelled: Default::default(),
        }
    }

    #[tokio::test]
    async fn file_system_that_hangs_does_not_hold_a_cancelled_command() {
        let (answer, hangs) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = oneshot::channel();
        let set_up = move || {
            let _waited_for = begun.send(());
            let _silence = hangs.recv();
            Ok(CommandSetup::default())
        };
        let (mut tell, _end) = oneshot::channel();
        let cancelled = begins.map(|begun| begun.expect("it is set up"));
        let setup = ready(set_up, unwanted(&mut tell, cancelled)).await;
        let why = setup.unwrap_err();
        assert!(why.contains("cancelled") && why.contains("a file system of this node hangs"), "{why}");
        // The same when the caller stops waiting.
        let (mut tell, end) = oneshot::channel();
        drop(end);
        let waits = move || answer.send(()).map(|()| CommandSetup::default()).map_err(|error| error.to_string());
        assert!(ready(waits, unwanted(&mut tell, std::future::pending())).await.unwrap_err().contains("cancelled"));
    }

    #[tokio::test]
    async fn command_that_is_cancelled_before_its_start_is_not_started() {
        let configured: Reconcilers = toml::from_str("commands = true").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let logs = RunLogs::new(folder.path());
        let here = Commands { socket: PathBuf::from("muster.sock"), allowed: Arc::new(Allowed::new(configured)), logs };
        let order = shell();
        order.cancelled.cancel();
        let CommandExit::NotStarted(why) = here.run(order).await.exit else { panic!("it was started") };
        assert_eq!(why, "it was cancelled before it started");
    }
}
