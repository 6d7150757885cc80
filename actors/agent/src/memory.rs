//! What a node remembers beside its credentials; several actors of one process write it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_pki::{IdentityFault, IdentityStore, LocalNode};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use crate::line::chain;

/// Read-modify-write of `identity/node.json`, one writer at a time. Clones share it. Blocking: writes sync the disk,
/// so callers on the runtime use `spawn_blocking`.
#[derive(Clone, Debug)]
pub struct NodeMemory {
    store: IdentityStore,
    turn: Arc<Mutex<()>>,
}

impl NodeMemory {
    /// One per process and identity folder.
    pub fn new(store: IdentityStore) -> Self {
        Self { store, turn: Arc::default() }
    }
    /// The folder behind it.
    pub fn store(&self) -> &IdentityStore {
        &self.store
    }
    pub fn load(&self) -> Result<LocalNode, IdentityFault> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.store.load_node()
    }
    /// Changes it; writes only differences.
    pub fn update(&self, change: impl FnOnce(&mut LocalNode)) -> Result<(), IdentityFault> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.store.load_node()?;
        let mut new = old.clone();
        change(&mut new);
        if new == old {
            return Ok(());
        }
        self.store.save_node(&new)
    }
}

/// How long a stopping agent waits for pending writes. A disk that hangs does not keep the process alive.
const PENDING_WRITES_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes of the agent, on the blocking pool. A failed one is only logged: the node learns the values again from the next
/// manager.
pub(crate) struct PendingWrites {
    memory: NodeMemory,
    writes: JoinSet<()>,
}

impl PendingWrites {
    pub fn new(memory: NodeMemory) -> Self {
        Self { memory, writes: JoinSet::new() }
    }

    pub fn change(&mut self, change: impl FnOnce(&mut LocalNode) + Send + 'static) {
        while self.writes.try_join_next().is_some() {}
        let memory = self.memory.clone();
        self.writes.spawn_blocking(move || {
            if let Err(error) = memory.update(change) {
                warn!(error = chain(&error), "cannot write the node's memory (node.json)");
            }
        });
    }

    pub async fn finish(&mut self) {
        if timeout(PENDING_WRITES_TIMEOUT, async { while self.writes.join_next().await.is_some() {} }).await.is_err() {
            warn!("stopping with unwritten node state (last refusal, manager list)");
        }
    }
}
