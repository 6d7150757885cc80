//! Load from one client: it sends well-formed requests at full speed, as many in flight as permitted, and ignores
//! retry times; meanwhile another client works. Every request must be answered.

mod ask;
mod honest;
mod http;
mod http2;
mod join;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_client::{Failure, Outcome};
use muster_messages::protocol::Service;
use muster_messages::{ErrorBody, Role};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use self::honest::Honest;
use crate::caller::Caller;
use crate::cluster::Cluster;
use crate::pause::scenario_pause;
use crate::watch::rss_kib;

/// The loaded endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Door {
    /// `muster-api/1` over TLS, as an operator with an identity file.
    Api,
    /// The same over HTTP/1.1, pipelined.
    Http,
    /// The same over HTTP/2.
    Http2,
    /// The admin socket.
    Socket,
    /// The join service, from one address: half of the connections request the root, three times; the others join.
    Join,
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Say {
    /// Quorum reads.
    Reads,
    /// Entries in the log.
    Writes,
    /// Long polls: each holds its permit for a second.
    Polls,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Rush {
    pub door: Door,
    pub say: Say,
    pub requests: usize,
    /// Concurrent connections, each with as many requests in flight as accepted.
    pub connections: usize,
}

/// Every useful run.
pub fn every() -> impl Iterator<Item = (Door, Say)> {
    let asked = [Door::Api, Door::Http, Door::Http2, Door::Socket].into_iter().flat_map(|door| {
        let polls = matches!(door, Door::Api | Door::Socket).then_some(Say::Polls); // over HTTP they wait for 25 s
        [Say::Reads, Say::Writes].into_iter().chain(polls).map(move |say| (door, say))
    });
    asked.chain([(Door::Join, Say::Writes)])
}

/// The results of the requests.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    pub ok: usize,
    /// Rejected with a retry time.
    pub later: usize,
    /// Other refusals, by message.
    pub other: BTreeMap<String, usize>,
    /// Without an answer: the connection ended, or was silent for a minute.
    pub none: usize,
}

impl Answers {
    fn of(&mut self, result: Result<(), ErrorBody>) {
        match result {
            Ok(()) => self.ok += 1,
            Err(error) if error.retry_after_ms.is_some() => self.later += 1,
            Err(error) => self.refused(format!("{}: {error}", error.code)),
        }
    }
    fn of_status(&mut self, status: u16, later: bool) {
        match status {
            200 => self.ok += 1,
            429 | 503 if later => self.later += 1,
            other => self.refused(other.to_string()),
        }
    }
    fn refused(&mut self, what: String) {
        *self.other.entry(what).or_default() += 1;
    }
    fn answered(&self) -> usize {
        self.ok + self.later + self.other.values().sum::<usize>()
    }
    fn add(&mut self, more: Answers) {
        (self.ok, self.later, self.none) = (self.ok + more.ok, self.later + more.later, self.none + more.none);
        more.other.into_iter().for_each(|(what, count)| *self.other.entry(what).or_default() += count);
    }
}

/// The observations.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub answers: Answers,
    pub lasted: Duration,
    pub rss_before_kib: u64,
    pub rss_most_kib: u64,
    pub rss_after_kib: u64,
    /// Sorted durations of the other client's requests, and its failures.
    pub others: Vec<Duration>,
    pub failed: Vec<String>,
}

impl Seen {
    /// A percentile of the other client's durations.
    pub fn within(&self, percent: usize) -> Duration {
        let at = (self.others.len() * percent / 100).min(self.others.len().saturating_sub(1));
        self.others.get(at).copied().unwrap_or_default()
    }
    pub fn grown_mb(&self) -> u64 {
        self.rss_most_kib.saturating_sub(self.rss_before_kib) / 1024
    }
}

/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs one load against a manager.
pub async fn rush(cluster: &Cluster, victim: &str, rush: Rush) -> Outcome<Seen> {
    let node = cluster.node(victim);
    let pid = node.pid().ok_or_else(|| Failure::internal("the victim does not run"))?;
    let honest = Honest::new(cluster, victim, rush.door).await?;
    let workers = workers(cluster, victim, rush).await?;
    let over = Arc::new(AtomicBool::new(false));
    let rss = |pid| rss_kib(pid).unwrap_or(0);
    let mut seen = Seen { rss_before_kib: rss(pid), ..Seen::default() };
    let (begun, meanwhile) = (Instant::now(), tokio::spawn(honest.work(Arc::clone(&over))));
    let sampler = tokio::spawn(sample(pid, Arc::clone(&over)));
    let mut rushing = JoinSet::new();
    workers.into_iter().for_each(|worker| drop(rushing.spawn(worker)));
    while let Some(answers) = rushing.join_next().await {
        seen.answers.add(answers.map_err(Failure::internal)?);
    }
    seen.lasted = begun.elapsed();
    over.store(true, Ordering::Relaxed);
    seen.rss_most_kib = sampler.await.unwrap_or(0);
    (seen.others, seen.failed) =
        timeout(ANSWER_TIMEOUT, meanwhile).await.map_err(Failure::internal)?.unwrap_or_default();
    seen.others.sort_unstable();
    seen.rss_after_kib = rss(pid);
    Ok(seen)
}

async fn sample(pid: i32, over: Arc<AtomicBool>) -> u64 {
    let mut most = 0;
    while !over.load(Ordering::Relaxed) {
        most = most.max(rss_kib(pid).unwrap_or(0));
        scenario_pause("the interval of samples", Duration::from_millis(20)).await;
    }
    most
}

type Worker = futures_util::future::BoxFuture<'static, Answers>;

/// One per connection, already connected if it uses one connection for all requests.
async fn workers(cluster: &Cluster, victim: &str, rush: Rush) -> Outcome<Vec<Worker>> {
    let to = cluster.node(victim).listen;
    let each = rush.requests.div_ceil(rush.connections);
    let mut workers: Vec<Worker> = Vec::new();
    let operator = match rush.door {
        Door::Api | Door::Http | Door::Http2 => {
            Some(cluster.user(&format!("rush-{}", rand::random::<u32>()), muster_messages::UserKind::Operator).await?)
        }
        Door::Socket | Door::Join => None,
    };
    let asked = match (rush.door, &operator) {
        (Door::Join, _) => Some(join::Request::new(cluster, cluster.token(Role::Worker).await?)?),
        _ => None,
    };
    for number in 0..rush.connections {
        let first = number * each;
        let mine = first..rush.requests.min(first + each);
        let failed = |e: std::io::Error| Failure::io("cannot connect", &e);
        workers.push(match (rush.door, &operator, &asked) {
            (Door::Http, Some(operator), _) => {
                let tls = Caller::with(to, &[b"http/1.1"], operator)?.tls().await.map_err(failed)?;
                Box::pin(http::ask(tls, rush.say, mine))
            }
            (Door::Http2, Some(operator), _) => {
                let tls = Caller::with(to, &[b"h2"], operator)?.tls().await.map_err(failed)?;
                Box::pin(http2::ask(tls, rush.say, mine))
            }
            (Door::Api, Some(operator), _) => {
                let greeted = Caller::with(to, Service::Api.alpn(), operator)?.greeted().await;
                Box::pin(ask::ask(greeted.map_err(|no| Failure::internal(format!("{no:?}")))?, rush.say, mine))
            }
            (Door::Join, _, Some(request)) => {
                let caller = Caller::unauthenticated(to, Service::Join.alpn()).from(Ipv4Addr::new(127, 0, 0, 9));
                Box::pin(join::ask(caller, request.clone(), number % 2 == 0, mine))
            }
            _ => {
                let socket = tokio::net::UnixStream::connect(cluster.node(victim).socket()).await.map_err(failed)?;
                Box::pin(ask::ask(muster_gateway::Framed::new(socket), rush.say, mine))
            }
        });
    }
    Ok(workers)
}

/// One table row.
pub struct Row<'a>(pub Rush, pub &'a Seen);

/// The table's head, in Markdown.
pub fn header() -> &'static str {
    "| rush | requests | seconds | ok | told to retry | refused otherwise | no answer | rss MB before → most → after | other client | failed | p50 ms | p99 ms | max ms |\n\
     |---|---|---|---|---|---|---|---|---|---|---|---|---|"
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row(Rush { door, say, requests, connections }, seen) = self;
        let Answers { ok, later, other, none } = &seen.answers;
        let what = if *door == Door::Join { "Join".to_owned() } else { format!("{door:?} {say:?}") };
        let ms = |percent| seen.within(percent).as_secs_f64() * 1000.0;
        write!(
            f,
            "| {what}, {connections} connections | {requests} | {:.1} | {ok} | {later} | {} | {none} | {} → {} → {} | {} | {} | {:.1} | {:.1} | {:.1} |",
            seen.lasted.as_secs_f64(),
            other.values().sum::<usize>(),
            seen.rss_before_kib / 1024,
            seen.rss_most_kib / 1024,
            seen.rss_after_kib / 1024,
            seen.others.len(),
            seen.failed.len(),
            ms(50),
            ms(99),
            ms(100),
        )
    }
}
