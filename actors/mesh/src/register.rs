//! The register: asks the claims about whoever says hello, and old processes whether they still live.
//!
//! Owns   the claims, which survive the mesh's restarts; who was turned away, for the log and the view.
//! Says   `Refusal`s that name both processes; one line in the log for each that is turned away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_gateway::Framed;
use muster_kernel::Clock;
use muster_messages::wire::{Claim, MeshHello, Refusal, StartId, Starts};
use muster_messages::{Moment, NodeId, RaftId, RefusalReason};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::core::claims::{Claims, Judged, Newcomer, Reaction};
use crate::core::hello::Own;
use crate::dial::Dial;
use crate::greeting::current;
use crate::session::Sessions;

/// How long an old process has to answer where it wants to be dialled, and as long again to say something in its session. Both
/// fit into the time of a hello (5 s); a handshake takes a hundredth of it.
const ASK: Duration = Duration::from_secs(2);
/// Somebody who was turned away this long ago and did not come back is shown no more.
const QUIET: Duration = Duration::from_secs(120);

/// What survives the mesh's restarts.
#[derive(Clone, Debug)]
pub struct Book(Arc<Mutex<Pages>>);

#[derive(Debug)]
struct Pages {
    claims: Claims,
    /// The newest of each node.
    turned: BTreeMap<NodeId, Turned>,
    refused: u64,
}

#[derive(Clone, Debug)]
struct Turned {
    newcomer: Newcomer,
    claim: Claim,
    since: muster_messages::WallTime,
    last: Moment,
}

impl Book {
    pub fn new(me: NodeId) -> Self {
        Self(Arc::new(Mutex::new(Pages { claims: Claims::new(me), turned: BTreeMap::new(), refused: 0 })))
    }
    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
#[derive(Clone)]
pub struct Register {
    /// This process.
    pub starts: Starts,
    pub advertise: String,
    book: Book,
    sessions: Sessions,
    dialer: Arc<dyn Dial>,
    said: watch::Receiver<Option<Own>>,
}

impl Register {
    pub fn new(
        (starts, advertise): (Starts, String),
        book: Book,
        sessions: Sessions,
        dialer: Arc<dyn Dial>,
        said: watch::Receiver<Option<Own>>,
    ) -> Self {
        Self { starts, advertise, book, sessions, dialer, said }
    }

    /// What this process says of itself.
    pub fn sign(&self, hello: MeshHello) -> MeshHello {
        MeshHello { starts: self.starts.clone(), advertise: self.advertise.clone(), ..hello }
    }

    /// Whether a newcomer is heard; who was asked before and did not answer.
    pub async fn judge(&self, newcomer: &Newcomer) -> Result<Option<StartId>, Refusal> {
        let judged = self.book.lock().claims.judge(newcomer, |start| self.is_open(start));
        match judged {
            Judged::Take => Ok(None),
            Judged::Refuse(claim) => Err(self.turn_away(newcomer, *claim, false)),
            Judged::Ask(claim) if self.lives(&claim).await => Err(self.turn_away(newcomer, *claim, true)),
            Judged::Ask(claim) => Ok(claim.starts.this()),
        }
    }

    /// The hello is over, and this one is heard from now on. `None`: another one was taken meanwhile. Otherwise whether
    /// that is news for the other managers.
    pub fn take(&self, newcomer: Newcomer, asked: Option<StartId>) -> Option<bool> {
        let mut pages = self.book.lock();
        let still = match pages.claims.judge(&newcomer, |start| self.is_open(start)) {
            Judged::Take => true,
            Judged::Ask(claim) => asked.is_some() && claim.starts.this() == asked,
            Judged::Refuse(_) => false,
        };
        still.then(|| pages.claims.take(Clock.wall(), newcomer))
    }

    pub fn seated(&self, node: NodeId, start: StartId, seat: RaftId) -> bool {
        self.book.lock().claims.seated(node, start, seat)
    }
    pub fn all(&self) -> Vec<Claim> {
        self.book.lock().claims.all()
    }
    pub fn told(&self, by: NodeId, claims: Vec<Claim>) -> Vec<Reaction> {
        self.book.lock().claims.told(by, claims)
    }
    pub fn asked(&self, claim: &Claim, because: StartId, lives: bool) -> (bool, Option<StartId>) {
        let Some(start) = claim.starts.this() else { return (false, None) };
        self.book.lock().claims.asked(claim.node, start, because, lives)
    }
    pub fn forget(&self, node: NodeId) {
        let mut pages = self.book.lock();
        pages.claims.forget(node);
        pages.turned.remove(&node);
    }

    /// Whether this process answers where it wants to be dialled, or speaks in a session that it has here.
    pub async fn lives(&self, claim: &Claim) -> bool {
        let Some(start) = claim.starts.this() else { return false };
        let before = self.heard(start);
        if timeout(ASK, self.who(&claim.addr, claim.node)).await == Ok(Some(start)) {
            return true;
        }
        let speaks = async {
            while self.is_open(start) {
                if self.heard(start) > before {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            false
        };
        timeout(ASK, speaks).await.unwrap_or(false)
    }

    /// Which process answers there as this node.
    async fn who(&self, addr: &str, node: NodeId) -> Option<StartId> {
        let dialed = self.dialer.dial(addr, Some(node)).await.ok()?;
        let own = current(self.said.clone()).await.ok()?;
        let mut stream = Framed::new(dialed.stream);
        stream.send(&self.sign(own.hello(rand::random(), true))).await.ok()?;
        let theirs: MeshHello = stream.recv().await.ok()??;
        theirs.starts.this().filter(|_| theirs.node == node)
    }

    fn is_open(&self, start: StartId) -> bool {
        self.sessions.all().iter().any(|session| session.start == start && !session.ended().is_cancelled())
    }
    fn heard(&self, start: StartId) -> u64 {
        self.sessions.all().iter().filter(|s| s.start == start).map(|s| s.meter.read()).sum()
    }

    fn turn_away(&self, newcomer: &Newcomer, claim: Claim, lives: bool) -> Refusal {
        let message = refusal_text(newcomer, &claim, lives);
        let now = Clock.now();
        let mut pages = self.book.lock();
        pages.refused += 1;
        let fresh = |t: &&Turned| t.newcomer.starts == newcomer.starts && now.since(t.last) < QUIET;
        let since = pages.turned.get(&newcomer.node).filter(fresh).map(|t| t.since);
        if since.is_none() {
            tracing::warn!(node = %newcomer.node, why = message, "a second process of this manager is not heard");
        }
        let since = since.unwrap_or_else(|| Clock.wall());
        pages.turned.insert(newcomer.node, Turned { newcomer: newcomer.clone(), claim, since, last: now });
        Refusal { reason: RefusalReason::Duplicate, message, managers: Vec::new(), retry_after_ms: Some(1000) }
    }

    pub fn view(&self) -> Value {
        let (pages, now) = (self.book.lock(), Clock.now());
        let claims: Vec<Value> = pages.claims.all().iter().map(claim_view).collect();
        let turned = pages.turned.values().filter(|t| now.since(t.last) < QUIET);
        let turned: Vec<Value> = turned
            .map(|t| {
                json!({
                    "node": t.newcomer.node, "since": t.since, "heard": claim_view(&t.claim),
                    "refused": {"addr": t.newcomer.addr, "remote": t.newcomer.remote, "process": process(&t.newcomer.starts)},
                })
            })
            .collect();
        json!({"processes": claims, "duplicates": turned, "duplicates_refused": pages.refused})
    }
}

fn claim_view(claim: &Claim) -> Value {
    json!({
        "node": claim.node, "addr": claim.addr, "remote": claim.remote, "seat": claim.seat, "since": claim.since,
        "process": process(&claim.starts),
    })
}

fn process(starts: &Starts) -> Option<String> {
    starts.this().map(|start| format!("{:016x}", start.nonce))
}

fn refusal_text(newcomer: &Newcomer, claim: &Claim, lives: bool) -> String {
    let Newcomer { node, addr, remote, .. } = newcomer;
    let there = format!("{} (connected from {})", claim.addr, claim.remote);
    if lives {
        format!(
            "node {node} runs at {there}, and answers: the process at {addr} (connected from {remote}) has a copy of its data \
             directory and is not heard; stop it, empty that directory, and join it as a node of its own"
        )
    } else {
        format!(
            "the data directory at {addr} (connected from {remote}) is a copy of an older state of node {node}, which has run at \
             {there} since: what it promised there is missing here, so it is not heard; stop it, or, if the other is gone for \
             good, stop it, delete `raft` in its directory and start it again: it then asks for a new seat"
        )
    }
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
