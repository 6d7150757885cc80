//! Request ids taken before the cluster's own actors use them.

use std::path::Path;
use std::time::Duration;

use muster_attacks::caller::Caller;
use muster_attacks::cluster::{Cluster, until};
use muster_client::Connection;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{RequestId, Role, SessionId};
use tokio::task::JoinSet;

const CONNECTIONS: u64 = 8;
const REQUESTS_PER_TASK: u64 = 400;
/// A promotion takes about ten entries. With its ids taken, each would cost another entry.
const MAX_PROMOTION_ENTRIES: u64 = 500;

async fn connected(cluster: &Cluster, user: &NodeCredentials) -> Connection {
    let caller = Caller::with(cluster.node("n1").listen, Service::Api.alpn(), user).expect("good credentials");
    Connection::over(caller.greeted().await.unwrap_or_else(|no| panic!("n1 does not welcome a user: {no:?}")))
}

/// Repeatedly acquires a lease, under the ids that role managers of this term once used.
async fn takes_ids(cluster: &Cluster, user: &NodeCredentials, term: u64) -> JoinSet<()> {
    let mut flood = JoinSet::new();
    for part in 0..CONNECTIONS {
        let mut connection = connected(cluster, user).await;
        flood.spawn(async move {
            for n in 1..=REQUESTS_PER_TASK {
                let lease = LeaseRef { namespace: "default".to_owned(), name: format!("l{part}") };
                let (holder, session) = ("eve".to_owned(), SessionId(u128::from(n)));
                let acquire = LeaseRequest::Acquire { lease, holder, session, duration_ms: 15_000 };
                let id = RequestId(u128::from(term) << 64 | u128::from(part * REQUESTS_PER_TASK + n));
                let _either = connection.call(Request::Lease(acquire), id, Duration::from_secs(60)).await;
            }
        });
    }
    flood
}

async fn entries(cluster: &Cluster) -> u64 {
    let status = cluster.ask("n1", Request::RaftStatus { fresh: true }).await.expect("n1 leads");
    status["commit"].as_u64().expect("a number")
}

#[tokio::test]
#[ignore = "full tier"]
async fn request_ids_taken_by_lease_user_delay_no_role_change() {
    let cluster = Cluster::up(Path::new(env!("CARGO_BIN_EXE_muster-attack")), 1, 2).await.expect("a cluster");
    let (_, term) = cluster.leader("n1").await.expect("n1 leads");
    let eve = cluster.user("eve", muster_messages::UserKind::User).await.expect("n1 signs");
    takes_ids(&cluster, &eve, term).await.join_all().await;

    let before = entries(&cluster).await;
    cluster.ask("n1", Request::SetRole { node: "n2".into(), role: Role::Manager }).await.expect("it is accepted");
    until("n2 is a manager", async || {
        let node = cluster.seen("n1", "n2").await?;
        Ok(node.filter(|node| node.role == Role::Manager && node.conditions.is_empty()))
    })
    .await
    .expect("the promotion is carried out");
    let wrote = entries(&cluster).await - before;
    assert!(wrote < MAX_PROMOTION_ENTRIES, "{wrote} entries for one promotion");

    let flood = takes_ids(&cluster, &eve, term).await;
    let removed = cluster.ask("n1", Request::NodeRemove { node: "n3".into(), force: true }).await;
    assert_eq!(removed.expect("n3 is removed while eve floods")["removed"], true);
    flood.join_all().await;
}
