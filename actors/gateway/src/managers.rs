//! The managers that this node knows, for refusals that redirect clients.

use std::sync::{Arc, PoisonError, RwLock};

/// A shared list of `host:port`. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct KnownManagers {
    list: Arc<RwLock<Vec<String>>>,
}

impl KnownManagers {
    pub fn new(managers: Vec<String>) -> Self {
        Self { list: Arc::new(RwLock::new(managers)) }
    }
    /// Replaces the list. An empty one is ignored: every cluster has managers.
    pub fn set(&self, managers: Vec<String>) {
        if !managers.is_empty() {
            *self.list.write().unwrap_or_else(PoisonError::into_inner) = managers;
        }
    }
    pub fn get(&self) -> Vec<String> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
