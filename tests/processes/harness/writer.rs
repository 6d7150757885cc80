//! A stream of writes and their outcomes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use muster_client::Client;
use muster_messages::wire::Request;
use muster_messages::{NodeId, NodeView};

/// Number of labels written in turn: a lost write is visible until its label's next turn.
const LABELS: u64 = 16;

/// A thread that writes 1, 2, 3, … into a few labels in turn, through any socket that answers. Every label's
/// value only grows.
pub struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    thread: JoinHandle<BTreeMap<String, u64>>,
}

impl Writer {
    /// Starts writing labels of `node`.
    pub fn start(sockets: Vec<PathBuf>, node: NodeId) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (stop.clone(), acknowledged.clone());
        let thread = std::thread::spawn(move || write(&sockets, node, &stopped, &count));
        Self { stop, acknowledged, thread }
    }

    /// The number of acknowledged writes.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Stops; returns the last acknowledged value per label.
    pub fn stop(self) -> BTreeMap<String, u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the writer does not panic")
    }
}

fn write(sockets: &[PathBuf], node: NodeId, stop: &AtomicBool, count: &AtomicU64) -> BTreeMap<String, u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut clients: Vec<Client> = sockets.iter().map(|s| Client::to_socket(s, Duration::from_secs(1))).collect();
    let (mut number, mut turn, mut last) = (1, 0, BTreeMap::new());
    while !stop.load(Ordering::Relaxed) {
        let label = format!("w{}", number % LABELS);
        let add = BTreeMap::from([(label.clone(), number.to_string())]);
        let request = Request::NodeUpdate { node: node.to_string(), add, remove: Vec::new(), generation: None };
        let client = &mut clients[turn % sockets.len()];
        match runtime.block_on(client.call(request)) {
            Ok(_) => {
                count.fetch_add(1, Ordering::Relaxed);
                last.insert(label, number);
            }
            Err(_) => turn += 1, // another socket; this number's outcome is unknown
        }
        number += 1;
    }
    last
}

/// Fails if an acknowledged write is missing.
#[track_caller]
pub fn assert_kept(acknowledged: &BTreeMap<String, u64>, node: &NodeView) {
    for (label, value) in acknowledged {
        let kept = node.labels.get(label).and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
        assert!(kept >= *value, "{label} was acknowledged as {value} and is {kept}");
    }
}
