//! A token sent to the wrong server: one outside the cluster never sees its secret.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_attacks::cluster::{Cluster, until};
use muster_attacks::daemon::Daemon;
use muster_gateway::Framed;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{self, Greeting, JoinFrame, JoinReply, Refusal};
use muster_messages::{OfferedRoot, RefusalReason, Role};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

type Received = Arc<Mutex<Vec<Vec<u8>>>>;

/// How many connections were opened.
type Connections = Arc<AtomicUsize>;

/// A server with a certificate of another cluster that speaks the join protocol, claims `root_pem` as its root, and
/// keeps every frame that it receives.
async fn fake(own: &NodeCredentials, root_pem: String) -> (SocketAddr, Received, Connections) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("bound");
    let tls = TlsAcceptor::from(muster_pki::server_config(own, Service::Join.alpn()).expect("its own certificate"));
    let node = own.identity.node().expect("a node").0;
    let received = Received::default();
    let connections = Connections::default();
    let (kept, opened) = (received.clone(), connections.clone());
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            opened.fetch_add(1, Ordering::SeqCst);
            let (tls, kept, root_pem) = (tls.clone(), kept.clone(), root_pem.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(tcp).await else { return };
                let mut frames = Framed::new(stream);
                if frames.send(&Greeting::Welcome { node }).await.is_err() {
                    return;
                }
                while let Ok(Some(bytes)) = frames.recv_bytes().await {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(bytes.to_vec());
                    let claimed = OfferedRoot { cert_pem: root_pem.clone(), vouchers: Vec::new(), trusted: true };
                    let reply = match wire::decode(&bytes) {
                        Ok(JoinFrame::GetRoots) => JoinReply::Roots(vec![claimed]),
                        _ => JoinReply::Root { root_pem: root_pem.clone() },
                    };
                    if frames.send(&reply).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (addr, received, connections)
}

#[tokio::test]
async fn join_token_is_sent_only_to_its_own_cluster() {
    let program = Path::new(env!("CARGO_BIN_EXE_muster-attack"));
    let cluster = Cluster::up(program, 1, 1).await.expect("a cluster");
    let liar = Cluster::up(program, 1, 0).await.expect("another cluster");
    let token = cluster.token(Role::Worker).await.expect("a token");
    let secret = token.rsplit('-').next().expect("a token has parts").to_owned();
    let (ours, theirs) = (cluster.node("n1").credentials(), liar.node("n1").credentials());
    let (ours, theirs) = (ours.expect("an identity"), theirs.expect("an identity"));

    // It presents its own root: the digest is wrong, and the joiner stops permanently.
    let (addr, impostor_server, _) = fake(&theirs, theirs.root_pem.clone()).await;
    let mut joiner = Daemon::new(program, cluster.folder(), "victim1").expect("a port");
    joiner.start(&["--join", &addr.to_string(), "--token", &token]).expect("it starts");
    assert_eq!(joiner.exit().await.expect("it ends").code(), Some(6), "{}", joiner.log());
    assert!(joiner.log().contains("digest"), "{}", joiner.log());

    // It presents the real root, which is public, but cannot prove that it belongs to it; or it can, as a worker.
    let mut all = vec![impostor_server];
    let worker = cluster.node("n2").credentials().expect("an identity");
    for (name, liar, tells) in [("victim2", &theirs, "TLS"), ("victim3", &worker, "the certificate of a worker")] {
        let (addr, received, connections) = fake(liar, ours.root_pem.clone()).await;
        let mut joiner = Daemon::new(program, cluster.folder(), name).expect("a port");
        joiner.start(&["--join", &addr.to_string(), "--token", &token]).expect("it starts");
        until("it has requested the root from the impostor", async || {
            let asked = !received.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            Ok(asked.then_some(()))
        })
        .await
        .expect("it sends the request");
        // The second connection would carry the secret; the sixth belongs to the third attempt.
        until("it tries again", async || Ok((connections.load(Ordering::SeqCst) > 5).then_some(())))
            .await
            .expect("it retries");
        let joined = tokio::time::timeout(Duration::ZERO, joiner.ready()).await;
        assert!(!matches!(joined, Ok(Ok(_))), "it joined an impostor");
        joiner.kill().await;
        assert!(joiner.log().contains(tells), "it logs why: {}", joiner.log());
        all.push(received);
    }

    for received in all {
        let received = received.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(!received.is_empty(), "it received a request");
        for frame in received {
            let what = wire::decode::<JoinFrame>(&frame);
            assert!(matches!(what, Ok(JoinFrame::GetRoot | JoinFrame::GetRoots)), "only roots were requested");
            assert!(!frame.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()), "the secret was sent");
        }
    }
    // The same token at the right server.
    let seed = cluster.node("n1").listen.to_string();
    let mut joiner = Daemon::new(program, cluster.folder(), "joiner").expect("a port");
    joiner.start_and_wait(&["--join", &seed, "--token", &token]).await.expect("it joins");
}

/// S15: text from an unauthenticated server must reach a joiner's terminal as one printable line.
#[tokio::test]
async fn server_messages_print_no_terminal_escapes_when_joining() {
    let program = Path::new(env!("CARGO_BIN_EXE_muster-attack"));
    let cluster = Cluster::up(program, 1, 0).await.expect("a cluster");
    let liar = Cluster::up(program, 1, 0).await.expect("another cluster");
    let token = cluster.token(Role::Worker).await.expect("a token");
    let own = liar.node("n1").credentials().expect("an identity");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("bound");
    let tls = TlsAcceptor::from(muster_pki::server_config(&own, Service::Join.alpn()).expect("its own certificate"));
    let message = "x\n2026-11-23T05:59:59Z  INFO forged line\x1b[32mgreen\x1b]0;pwned\x07\r\u{9b}31m".to_owned();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let Ok(stream) = tls.accept(tcp).await else { continue };
            let refusal = Refusal {
                reason: RefusalReason::NotKnownHereYet,
                message: message.clone(),
                managers: vec!["\x1b[2J\n".to_owned()],
                retry_after_ms: None,
            };
            let mut frames = Framed::new(stream);
            let _gone = frames.send(&Greeting::Refused(refusal)).await;
        }
    });
    let mut joiner = Daemon::new(program, cluster.folder(), "victim").expect("a port");
    joiner.start(&["--join", &addr.to_string(), "--token", &token]).expect("it starts");
    until("it logs the server's message", async || Ok(joiner.log().contains("forged line").then_some(())))
        .await
        .unwrap_or_else(|no| panic!("{no}: {}", joiner.log()));
    joiner.kill().await;
    let log = joiner.log();
    let bad = |c: char| c.is_control() && c != '\n';
    assert!(!log.contains(bad), "{log:?}");
    assert!(!log.lines().any(|line| line.starts_with("2026-11-23T05:59:59Z")), "{log}");
}
