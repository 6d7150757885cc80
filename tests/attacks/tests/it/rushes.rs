//! 100,000 well-formed requests of one client, while another one works. Times of a release build are in docs/attacks.md,
//! with the command that measures them.

use std::path::Path;

use muster_attacks::cluster::Cluster;
use muster_attacks::rush::{self, Door, Row, Rush, Say, Seen};

const MAX_GROWTH_MB: u64 = 64;
/// Additional memory of a repeated run: the allocator's, and the sampler's chance.
const MAX_REPEAT_GROWTH_MB: u64 = 8;

/// Checks of every run, on any machine.
async fn rushes(cluster: &Cluster, victim: &str, rush: Rush) -> Seen {
    let seen = rush::rush(cluster, victim, rush).await.expect("a rush");
    println!("{}", Row(rush, &seen));
    let answers = &seen.answers;
    assert_eq!(answers.none, 0, "{rush:?}: every question has an answer");
    assert!(answers.other.is_empty(), "{rush:?}: a refusal says when to retry: {:?}", answers.other);
    assert_eq!(answers.ok + answers.later, rush.requests, "{rush:?}");
    assert!(seen.failed.is_empty(), "{rush:?}: the other client is served: {:?}", seen.failed);
    assert!(seen.grown_mb() < MAX_GROWTH_MB, "{rush:?}: grown by {} MB", seen.grown_mb());
    seen
}

async fn cluster(managers: usize) -> Cluster {
    muster::open_files::raise_open_files().expect("the soft limit may be as high as the hard one");
    println!("{}", rush::header());
    Cluster::with_shipped_timing(Path::new(env!("CARGO_BIN_EXE_muster-attack")), managers, 0).await.expect("a cluster")
}

fn no_errors_logged(cluster: &Cluster) {
    for name in cluster.names() {
        let log = cluster.node(&name).log();
        let errors: Vec<&str> = log.lines().filter(|l| l.contains(" ERROR ") || l.contains("panicked")).collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

fn rush(door: Door, say: Say, requests: usize) -> Rush {
    Rush { door, say, requests, connections: 64 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn api_answers_every_request_under_load() {
    let cluster = cluster(1).await;
    let overloaded = async || cluster.inspect("n1", "node/api").await.expect("n1 answers")["overloaded"].clone();
    let first = rushes(&cluster, "n1", rush(Door::Api, Say::Reads, 100_000)).await;
    let again = rushes(&cluster, "n1", rush(Door::Api, Say::Reads, 30_000)).await;
    let more = again.rss_most_kib.saturating_sub(first.rss_most_kib) / 1024;
    assert!(more < MAX_REPEAT_GROWTH_MB, "memory of the first run is reused: {more} MB more");
    rushes(&cluster, "n1", rush(Door::Http, Say::Reads, 30_000)).await;
    rushes(&cluster, "n1", rush(Door::Http2, Say::Reads, 15_000)).await;
    rushes(&cluster, "n1", rush(Door::Socket, Say::Reads, 10_000)).await;
    rushes(&cluster, "n1", rush(Door::Api, Say::Writes, 10_000)).await;
    // Each of these holds its permit for a second, so most find none; the other client is not affected.
    let before = overloaded().await.as_u64();
    let polls = rushes(&cluster, "n1", rush(Door::Api, Say::Polls, 100_000)).await;
    assert!(polls.answers.later > 0, "some are rejected with a retry time");
    let counted = overloaded().await.as_u64().zip(before).map(|(after, before)| after - before);
    assert_eq!(counted, Some(polls.answers.later as u64), "the tree counts them");
    let metric = cluster.node("n1").metric("muster_api_requests_rejected_total").await.expect("a metric");
    assert_eq!(Some(metric), overloaded().await.as_u64(), "the metrics count them");
    no_errors_logged(&cluster);
}

/// A follower forwards to the leader, which others at this manager must reach as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn follower_answers_every_request_under_load() {
    let cluster = cluster(3).await;
    // Other programs may also cost a leader its leadership: then the run is repeated.
    for tries in 1.. {
        let (leader, term) = cluster.leader("n1").await.expect("a leader");
        let follower = cluster.names().into_iter().find(|name| *name != leader).expect("two follow");
        rushes(&cluster, &follower, rush(Door::Api, Say::Reads, 10_000)).await;
        rushes(&cluster, &follower, rush(Door::Api, Say::Writes, 3_000)).await;
        if cluster.leader("n1").await.expect("a leader") == (leader, term) {
            break;
        }
        assert!(tries < 5, "each run costs the leader its leadership");
    }
    no_errors_logged(&cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn join_service_answers_every_request_under_load() {
    let cluster = cluster(1).await;
    let seen = rushes(&cluster, "n1", rush(Door::Join, Say::Writes, 4_000)).await;
    assert!(seen.answers.later > 0, "an address joins 20 times a second");
    // The gateway rejects most of them; the join service rejects the rest beyond its capacity.
    let mut shown = 0;
    for name in ["muster_gateway_rejected_total", "muster_join_requests_refused_total"] {
        shown += cluster.node("n1").metric(name).await.expect("a metric");
    }
    assert!(shown >= seen.answers.later as u64, "the metrics show {shown} of {}", seen.answers.later);
    no_errors_logged(&cluster);
}
