//! A worker at the addresses of managers: S2 of the security review. No node trusts it or sends it a secret.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_attacks::caller::Caller;
use muster_attacks::cluster::{Cluster, until};
use muster_gateway::Framed;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{Greeting, HostFrame, Refusal, Request};
use muster_messages::{Liveness, NodeId, RefusalReason, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// What an impostor received.
#[derive(Default)]
struct Seen {
    /// Connections of any kind.
    connections: usize,
    /// Data after the handshake, with its protocol.
    received: Vec<(String, Vec<u8>)>,
}

type Record = Arc<Mutex<Seen>>;

fn locked(record: &Record) -> MutexGuard<'_, Seen> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server with a worker's certificate at a manager's address.
struct Impostor {
    record: Record,
    serving: JoinHandle<()>,
}

impl Impostor {
    async fn at(addr: SocketAddr, own: &NodeCredentials) -> Self {
        let listener = until("the address is free", async || Ok(TcpListener::bind(addr).await.ok())).await;
        let listener = listener.expect("its manager has ended");
        let every: Vec<&[u8]> = Service::ALL.iter().flat_map(|service| service.alpn()).copied().collect();
        let tls = TlsAcceptor::from(muster_pki::server_config(own, &every).expect("its own certificate"));
        let node = own.identity.node().expect("a node's").0;
        let record = Record::default();
        let kept = Arc::clone(&record);
        let serving = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                locked(&kept).connections += 1;
                open.spawn(impersonate(tcp, tls.clone(), node, Arc::clone(&kept)));
            }
        });
        Self { record, serving }
    }

    /// Ends it: the address is free again.
    async fn end(self) {
        self.serving.abort();
        let _aborted = self.serving.await;
    }
}

/// As a host it ends the agent's node; otherwise it welcomes and records.
async fn impersonate(tcp: TcpStream, tls: TlsAcceptor, node: NodeId, kept: Record) {
    let Ok(mut stream) = tls.accept(tcp).await else { return };
    let alpn = String::from_utf8_lossy(stream.get_ref().1.alpn_protocol().unwrap_or_default()).into_owned();
    if alpn.starts_with("muster-") {
        let mut frames = Framed::new(stream);
        let _gone = frames.send(&Greeting::Welcome { node }).await;
        if alpn.starts_with("muster-agent") {
            let message = "this node was removed from the cluster".to_owned();
            let refusal =
                Refusal { reason: RefusalReason::Removed, message, managers: Vec::new(), retry_after_ms: None };
            let _gone = frames.send(&HostFrame::Ended(refusal)).await;
        }
        while let Ok(Some(frame)) = frames.recv_bytes().await {
            locked(&kept).received.push((alpn.clone(), frame.to_vec()));
        }
    } else {
        let mut said = vec![0; 4096];
        if let Ok(length @ 1..) = stream.read(&mut said).await {
            locked(&kept).received.push((alpn, said[..length].to_vec()));
            let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
            let _gone = stream.shutdown().await;
        }
    }
}

/// The managers are down, and a worker's certificate answers at their addresses: agents, relays and users' bearer tokens arrive.
#[tokio::test]
async fn worker_posing_as_manager_ends_no_node_and_sees_no_token() {
    let mut cluster = Cluster::up(Path::new(env!("CARGO_BIN_EXE_muster-attack")), 2, 2).await.expect("a cluster");
    let thief = cluster.node("n3").credentials().expect("an identity");
    let ask = Request::AccessTokenCreate {
        user: "alice".parse().expect("a name"),
        namespace: "team-a".to_owned(),
        ttl_ms: None,
    };
    let made = cluster.ask("n1", ask).await.expect("a token");
    let bearer = made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    for name in ["n1", "n2", "n3"] {
        cluster.node_mut(name).kill().await;
    }
    let mut impostors = Vec::new();
    for name in ["n1", "n2"] {
        impostors.push(Impostor::at(cluster.node(name).listen, &thief).await);
    }
    let connections = || impostors.iter().map(|impostor| locked(&impostor.record).connections).sum::<usize>();
    let dialled_again = async |more: usize| {
        let before = connections();
        until("it dials again", async || Ok((connections() >= before + more).then_some(())))
            .await
            .expect("it dials again");
    };
    dialled_again(4).await; // the victim's agent, at both addresses

    // A user's request at the victim's port, and its operator's at its socket.
    let path = "/apis/coordination.k8s.io/v1/namespaces/team-a/leases";
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {bearer}\r\n\r\n");
    let user = Caller::unauthenticated(cluster.node("n4").listen, &[b"http/1.1"]);
    let mut stream = user.tls().await.expect("TLS");
    stream.write_all(request.as_bytes()).await.expect("it is read");
    let mut answer = Vec::new();
    let _closed = timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await.expect("an answer");
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    let asked = cluster.ask("n4", Request::TokenShow { role: Role::Worker }).await;
    assert!(asked.is_err(), "{asked:?}");
    dialled_again(4).await;
    for impostor in &impostors {
        let received = std::mem::take(&mut locked(&impostor.record).received);
        let received: Vec<_> = received.iter().map(|(alpn, bytes)| (alpn, String::from_utf8_lossy(bytes))).collect();
        assert!(received.is_empty(), "{received:?}");
    }

    // The managers return, and the victim is a node as before, with its process and after a restart.
    for impostor in impostors {
        impostor.end().await;
    }
    for name in ["n1", "n2"] {
        cluster.node_mut(name).start(&[]).expect("it starts");
    }
    for name in ["n1", "n2"] {
        cluster.node_mut(name).ready().await.expect("it serves");
    }
    for restarted in [false, true] {
        if restarted {
            cluster.node_mut("n4").kill().await;
            cluster.node_mut("n4").start_and_wait(&[]).await.expect("no message ended it");
        }
        until("the victim has a session", async || {
            let node = cluster.seen("n1", "n4").await?;
            Ok(node.filter(|node| node.state == Liveness::Ready))
        })
        .await
        .expect("it is a node");
    }
}
