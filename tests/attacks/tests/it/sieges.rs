//! A user of one namespace, and a worker's certificate: each runs every attack at once, while the operator
//! promotes, demotes and removes nodes. `MUSTER_SIEGE_SECS` is the duration; docs/attacks.md has the figures of ten minutes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use muster_attacks::cluster::{Cluster, until};
use muster_attacks::pause::scenario_pause;
use muster_attacks::siege::{Attacker, Machine, Siege, SiegeKind};
use muster_attacks::watch::rss_kib;
use muster_messages::wire::Request;
use muster_messages::{Membership, NodeView, Revision, Role, UserKind};
use tokio::task::JoinHandle;

const MANAGERS: [&str; 3] = ["n1", "n2", "n3"];
/// Allowed memory growth of a manager after half the time: the state still fills its room for outcomes and events.
const MAX_GROWTH_KIB: u64 = 96 << 10;

/// Time limit until each kind of attack has been answered once: a batch of requests takes long on a busy machine.
const MAX_SIEGE_TIME: Duration = Duration::from_secs(300);

/// How long it lasts at least. A run that is measured has attackers apart.
fn lasts() -> (Duration, Machine) {
    match std::env::var("MUSTER_SIEGE_SECS") {
        Ok(secs) => (Duration::from_secs(secs.parse().expect("a number")), Machine::Own),
        Err(_) => (Duration::from_secs(20), Machine::Shared),
    }
}

async fn cluster() -> Cluster {
    muster::open_files::raise_open_files().expect("the soft limit may be as high as the hard one");
    Cluster::with_shipped_timing(Path::new(env!("CARGO_BIN_EXE_muster-attack")), 3, 3).await.expect("a cluster")
}

/// Asks until there is an answer: a cluster under load may change its leader.
async fn operator(cluster: &Cluster, request: Request) -> serde_json::Value {
    until("the operator is answered", async || cluster.ask("n1", request.clone()).await.map(Some))
        .await
        .unwrap_or_else(|no| panic!("{request:?}: {no}"))
}

pub async fn becomes(cluster: &Cluster, name: &str, role: Role) -> Duration {
    let begun = Instant::now();
    operator(cluster, Request::SetRole { node: name.into(), role }).await;
    let membership = if role == Role::Manager { Membership::Voter } else { Membership::None };
    let right = |node: &NodeView| node.role == role && node.membership == membership && node.conditions.is_empty();
    until("its role is changed", async || {
        scenario_pause("a look has a cost under siege", Duration::from_millis(20)).await;
        Ok(cluster.seen("n1", name).await?.filter(right))
    })
    .await
    .unwrap_or_else(|no| panic!("{name}, {role}: {no}"));
    begun.elapsed()
}

/// A node joins, and is removed by force.
async fn join_and_remove(cluster: &mut Cluster) -> (Duration, Duration) {
    let begun = Instant::now();
    let name = until("a node joins", async || Ok(Some(cluster.join(Role::Worker).await?))).await.expect("it joins");
    let joined = begun.elapsed();
    let begun = Instant::now();
    // The answer of a removal may be lost under load, and its repetition is then told that there is no such node.
    until("the node is removed", async || {
        let answer = cluster.ask("n1", Request::NodeRemove { node: name.clone(), force: true }).await;
        Ok(cluster.seen("n1", &name).await?.is_none().then_some(answer.is_ok()))
    })
    .await
    .unwrap_or_else(|no| panic!("{name}: {no}"));
    let removed = begun.elapsed();
    cluster.node_mut(&name).kill().await;
    (joined, removed)
}

/// The revisions of role events.
async fn role_events(cluster: &Cluster) -> BTreeSet<u64> {
    let (mut since, mut found) = (Revision(0), BTreeSet::new());
    loop {
        let page = operator(cluster, Request::Events { since, wait_ms: 0 }).await;
        let items = page["items"].as_array().into_iter().flatten();
        found.extend(items.filter(|event| event["kind"] == "role").filter_map(|event| event["revision"].as_u64()));
        since = Revision(page["revision"].as_u64().expect("a page says how far it goes"));
        if page["more"] != true {
            return found;
        }
    }
}

/// Memory of each manager, twice a second.
type Samples = Arc<Mutex<Vec<(Duration, Vec<u64>)>>>;

fn sampled(cluster: &Cluster) -> (Samples, JoinHandle<()>) {
    let pids: Vec<i32> = MANAGERS.iter().filter_map(|name| cluster.node(name).pid()).collect();
    let (samples, begun) = (Samples::default(), Instant::now());
    let kept = Arc::clone(&samples);
    let sampling = tokio::spawn(async move {
        loop {
            let now = pids.iter().map(|pid| rss_kib(*pid).unwrap_or(0)).collect();
            kept.lock().unwrap_or_else(PoisonError::into_inner).push((begun.elapsed(), now));
            scenario_pause("the interval of samples", Duration::from_millis(500)).await;
        }
    });
    (samples, sampling)
}

/// Each manager's maximum between two fractions of the time.
fn most(samples: &[(Duration, Vec<u64>)], from: f64, to: f64) -> Vec<u64> {
    let last = samples.last().map_or(Duration::ZERO, |(at, _)| *at);
    let within = samples.iter().filter(|(at, _)| *at >= last.mul_f64(from) && *at <= last.mul_f64(to));
    let rows: Vec<&Vec<u64>> = within.map(|(_, row)| row).collect();
    (0..MANAGERS.len()).map(|n| rows.iter().map(|row| row[n]).max().unwrap_or(0)).collect()
}

#[derive(Default)]
struct Times(Vec<Duration>);

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort();
        let (median, most) = (sorted.get(sorted.len() / 2), sorted.last());
        write!(
            f,
            "{} times, median {:.1?}, longest {:.1?}",
            sorted.len(),
            median.unwrap_or(&Duration::ZERO),
            most.unwrap_or(&Duration::ZERO)
        )
    }
}

async fn besieged(mut cluster: Cluster, attacker: Attacker, harms: &[SiegeKind]) {
    for role in [Role::Manager, Role::Worker] {
        println!("before: n4 is a {role} after {:.1?}", becomes(&cluster, "n4", role).await);
    }
    let (joined, removed) = join_and_remove(&mut cluster).await;
    println!("before: a node joins in {joined:.1?} and is removed in {removed:.1?}");
    let before = role_events(&cluster).await;
    assert!(!before.is_empty(), "there are role events");

    let (samples, sampling) = sampled(&cluster);
    let (lasts, machine) = lasts();
    let (siege, begun) = (Siege::begin(&attacker, harms, machine), Instant::now());
    let (mut promotions, mut demotions, mut joins, mut removals) =
        (Times::default(), Times::default(), Times::default(), Times::default());
    let tried = |siege: &Siege| {
        let counts = siege.counts();
        harms.iter().all(|kind| counts.get(kind).is_some_and(|(done, refused)| done + refused > 0))
    };
    while begun.elapsed() < lasts || (!tried(&siege) && begun.elapsed() < MAX_SIEGE_TIME) {
        promotions.0.push(becomes(&cluster, "n4", Role::Manager).await);
        demotions.0.push(becomes(&cluster, "n4", Role::Worker).await);
        let (joined, removed) = join_and_remove(&mut cluster).await;
        joins.0.push(joined);
        removals.0.push(removed);
    }
    let lasted = begun.elapsed();
    let counts = siege.end();
    sampling.abort();
    println!("{lasted:.0?}: {counts:?} (done, refused or broken)");
    println!("promotions: {promotions}\ndemotions: {demotions}\njoins: {joins}\nremovals: {removals}");
    let samples = samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (first, middle, last) = (&samples[0].1, most(&samples, 0.45, 0.55), most(&samples, 0.9, 1.0));
    println!("memory in KiB: {first:?} before, {middle:?} half-way, {last:?} in the end");
    let leaders: BTreeSet<u64> = samples.iter().flat_map(|(_, row)| row.iter().map(|kib| kib / 1024)).collect();
    println!("between {:?} and {:?} MiB", leaders.first(), leaders.last());

    for kind in harms {
        let (done, refused) = counts.get(kind).copied().unwrap_or_default();
        assert!(done + refused > 0, "{kind:?} was tried");
    }
    let after = role_events(&cluster).await;
    let lost: Vec<&u64> = before.difference(&after).collect();
    assert!(lost.is_empty(), "earlier role events are lost: {lost:?}");
    for (n, name) in MANAGERS.iter().enumerate() {
        let more = last[n].saturating_sub(middle[n]);
        assert!(more < MAX_GROWTH_KIB, "{name} has grown by {more} KiB since half-way");
        let log = cluster.node(name).log();
        let errors: Vec<&str> = log.lines().filter(|l| l.contains(" ERROR ") || l.contains("panicked")).collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

async fn attacker(cluster: &Cluster, credentials: muster_messages::protocol::NodeCredentials) -> Attacker {
    let (_, term) = cluster.leader("n1").await.expect("a leader");
    let managers = MANAGERS.iter().map(|name| cluster.node(name).listen).collect();
    Attacker { credentials, bearer: None, namespace: "default".to_owned(), term, managers }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn abusive_user_does_not_block_operator() {
    let cluster = cluster().await;
    let eve = cluster.user("eve", UserKind::User).await.expect("n1 signs");
    let ask = Request::AccessTokenCreate {
        user: "mallory".parse().expect("a name"),
        namespace: "default".to_owned(),
        ttl_ms: None,
    };
    let made = cluster.ask("n1", ask).await.expect("a token");
    let bearer = made["token"].as_str().map(str::to_owned);
    assert!(bearer.is_some(), "{made}");
    let attacker = Attacker { bearer, ..attacker(&cluster, eve).await };
    besieged(cluster, attacker, &SiegeKind::USER_ATTACKS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn abusive_worker_does_not_block_operator() {
    let mut cluster = cluster().await;
    let thief = cluster.node("n5").credentials().expect("an identity");
    cluster.node_mut("n5").kill().await;
    let attacker = attacker(&cluster, thief).await;
    besieged(cluster, attacker, &SiegeKind::WORKER_ATTACKS).await;
}
