//! Clients that write and read registers, and record what they saw. A register is a label of a node.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muster_client::{Client, Failure, Outcome};
use muster_messages::wire::Request;
use muster_messages::{NodeId, NodeView, Rng};
use muster_testkit::history::{End, History, MAX_CLIENTS, StartedOp, Value};
use tokio::runtime::Runtime;

use crate::harness::between_checks;

/// Timeout of an answer.
pub const DEADLINE: Duration = Duration::from_secs(3);

/// A failed request.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub asked: PathBuf,
    pub writes: bool,
    pub begun: Instant,
    pub failure: Failure,
}

/// Threads that write and read, each through its own sockets: the next one after a failure.
pub struct Clients {
    stop: Arc<AtomicBool>,
    refusals: Arc<Mutex<Vec<Refusal>>>,
    threads: Vec<(Arc<AtomicU64>, JoinHandle<()>)>,
}

impl Clients {
    /// One client per list of sockets. The registers are labels of this node.
    pub fn start(history: &History, node: NodeId, sockets: Vec<Vec<PathBuf>>) -> Self {
        assert!(sockets.len() <= MAX_CLIENTS, "more clients would exceed the checker's limit of open operations");
        let (stop, refusals) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let start = |(number, sockets): (usize, Vec<PathBuf>)| {
            let acknowledged = Arc::new(AtomicU64::new(0));
            let mut client = OneClient {
                history: history.clone(),
                node,
                sockets,
                turn: 0,
                rng: Rng::seeded(number as u64),
                refusals: Arc::clone(&refusals),
                acknowledged: Arc::clone(&acknowledged),
                runtime: runtime(),
            };
            let stop = Arc::clone(&stop);
            let thread = std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    client.work();
                    between_checks();
                }
            });
            (acknowledged, thread)
        };
        let threads = sockets.into_iter().enumerate().map(start).collect();
        Self { stop, refusals, threads }
    }

    /// The number of this client's acknowledged writes.
    pub fn acknowledged(&self, client: usize) -> u64 {
        self.threads[client].0.load(Ordering::Relaxed)
    }

    /// All failed requests so far.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets each client finish its operation.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for (_, thread) in self.threads {
            thread.join().expect("clients do not panic");
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A node's label, by a quorum read.
pub async fn read(client: &mut Client, node: NodeId, key: &str) -> Outcome<Value> {
    let seen: NodeView = client.ask(Request::NodeInspect { node: node.to_string(), fresh: true }).await?;
    Ok(seen.labels.get(key).and_then(|text| text.parse().ok()))
}

struct OneClient {
    history: History,
    node: NodeId,
    sockets: Vec<PathBuf>,
    turn: usize,
    rng: Rng,
    refusals: Arc<Mutex<Vec<Refusal>>>,
    acknowledged: Arc<AtomicU64>,
    runtime: Runtime,
}

impl OneClient {
    /// One operation, or two where a key is retired.
    fn work(&mut self) {
        let slot = self.rng.index(usize::MAX);
        let begun = if self.rng.one_in(2) { self.history.begin_write(slot) } else { self.history.begin_read(slot) };
        if let Some(old) = self.carry_out(&begun) {
            let removal = self.history.begin_removal(&old);
            self.carry_out(&removal);
        }
    }

    fn socket(&self) -> &Path {
        &self.sockets[self.turn % self.sockets.len()]
    }

    fn carry_out(&mut self, begun: &StartedOp) -> Option<String> {
        let asked = self.socket().to_owned();
        // The connection comes first: an operation that could not be sent certainly did not happen.
        if UnixStream::connect(&asked).is_err() {
            self.turn += 1;
            return self.history.end(begun, End::Nothing);
        }
        let mut client = Client::to_socket(&asked, DEADLINE);
        let at = Instant::now();
        let done = self.runtime.block_on(async {
            match begun.writes {
                None => read(&mut client, self.node, &begun.key).await.map(End::ReadValue),
                Some(value) => client.call(self.write(&begun.key, value)).await.map(|_| End::Wrote),
            }
        });
        let end = done.unwrap_or_else(|failure| {
            self.turn += 1;
            let refusal = Refusal { asked, writes: begun.writes.is_some(), begun: at, failure };
            self.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(refusal);
            End::Unknown
        });
        self.acknowledged.fetch_add(u64::from(end == End::Wrote), Ordering::Relaxed);
        self.history.end(begun, end)
    }

    fn write(&self, key: &str, value: Value) -> Request {
        let add: BTreeMap<String, String> = value.map(|v| (key.to_owned(), v.to_string())).into_iter().collect();
        let remove = if value.is_none() { vec![key.to_owned()] } else { vec![] };
        Request::NodeUpdate { node: self.node.to_string(), add, remove, generation: None }
    }
}
