//! What those without a certificate can do: little, and never at the cost of others.

use std::time::Duration;

use crate::support::*;
use muster_gateway::{Dialer, GatewayConfig, JOIN_FRAME_LIMIT, Rate};
use muster_messages::protocol::Service;
use muster_messages::wire::{JoinFrame, JoinReply, JoinRequest};
use muster_messages::{ErrorCode, Name, Replica, RequestId, Role, Secret};
use rand::{RngCore, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const WAITING: usize = 8;

fn small() -> GatewayConfig {
    GatewayConfig { max_waiting: WAITING, max_anonymous: 4, ..GatewayConfig::default() }
}

fn known() -> Replica {
    with_node(copy_at(10), 3, Role::Worker, 6)
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

/// The beginning of a ClientHello, and no more.
const HALF_A_HELLO: [u8; 12] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9];

#[tokio::test]
async fn half_open_connections_are_bounded_and_a_legitimate_one_gets_in() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, small(), known()).await;
    let worker = world.node(3, Role::Worker, 6);
    for words in [&[][..], &HALF_A_HELLO[..]] {
        let mut open = Vec::new();
        for _ in 0..10 * WAITING {
            let mut stranger = TcpStream::connect(&gate.addr).await.unwrap();
            stranger.write_all(words).await.unwrap();
            open.push(stranger);
            assert!(gate.port.metrics().waiting <= WAITING);
        }
        let _in = gate.dial(&worker, Service::Agent).await.unwrap();
        gate.received(Service::Agent).await;
        eventually("the oldest strangers are gone", || gate.port.metrics().evicted >= 9 * WAITING as u64 - 1).await;
        // They see it, too.
        assert!(matches!(open[0].read(&mut [0; 9]).await, Ok(0) | Err(_)));
    }
    gate.finish().await;
}

#[tokio::test]
async fn a_stranger_who_stays_silent_is_let_go_at_the_deadline() {
    let world = World::new(1);
    let hasty = GatewayConfig { handshake_deadline: Duration::from_millis(100), ..small() };
    let gate = Gate::manager(&world, hasty, known()).await;
    for words in [&[][..], &HALF_A_HELLO[..]] {
        let mut stranger = TcpStream::connect(&gate.addr).await.unwrap();
        stranger.write_all(words).await.unwrap();
        let end = tokio::time::timeout(PATIENCE, stranger.read(&mut [0; 9])).await.expect("let go");
        assert!(matches!(end, Ok(0) | Err(_)));
    }
    // Each is counted first, and gives its place back then.
    eventually("both are counted", || gate.port.metrics().timed_out == 2).await;
    eventually("and gone", || gate.port.metrics().waiting == 0).await;
    gate.finish().await;
}

#[tokio::test]
async fn mute_joiners_reach_no_service_and_a_real_one_does() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, small(), known()).await;
    let mut mute = Vec::new();
    for _ in 0..3 * WAITING {
        mute.push(joiner(&world, &gate).await);
    }
    let mut real = joiner(&world, &gate).await;
    real.stream.send(&join_request()).await.unwrap();
    let connection = gate.received(Service::Join).await;
    let mut served = muster_gateway::Framed::new(connection.stream);
    assert_eq!(served.recv::<JoinFrame>().await.unwrap(), Some(join_request()));
    assert!(gate.inboxes.get_mut(&Service::Join).unwrap().try_recv().is_err());
    assert!(gate.port.metrics().evicted >= 2 * WAITING as u64);
    drop(mute);
    gate.finish().await;
}

#[tokio::test]
async fn a_joiner_that_is_not_heard_in_time_is_let_go() {
    let world = World::new(1);
    let hasty = GatewayConfig { first_byte_deadline: Duration::from_millis(100), ..small() };
    let gate = Gate::manager(&world, hasty, known()).await;
    let mut mute = joiner(&world, &gate).await;
    let end = tokio::time::timeout(PATIENCE, mute.stream.recv::<JoinReply>()).await.expect("let go");
    assert!(!matches!(end, Ok(Some(_))));
    eventually("it is counted", || gate.port.metrics().timed_out == 1).await;
    gate.finish().await;
}

#[tokio::test]
async fn random_bytes_panic_nothing_and_keep_nobody_out() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), known()).await;
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for round in 0..300usize {
        let mut bytes = vec![0; round];
        random.fill_bytes(&mut bytes);
        let mut raw = TcpStream::connect(&gate.addr).await.unwrap();
        // It may hang up in the middle.
        let _ = raw.write_all(&bytes).await;
        let mut joining = joiner(&world, &gate).await.stream.into_inner();
        let _ = joining.write_all(&bytes).await;
        let _ = joining.shutdown().await;
    }
    let worker = world.node(3, Role::Worker, 6);
    let _in = gate.dial(&worker, Service::Agent).await.unwrap();
    gate.received(Service::Agent).await;
    eventually("all of it is over", || gate.port.metrics().waiting == 0).await;
    let metrics = gate.port.metrics();
    assert!(metrics.handshake_failed > 0 && metrics.malformed > 0, "{metrics:?}");
    gate.finish().await;
}

#[tokio::test]
async fn a_join_frame_that_is_too_large_or_none_is_answered_with_what_is_wrong() {
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
async fn join_requests_of_one_address_are_rated_and_told_when_to_come_back() {
    let world = World::new(1);
    let strict = GatewayConfig { join_rate: Rate { per_second: 1, burst: 2 }, ..small() };
    let mut gate = Gate::manager(&world, strict, known()).await;
    let mut replies = Vec::new();
    for _ in 0..3 {
        let mut dialed = joiner(&world, &gate).await;
        dialed.stream.send(&join_request()).await.unwrap();
        replies.push(dialed);
    }
    gate.received(Service::Join).await;
    gate.received(Service::Join).await;
    let refused = replies[2].stream.recv::<JoinReply>().await.unwrap();
    let Some(JoinReply::Refused(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.code, ErrorCode::TooManyRequests);
    assert!(error.retry_after_ms.is_some_and(|ms| (1..=1000).contains(&ms)), "{error:?}");
    // Asking for the root is free.
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
    eventually("those that were cut are gone", || gate.port.metrics().anonymous == 4).await;
    let cut = served.iter().filter(|(c, _)| c.kill.cut_reason().is_some()).count();
    assert_eq!(cut, 6, "the oldest make room");
    assert!(served[9].0.kill.cut_reason().is_none());
    gate.finish().await;
}

#[tokio::test]
async fn an_http_client_for_whom_there_is_no_room_is_told_to_come_back() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), known()).await;
    gate.serve(Service::Http, 1);
    let worker = world.node(3, Role::Worker, 6);
    let _fills_the_inbox = gate.dial(&worker, Service::Http).await.unwrap();
    eventually("it is full", || gate.port.metrics().admitted.get(&Service::Http) == Some(&1)).await;
    for identity in [Some(&*worker), None] {
        let tls = muster_pki::client_config(&world.root.cert_pem, identity, &[b"http/1.1"]).unwrap();
        let tcp = TcpStream::connect(&gate.addr).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let mut client = tokio_rustls::TlsConnector::from(tls).connect(name, tcp).await.unwrap();
        client.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        // Closed with a request unread: the answer may be followed by a reset.
        let _reset = tokio::time::timeout(PATIENCE, client.read_to_end(&mut answer)).await.expect("an end");
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 1"), "{answer}");
    }
    assert_eq!(gate.port.metrics().refused.get("too_many_requests"), Some(&2));
    gate.finish().await;
}
