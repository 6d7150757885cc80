//! Pages of events, read at full speed with one worker's certificate: each takes long to build.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_attacks::caller::{ANSWER_TIMEOUT, Caller};
use muster_attacks::cluster::Cluster;
use muster_attacks::pause::scenario_pause;
use muster_client::Connection;
use muster_kernel::Clock;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{ApiAnswer, ApiCall, LeaseRef, LeaseRequest, Request};
use muster_messages::{FencingToken, RequestId, Revision, Role, SessionId, UserKind};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::sieges::becomes;

const CONNECTIONS: usize = 4;
const IN_FLIGHT: u64 = 8;
/// How long they read at least.
const ATTACK_TIME: Duration = Duration::from_secs(20);
/// Other programs may cost a leader its leadership, too: then the attack is repeated. Built where Raft runs, the pages did so in five of
/// five attempts.
const ROUNDS: usize = 3;
/// Each of these holders acquires and releases this often: 6,400 events.
const HOLDERS: u64 = 16;
const TIMES: u64 = 200;
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

fn fresh() -> RequestId {
    RequestId::fresh(Clock.wall(), rand::random())
}

/// Acquires and releases a lease: two events. A busy machine may change its leader meanwhile, and an answer may be lost.
async fn acquire_and_release(api: &mut Connection, lease: &LeaseRef, session: SessionId) -> Option<()> {
    let holder = format!("ann-{}", session.0);
    let acquire = LeaseRequest::Acquire { lease: lease.clone(), holder, session, duration_ms: 15_000 };
    let held = api.call(Request::Lease(acquire), fresh(), ANSWER_TIMEOUT).await.ok()?;
    let held: Value = serde_json::from_str(&held).ok()?;
    let token = serde_json::from_value::<FencingToken>(held["fencing_token"].clone()).ok()?;
    let release = LeaseRequest::Release { lease: lease.clone(), session, token };
    api.call(Request::Lease(release), fresh(), ANSWER_TIMEOUT).await.ok().map(drop)
}

/// Fills the history with events of leases whose names are nearly as long as they may be.
async fn fill_history(cluster: &Cluster, at: &str, who: &NodeCredentials) {
    let mut holders = JoinSet::new();
    for number in 0..HOLDERS {
        let caller = Caller::with(cluster.node(at).listen, Service::Api.alpn(), who).expect("good credentials");
        holders.spawn(async move {
            let lease = LeaseRef { namespace: "default".to_owned(), name: format!("{}-{number}", "x".repeat(240)) };
            let mut times = 0;
            while times < TIMES {
                if let Ok(greeted) = caller.greeted().await {
                    let mut api = Connection::over(greeted);
                    let session = |times| SessionId(u128::from(number << 32 | (times + 1)));
                    while times < TIMES && acquire_and_release(&mut api, &lease, session(times)).await.is_some() {
                        times += 1;
                    }
                }
                scenario_pause("it was refused", REFUSED_PAUSE).await;
            }
        });
    }
    holders.join_all().await;
}

/// Readers of all events, from the first one on, until it ends.
struct Attack {
    over: Arc<AtomicBool>,
    pages: Arc<AtomicU64>,
    readers: JoinSet<()>,
}

impl Attack {
    fn begin(caller: &Caller) -> Self {
        let (over, pages, mut readers) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), JoinSet::new());
        for _ in 0..CONNECTIONS {
            let (caller, over, pages) = (caller.clone(), Arc::clone(&over), Arc::clone(&pages));
            readers.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let _broken = read(&caller, &over, &pages).await;
                    scenario_pause("it was refused", REFUSED_PAUSE).await;
                }
            });
        }
        Self { over, pages, readers }
    }

    /// The pages that were read.
    async fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.readers.join_all().await;
        self.pages.load(Ordering::Relaxed)
    }
}

/// One connection, on which each answer is followed by the next request.
async fn read(caller: &Caller, over: &AtomicBool, pages: &AtomicU64) -> Option<()> {
    let mut frames = caller.greeted().await.ok()?;
    let call = |id| {
        let request = Request::Events { since: Revision(0), wait_ms: 0 };
        ApiCall { id, request_id: fresh(), timeout_ms: 10_000, request }
    };
    for id in 0..IN_FLIGHT {
        frames.send(&call(id)).await.ok()?;
    }
    while !over.load(Ordering::Relaxed) {
        let answer = timeout(ANSWER_TIMEOUT, frames.recv::<ApiAnswer>()).await.ok()?.ok()??;
        if answer.result.is_ok() {
            pages.fetch_add(1, Ordering::Relaxed);
        }
        frames.send(&call(answer.id)).await.ok()?;
    }
    Some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn event_reads_of_one_worker_change_no_leader() {
    let program = Path::new(env!("CARGO_BIN_EXE_muster-attack"));
    let mut cluster = Cluster::with_shipped_timing(program, 3, 2).await.expect("a cluster");
    let thief = cluster.node("n4").credentials().expect("an identity");
    cluster.node_mut("n4").kill().await;
    let ann = cluster.user("ann", UserKind::Operator).await.expect("n1 signs");
    let (leader, _) = cluster.leader("n1").await.expect("a leader");
    fill_history(&cluster, &leader, &ann).await;

    for round in 1..=ROUNDS {
        let before = cluster.leader("n1").await.expect("a leader");
        let caller = Caller::with(cluster.node(&before.0).listen, Service::Api.alpn(), &thief).expect("credentials");
        let (attack, begun) = (Attack::begin(&caller), Instant::now());
        while begun.elapsed() < ATTACK_TIME {
            let promoted = becomes(&cluster, "n5", Role::Manager).await;
            let demoted = becomes(&cluster, "n5", Role::Worker).await;
            println!("round {round}: promoted in {promoted:.1?}, demoted in {demoted:.1?}");
        }
        let pages = attack.end().await;
        let after = cluster.leader("n1").await.expect("a leader");
        println!("round {round}: {pages} pages, {before:?} led before, {after:?} after");
        assert!(pages > 0, "the attacker read nothing");
        if after == before {
            return;
        }
    }
    panic!("the leader lost its leadership in each of {ROUNDS} rounds");
}
