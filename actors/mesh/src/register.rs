//! The register: checks each hello against the identity bindings, and whether an old process is still alive.
//!
//! Owns        the identity bindings, which survive the mesh's restarts; the rejected processes, for the log and the view.
//! Inputs      hellos; the bindings of other managers; answers of old processes.
//! Outputs     `Refusal`s that name both processes; one log line for each rejected process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_gateway::Framed;
use muster_kernel::Clock;
use muster_messages::wire::{IdentityBinding, MeshHello, Refusal, StartId, Starts};
use muster_messages::{IdentitiesView, Moment, NodeId, RaftId, RefusalReason};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::core::bindings::{IdentityBindings, Newcomer, NewcomerDecision, Opening, Reaction};
use crate::core::hello::Own;
use crate::dial::Dial;
use crate::greeting::current;
use crate::session::Sessions;

/// How long an old process has to answer at its address, and again to send something in its session. Both fit into the hello
/// deadline (5 s); a handshake takes a hundredth of it.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(2);
/// A rejected process that has not come back for this long is no longer shown.
const REJECTION_RETENTION: Duration = Duration::from_secs(120);

/// The state that survives the mesh's restarts.
#[derive(Clone, Debug)]
pub struct BindingStore(Arc<Mutex<StoredBindings>>);

#[derive(Debug)]
struct StoredBindings {
    bindings: IdentityBindings,
    /// The latest one of each node.
    rejected: BTreeMap<NodeId, Rejected>,
    refused: u64,
}

#[derive(Clone, Debug)]
struct Rejected {
    newcomer: Newcomer,
    binding: IdentityBinding,
    since: muster_messages::WallTime,
    last: Moment,
}

impl BindingStore {
    pub fn new(me: NodeId) -> Self {
        Self(Arc::new(Mutex::new(StoredBindings {
            bindings: IdentityBindings::new(me),
            rejected: BTreeMap::new(),
            refused: 0,
        })))
    }
    fn lock(&self) -> MutexGuard<'_, StoredBindings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
pub struct Register {
    pub starts: Starts,
    pub advertise: String,
    binding_store: BindingStore,
    sessions: Sessions,
    dialer: Arc<dyn Dial>,
    own_hello: watch::Receiver<Option<Own>>,
}

impl Register {
    pub fn new(
        (starts, advertise): (Starts, String),
        binding_store: BindingStore,
        sessions: Sessions,
        dialer: Arc<dyn Dial>,
        own_hello: watch::Receiver<Option<Own>>,
    ) -> Self {
        Self { starts, advertise, binding_store, sessions, dialer, own_hello }
    }

    /// This side's hello, with this process's identity and a new tag.
    pub fn hello(&self, own: Own, probe: bool) -> MeshHello {
        let (starts, advertise) = (self.starts.clone(), self.advertise.clone());
        MeshHello { starts, advertise, ..own.hello(rand::random(), probe) }
    }

    /// Whether a process is accepted; the process that was queried before and did not answer.
    pub async fn decide(&self, newcomer: &Newcomer) -> Result<Option<StartId>, Refusal> {
        let decided = self.binding_store.lock().bindings.decide(newcomer, |start| self.is_open(start));
        match decided {
            NewcomerDecision::Accept => Ok(None),
            NewcomerDecision::Refuse(binding) => Err(self.reject(newcomer, *binding, false)),
            NewcomerDecision::Ask(binding) if self.alive(&binding).await => Err(self.reject(newcomer, *binding, true)),
            NewcomerDecision::Ask(binding) => Ok(binding.starts.this()),
        }
    }

    /// Accepts the process after its hello, unless another one was accepted meanwhile. See [`IdentityBindings::confirm`].
    pub fn take(&self, newcomer: Newcomer, asked: Option<StartId>, can_open: bool) -> Opening {
        let mut stored = self.binding_store.lock();
        stored.bindings.confirm(Clock.wall(), newcomer, asked, can_open, |start| self.is_open(start))
    }

    pub fn member_id_announced(&self, node: NodeId, start: StartId, member_id: RaftId) -> bool {
        self.binding_store.lock().bindings.member_id_announced(node, start, member_id)
    }
    pub fn all(&self) -> Vec<IdentityBinding> {
        self.binding_store.lock().bindings.all()
    }
    pub fn reported(&self, by: NodeId, bindings: Vec<IdentityBinding>) -> Vec<Reaction> {
        self.binding_store.lock().bindings.reported(by, bindings)
    }
    pub fn asked(&self, binding: &IdentityBinding, because: StartId, alive: bool) -> (bool, Option<StartId>) {
        let Some(start) = binding.starts.this() else { return (false, None) };
        self.binding_store.lock().bindings.asked(binding.node, start, because, alive)
    }
    pub fn forget(&self, node: NodeId) {
        let mut stored = self.binding_store.lock();
        stored.bindings.forget(node);
        stored.rejected.remove(&node);
    }

    /// Whether this process answers at its address, or sends something in its session with this manager.
    pub async fn alive(&self, binding: &IdentityBinding) -> bool {
        let Some(start) = binding.starts.this() else { return false };
        let before = self.bytes_read(start);
        if timeout(LIVENESS_TIMEOUT, self.who(&binding.addr, binding.node)).await == Ok(Some(start)) {
            return true;
        }
        let sends_data = async {
            while self.is_open(start) {
                if self.bytes_read(start) > before {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            false
        };
        timeout(LIVENESS_TIMEOUT, sends_data).await.unwrap_or(false)
    }

    /// The process that answers at `addr` as this node.
    async fn who(&self, addr: &str, node: NodeId) -> Option<StartId> {
        let own = current(self.own_hello.clone()).await.ok()?;
        let dialed = self.dialer.dial(addr, Some(node), Some(&self.hello(own, true))).await.ok()?;
        let theirs: MeshHello = Framed::new(dialed.stream).recv().await.ok()??;
        theirs.starts.this().filter(|_| theirs.node == node)
    }

    fn is_open(&self, start: StartId) -> bool {
        self.sessions.all().iter().any(|session| session.start == start && !session.ended().is_cancelled())
    }
    fn bytes_read(&self, start: StartId) -> u64 {
        self.sessions.all().iter().filter(|s| s.start == start).map(|s| s.meter.read()).sum()
    }

    fn reject(&self, newcomer: &Newcomer, binding: IdentityBinding, alive: bool) -> Refusal {
        let message = refusal_text(newcomer, &binding, alive);
        let now = Clock.now();
        let mut stored = self.binding_store.lock();
        stored.refused += 1;
        let fresh = |t: &&Rejected| t.newcomer.starts == newcomer.starts && now.since(t.last) < REJECTION_RETENTION;
        let since = stored.rejected.get(&newcomer.node).filter(fresh).map(|t| t.since);
        if since.is_none() {
            tracing::warn!(node = %newcomer.node, why = message, "second process of a manager rejected");
        }
        let since = since.unwrap_or_else(|| Clock.wall());
        stored.rejected.insert(newcomer.node, Rejected { newcomer: newcomer.clone(), binding, since, last: now });
        Refusal { reason: RefusalReason::Duplicate, message, managers: Vec::new(), retry_after_ms: Some(1000) }
    }

    pub fn view(&self) -> IdentitiesView {
        let (stored, now) = (self.binding_store.lock(), Clock.now());
        let rejected = stored.rejected.values().filter(|t| now.since(t.last) < REJECTION_RETENTION);
        let duplicates = rejected.map(|t| {
            json!({
                "node": t.newcomer.node, "since": t.since, "heard": binding_view(&t.binding),
                "refused": {"addr": t.newcomer.addr, "remote": t.newcomer.remote, "process": process(&t.newcomer.starts)},
            })
        });
        IdentitiesView {
            processes: stored.bindings.all().iter().map(binding_view).collect(),
            duplicates: duplicates.collect(),
            duplicates_refused: stored.refused,
        }
    }
}

fn binding_view(binding: &IdentityBinding) -> Value {
    json!({
        "node": binding.node, "addr": binding.addr, "remote": binding.remote, "member_id": binding.member_id, "since": binding.since,
        "process": process(&binding.starts),
    })
}

fn process(starts: &Starts) -> Option<String> {
    starts.this().map(|start| format!("{:016x}", start.nonce))
}

fn refusal_text(newcomer: &Newcomer, binding: &IdentityBinding, alive: bool) -> String {
    let Newcomer { node, addr, remote, .. } = newcomer;
    let there = format!("{} (connected from {})", binding.addr, binding.remote);
    if alive {
        format!(
            "node {node} runs at {there}, and answers: the process at {addr} (connected from {remote}) runs on a copy of its data \
             directory and is rejected; stop it, empty that directory, and join it as a new node"
        )
    } else {
        format!(
            "the data directory at {addr} (connected from {remote}) is a copy of an older state of node {node}, which has run at \
             {there} since: the copy lacks its later Raft promises, so it is rejected; stop it, or, if the other is permanently \
             gone, stop it, delete `raft` in its directory and start it again: it then requests a new member id"
        )
    }
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
