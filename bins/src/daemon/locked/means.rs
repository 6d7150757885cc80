//! Ways to get the unlock key without a person, in the order in which they are tried.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_elector::{BootTime, Hold, Timekeeper as _};
use muster_messages::AutoUnlock;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use crate::daemon::config::Config;
use crate::guard::{Exit, Guarded, Launch, NOT_FOUND, NOT_RUNNABLE, Reading, Streams, run_within};
use crate::unlock_text::{MAX_KEY_TEXT_BYTES, key_buffer};

/// How long the command may take before it is asked to end.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between TERM and KILL: nothing is lost with it but an attempt.
const KILL_AFTER: Duration = Duration::from_secs(1);
/// The name of the credential in the folder that systemd names.
const CREDENTIAL: &str = "muster-unlock";
/// Why a file gave nothing so far.
const HANGS: &str = "it is not read yet: it is a pipe to which nothing is written, or its file system hangs";

/// What a means gave, or why it gave nothing.
pub type Attempt = Result<Zeroizing<String>, String>;

/// One way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Means {
    /// `--unlock-key-file`.
    File(PathBuf),
    /// `LoadCredential=` and `LoadCredentialEncrypted=` of systemd.
    Credential(PathBuf),
    /// `[unlock] command`: the key on its standard output.
    Command(Vec<String>),
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Means::File(file) => write!(f, "--unlock-key-file {}", file.display()),
            Means::Credential(file) => write!(f, "credential {}", file.display()),
            // Its arguments may name what others should not know.
            Means::Command(command) => write!(f, "command {}", command.first().map_or("", String::as_str)),
        }
    }
}

impl Means {
    /// Those that this daemon may use.
    pub fn configured(config: &Config) -> Vec<Self> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        let credential = credentials.map(|folder| folder.join(CREDENTIAL)).filter(|file| file.exists());
        let command = &config.settings.unlock.command;
        let file = config.unlock_key_file.clone().map(Means::File);
        let command = (!command.is_empty()).then(|| Means::Command(command.clone()));
        file.into_iter().chain(credential.map(Means::Credential)).chain(command).collect()
    }

    pub fn kind(&self) -> AutoUnlock {
        match self {
            Means::File(_) => AutoUnlock::File,
            Means::Credential(_) => AutoUnlock::Credential,
            Means::Command(_) => AutoUnlock::Command,
        }
    }

    /// Whether an attempt may take long.
    pub fn takes_time(&self) -> bool {
        matches!(self, Means::Command(_))
    }

    async fn read(self) -> Attempt {
        match self {
            Means::File(file) | Means::Credential(file) => {
                let read = tokio::task::spawn_blocking(move || read_file(&file)).await;
                read.unwrap_or_else(|ended| Err(ended.to_string()))
            }
            Means::Command(command) => output_of(command).await,
        }
    }

    /// Without a runtime. `None`: this needs one.
    pub fn read_now(&self) -> Option<Attempt> {
        match self {
            Means::File(file) | Means::Credential(file) => Some(read_file(file)),
            Means::Command(_) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
                Some(runtime.block_on(self.clone().read()))
            }
        }
    }
}

/// A means, and its attempt that has not ended yet. There is one at a time: a file that hangs holds one thread, however often it is
/// tried, and a command is collected even if its result is not wanted any more.
pub struct Source {
    means: Means,
    running: Option<JoinHandle<Attempt>>,
}

impl Source {
    pub fn new(means: Means) -> Self {
        Self { means, running: None }
    }

    pub fn means(&self) -> &Means {
        &self.means
    }

    /// Whether an attempt has not ended yet.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// What this means gives. A file that takes longer than `limit` is read on, and the next call gets its text. A command has its own
    /// limit.
    pub async fn attempt(&mut self, limit: Duration) -> Attempt {
        let running = self.running.get_or_insert_with(|| tokio::spawn(self.means.clone().read()));
        let ended = match self.means {
            Means::Command(_) => running.await,
            Means::File(_) | Means::Credential(_) => match tokio::time::timeout(limit, running).await {
                Ok(ended) => ended,
                Err(_) => return Err(HANGS.to_owned()),
            },
        };
        self.running = None;
        ended.unwrap_or_else(|ended| Err(ended.to_string()))
    }
}

fn read_file(file: &Path) -> Attempt {
    let mut text = key_buffer();
    let read = File::open(file).and_then(|file| file.take(MAX_KEY_TEXT_BYTES).read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

/// Its standard error goes to the daemon's. It runs under a guardian, as the commands of reconcilers do: none of its processes outlives
/// the attempt, or this daemon.
async fn output_of(command: Vec<String>) -> Attempt {
    let (guarded, output) = start(command).map_err(|error| format!("it cannot be started: {error}"))?;
    let text = Reading::start(text_of(output));
    let step_down_at = BootTime.now() + COMMAND_TIMEOUT;
    let time = Hold { step_down_at, over_at: step_down_at + KILL_AFTER };
    let ended = run_within(guarded, time, std::future::pending()).await;
    match ended.exit {
        _ if ended.lapsed => Err(format!("it has not ended within {} s", COMMAND_TIMEOUT.as_secs())),
        Some(Exit::Code(0)) => text.end().await.unwrap_or_else(|| Err("its output has no end".to_owned())),
        Some(Exit::Code(NOT_FOUND)) => Err(format!("it failed with exit status {NOT_FOUND}: not found")),
        Some(Exit::Code(NOT_RUNNABLE)) => Err(format!("it failed with exit status {NOT_RUNNABLE}: it cannot be run")),
        Some(Exit::Code(status)) => Err(format!("it failed with exit status {status}")),
        Some(Exit::Signal(number)) => Err(format!("it was ended by signal {number}")),
        None => Err("the process that watches it was killed".to_owned()),
    }
}

fn start(command: Vec<String>) -> io::Result<(Guarded, pipe::Receiver)> {
    let launch = Launch::new(command.into_iter().map(OsString::from).collect(), Vec::new());
    let (ours, theirs) = io::pipe()?;
    let input = OwnedFd::from(File::open("/dev/null")?);
    let errors = io::stderr().as_fd().try_clone_to_owned()?;
    let guarded = Guarded::start_with_keeper(&launch, Streams { input, output: OwnedFd::from(theirs), errors })?;
    Ok((guarded, pipe::Receiver::from_owned_fd(OwnedFd::from(ours))?))
}

async fn text_of(output: pipe::Receiver) -> Attempt {
    let mut text = key_buffer();
    let read = output.take(MAX_KEY_TEXT_BYTES).read_to_string(&mut text).await;
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three attempts with a pipe to which nothing is written are one read, and a key that arrives later is not lost.
    #[tokio::test]
    async fn file_that_hangs_is_read_once_at_a_time() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut source = Source::new(Means::File(fifo.clone()));
        let mut reads = Vec::new();
        for _again in 0..3 {
            let why = source.attempt(Duration::from_millis(1)).await.unwrap_err();
            assert!(why.contains("hangs") && source.is_running(), "{why}");
            reads.extend(source.running.as_ref().map(JoinHandle::id));
        }
        // First: a thread that reads would delay the end of a failed test.
        std::fs::write(&fifo, "a key").unwrap();
        assert!(reads.len() == 3 && reads.iter().all(|read| *read == reads[0]), "{reads:?}");
        assert_eq!(*source.attempt(Duration::from_secs(600)).await.unwrap(), "a key");
        assert!(!source.is_running());
    }
}
