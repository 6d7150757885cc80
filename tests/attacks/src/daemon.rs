//! One daemon to attack.

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_local_cluster::{Lifetime, LocalNode};
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::Starts;
use muster_pki::IdentityStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A [`LocalNode`] with a given program and readable secrets.
pub struct Daemon {
    local: LocalNode,
    program: PathBuf,
    /// Its configuration file, if any.
    pub config: Option<PathBuf>,
    /// Its metrics address, once it serves.
    metrics: Option<String>,
}

impl Deref for Daemon {
    type Target = LocalNode;
    fn deref(&self) -> &LocalNode {
        &self.local
    }
}

impl DerefMut for Daemon {
    fn deref_mut(&mut self) -> &mut LocalNode {
        &mut self.local
    }
}

impl Daemon {
    /// A daemon run by `program musterd …`. Not started.
    pub fn new(program: &Path, folder: &Path, name: &str) -> Outcome<Self> {
        let local = LocalNode::at_free_address(folder, name)?;
        Ok(Self { local, program: program.to_owned(), config: None, metrics: None })
    }

    /// Starts it with these flags in addition to directory, name and address.
    pub fn start(&mut self, flags: &[&str]) -> Outcome {
        let mut command = Command::new(&self.program);
        command.arg("musterd").args(self.arguments()).args(flags);
        command.args(self.config.iter().flat_map(|file| [OsStr::new("--config"), file.as_os_str()]));
        self.local.start(command, Lifetime::Tied).map(drop)
    }

    /// Starts it and waits until it serves; returns the time.
    pub async fn start_and_wait(&mut self, flags: &[&str]) -> Outcome<Duration> {
        let begun = Instant::now();
        self.start(flags)?;
        self.metrics = Some(self.ready().await?.metrics);
        Ok(begun.elapsed())
    }

    /// Its metrics address, once it serves.
    pub fn metrics(&self) -> Option<&str> {
        self.metrics.as_deref()
    }

    /// The current value of a metric.
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
