//! Load: many clients, each with one connection to the leader and one request in flight, as `muster bench` has them.
//!
//! The result is a document as `muster bench -o json` prints it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::Outcome;
use crate::api::{Client, Compare, PutRequest, RangeRequest, RequestOp, TARGET_MOD, TxnRequest};

/// Bytes of a value: about a lease with its holder.
const VALUE_BYTES: usize = 256;

/// The key that all clients read, as Muster's all read one node.
const READ_KEY: &str = "bench/read";

/// How long the members may take to elect a leader that all of them know.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq)]
enum Op {
    Cas,
    Read,
}

struct Leader {
    endpoint: String,
    term: u64,
    version: String,
}

/// Waits until all members follow one leader, and prints their version.
pub fn wait(endpoints: &str) -> Outcome<()> {
    let leader = block_on(leader(endpoints))?;
    println!("{}", leader.version);
    Ok(())
}

/// Puts load on the leader and prints what was measured.
pub fn run(endpoints: &str, op: &str, clients: &str, seconds: &str) -> Outcome<()> {
    let op = match op {
        "cas" => Op::Cas,
        "read" => Op::Read,
        other => return Err(format!("{other}: the operations are cas and read")),
    };
    let clients = clients.parse().map_err(|_| format!("{clients}: not a number of clients"))?;
    let seconds = seconds.parse().map_err(|_| format!("{seconds}: not a number of seconds"))?;
    block_on(measure(endpoints, op, clients, Duration::from_secs(seconds)))
}

fn block_on<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| format!("cannot start the async runtime: {error}"))?.block_on(work)
}

async fn leader(endpoints: &str) -> Outcome<Leader> {
    let until = Instant::now() + ELECTION_TIMEOUT;
    loop {
        match agreed_leader(endpoints).await {
            Ok(leader) => return Ok(leader),
            Err(why) if Instant::now() >= until => return Err(why),
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

async fn agreed_leader(endpoints: &str) -> Outcome<Leader> {
    let (mut found, mut named) = (None, Vec::new());
    for endpoint in endpoints.split(',') {
        let status = Client::connect(endpoint).await?.status().await?;
        let member = status.header.as_ref().map_or(0, |header| header.member_id);
        named.push(status.leader);
        if member == status.leader {
            found = Some(Leader { endpoint: endpoint.to_owned(), term: status.raft_term, version: status.version });
        }
    }
    let agreed = named.iter().all(|leader| *leader == named[0] && *leader != 0);
    found.filter(|_| agreed).ok_or_else(|| format!("the members know different leaders: {named:x?}"))
}

/// A client, and what it repeats.
struct LoadClient {
    client: Client,
    key: Vec<u8>,
    /// The revision of the key that it saw last.
    revision: i64,
    op: Op,
}

impl LoadClient {
    /// Connects, and writes the key that it reads or changes.
    async fn connect(endpoint: &str, op: Op, number: u32) -> Outcome<Self> {
        let key = match op {
            Op::Cas => format!("bench/client-{number}").into_bytes(),
            Op::Read => READ_KEY.as_bytes().to_vec(),
        };
        let mut client = Client::connect(endpoint).await?;
        let put = client.put(PutRequest { key: key.clone(), value: vec![b'-'; VALUE_BYTES] }).await?;
        Ok(Self { client, key, revision: put.header.map_or(0, |header| header.revision), op })
    }

    /// One operation, the `number`th of this client.
    async fn once(&mut self, number: u64) -> Outcome<()> {
        match self.op {
            Op::Cas => self.change(number).await,
            Op::Read => match self.newest().await {
                Ok((_, bytes)) if bytes != VALUE_BYTES => Err(format!("a value of {bytes} bytes was read")),
                read => read.map(drop),
            },
        }
    }

    /// Writes the key unless it was changed since.
    async fn change(&mut self, number: u64) -> Outcome<()> {
        let mut value = vec![b'-'; VALUE_BYTES];
        value[..8].copy_from_slice(&number.to_be_bytes());
        let unchanged = Compare { target: TARGET_MOD, key: self.key.clone(), mod_revision: Some(self.revision) };
        let put = RequestOp { request_put: Some(PutRequest { key: self.key.clone(), value }) };
        let answer = self.client.txn(TxnRequest { compare: vec![unchanged], success: vec![put] }).await?;
        if !answer.succeeded {
            // An earlier update of unknown outcome had been applied.
            self.revision = self.newest().await?.0;
            return Err("conflict: the key was changed".to_owned());
        }
        self.revision = answer.header.map_or(0, |header| header.revision);
        Ok(())
    }

    /// The key's revision and the size of its value, by a linearizable read.
    async fn newest(&mut self) -> Outcome<(i64, usize)> {
        let answer = self.client.range(RangeRequest { key: self.key.clone() }).await?;
        let found = answer.kvs.first().ok_or("the key is missing")?;
        Ok((found.mod_revision, found.value.len()))
    }
}

#[derive(Default)]
struct Measured {
    times: Vec<Duration>,
    errors: u64,
    /// The first error, to be shown.
    error: Option<String>,
}

async fn measure(endpoints: &str, op: Op, clients: u32, lasting: Duration) -> Outcome<()> {
    let before = leader(endpoints).await?;
    // All clients are connected before the measurement starts.
    let mut ready = Vec::new();
    for number in 0..clients {
        ready.push(LoadClient::connect(&before.endpoint, op, number).await?);
    }
    let begun = Instant::now();
    let start = |client| tokio::spawn(one_client(client, begun, lasting));
    let tasks: Vec<_> = ready.into_iter().map(start).collect();
    let mut all = Measured::default();
    for task in tasks {
        let one = task.await.map_err(|error| error.to_string())?;
        all.times.extend(one.times);
        all.errors += one.errors;
        all.error = all.error.or(one.error);
    }
    let took = begun.elapsed();
    let changes = leader(endpoints).await?.term.saturating_sub(before.term);
    if let Some(error) = &all.error {
        eprintln!("the first of {} errors: {error}", all.errors);
    }
    all.times.sort_unstable();
    let rank = |percent| rank_ms(&all.times, percent);
    let (op, per_s) = (if op == Op::Cas { "cas" } else { "read" }, all.times.len() as f64 / took.as_secs_f64());
    let document = json!({"op": op, "via": "grpc", "clients": clients, "per_s": per_s.round(), "p50_ms": rank(50),
        "p99_ms": rank(99), "max_ms": rank(100), "ops": all.times.len(), "errors": all.errors,
        "seconds": took.as_secs_f64(), "transport": "plain", "leader_changes": changes});
    println!("{}", json!({"runs": [document]}));
    Ok(())
}

async fn one_client(mut client: LoadClient, begun: Instant, lasting: Duration) -> Measured {
    let mut measured = Measured::default();
    let mut number = 0;
    while begun.elapsed() < lasting {
        number += 1;
        let asked = Instant::now();
        match client.once(number).await {
            Ok(()) => measured.times.push(asked.elapsed()),
            Err(error) => {
                measured.errors += 1;
                measured.error.get_or_insert(error);
            }
        }
    }
    measured
}

/// The nearest-rank percentile of times in order, in milliseconds; 0 without times.
fn rank_ms(times: &[Duration], percent: usize) -> f64 {
    let at = (times.len() * percent).div_ceil(100).max(1) - 1;
    times.get(at).map_or(0.0, |time| (time.as_secs_f64() * 1e6).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let times: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!((rank_ms(&times, 50), rank_ms(&times, 99), rank_ms(&times, 100)), (50.0, 99.0, 100.0));
        assert_eq!((rank_ms(&[Duration::from_micros(1500)], 99), rank_ms(&[], 50)), (1.5, 0.0));
    }
}
