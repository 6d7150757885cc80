//! The contended elections below the elections actor: one child per contended lease, started with its first candidate and
//! stopped after its last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use muster_kernel::{Address, Children, Slot};
use muster_messages::{CoordinationCounts, ObjectKey, Tables};

use crate::core::board::{Board, BoardChange, Scene};
use crate::election::{ElectionPorts, Msg, election_name, election_spec};
use crate::shell::ElectionsPorts;

struct Child {
    address: Address<Msg>,
    scene: Slot<Arc<Scene>>,
}

/// See the module.
pub(crate) struct ContendedElections {
    ports: ElectionsPorts,
    board: Board,
    children: BTreeMap<ObjectKey, Child>,
    /// Contended leases beyond the bound.
    unattended: BTreeSet<ObjectKey>,
}

impl ContendedElections {
    pub fn new(ports: ElectionsPorts) -> Self {
        let board = Board::new(ports.config.max_candidates);
        Self { ports, board, children: BTreeMap::new(), unattended: BTreeSet::new() }
    }

    /// Applies a newer replica. `group` makes the children's group, which need not exist before the first child.
    pub fn observe(&mut self, group: impl Fn() -> Children, tables: &Tables) {
        for news in self.board.observe(tables) {
            match news {
                BoardChange::Changed(scene) => self.show(&group, scene),
                BoardChange::Closed(key) => self.close(&group, &key),
            }
        }
    }

    fn show(&mut self, group: &impl Fn() -> Children, scene: Arc<Scene>) {
        if let Some(child) = self.children.get(&scene.key) {
            child.scene.set(scene);
            // Not running: it reads the scene when it starts. Mailbox full: it reads the scene anyway.
            let _observes_anyway = child.address.tell(Msg::SceneChanged);
        } else if self.children.len() < self.ports.config.max_contests {
            self.open(group, scene);
        } else if self.unattended.insert(scene.key.clone()) {
            tracing::warn!(lease = %scene.key, "limit of contended leases reached; this one waits");
        }
    }

    fn open(&mut self, group: &impl Fn() -> Children, scene: Arc<Scene>) {
        let (key, slot, address) =
            (scene.key.clone(), Slot::new(), Address::new(self.ports.config.coordination.mailbox));
        slot.set(scene);
        let ports = ElectionPorts {
            config: self.ports.config.coordination.clone(),
            term: self.ports.term,
            raft: self.ports.raft.clone(),
            scene: slot.clone(),
            memory: Slot::new(),
            counts: Arc::clone(&self.ports.counts),
        };
        group().start(election_spec(&key, address.clone(), ports));
        self.children.insert(key, Child { address, scene: slot });
    }

    fn close(&mut self, group: &impl Fn() -> Children, key: &ObjectKey) {
        self.unattended.remove(key);
        if self.children.remove(key).is_none() {
            return;
        }
        group().stop(&election_name(key));
        if let Some(next) = self.unattended.pop_first()
            && let Some(scene) = self.board.scene(&next)
        {
            self.open(group, Arc::new(scene));
        }
    }

    /// How many there are, and how many of them wait.
    pub fn count(&self) -> (usize, usize) {
        (self.children.len(), self.unattended.len())
    }

    pub fn counts(&self) -> CoordinationCounts {
        *self.ports.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
