//! The metrics port: few, short connections.
//!
//! Invariants  METRICS-1  whatever local users do here, this process has its files for the TLS port, the admin socket and the log:
//!                        at most [`MAX_CONNECTIONS`] are open, each for [`ANSWER_TIMEOUT`] at most and for one request.
//! When all are taken, the oldest is closed. A scrape takes milliseconds; a flood closes its own connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Scrapers, probes, and one or two people.
const MAX_CONNECTIONS: usize = 16;
/// From the connection to the end of the request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// From the connection to the last byte of the answer, which is some 100 KiB over loopback or a data center.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause after a failed accept: most likely the process is out of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process ends.
pub(super) async fn serve(listener: Arc<TcpListener>, router: Router) {
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "the metrics port cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tokio::spawn(connection(stream, router.clone())).abort_handle());
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let mut builder = Builder::new(hyper_util::rt::TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that disconnects or is too slow is not logged.
    let _gone = tokio::time::timeout(ANSWER_TIMEOUT, served).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn port() -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(serve(Arc::new(listener), Router::new().route("/livez", get(|| async { "ok\n" }))));
        addr
    }

    async fn half_a_request(addr: std::net::SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: ").await.unwrap();
        stream
    }

    #[tokio::test]
    async fn half_sent_requests_do_not_block_a_scrape() {
        let addr = port().await;
        let mut half = Vec::new();
        for _ in 0..3 * MAX_CONNECTIONS {
            half.push(half_a_request(addr).await);
        }
        let mut scrape = TcpStream::connect(addr).await.unwrap();
        scrape.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        scrape.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
        // Closed only because of their number.
        for stream in half.iter_mut().take(2 * MAX_CONNECTIONS) {
            let mut byte = [0];
            assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_sent_request_ends_in_time() {
        let addr = port().await;
        let mut half = half_a_request(addr).await;
        let mut rest = Vec::new();
        // hyper answers 408, or nothing.
        let _read = half.read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
}
