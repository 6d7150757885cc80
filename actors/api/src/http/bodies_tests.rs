//! Bodies over HTTP/1.1, byte by byte as a client writes them.

use muster_messages::Principal;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};

use super::{Network, serve_http};
use crate::tests::World;

/// The answer to a request with a body of this length, from a server that reads at its own pace. Python's client reads
/// nothing before it has written everything.
async fn answer_to(target: &str, length: usize) -> String {
    let (client, server) = duplex(4 * 1024);
    // Kept alive: without it the manager's ports are gone and the request fails because of that.
    let world = World::new();
    tokio::spawn(serve_http(world.service.clone(), Principal::Operator, Network::default(), server));
    let (mut reads, mut writes) = split(client);
    let head = format!("POST {target} HTTP/1.1\r\nhost: n1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    writes.write_all(head.as_bytes()).await.expect("the server reads the head");
    writes.write_all(&vec![b' '; length]).await.expect("the server reads the whole body");
    let mut answer = String::new();
    reads.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test]
async fn body_beyond_the_limit_is_read_and_refused() {
    let maps = "/api/v1/namespaces/default/configmaps";
    for (target, length) in [("/v1/tokens", 200_000), ("/v1/tokens", 4 << 20), (maps, 1 << 20)] {
        let answer = answer_to(target, length).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{target} {length}: {answer}");
        assert!(answer.contains("larger than"), "{answer}");
    }
}

/// A client that announces more than it sends waits for its answer.
#[tokio::test(start_paused = true)]
async fn body_that_stops_beyond_the_limit_is_refused() {
    let (client, server) = duplex(4 * 1024);
    let world = World::new();
    tokio::spawn(serve_http(world.service.clone(), Principal::Operator, Network::default(), server));
    let (mut reads, mut writes) = split(client);
    writes.write_all(b"POST /v1/tokens HTTP/1.1\r\nhost: n1\r\ncontent-length: 9000000000\r\n\r\n").await.unwrap();
    writes.write_all(&vec![b' '; 100_000]).await.unwrap();
    let mut answer = [0; 13];
    reads.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 413 ");
}

#[tokio::test]
async fn config_map_bodies_may_have_the_largest_stored_size() {
    // Blanks are not a config map, but they are read.
    let maps = answer_to("/api/v1/namespaces/default/configmaps", 300 * 1024).await;
    assert!(maps.starts_with("HTTP/1.1 400 "), "{maps}");
    let leases = answer_to("/apis/coordination.k8s.io/v1/namespaces/default/leases", 300 * 1024).await;
    assert!(leases.starts_with("HTTP/1.1 413 "), "{leases}");
}
