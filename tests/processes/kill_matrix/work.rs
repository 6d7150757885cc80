//! Work of a cluster while its actors fail, which must complete afterwards.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use muster_client::{Client, parse};
use muster_messages::wire::{LeaseRef, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{LeaseView, MANAGERS_SCOPE, ManagedKey, Membership, Revision, Role};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::stage::MANAGERS;
use crate::gates::apply;
use crate::harness::{Follower, ForegroundMuster, WAIT_MS, World, Writer, assert_kept, between_checks, eventually};

/// The applied definition, and the object that it keeps.
const RELEASE: &str = env!("CARGO_PKG_VERSION");
const OBJECT: &str = "kept";
const LEASE: &str = "held";
const LEASE_MS: u64 = 100_000;
/// The frozen worker with a pending promotion.
const FROZEN: &str = "n4";

/// Fixtures of every cluster, so that every kind of actor exists: a held and contested lease, a reconciler.
pub struct Fixtures {
    _holder: ForegroundMuster,
    lease: LeaseView,
}

impl Fixtures {
    pub fn move_in(world: &World) -> Self {
        apply(world, RELEASE, RELEASE, &[OBJECT]);
        let socket = world.socket("n2");
        let asks = ["--socket", socket.to_str().expect("the folder's path is text"), "elect", LEASE, "--priority", "1"];
        // No lease expires here, however slow this machine is.
        let lasts = format!("{LEASE_MS}ms");
        let times = ["--lease-duration", &lasts, "--renew-deadline", "80s", "--", "sleep", "10000"];
        let holder = ForegroundMuster::start(world.folder(), &[&asks[..], &times].concat());
        let lease = eventually("the lease is held", || held(world));
        eventually("the object is created", || object(world));
        Self { _holder: holder, lease }
    }

    /// Managers participate in Muster's own scope, and each node is a candidate for the reconciler.
    pub fn all_participate(&self, world: &World) -> Result<(), String> {
        for (scope, phase, at_least) in [(MANAGERS_SCOPE, "serving", 3), ("candidates.schema", "announced", 3)] {
            let list = ReconcilerRequest::MemberList { scope: Some(scope.to_owned()) };
            let answer = world.ask("n1", Request::Reconciler(list)).map_err(|e| e.message)?;
            let items = answer["items"].as_array().cloned().unwrap_or_default();
            let mut there: Vec<&str> =
                items.iter().filter(|i| i["phase"] == phase).filter_map(|i| i["member"].as_str()).collect();
            there.dedup();
            if there.len() < at_least {
                return Err(format!("of {scope} there are {items:?}"));
            }
        }
        Ok(())
    }

    /// The lease has the same holder and token, and is renewed.
    pub fn is_kept(&self, world: &World) -> Result<(), String> {
        let now = held(world).ok_or("the lease cannot be read")?;
        let same = (&now.holder, now.fencing_token) == (&self.lease.holder, self.lease.fencing_token) && !now.expired;
        if same { Ok(()) } else { Err(format!("the lease was {:?} and is {now:?}", self.lease)) }
    }
}

fn held(world: &World) -> Option<LeaseView> {
    let lease = LeaseRef { namespace: "default".to_owned(), name: LEASE.to_owned() };
    let answer = world.ask(&world.other_than(&[]), Request::Lease(LeaseRequest::Get { lease })).ok()?;
    // Elected by the cluster first, then taken up with its own duration.
    serde_json::from_value::<LeaseView>(answer).ok().filter(|lease| lease.lease_duration_ms == Some(LEASE_MS))
}

fn key() -> ManagedKey {
    ManagedKey { kind: "table".to_owned(), namespace: "default".to_owned(), name: OBJECT.to_owned() }
}

fn object(world: &World) -> Option<Value> {
    let get = Request::Reconciler(ReconcilerRequest::ObjectGet { key: key() });
    world.ask(&world.other_than(&[]), get).ok()
}

/// Work in progress throughout.
pub struct Work {
    writer: Writer,
    editor: Editor,
    log: Follower,
}

/// Progress at one time.
#[derive(Clone, Copy)]
pub struct Mark {
    written: u64,
    repaired: u64,
}

impl Work {
    /// Starts all work. The worker stays frozen, so that its promotion stays pending.
    pub fn begin(world: &mut World) -> Self {
        let sockets: Vec<PathBuf> = MANAGERS.iter().map(|name| world.socket(name)).collect();
        let log = Follower::start(sockets.clone(), |since| Request::Events { since, wait_ms: WAIT_MS });
        world.node(FROZEN).freeze();
        world.muster(&["node", "promote", FROZEN]).ended(0);
        let id = world.seen("n1", "n1").expect("n1 is a node").id;
        Self { writer: Writer::start(sockets.clone(), id), editor: Editor::start(sockets), log }
    }

    pub fn mark(&self) -> Mark {
        Mark { written: self.writer.acknowledged(), repaired: self.editor.repaired.load(Ordering::Relaxed) }
    }

    /// Work has continued since then, and the pending promotion is still pending. Repairs take a second each.
    pub fn makes_progress(&self, world: &World, since: Mark, repairs: bool) -> Result<(), String> {
        let now = self.mark();
        if now.written < since.written + 5 {
            return Err("writes do not continue".to_owned());
        }
        if repairs && now.repaired <= since.repaired {
            return Err("the object that is changed by hand is not repaired".to_owned());
        }
        let by = world.other_than(&[FROZEN]);
        let node = world.seen(&by, FROZEN).ok_or("the frozen node is not listed")?;
        let pending = node.desired_role == Role::Manager && node.manager.is_none() && !node.conditions.is_empty();
        if pending { Ok(()) } else { Err(format!("the promotion is not pending, with a reason: {node:?}")) }
    }

    /// Completes all work: nothing is missing.
    pub fn end(self, world: &mut World) {
        world.node(FROZEN).signal(Signal::CONT);
        eventually("the promotion completes", || {
            world.seen("n1", FROZEN).filter(|node| node.membership == Membership::Voter)
        });
        drop(self.editor);
        assert_kept(&self.writer.stop(), &world.seen("n1", "n1").expect("n1 is a node"));
        let all = world.answer("n1", Request::Events { since: Revision(0), wait_ms: 0 });
        let upto = all["revision"].as_u64().expect("an answer says of which revision it is");
        let received = self.log.answers_until(upto);
        let items = |answer: &Value| answer["items"].as_array().cloned().unwrap_or_default();
        let received: Vec<Value> =
            received.iter().flat_map(items).filter(|e| e["revision"].as_u64() <= Some(upto)).collect();
        // The cluster keeps the newest events; a watcher that received each as it happened has them all, once.
        let kept = items(&all);
        assert!(received.ends_with(&kept), "the watch missed or repeated some of {} events", kept.len());
        let revisions: Vec<u64> = received.iter().filter_map(|event| event["revision"].as_u64()).collect();
        assert!(revisions.is_sorted(), "the watch told events in another order");
    }
}

/// A thread that changes an object by hand each time it has been repaired.
struct Editor {
    stop: Arc<AtomicBool>,
    repaired: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Editor {
    fn start(sockets: Vec<PathBuf>) -> Self {
        let (stop, repaired) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&repaired));
        let thread = std::thread::spawn(move || damage_objects(&sockets, &stopped, &count));
        Self { stop, repaired, thread: Some(thread) }
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

fn damage_objects(sockets: &[PathBuf], stop: &AtomicBool, repaired: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut clients: Vec<Client> = sockets.iter().map(|s| Client::to_socket(s, Duration::from_secs(2))).collect();
    let (mut turn, mut spoilt) = (0, false);
    while !stop.load(Ordering::Relaxed) {
        let client = &mut clients[turn % sockets.len()];
        let request = if spoilt {
            ReconcilerRequest::ObjectGet { key: key() }
        } else {
            let body = json!({"release": "by hand"}).to_string();
            ReconcilerRequest::ObjectPut { key: key(), labels: BTreeMap::new(), body }
        };
        let answer: Option<Value> =
            runtime.block_on(async { parse(&client.call(Request::Reconciler(request)).await.ok()?).ok() });
        match answer {
            None => turn += 1,
            Some(object) if spoilt && object["body"]["release"] == RELEASE => {
                repaired.fetch_add(1, Ordering::Relaxed);
                spoilt = false;
            }
            Some(_) => spoilt = true,
        }
        between_checks();
    }
}
