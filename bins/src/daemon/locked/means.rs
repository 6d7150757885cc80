//! Ways to get the unlock key without a person, in the order in which they are tried.

use std::fmt;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use muster_messages::AutoUnlock;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use zeroize::Zeroizing;

use crate::daemon::config::Config;
use crate::unlock_text::MAX_KEY_TEXT_BYTES;

/// How long the command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// The name of the credential in the folder that systemd names.
const CREDENTIAL: &str = "muster-unlock";

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

    pub async fn read(&self) -> Attempt {
        match self {
            Means::File(file) | Means::Credential(file) => {
                let file = file.clone();
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
                Some(runtime.block_on(self.read()))
            }
        }
    }
}

fn read_file(file: &PathBuf) -> Attempt {
    let mut text = Zeroizing::new(String::new());
    let read = std::fs::File::open(file).and_then(|file| file.take(MAX_KEY_TEXT_BYTES).read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

/// Its standard error goes to the daemon's.
async fn output_of(command: &[String]) -> Attempt {
    let [program, args @ ..] = command else { return Err("it is empty".to_owned()) };
    let child = Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let mut child = child.map_err(|error| format!("cannot be started: {error}"))?;
    let stdout = child.stdout.take();
    let ended = async move {
        let mut text = Zeroizing::new(String::new());
        if let Some(stdout) = stdout {
            stdout.take(MAX_KEY_TEXT_BYTES).read_to_string(&mut text).await.map_err(|error| error.to_string())?;
        }
        let status = child.wait().await.map_err(|error| error.to_string())?;
        if status.success() { Ok(text) } else { Err(format!("it failed: {status}")) }
    };
    let late = |_| format!("it has not ended within {} s", COMMAND_TIMEOUT.as_secs());
    tokio::time::timeout(COMMAND_TIMEOUT, ended).await.map_err(late)?
}
