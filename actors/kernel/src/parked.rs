//! The reply ports of requests that a core has not answered yet.

use std::collections::BTreeMap;

use muster_messages::AskId;

/// Reply ports by the ids under which the core knows their requests. Dropping it closes all of them: their callers ask again.
#[derive(Debug)]
pub struct Parked<Port> {
    ports: BTreeMap<AskId, Port>,
    next: AskId,
}

impl<Port> Default for Parked<Port> {
    fn default() -> Self {
        Self { ports: BTreeMap::new(), next: AskId(1) }
    }
}

impl<Port> Parked<Port> {
    /// The id that the next [`Self::park`] returns.
    pub fn next_id(&self) -> AskId {
        self.next
    }
    /// Keeps a port; the core gets the id.
    pub fn park(&mut self, port: Port) -> AskId {
        let ask = self.next;
        self.next = AskId(ask.0 + 1);
        self.ports.insert(ask, port);
        ask
    }
    /// The port of a request that is answered now. `None`: it was answered before.
    pub fn take(&mut self, ask: AskId) -> Option<Port> {
        self.ports.remove(&ask)
    }
    /// How many requests are open.
    pub fn len(&self) -> usize {
        self.ports.len()
    }
    /// Whether no request is open.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
    /// Drops the ports for which this is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&Port) -> bool) {
        self.ports.retain(|_, port| keep(port));
    }
}
