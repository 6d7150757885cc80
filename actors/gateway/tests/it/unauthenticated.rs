//! What clients without a certificate can do: little, and never at the cost of others.

use std::time::{Duration, Instant};

use crate::support::*;
use muster_gateway::{Dialer, GatewayConfig, JOIN_FRAME_LIMIT, Rate};
use muster_messages::protocol::Service;
use muster_messages::wire::{JoinFrame, JoinReply, JoinRequest};
use muster_messages::{ErrorCode, Name, RefusalReason, Replica, RequestId, Role, Secret};
use rand::{RngCore, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MAX_WAITING: usize = 8;

fn small() -> GatewayConfig {
    GatewayConfig { max_waiting: MAX_WAITING, max_anonymous: 4, ..GatewayConfig::default() }
}

fn known() -> Replica {
    with_node(replica_at(10), 3, Role::Worker, 6)
}

fn join_request() -> JoinFrame {
    JoinFrame::Join(JoinRequest {
        request_id: RequestId(1),
        node: id(50),
        token_secret: Secret::new("secret"),
        csr_pem: String::new(),
        name: Name::sanitized("n50"),
        advertise: String::new(),
        release: String::new(),
        labels: Default::default(),
        rekey: None,
    })
}

async fn joiner(world: &World, gate: &Gate) -> muster_gateway::Dialed {
    Dialer::anonymous(&world.root.cert_pem).dial(&gate.addr, Service::Join, None).await.unwrap()
}

/// The start of a ClientHello.
const PARTIAL_HELLO: [u8; 12] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9];

#[tokio::test]
async fn half_open_connections_are_bounded() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, small(), known()).await;
    let worker = world.node(3, Role::Worker, 6);
    for words in [&[][..], &PARTIAL_HELLO[..]] {
        let mut open = Vec::new();
        for _ in 0..10 * MAX_WAITING {
            let mut silent_client = TcpStream::connect(&gate.addr).await.unwrap();
            silent_client.write_all(words).await.unwrap();
            open.push(silent_client);
            assert!(gate.port.metrics().waiting <= MAX_WAITING);
        }
        let _in = gate.dial(&worker, Service::Agent).await.unwrap();
        gate.received(Service::Agent).await;
        eventually("the oldest connections are evicted", || gate.port.metrics().evicted >= 9 * MAX_WAITING as u64 - 1)
            .await;
        // Their clients see the end.
        assert!(matches!(open[0].read(&mut [0; 9]).await, Ok(0) | Err(_)));
    }
    gate.finish().await;
}

#[tokio::test]
async fn silent_client_is_closed_at_the_deadline() {
    let world = World::new(1);
    let hasty = GatewayConfig { handshake_deadline: Duration::from_millis(100), ..small() };
    let gate = Gate::manager(&world, hasty, known()).await;
    for words in [&[][..], &PARTIAL_HELLO[..]] {
        let mut silent_client = TcpStream::connect(&gate.addr).await.unwrap();
        silent_client.write_all(words).await.unwrap();
        let end = tokio::time::timeout(WAIT_LIMIT, silent_client.read(&mut [0; 9])).await.expect("let go");
        assert!(matches!(end, Ok(0) | Err(_)));
    }
    // Each is counted first, then frees its slot.
    eventually("both are counted", || gate.port.metrics().timed_out == 2).await;
    eventually("and gone", || gate.port.metrics().waiting == 0).await;
    gate.finish().await;
}

#[tokio::test]
async fn silent_joiners_reach_no_service() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, small(), known()).await;
    let mut mute = Vec::new();
    for _ in 0..3 * MAX_WAITING {
        mute.push(joiner(&world, &gate).await);
    }
    let mut real = joiner(&world, &gate).await;
    real.stream.send(&join_request()).await.unwrap();
    let connection = gate.received(Service::Join).await;
    let mut served = muster_gateway::Framed::new(connection.stream);
    assert_eq!(served.recv::<JoinFrame>().await.unwrap(), Some(join_request()));
    assert!(gate.inboxes.get_mut(&Service::Join).unwrap().try_recv().is_err());
    assert!(gate.port.metrics().evicted >= 2 * MAX_WAITING as u64);
    drop(mute);
    gate.finish().await;
}

#[tokio::test]
async fn silent_joiner_is_closed_at_the_deadline() {
    let world = World::new(1);
    let hasty = GatewayConfig { first_byte_deadline: Duration::from_millis(100), ..small() };
    let gate = Gate::manager(&world, hasty, known()).await;
    let mut mute = joiner(&world, &gate).await;
    let end = tokio::time::timeout(WAIT_LIMIT, mute.stream.recv::<JoinReply>()).await.expect("let go");
    assert!(!matches!(end, Ok(Some(_))));
    eventually("it is counted", || gate.port.metrics().timed_out == 1).await;
    gate.finish().await;
}

#[tokio::test]
async fn random_bytes_cause_no_panic_and_block_no_client() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), known()).await;
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for round in 0..300usize {
        let mut bytes = vec![0; round];
        random.fill_bytes(&mut bytes);
        let mut raw = TcpStream::connect(&gate.addr).await.unwrap();
        // The gateway may close midway.
        let _ = raw.write_all(&bytes).await;
        let mut joining = joiner(&world, &gate).await.stream.into_inner();
        let _ = joining.write_all(&bytes).await;
        let _ = joining.shutdown().await;
    }
    let worker = world.node(3, Role::Worker, 6);
    let _in = gate.dial(&worker, Service::Agent).await.unwrap();
    gate.received(Service::Agent).await;
    eventually("all connections are closed", || gate.port.metrics().waiting == 0).await;
    let metrics = gate.port.metrics();
    assert!(metrics.handshake_failed > 0 && metrics.malformed > 0, "{metrics:?}");
    gate.finish().await;
}

#[tokio::test]
async fn invalid_join_frames_get_an_explained_refusal() {
    let world = World::new(1);
    let gate = Gate::manager(&world, small(), known()).await;
    let oversized = (JOIN_FRAME_LIMIT as u32 + 1).to_be_bytes().to_vec();
    for (bytes, code) in [(oversized, ErrorCode::TooLarge), (vec![0, 0, 0, 2, 1, 99], ErrorCode::Invalid)] {
        let dialed = joiner(&world, &gate).await;
        let mut stream = dialed.stream.into_inner();
        stream.write_all(&bytes).await.unwrap();
        stream.flush().await.unwrap();
        let reply = muster_gateway::Framed::new(stream).recv::<JoinReply>().await.unwrap();
        assert!(matches!(&reply, Some(JoinReply::Refused(e)) if e.code == code), "{reply:?}");
    }
    eventually("both are counted", || gate.port.metrics().malformed == 2).await;
    gate.finish().await;
}

#[tokio::test]
async fn join_requests_per_address_are_rate_limited() {
    let world = World::new(1);
    let strict = GatewayConfig { join_rate: Rate { per_second: 1, burst: 2 }, ..small() };
    let mut gate = Gate::manager(&world, strict, known()).await;
    // On a busy machine a second may pass before it has sent three: one more is then allowed.
    let (begun, mut admitted) = (Instant::now(), 0);
    let error = loop {
        let mut dialed = joiner(&world, &gate).await;
        dialed.stream.send(&join_request()).await.unwrap();
        tokio::select! {
            refused = dialed.stream.recv::<JoinReply>() => match refused.unwrap() {
                Some(JoinReply::Refused(error)) => break error,
                other => panic!("{other:?}"),
            },
            _admitted = gate.received(Service::Join) => admitted += 1,
        }
        // The gateway's clock counts whole milliseconds.
        let allowed = 2 + (begun.elapsed() + Duration::from_millis(1)).as_secs();
        assert!(admitted <= allowed, "{admitted} were admitted, {allowed} may be");
        assert!(begun.elapsed() < WAIT_LIMIT, "no second was short enough for three requests");
    };
    assert!(admitted >= 2, "two at once are allowed: {admitted}");
    assert_eq!(error.code, ErrorCode::TooManyRequests);
    assert!(error.retry_after_ms.is_some_and(|ms| (1..=1000).contains(&ms)), "{error:?}");
    // Requests for the root are not limited.
    let mut asking = joiner(&world, &gate).await;
    asking.stream.send(&JoinFrame::GetRoot).await.unwrap();
    gate.received(Service::Join).await;
    gate.finish().await;
}

#[tokio::test]
async fn anonymous_http_connections_are_bounded() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, small(), known()).await;
    let dialer = Dialer::anonymous(&world.root.cert_pem);
    let mut served = Vec::new();
    for _ in 0..10 {
        let dialed = dialer.dial(&gate.addr, Service::Http, None).await.unwrap();
        let mut open = dialed.stream.into_inner();
        open.write_all(b"GET").await.unwrap();
        open.flush().await.unwrap();
        served.push((gate.received(Service::Http).await, open));
    }
    eventually("the evicted connections lose their places", || gate.port.metrics().anonymous == 4).await;
    let cut = || served.iter().filter(|(c, _)| c.kill.disconnect_reason().is_some()).count();
    eventually("the oldest are closed", || cut() == 6).await;
    assert!(served[9].0.kill.disconnect_reason().is_none());
    gate.finish().await;
}

/// K2.11.
#[tokio::test]
async fn evicted_http_client_gets_notice_before_the_end() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, small(), known()).await;
    let dialer = Dialer::anonymous(&world.root.cert_pem);
    let (mut clients, mut serving) = (Vec::new(), tokio::task::JoinSet::new());
    for _ in 0..10 {
        let mut open = dialer.dial(&gate.addr, Service::Http, None).await.unwrap().stream.into_inner();
        open.write_all(b"GET").await.unwrap();
        open.flush().await.unwrap();
        clients.push(open);
        let served = gate.received(Service::Http).await;
        serving.spawn(async move {
            // All of it: its place is free once its last part is dropped.
            let mut served = served;
            served.kill.retired().await;
            served.stream.write_all(b"end").await.unwrap();
            served.stream.flush().await.unwrap();
            served.kill.wait().await;
        });
    }
    for client in &mut clients[..6] {
        let mut notice = [0; 3];
        tokio::time::timeout(WAIT_LIMIT, client.read_exact(&mut notice))
            .await
            .expect("in time")
            .expect("before the end");
        assert_eq!(&notice, b"end");
        let end = tokio::time::timeout(WAIT_LIMIT, client.read(&mut notice)).await.expect("the end follows");
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
    serving.shutdown().await;
    gate.finish().await;
}

/// A gateway whose HTTP service is full, and what it answers to these bytes under this protocol, for a client with a certificate and
/// one without.
async fn answers_over_capacity(alpn: &[u8], sent: &[u8]) -> [Vec<u8>; 2] {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), known()).await;
    gate.serve(Service::Http, 1);
    let worker = world.node(3, Role::Worker, 6);
    let _fills_the_inbox = gate.dial(&worker, Service::Http).await.unwrap();
    eventually("the service is full", || gate.port.metrics().admitted.get(&Service::Http) == Some(&1)).await;
    let mut answers = [Vec::new(), Vec::new()];
    for (answer, identity) in answers.iter_mut().zip([Some(&*worker), None]) {
        let tls = muster_pki::client_config(&world.root.cert_pem, identity, &[alpn]).unwrap();
        let tcp = TcpStream::connect(&gate.addr).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let mut client = tokio_rustls::TlsConnector::from(tls).connect(name, tcp).await.unwrap();
        client.write_all(sent).await.unwrap();
        tokio::time::timeout(WAIT_LIMIT, client.read_to_end(answer)).await.expect("an end").expect("no reset");
    }
    assert_eq!(gate.port.metrics().refused.get(&RefusalReason::TooManyRequests), Some(&2));
    gate.finish().await;
    answers
}

#[tokio::test]
async fn http_client_over_capacity_gets_retry_after() {
    for answer in answers_over_capacity(b"http/1.1", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await {
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 1"), "{answer}");
    }
}

/// K2.11. A client that gets no GOAWAY cannot tell whether its requests were carried out, and does not repeat writes.
#[tokio::test]
async fn http2_client_over_capacity_may_repeat_all_requests() {
    // The preface, its settings, and requests that the server never reads.
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    sent.extend([0; 8 * 1024]);
    for answer in answers_over_capacity(b"h2", &sent).await {
        let (settings, goaway) = answer.split_at_checked(9).expect("two frames");
        assert_eq!(settings, [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        // The last processed stream, and the error.
        assert_eq!((&goaway[..9], &goaway[9..]), (&[0, 0, 8, 7, 0, 0, 0, 0, 0][..], &[0; 8][..]));
    }
}
