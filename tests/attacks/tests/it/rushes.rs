//! 100,000 well-formed questions of one client, while another one works. The times of a release build are in docs/attacks.md,
//! with the command that measures them.

use std::path::Path;

use muster_attacks::cluster::Cluster;
use muster_attacks::flood;
use muster_attacks::rush::{self, Door, Row, Rush, Say, Seen};

const MOST_MB: u64 = 64;
/// What a rush may take beyond what the same one took before: the allocator's, and the sampler's chance.
const MOST_MORE_MB: u64 = 8;

/// What holds of every rush, whatever the machine.
async fn rushes(cluster: &Cluster, victim: &str, rush: Rush) -> Seen {
    let seen = rush::rush(cluster, victim, rush).await.expect("a rush");
    println!("{}", Row(rush, &seen));
    let answers = &seen.answers;
    assert_eq!(answers.none, 0, "{rush:?}: every question has an answer");
    assert!(answers.other.is_empty(), "{rush:?}: a refusal says when to retry: {:?}", answers.other);
    assert_eq!(answers.ok + answers.later, rush.requests, "{rush:?}");
    assert!(seen.failed.is_empty(), "{rush:?}: the other client is served: {:?}", seen.failed);
    assert!(seen.grown_mb() < MOST_MB, "{rush:?}: grown by {} MB", seen.grown_mb());
    seen
}

async fn cluster(managers: usize) -> Cluster {
    flood::raise_file_limit();
    println!("{}", rush::header());
    Cluster::up(Path::new(env!("CARGO_BIN_EXE_muster-attack")), managers, 0).await.expect("a cluster")
}

fn no_alarm(cluster: &Cluster) {
    for name in cluster.names() {
        let log = cluster.node(&name).log();
        let alarms: Vec<&str> = log.lines().filter(|l| l.contains(" ERROR ") || l.contains("panicked")).collect();
        assert!(alarms.is_empty(), "{name}: {alarms:#?}");
    }
}

fn rush(door: Door, say: Say, requests: usize) -> Rush {
    Rush { door, say, requests, connections: 64 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn the_api_answers_every_question_of_a_rush_and_another_clients_too() {
    let cluster = cluster(1).await;
    let overloaded = async || cluster.inspect("n1", "node/api").await.expect("n1 answers")["overloaded"].clone();
    let first = rushes(&cluster, "n1", rush(Door::Api, Say::Reads, 100_000)).await;
    let again = rushes(&cluster, "n1", rush(Door::Api, Say::Reads, 30_000)).await;
    let more = again.rss_most_kib.saturating_sub(first.rss_most_kib) / 1024;
    assert!(more < MOST_MORE_MB, "what the first one took is used again: {more} MB more");
    rushes(&cluster, "n1", rush(Door::Http, Say::Reads, 30_000)).await;
    rushes(&cluster, "n1", rush(Door::Http2, Say::Reads, 15_000)).await;
    rushes(&cluster, "n1", rush(Door::Socket, Say::Reads, 10_000)).await;
    rushes(&cluster, "n1", rush(Door::Api, Say::Writes, 10_000)).await;
    // Each of these keeps its place for a second, so most find none; the other client's are not among them.
    let before = overloaded().await.as_u64();
    let polls = rushes(&cluster, "n1", rush(Door::Api, Say::Polls, 100_000)).await;
    assert!(polls.answers.later > 0, "some are told to come back");
    let counted = overloaded().await.as_u64().zip(before).map(|(after, before)| after - before);
    assert_eq!(counted, Some(polls.answers.later as u64), "the tree shows them");
    let metric = cluster.node("n1").metric("muster_api_requests_turned_away_total").await.expect("a metric");
    assert_eq!(Some(metric), overloaded().await.as_u64(), "and so do the metrics");
    no_alarm(&cluster);
}

/// What it is asked it asks of the leader, whom others at this manager must reach, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_answers_every_question_of_a_rush_and_another_clients_too() {
    let cluster = cluster(3).await;
    // Other programs may cost a leader its office as well: then it is tried again.
    for tries in 1.. {
        let (leader, term) = cluster.leader("n1").await.expect("a leader");
        let follower = cluster.names().into_iter().find(|name| *name != leader).expect("two follow");
        rushes(&cluster, &follower, rush(Door::Api, Say::Reads, 10_000)).await;
        rushes(&cluster, &follower, rush(Door::Api, Say::Writes, 3_000)).await;
        if cluster.leader("n1").await.expect("a leader") == (leader, term) {
            break;
        }
        assert!(tries < 5, "the leader loses its office over each rush");
    }
    no_alarm(&cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_join_service_answers_every_stranger_of_a_rush_and_others_join() {
    let cluster = cluster(1).await;
    let seen = rushes(&cluster, "n1", rush(Door::Join, Say::Writes, 4_000)).await;
    assert!(seen.answers.later > 0, "an address joins 20 times a second");
    // The gateway rejects most of them; what the join service has no room for, it rejects itself.
    let mut shown = 0;
    for name in ["muster_gateway_turned_away_total", "muster_join_requests_refused_total"] {
        shown += cluster.node("n1").metric(name).await.expect("a metric");
    }
    assert!(shown >= seen.answers.later as u64, "the metrics show {shown} of {}", seen.answers.later);
    no_alarm(&cluster);
}
