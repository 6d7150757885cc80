//! Two candidates for one lease, in the tour: processes of `muster elect`, of which the holder is killed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_local_cluster::{ProcessId, parent, until};
use muster_messages::LeaseView;
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use rustix::process::Signal;
use tokio::process::{Child, Command};

use super::cluster::LocalCluster;
use super::steps::leader;

const LEASE: &str = "tour";

/// The observed handover.
pub struct Handover {
    pub from: Held,
    pub to: Held,
    /// From the kill until the other candidate's command ran.
    pub took: Duration,
}

/// A candidate and its fencing token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub holder: String,
    pub token: u64,
    /// The pid of its command.
    pid: u32,
}

/// Starts two candidates, kills the holder with kill -9, and waits until the other candidate's command runs.
pub async fn contend(cluster: &mut LocalCluster, folder: &Path) -> Outcome<Handover> {
    let socket = cluster.socket(&leader(cluster).await?);
    let record = folder.join("held");
    let mut candidates =
        ["first", "second"].map(|id| start(id, &socket, &record)).into_iter().collect::<Outcome<Vec<Candidate>>>()?;
    let from = nth(&record, 1).await?;
    let command = ProcessId::of(from.pid);
    let begun = Instant::now();
    let holder = candidates.iter().position(|candidate| candidate.id == from.holder);
    let holder = holder.ok_or_else(|| Failure::internal(format!("{} is not a candidate", from.holder)))?;
    let mut killed = candidates.swap_remove(holder);
    killed.end(Signal::KILL).await?;
    let to = nth(&record, 2).await?;
    let took = begun.elapsed();
    if command.is_none_or(ProcessId::is_alive) {
        let text = format!("the command of {} was still running when that of {} started", from.holder, to.holder);
        return Err(Failure::internal(text));
    }
    if to.holder == from.holder || to.token <= from.token {
        let (before, after) =
            (format!("{} (token {})", from.holder, from.token), format!("{} (token {})", to.holder, to.token));
        return Err(Failure::internal(format!("the lease passed from {before} to {after}")));
    }
    let lease = LeaseRef { namespace: "default".to_owned(), name: LEASE.to_owned() };
    let shown = cluster.ask(Request::Lease(LeaseRequest::Get { lease })).await?;
    let shown: LeaseView = serde_json::from_value(shown).map_err(Failure::internal)?;
    if shown.fencing_token.0 != to.token {
        let text = format!("the cluster shows token {}, but the holder has {}", shown.fencing_token.0, to.token);
        return Err(Failure::internal(text));
    }
    for candidate in &mut candidates {
        candidate.end(Signal::TERM).await?;
    }
    Ok(Handover { from, to, took })
}

struct Candidate {
    id: String,
    child: Child,
}

/// Starts a candidate whose command writes its holder, token and pid to `record`, then sleeps.
fn start(id: &str, socket: &Path, record: &Path) -> Outcome<Candidate> {
    let program = std::env::current_exe().map_err(|e| Failure::io("cannot find this program's path", &e))?;
    let mut command = std::process::Command::new(program);
    command.arg("--socket").arg(socket).args(["elect", LEASE, "--id", id]);
    command.args(["--lease-duration", "1s", "--renew-deadline", "700ms", "--retry-period", "200ms", "--"]);
    command.args(["sh", "-c", r#"echo "$MUSTER_HOLDER $MUSTER_FENCING_TOKEN $$" >> "$0"; exec sleep 600"#]).arg(record);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    parent::tie(&mut command);
    let child = Command::from(command).kill_on_drop(true).spawn();
    Ok(Candidate { id: id.to_owned(), child: child.map_err(|e| Failure::io("cannot start a candidate", &e))? })
}

impl Candidate {
    async fn end(&mut self, signal: Signal) -> Outcome {
        if let Some(process) = self.child.id().and_then(ProcessId::of) {
            process.signal(signal);
        }
        let ended = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await;
        ended.map_err(|_| Failure::internal(format!("candidate {} did not end", self.id))).map(drop)
    }
}

/// The `number`th holder, once its command has run.
async fn nth(record: &PathBuf, number: usize) -> Outcome<Held> {
    until("a candidate's command runs", async || {
        let written = std::fs::read_to_string(record).unwrap_or_default();
        // Only a complete line counts.
        let line = written.split_inclusive('\n').nth(number - 1).filter(|line| line.ends_with('\n'));
        Ok(line.and_then(|line| {
            let mut words = line.split_whitespace();
            let holder = words.next()?.to_owned();
            Some(Held { holder, token: words.next()?.parse().ok()?, pid: words.next()?.parse().ok()? })
        }))
    })
    .await
}
