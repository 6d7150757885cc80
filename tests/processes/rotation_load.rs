//! A cluster at work while its root is replaced: 64 clients that write, and 100 holders of leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::{Candidate, Election, ElectorConfig, Ending, LeaderElector, Link, Session, Setup, Socket, Term};
use muster_messages::wire::LeaseRef;

use crate::harness::{EndedMuster, WAIT_LIMIT, World, eventually_so};

const LEASES: usize = 100;
/// Each with its own connection, to each manager in turn: through a worker a program may write in that node's namespace only.
const SESSIONS: usize = 10;
const MANAGERS: [&str; 3] = ["n1", "n2", "n3"];

/// Counts the terms that began and ended.
#[derive(Clone, Default)]
struct Holder {
    begun: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Candidate for Holder {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        async move { term.ended().await }.boxed()
    }
    fn on_stopped_leading(&self, _: &Ending) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "full tier"]
fn rotation_costs_no_write_and_no_lease_under_load() {
    let world = World::with(3, 2);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let holder = Holder::default();
    let electors: Vec<LeaderElector> = runtime.block_on(async {
        let sessions: Vec<Session> = (0..SESSIONS)
            .map(|n| Session::new(Arc::new(Link::new(Socket(world.socket(MANAGERS[n % MANAGERS.len()]))))))
            .collect();
        let mut electors = Vec::new();
        for n in 0..LEASES {
            let lease = LeaseRef { namespace: "load".to_owned(), name: format!("lease-{n}") };
            let config = ElectorConfig {
                lease_duration: Duration::from_secs(30),
                renew_deadline: Duration::from_secs(20),
                retry_period: Duration::from_secs(1),
                ..ElectorConfig::new(lease, format!("holder-{n}"))
            };
            let setup = Setup::new(config, Election::Muster(sessions[n % SESSIONS].clone()), Arc::new(holder.clone()));
            electors.push(LeaderElector::start(setup).await.expect("it can be configured"));
        }
        electors
    });
    eventually_so("all leases are held", || holder.begun.load(Ordering::Relaxed) == LEASES as u64);
    let tokens = || electors.iter().map(LeaderElector::token).collect::<Vec<_>>();
    let before = tokens();

    let folder = world.folder().to_owned();
    let socket = world.socket("n2").to_str().expect("the folder's path is text").to_owned();
    let load = std::thread::spawn(move || {
        let args = ["--socket", &socket, "bench", "--op", "write", "--clients", "64", "--for", "20s"];
        EndedMuster::new(&folder, &args).ended(0).json()["runs"][0].clone()
    });
    std::thread::sleep(Duration::from_secs(3)); // the load begins: part of what is done to the cluster
    let begun = Instant::now();
    let settled = world.muster(&["ca", "rotate", "--wait=300s"]).ended(0).json();
    let took = begun.elapsed();
    assert_eq!(settled["settled"], true, "{settled}");
    let run = load.join().expect("the load ends");
    println!("rotated in {took:?} beside {run}");
    assert_eq!(run["errors"], 0, "{run}");
    assert!(took < WAIT_LIMIT, "{took:?}");
    assert_eq!((holder.ended.load(Ordering::Relaxed), tokens()), (0, before), "no lease was lost");
    let events = world.muster(&["events"]).ended(0).json();
    let down: Vec<_> =
        events["items"].as_array().expect("a list").iter().filter(|event| event["after"] == "down").collect();
    assert!(down.is_empty(), "{down:?}");
    runtime.block_on(async {
        for elector in electors {
            elector.stop();
        }
    });
}
