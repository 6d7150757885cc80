//! One daemon to attack.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use muster::cli::dev::process::{ProcessId, Ready, free_address};
use muster::cli::failure::{Failure, Outcome};
use muster::cli::parent;
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::Starts;
use muster_pki::IdentityStore;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// How long a daemon may take to serve: only waited out when something is broken.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A data directory with an address, and the process that serves it now.
pub struct Daemon {
    pub name: String,
    pub folder: PathBuf,
    pub listen: SocketAddr,
    /// Where its metrics are, once it serves.
    pub metrics: Option<String>,
    program: PathBuf,
    running: Option<Running>,
}

struct Running {
    child: Child,
    id: ProcessId,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Daemon {
    /// A daemon that `program musterd …` runs. Not started yet.
    pub fn new(program: &Path, folder: &Path, name: &str) -> Outcome<Self> {
        let (folder, listen) = (folder.join(name), free_address()?);
        Ok(Self { name: name.to_owned(), folder, listen, metrics: None, program: program.to_owned(), running: None })
    }

    /// Starts it with these flags beside directory, name and address.
    pub fn start(&mut self, flags: &[&str]) -> Outcome {
        let failed = |e: std::io::Error| Failure::io(format!("cannot start {}", self.name), &e);
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        let log = OpenOptions::new().create(true).append(true).open(self.log_path()).map_err(failed)?;
        let mut command = std::process::Command::new(&self.program);
        command.arg("musterd").arg("--data-dir").arg(&self.folder);
        command.args(["--name", &self.name, "--listen", &self.listen.to_string()]).args(flags);
        command.env_remove("MUSTER_SOCKET").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        parent::tie(&mut command);
        let mut child = Command::from(command).kill_on_drop(true).spawn().map_err(failed)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let id = child.id().and_then(ProcessId::of);
        let id = id.ok_or_else(|| Failure::internal(format!("{} ended at once", self.name)))?;
        self.running = Some(Running { child, id, stdout: BufReader::new(stdout).lines() });
        Ok(())
    }

    /// Waits until it serves its role.
    pub async fn ready(&mut self) -> Outcome<Ready> {
        let name = self.name.clone();
        let lines = async {
            let running = self.running.as_mut()?;
            while let Ok(Some(line)) = running.stdout.next_line().await {
                if let Some(ready) = Ready::parse(&line) {
                    return Some(ready);
                }
            }
            None
        };
        let ready = tokio::time::timeout(READY_WITHIN, lines).await.ok().flatten();
        self.metrics = ready.as_ref().map(|ready| ready.metrics.clone());
        ready.ok_or_else(|| Failure::internal(format!("{name} is not ready:\n{}", self.log())))
    }

    /// Starts it and waits until it serves; how long that took.
    pub async fn start_and_wait(&mut self, flags: &[&str]) -> Outcome<Duration> {
        let begun = Instant::now();
        self.start(flags)?;
        self.ready().await?;
        Ok(begun.elapsed())
    }

    pub fn log_path(&self) -> PathBuf {
        self.folder.with_extension("log")
    }

    /// Everything its processes have logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("muster.sock")
    }

    /// What one of its metrics says now.
    pub async fn metric(&self, name: &str) -> Outcome<u64> {
        let failed = |e: std::io::Error| Failure::io("cannot read the metrics", &e);
        let addr = self.metrics.clone().ok_or_else(|| Failure::internal("it does not serve"))?;
        let mut stream = tokio::net::TcpStream::connect(addr).await.map_err(failed)?;
        let request = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.map_err(failed)?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.map_err(failed)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.ok_or_else(|| Failure::internal(format!("no {name} in\n{text}")))
    }

    pub fn pid(&self) -> Option<i32> {
        self.running.as_ref().map(|running| running.id.pid)
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(running) = &self.running {
            running.id.signal(signal);
        }
    }

    /// Ends it with a signal that it cannot refuse.
    pub async fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ended_already = running.child.kill().await;
        }
    }

    /// Waits for its end; the exit status, `None` after a signal.
    pub async fn exit(&mut self) -> Outcome<Option<i32>> {
        let mut running = self.running.take().ok_or_else(|| Failure::internal("it does not run"))?;
        let ended = tokio::time::timeout(READY_WITHIN, running.child.wait()).await;
        let status = ended.map_err(|_| Failure::internal(format!("{} does not end", self.name)))?;
        Ok(status.map_err(|e| Failure::io("cannot wait", &e))?.code())
    }

    /// The certificate and key in its data directory, as a thief would copy them.
    pub fn credentials(&self) -> Outcome<NodeCredentials> {
        let found = IdentityStore::open(&self.folder).and_then(|store| store.load_credentials());
        let found = found.map_err(|e| Failure::internal(e.to_string()))?;
        found.ok_or_else(|| Failure::internal(format!("{} has no identity yet", self.name)))
    }

    /// The starts of its data directory.
    pub fn starts(&self) -> Outcome<Starts> {
        let found = IdentityStore::open(&self.folder).and_then(|store| store.load_starts());
        let found = found.map_err(|e| Failure::internal(e.to_string()))?;
        found.ok_or_else(|| Failure::internal(format!("{} was never started", self.name)))
    }
}
