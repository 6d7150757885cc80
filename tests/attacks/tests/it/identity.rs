//! Stolen, outdated and foreign certificates from the data directories of real daemons.

use std::path::Path;
use std::time::{Duration, Instant};

use muster_attacks::caller::{Caller, HandshakeError};
use muster_attacks::cluster::{Cluster, until};
use muster_client::{CallError, Connection};
use muster_local_cluster::pause;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{CrashHow, ErrorCode, NodeId, RefusalReason, RequestId, Revision, Role, UserKind};
use muster_pki::IdentityStore;
use rustix::process::Signal;

/// Only a broken build serves a revoked identity this long. One second is promised: the simulation checks the cores in
/// virtual time (BLOCKED-1), and the times of real daemons are printed.
const MAX_SERVED_AFTER_REVOCATION: Duration = Duration::from_secs(60);

async fn cluster(managers: usize, workers: usize) -> Cluster {
    Cluster::up(Path::new(env!("CARGO_BIN_EXE_muster-attack")), managers, workers).await.expect("a cluster")
}

fn caller(cluster: &Cluster, to: &str, service: Service, credentials: &NodeCredentials) -> Caller {
    Caller::with(cluster.node(to).listen, service.alpn(), credentials).expect("good credentials")
}

/// Fails unless this service of a node refuses these credentials, for one of these reasons.
async fn refused(cluster: &Cluster, to: &str, service: Service, credentials: &NodeCredentials, why: &[RefusalReason]) {
    match caller(cluster, to, service, credentials).greeted().await {
        Err(HandshakeError::Refused(reason)) => assert!(why.contains(&reason), "{to} {service:?}: {reason:?}"),
        Err(HandshakeError::Broken(error)) => panic!("{to} {service:?}: {error}"),
        Ok(_) => panic!("{to} accepts it on {service:?}"),
    }
}

async fn welcomed(cluster: &Cluster, to: &str, service: Service, credentials: &NodeCredentials) -> Connection {
    let greeted = caller(cluster, to, service, credentials).greeted().await;
    Connection::over(greeted.unwrap_or_else(|no| panic!("{to} {service:?}: {no:?}")))
}

async fn asked(connection: &mut Connection, request: Request) -> Result<String, ErrorCode> {
    let id = RequestId::fresh(muster_kernel::Clock.wall(), rand::random());
    match connection.call(request, id, Duration::from_secs(60)).await {
        Ok(text) => Ok(text),
        Err(CallError::Refused(body)) => Err(body.code),
        Err(other) => panic!("{other}"),
    }
}

fn node_of(credentials: &NodeCredentials) -> NodeId {
    credentials.identity.node().expect("a node's certificate").0
}

/// Every request that is restricted to operators.
fn forbidden_to_nodes(own: NodeId) -> Vec<Request> {
    let (node, name) = (own.to_string(), "eve".parse().expect("a name"));
    let csr_pem = muster_pki::make_csr(&muster_pki::new_key()).expect("a key");
    vec![
        Request::TokenShow { role: Role::Manager },
        Request::TokenShow { role: Role::Worker },
        Request::TokenCreate { role: Role::Manager, ttl_ms: None, uses: None },
        Request::TokenRotate { role: Role::Manager },
        Request::TokenRevoke { id: "x".into() },
        Request::SetRole { node: node.clone(), role: Role::Manager },
        Request::NodeRemove { node: "n1".into(), force: true },
        Request::NodeUpdate {
            node: node.clone(),
            add: [("a".into(), "b".into())].into(),
            remove: vec![],
            generation: None,
        },
        Request::NodeRename { node: node.clone(), name: "n9".parse().expect("a name") },
        Request::CertRotate { node: "n1".into() },
        Request::CertRevoke { node: "n1".into() },
        Request::UserCreate { name, kind: UserKind::Operator, namespaces: vec![], ttl_ms: None, csr_pem },
        Request::UserRevoke { name: "root".parse().expect("a name") },
        Request::TransferLeader { to: Some(node) },
        Request::Actors {
            node: ActorsOf::Here,
            ask: ActorsAsk::Crash { path: "node/manager/raft-member".into(), how: CrashHow::Panic },
        },
        Request::Actors { node: ActorsOf::Leader, ask: ActorsAsk::Restart { path: "node/manager".into() } },
    ]
}

#[tokio::test]
async fn certificates_open_only_permitted_services() {
    let cluster = cluster(1, 1).await;
    let worker = cluster.node("n2").credentials().expect("an identity");

    // A worker cannot open the mesh, and may only read at the API.
    refused(&cluster, "n1", Service::Mesh, &worker, &[RefusalReason::Forbidden]).await;
    let mut api = welcomed(&cluster, "n1", Service::Api, &worker).await;
    for request in forbidden_to_nodes(node_of(&worker)) {
        let text = format!("{request:?}");
        assert_eq!(asked(&mut api, request).await, Err(ErrorCode::Forbidden), "{text}");
    }
    assert!(asked(&mut api, Request::NodeList { fresh: true }).await.is_ok(), "the connection lives, and reads work");

    // Extreme numbers and very long texts are answered like others.
    let (since, long) = (Revision(u64::MAX), "x".repeat(30_000));
    let ends = [
        Request::Events { since, wait_ms: 0 },
        Request::Events { since: Revision(u64::MAX - 1), wait_ms: 10 },
        Request::NodeInspect { node: long.clone(), fresh: false },
        Request::NodeInspect { node: String::new(), fresh: true },
        Request::Actors { node: ActorsOf::Node(long.clone()), ask: ActorsAsk::Tree },
        Request::Actors { node: ActorsOf::Here, ask: ActorsAsk::Inspect { path: long } },
    ];
    for request in ends {
        let _either = asked(&mut api, request).await;
    }
    assert!(!cluster.node("n1").log().contains("panicked"), "{}", cluster.node("n1").log());

    // An operator's and a user's certificate: the API only. Revoked: nothing at all, not even on a live connection.
    for (name, kind) in [("op", UserKind::Operator), ("alice", UserKind::User), ("eye", UserKind::ReadOnly)] {
        let user = cluster.user(name, kind).await.expect("n1 signs");
        for service in [Service::Mesh, Service::Agent] {
            refused(&cluster, "n1", service, &user, &[RefusalReason::Forbidden]).await;
        }
        let mut live = welcomed(&cluster, "n1", Service::Api, &user).await;
        let shown = asked(&mut live, Request::TokenShow { role: Role::Manager }).await;
        assert_eq!(shown.is_ok(), kind.is_operator(), "{shown:?}");
        let listed = asked(&mut live, Request::TokenList).await;
        assert_eq!(listed.is_ok(), kind.reads_everything(), "{listed:?}");
        if kind.is_read_only() {
            for request in forbidden_to_nodes(node_of(&worker)) {
                let text = format!("{request:?}");
                assert_eq!(asked(&mut live, request).await, Err(ErrorCode::Forbidden), "{text}");
            }
        }
        let revoked = Request::UserRevoke { name: name.parse().expect("a name") };
        cluster.ask("n1", revoked).await.expect("n1 revokes");
        let revoked = Instant::now();
        is_disconnected(&mut live).await;
        println!("{name}: disconnected {:?} after the answer", revoked.elapsed());
        refused(&cluster, "n1", Service::Api, &user, &[RefusalReason::Unauthenticated]).await;
    }

    // Of another cluster: TLS itself refuses it everywhere.
    let other = self::cluster(1, 1).await;
    for thief in ["n1", "n2"] {
        let foreign = other.node(thief).credentials().expect("an identity");
        // It pretends to trust us: our verification counts.
        let foreign = NodeCredentials { root_pem: worker.root_pem.clone(), ..foreign };
        for service in [Service::Mesh, Service::Agent, Service::Api] {
            let greeted = caller(&cluster, "n1", service, &foreign).greeted().await;
            assert!(matches!(greeted, Err(HandshakeError::Broken(_))), "{thief} {service:?}");
        }
    }

    // Without a certificate: join and HTTP only.
    for service in [Service::Mesh, Service::Agent, Service::Api] {
        let unauthenticated = Caller::unauthenticated(cluster.node("n1").listen, service.alpn());
        let reason = unauthenticated.greeted().await.err().and_then(|no| no.reason());
        assert_eq!(reason, Some(RefusalReason::Unauthenticated), "{service:?}");
    }
}

/// Waits until the other side ends this connection.
async fn is_disconnected(connection: &mut Connection) {
    let begun = Instant::now();
    loop {
        let call = connection.call(Request::Contact, RequestId(1), Duration::from_millis(500)).await;
        if matches!(call, Err(CallError::Lost(_))) {
            break;
        }
        assert!(
            begun.elapsed() < MAX_SERVED_AFTER_REVOCATION,
            "still served after {MAX_SERVED_AFTER_REVOCATION:?}: {call:?}"
        );
        pause().await;
    }
}

#[tokio::test]
async fn removed_worker_is_disconnected_and_its_certificate_rejected() {
    let mut cluster = cluster(3, 2).await;
    let managers = ["n1", "n2", "n3"];
    // n4 is frozen while it is removed; n5 runs, and attacks with its certificate meanwhile.
    for (victim, freeze) in [("n4", true), ("n5", false)] {
        let credentials = cluster.node(victim).credentials().expect("an identity");
        let node = node_of(&credentials);
        let mut live = Vec::new();
        for manager in managers {
            let mut connection = welcomed(&cluster, manager, Service::Api, &credentials).await;
            assert!(asked(&mut connection, Request::Contact).await.is_ok(), "{manager} serves it before");
            live.push(connection);
        }
        if freeze {
            cluster.node(victim).signal(Signal::STOP);
        }
        let remove = Request::NodeRemove { node: node.to_string(), force: true };
        cluster.ask("n1", remove).await.expect("n1 removes it");
        let removed = Instant::now();
        for connection in &mut live {
            is_disconnected(connection).await;
        }
        println!("{victim}: disconnected on every manager {:?} after the answer", removed.elapsed());
        let why = [RefusalReason::Blocked, RefusalReason::Removed];
        for manager in managers {
            for service in [Service::Agent, Service::Api] {
                refused(&cluster, manager, service, &credentials, &why).await;
            }
            refused(&cluster, manager, Service::Mesh, &credentials, &[why[0], why[1], RefusalReason::Forbidden]).await;
        }
        if freeze {
            cluster.node(victim).signal(Signal::CONT);
        }
        // Its own process learns and records it, and a restart on the old files fails as well.
        let files = IdentityStore::open(&cluster.node(victim).folder).expect("it has an identity");
        until("it knows that it is removed", async || Ok(files.load_node().ok().and_then(|known| known.ended)))
            .await
            .unwrap_or_else(|no| panic!("{victim}: {no}\n{}", cluster.node(victim).log()));
        let process = cluster.node_mut(victim);
        process.kill().await;
        process.start(&[]).expect("it starts");
        assert_eq!(process.exit().await.expect("it ends").code(), Some(6), "{}", process.log());
        let seen = cluster.nodes_seen_by("n2").await.expect("n2 answers");
        assert!(seen.iter().all(|n| n.id != node), "it is in no list");
    }
}

#[tokio::test]
async fn demoted_manager_certificate_opens_no_mesh_session() {
    let cluster = cluster(3, 0).await;
    let (leader, _) = cluster.leader("n1").await.expect("a leader");
    let names = cluster.names();
    let victim = names.iter().find(|name| **name != leader).expect("three managers").as_str();
    let old = cluster.node(victim).credentials().expect("an identity");
    let node = node_of(&old);
    let demote = Request::SetRole { node: node.to_string(), role: Role::Worker };
    cluster.ask(&leader, demote).await.expect("it is demoted");
    for manager in names.iter().filter(|name| *name != victim) {
        until("it is demoted", async || {
            let seen = cluster.seen(manager, victim).await?;
            Ok(seen.filter(|n| n.role == Role::Worker).map(drop))
        })
        .await
        .expect("it is demoted");
        // Whichever manager is asked, the leader answers: a follower's own replica has the demotion a moment later.
        if *manager == leader {
            refused(&cluster, manager, Service::Mesh, &old, &[RefusalReason::Demoted]).await;
        } else {
            let reason = caller(&cluster, manager, Service::Mesh, &old).refused_by_follower(&[]).await;
            assert_eq!(reason, Ok(RefusalReason::Demoted), "{manager}");
        }
        // Agent service and API still accept it as a node, which it is.
        drop(welcomed(&cluster, manager, Service::Api, &old).await);
    }
    // Promoted and removed: the same old certificate is blocked.
    let remove = Request::NodeRemove { node: node.to_string(), force: true };
    until("it is removed", async || {
        let asked = cluster.ask(&leader, remove.clone()).await;
        // The answer to an earlier request may have been lost.
        Ok((asked.is_ok() || cluster.seen(&leader, victim).await?.is_none()).then_some(()))
    })
    .await
    .expect("removed");
    refused(&cluster, &leader, Service::Mesh, &old, &[RefusalReason::Blocked, RefusalReason::Removed]).await;
}
