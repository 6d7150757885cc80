//! What a node remembers beside its credentials; several actors of one process write it.

use std::sync::{Arc, Mutex, PoisonError};

use muster_pki::{IdentityFault, IdentityStore, LocalNode};

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
