//! Connection permits held by workers, and connections that unauthenticated clients cause a worker to open.

use std::path::Path;

use muster_attacks::caller::Caller;
use muster_attacks::cluster::{Cluster, until};
use muster_attacks::daemon::Daemon;
use muster_client::Client;
use muster_local_cluster::{answers, temporary_folder};
use muster_messages::protocol::Service;
use muster_messages::wire::Request;
use muster_messages::{Liveness, Role};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PROGRAM: &str = env!("CARGO_BIN_EXE_muster-attack");

/// S12: three identities once took 108 of 120 permits, and agents found none.
#[tokio::test]
async fn workers_holding_all_permits_do_not_block_agents() {
    let folder = temporary_folder("places").expect("a temporary folder");
    let config = folder.path().join("small.toml");
    std::fs::write(&config, "[gateway]\nmax_connections = 40\nmax_per_principal = 20\n").expect("the folder is ours");
    let config = config.to_str().expect("plain").to_owned();
    let mut manager = Daemon::new(Path::new(PROGRAM), folder.path(), "n1").expect("a port");
    manager.start_and_wait(&["--init", "--config", &config]).await.expect("it founds");
    let mut client = Client::to_socket(manager.socket(), Duration::from_secs(20));
    let token = client.call(Request::TokenShow { role: Role::Worker }).await.expect("a token");
    let token = answers::token(&muster_client::parse(&token).expect("JSON")).expect("a token");
    let seed = manager.listen.to_string();
    let mut thieves = Vec::new();
    for name in ["n2", "n3", "n4"] {
        let mut worker = Daemon::new(Path::new(PROGRAM), folder.path(), name).expect("a port");
        worker.start_and_wait(&["--join", &seed, "--token", &token]).await.expect("it joins");
        thieves.push(worker.credentials().expect("an identity"));
        worker.kill().await;
    }
    let mut held = Vec::new();
    for thief in &thieves {
        for service in [Service::Api, Service::Http] {
            let caller = Caller::with(manager.listen, service.alpn(), thief).expect("good credentials");
            for _ in 0..30 {
                match service {
                    Service::Http => {
                        held.extend(caller.tls().await.ok().map(|stream| Box::new(stream) as Box<dyn Send>))
                    }
                    _ => held.extend(caller.greeted().await.ok().map(|frames| Box::new(frames) as Box<dyn Send>)),
                }
            }
        }
    }
    assert!(held.len() > 20, "the thieves hold their maximum: {}", held.len());
    let mut honest = Daemon::new(Path::new(PROGRAM), folder.path(), "n5").expect("a port");
    honest.start_and_wait(&["--join", &seed, "--token", &token]).await.expect("it joins");
    until("its agent has a session", async || {
        let nodes = client.call(Request::NodeList { fresh: true }).await?;
        let nodes = answers::nodes(muster_client::parse(&nodes)?)?;
        let ready = |node: &muster_messages::NodeView| node.name.as_str() == "n5" && node.state == Liveness::Ready;
        Ok(nodes.iter().any(ready).then_some(()))
    })
    .await
    .expect("agents have permits of their own");
}

/// S14: 400 requests with `Bearer x` once were 400 new connections to a manager.
#[tokio::test]
async fn invalid_tokens_at_worker_are_not_forwarded() {
    let cluster = Cluster::up(Path::new(PROGRAM), 1, 1).await.expect("a cluster");
    let passed_on = async || {
        let view = cluster.inspect("n1", "node/gateway").await.expect("a view");
        view["admitted"]["http"].as_u64().unwrap_or_default()
    };
    let worker = Caller::unauthenticated(cluster.node("n2").listen, &[b"http/1.1"]);
    let before = passed_on().await;
    let statuses = async |token: &str, times: usize| {
        let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: {token}\r\n\r\n");
        let mut statuses = Vec::new();
        for _ in 0..times {
            let mut stream = worker.tls().await.expect("TLS");
            stream.write_all(request.as_bytes()).await.expect("it is read");
            let mut answer = Vec::new();
            let _closed = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8_lossy(&answer).into_owned();
            let status = answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
            statuses.push(status.unwrap_or_else(|| panic!("no status in {answer:?}")));
        }
        statuses
    };
    let junk = statuses("Bearer x", 100).await;
    assert!(junk.iter().all(|status| *status == 401), "{junk:?}");
    assert_eq!(passed_on().await, before, "malformed tokens are not forwarded");
    let unknown = statuses("Bearer muster-abc-def", 100).await;
    let (refused, rejected) = unknown.iter().partition::<Vec<u16>, _>(|status| **status == 401);
    assert!(refused.len() >= 20 && !rejected.is_empty(), "{unknown:?}");
    assert!(rejected.iter().all(|status| *status == 429), "{unknown:?}");
    assert_eq!(passed_on().await - before, refused.len() as u64);
}
