//! A flood and the joins during it.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use muster_client::{Failure, Outcome};
use muster_messages::Role;
use muster_messages::wire::Request;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::connection::connection;
use super::{Door, Flood, Kind, Who};
use crate::caller::Caller;
use crate::cluster::{self, Cluster};
use crate::daemon::Daemon;
use crate::pause::scenario_pause;
use crate::watch::{LogMark, Logged, open_files, rss_kib};

/// Maximum number of concurrent connection attempts of one flood.
const MAX_CONCURRENT_DIALS: usize = 256;
/// Delay between two connections of one attacker: a higher rate would measure the attacker, not the victim.
const RECONNECT_DELAY: Duration = Duration::from_millis(2);

/// Longer joins are shown with their logs.
const SLOW_JOIN: Duration = Duration::from_secs(1);

/// The honest nodes' activity.
#[derive(Clone, Copy, Debug)]
pub struct HonestLoad {
    /// Between two joins.
    pub join_every: Duration,
}

/// The observations.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    pub connections: usize,
    /// Maximum number of open connections.
    pub held: usize,
    pub bytes: usize,
    pub requests: usize,
    pub joins: Vec<Duration>,
    pub failed_joins: Vec<String>,
    /// The logs of joins that took longer than `SLOW_JOIN`.
    pub slow_joins: Vec<String>,
    pub rss_before_kib: u64,
    pub rss_most_kib: u64,
    pub files_most: usize,
    pub logged: Logged,
    pub lasted: Duration,
    /// Leader and term, before and after.
    pub leader: [(String, u64); 2],
}

#[derive(Default)]
struct Tally {
    connections: AtomicUsize,
    open: AtomicUsize,
    held: AtomicUsize,
    bytes: AtomicUsize,
    requests: AtomicUsize,
}

/// Runs these floods in parallel against one manager of the cluster.
pub async fn flood(cluster: &Cluster, victim: &str, floods: &[Flood], meanwhile: HonestLoad) -> Outcome<Outcomes> {
    let node = cluster.node(victim);
    let pid = node.pid().ok_or_else(|| Failure::internal("the victim does not run"))?;
    let mark = LogMark::here(node.log_file.clone());
    let before = cluster.leader(victim).await?;
    let mut seen = Outcomes { rss_before_kib: rss_kib(pid).unwrap_or(0), ..Outcomes::default() };
    let begun = Instant::now();
    let until = begun + floods.iter().map(|f| f.lasts).max().unwrap_or_default();
    let tally = Arc::new(Tally::default());
    let mut attackers = JoinSet::new();
    for flood in floods {
        attackers.spawn(attack(*flood, caller(cluster, victim, *flood)?, begun + flood.lasts, tally.clone()));
    }
    let sampler = tokio::spawn(sample(pid, until));
    let joined = joins(cluster, victim, until, meanwhile, &tally).await;
    while attackers.join_next().await.is_some() {}
    (seen.rss_most_kib, seen.files_most) = sampler.await.unwrap_or_default();
    seen.lasted = begun.elapsed();
    (seen.joins, seen.failed_joins, seen.slow_joins) = joined?;
    seen.leader = [before, cluster.leader(victim).await?];
    let load = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    (seen.connections, seen.held) = (load(&tally.connections), load(&tally.held));
    (seen.bytes, seen.requests) = (load(&tally.bytes), load(&tally.requests));
    // Log lines about the removal of joiners belong to the joins.
    seen.logged = mark.read(|line| line.contains("muster_role_manager::shell: proposing a command"));
    Ok(seen)
}

/// The attacker's identity and target.
fn caller(cluster: &Cluster, victim: &str, flood: Flood) -> Outcome<Caller> {
    let to = cluster.node(victim).listen;
    let caller = match flood.who {
        Who::Stranger => Caller::unauthenticated(to, flood.door.alpn()),
        Who::Node => {
            let wanted = if flood.door == Door::Mesh { "manager" } else { "worker" };
            let fits = |name: &&String| {
                let credentials = cluster.node(name).credentials();
                let role = credentials.ok().and_then(|c| c.identity.node()).map(|(_, role)| role.to_string());
                name.as_str() != victim && role.as_deref() == Some(wanted)
            };
            let names = cluster.names();
            let thief = names
                .iter()
                .rev()
                .find(fits)
                .ok_or_else(|| Failure::internal(format!("no {wanted} to take credentials from")))?;
            Caller::with(to, flood.door.alpn(), &cluster.node(thief).credentials()?)?
        }
    };
    // Join requests are limited by source: a flooding source has used up its share, and honest nodes come
    // from another. Everything else comes from the same address as the honest nodes.
    let shared = !(flood.kind == Kind::Requests && flood.door == Door::Join);
    Ok(if shared { caller } else { caller.from(Ipv4Addr::new(127, 0, 0, 9)) })
}

async fn attack(flood: Flood, caller: Caller, until: Instant, tally: Arc<Tally>) {
    let opening = Arc::new(Semaphore::new(MAX_CONCURRENT_DIALS));
    let mut connections = JoinSet::new();
    for _ in 0..flood.connections {
        let (caller, opening, tally) = (caller.clone(), opening.clone(), tally.clone());
        connections.spawn(async move {
            while Instant::now() < until {
                let permit = opening.clone().acquire_owned().await.expect("never closed");
                if Instant::now() >= until {
                    break;
                }
                let _open = OpenGuard(&tally);
                let up = || {
                    tally.connections.fetch_add(1, Ordering::Relaxed);
                    let open = tally.open.fetch_add(1, Ordering::Relaxed) + 1;
                    tally.held.fetch_max(open, Ordering::Relaxed);
                    drop(permit);
                };
                let connection = timeout_at(until, Box::pin(connection(flood, &caller, until, up))).await;
                if let Ok(Ok(done)) = connection {
                    tally.bytes.fetch_add(done.bytes, Ordering::Relaxed);
                    tally.requests.fetch_add(done.requests, Ordering::Relaxed);
                }
                scenario_pause("the rate of one attacker", RECONNECT_DELAY).await;
            }
        });
    }
    while connections.join_next().await.is_some() {}
}

/// Counts an open connection down; one that failed to open was not counted up, so the count never goes below zero.
struct OpenGuard<'a>(&'a Tally);
impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        let _none = self.0.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

async fn sample(pid: i32, until: Instant) -> (u64, usize) {
    let mut most = (0, 0);
    while Instant::now() < until {
        most = (most.0.max(rss_kib(pid).unwrap_or(0)), most.1.max(open_files(pid)));
        scenario_pause("the interval of samples", Duration::from_millis(100)).await;
    }
    most
}

/// Times, failures, and the logs of slow joins.
type Joins = (Vec<Duration>, Vec<String>, Vec<String>);

/// Nodes join one after the other, each in its own process, from start to ready; each is removed again.
async fn joins(
    cluster: &Cluster,
    victim: &str,
    until: Instant,
    meanwhile: HonestLoad,
    tally: &Tally,
) -> Outcome<Joins> {
    let (mut took, mut failed, mut slow) = (Vec::new(), Vec::new(), Vec::new());
    let (seed, token) = (cluster.node(victim).listen.to_string(), cluster.token(Role::Worker).await?);
    // A flood that opens nothing ends, too.
    cluster::until("the flood has begun", async || {
        let has_begun = tally.connections.load(Ordering::Relaxed) > 0 || Instant::now() >= until;
        Ok(has_begun.then_some(()))
    })
    .await?;
    // At least one join, however short the flood.
    let mut number = 0;
    while Instant::now() < until || number == 0 {
        number += 1;
        let next = Instant::now() + meanwhile.join_every;
        let name = format!("j{number}");
        let mut node = Daemon::new(cluster.program(), cluster.folder(), &name)?;
        let flags = ["--join", &seed, "--token", &token, "--metrics", "off"];
        let result = node.start_and_wait(&flags).await;
        let id = node.credentials().ok().and_then(|c| c.identity.node()).map(|(id, _)| id.to_string());
        node.kill().await;
        match result {
            Ok(time) => {
                took.push(time);
                if time > SLOW_JOIN {
                    slow.push(format!("{time:?}: {}", node.log()));
                }
            }
            Err(failure) => failed.push(failure.to_string()),
        }
        if let Some(node) = id {
            // The socket is not flooded; a failed removal leaves one more dead worker in the list.
            let _kept = cluster.ask(victim, Request::NodeRemove { node, force: true }).await;
        }
        let _gone = std::fs::remove_dir_all(&node.folder);
        let _gone = std::fs::remove_file(&node.log_file);
        let left = next.min(until).saturating_duration_since(Instant::now());
        scenario_pause("the interval of joins", left).await;
    }
    Ok((took, failed, slow))
}
