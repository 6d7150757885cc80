//! Many requests with bodies in flight on one HTTP/2 connection, as clients in Go and Rust send them.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use futures_util::stream;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use muster_messages::Principal;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Network, serve_http};
use crate::tests::World;

const MAPS: &str = "http://muster/api/v1/namespaces/default/configmaps";
/// Paused time passes only when all tasks are idle: afterwards the server has done what it can.
const IDLE: Duration = Duration::from_millis(1);

async fn client(world: &World) -> http2::SendRequest<Body> {
    let (client, server) = tokio::io::duplex(16 * 1024);
    tokio::spawn(serve_http(world.service.clone(), Principal::Operator, Network::default(), server));
    let (client, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    tokio::spawn(driver);
    client
}

/// A body that is sent once the sender is dropped.
fn held_back(size: usize) -> (oneshot::Sender<()>, Body) {
    let (release, released) = oneshot::channel::<()>();
    let sent = async move {
        let _dropped = released.await;
        // Blanks are not a config map, but they are read.
        Ok::<_, Infallible>(Bytes::from(vec![b' '; size]))
    };
    (release, Body::from_stream(stream::once(sent)))
}

/// The heads of all requests arrive, then their bodies, the last one first: their answers in order, and the time they took.
async fn answers(sizes: &[usize]) -> (Vec<StatusCode>, Duration) {
    let world = World::new();
    let (client, began) = (client(&world).await, Instant::now());
    let (mut asked, mut releases) = (JoinSet::new(), Vec::new());
    for (number, size) in sizes.iter().enumerate() {
        let (release, body) = held_back(*size);
        releases.push(release);
        let mut client = client.clone();
        asked.spawn(async move {
            let request = Request::post(MAPS).header("content-type", "application/json").body(body).unwrap();
            let answered = client.send_request(request).await.expect("an answer, and no closed connection");
            (number, answered.status())
        });
        sleep(IDLE).await;
    }
    while let Some(release) = releases.pop() {
        drop(release);
        sleep(IDLE).await;
    }
    let mut statuses = asked.join_all().await;
    statuses.sort_unstable();
    (statuses.into_iter().map(|(_, status)| status).collect(), began.elapsed())
}

/// Together they are larger than the connection's window.
#[tokio::test(start_paused = true)]
async fn bodies_in_any_order_are_read_without_delay() {
    let (statuses, took) = answers(&[1024; 100]).await;
    assert!(statuses.iter().all(|status| *status == StatusCode::BAD_REQUEST), "{took:?}: {statuses:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn large_bodies_at_once_are_read_or_refused_at_once() {
    let (statuses, took) = answers(&[250_000; 3]).await;
    let of = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    let (read, refused) = (of(StatusCode::BAD_REQUEST), of(StatusCode::TOO_MANY_REQUESTS));
    assert!(read >= 1 && read + refused == 3, "{statuses:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// The limit for a head is of HTTP/1.1: what arrives between requests is pings.
#[tokio::test(start_paused = true)]
async fn http2_connection_stays_open_between_requests() {
    let world = World::new();
    let (near, far) = tokio::io::duplex(16 * 1024);
    tokio::spawn(serve_http(world.service.clone(), Principal::Operator, Network::default(), far));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(3)).keep_alive_while_idle(true);
    let (mut client, driver) = builder.handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(driver);
    for _ in 0..2 {
        let request = Request::get("http://muster/livez").body(Body::empty()).unwrap();
        let answered = client.send_request(request).await.expect("the connection is open");
        assert_eq!(answered.status(), StatusCode::OK);
        sleep(Duration::from_secs(60)).await;
    }
}
