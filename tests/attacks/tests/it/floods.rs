//! Every flood for a moment, in a debug build: the claims that do not depend on speed. Times and
//! memory of a release build are in docs/attacks.md, with the command that measures them.

use std::path::Path;
use std::time::Duration;

use muster_attacks::cluster::Cluster;
use muster_attacks::flood::{self, Flood, HonestLoad, Kind, Row};

/// A debug build's code, buffers and stacks cost more; the limit for a release build is 150.
const MAX_RSS_MB: u64 = 220;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn flooded_manager_admits_joins_with_bounded_memory_and_log() {
    muster::open_files::raise_open_files().expect("the soft limit may be as high as the hard one");
    let cluster =
        Cluster::with_shipped_timing(Path::new(env!("CARGO_BIN_EXE_muster-attack")), 2, 1).await.expect("a cluster");
    let (victim, _) = cluster.leader("n1").await.expect("a leader");
    println!("{}", flood::header());
    for kind in Kind::ALL {
        // All endpoints of a kind at once, with fewer connections each than by hand: seconds instead of minutes.
        let doors: Vec<_> = flood::every().filter(|(k, _, _)| *k == kind).collect();
        let connections = (kind.connections() / 5 / doors.len()).max(4);
        let lasts = Duration::from_secs(3);
        let one = |(kind, door, who)| Flood { kind, door, who, connections, lasts };
        let floods: Vec<Flood> = doors.into_iter().map(one).collect();
        let meanwhile = HonestLoad { join_every: Duration::from_secs(1) };
        let seen = flood::flood(&cluster, &victim, &floods, meanwhile).await.expect("the cluster answers");
        println!("{}", Row { what: format!("{kind:?}"), seen: &seen });
        assert!(seen.connections > 0, "{kind:?}: the flood came through");
        assert!(!seen.joins.is_empty() && seen.failed_joins.is_empty(), "{kind:?}: {:?}", seen.failed_joins);
        assert!(seen.rss_most_kib < MAX_RSS_MB * 1024, "{kind:?}: {} KiB", seen.rss_most_kib);
        assert!(seen.logged.errors.is_empty(), "{kind:?}: {:#?}", seen.logged.errors);
        // One line per offender, reason and minute; the flood may span two minutes.
        assert!(seen.logged.worst.0 <= 2 * MAX_OFFENDERS, "{kind:?}: {:?}", seen.logged.worst);
    }
    let alive = cluster.nodes_seen_by(&victim).await.expect("it still answers with quorum");
    assert!(alive.len() >= 3);
}

/// Loopback addresses, nodes and users that offend in these floods: a line's kind is counted without its numbers.
const MAX_OFFENDERS: usize = 4;
