//! HTTP/1.1 connections whose clients pause.

use std::time::Duration;

use muster_messages::Principal;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, sleep};

use super::{ANONYMOUS_IDLE_DEADLINE, IDLE_DEADLINE, Network, serve_http};
use crate::tests::World;

fn connect(world: &World) -> DuplexStream {
    connect_as(world, Principal::Operator)
}

fn connect_as(world: &World, caller: Principal) -> DuplexStream {
    let (client, server) = duplex(4 * 1024);
    tokio::spawn(serve_http(world.service.clone(), caller, Network::default(), server));
    client
}

/// Sends a request and reads its answer; `None`: the connection was closed.
async fn is_alive(client: &mut DuplexStream) -> Option<()> {
    client.write_all(b"GET /livez HTTP/1.1\r\nhost: n1\r\n\r\n").await.ok()?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok\n") {
        answer.push(client.read_u8().await.ok()?);
    }
    Some(())
}

/// As often as a holder of a lease of 15 s renews it, or less.
#[tokio::test(start_paused = true)]
async fn connection_stays_open_between_requests() {
    let world = World::new();
    let mut client = connect(&world);
    for pause in [1, 5, 10, 11, 60] {
        is_alive(&mut client).await.expect("an answer");
        sleep(Duration::from_secs(pause)).await;
    }
    is_alive(&mut client).await.expect("an answer");
    sleep(IDLE_DEADLINE + Duration::from_secs(1)).await;
    assert_eq!(is_alive(&mut client).await, None, "an unused connection is closed in the end");
}

/// Unused connections of clients with bearer tokens compete with those in use.
#[tokio::test(start_paused = true)]
async fn connection_without_a_certificate_is_closed_earlier() {
    let world = World::new();
    let mut client = connect_as(&world, Principal::Anonymous);
    for _ in 0..2 {
        is_alive(&mut client).await.expect("an answer");
        sleep(ANONYMOUS_IDLE_DEADLINE - Duration::from_secs(1)).await;
    }
    is_alive(&mut client).await.expect("an answer");
    sleep(ANONYMOUS_IDLE_DEADLINE + Duration::from_secs(1)).await;
    assert_eq!(is_alive(&mut client).await, None);
}

#[tokio::test(start_paused = true)]
async fn silent_connection_is_closed() {
    let world = World::new();
    let mut client = connect(&world);
    sleep(IDLE_DEADLINE + Duration::from_secs(1)).await;
    assert_eq!(is_alive(&mut client).await, None);
}

/// Most clients send it so: it is not the next head.
#[tokio::test(start_paused = true)]
async fn body_in_its_own_segment_begins_no_head() {
    let world = World::new();
    let mut client = connect(&world);
    let head = b"POST /v1/tokens HTTP/1.1\r\nhost: n1\r\ncontent-length: 4\r\n\r\n";
    client.write_all(head).await.unwrap();
    sleep(Duration::from_millis(10)).await;
    client.write_all(b"nope").await.unwrap();
    sleep(Duration::from_secs(60)).await;
    is_alive(&mut client).await.expect("the connection is open");
}

#[tokio::test(start_paused = true)]
async fn slow_head_ends_the_connection_after_any_pause() {
    let world = World::new();
    for requests_before in [0, 1] {
        let mut client = connect(&world);
        for _ in 0..requests_before {
            is_alive(&mut client).await.expect("an answer");
            sleep(Duration::from_secs(60)).await;
        }
        let began = Instant::now();
        let mut sent = b"GET /livez HTTP/1.1\r\nx-slow: ".iter().chain(std::iter::repeat(&b'a'));
        while client.write_all(&[*sent.next().unwrap()]).await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
        let took = began.elapsed().as_secs();
        assert!((10..12).contains(&took), "{requests_before}: {took} s");
    }
}
