//! Connections: every local user can open some, so they are few and short, except those of pages that a session has opened.
//!
//! Invariants  DASH-9  whatever local users do here, a logged-in page keeps its stream, and a new connection is answered: at most
//!                     [`MAX_CONNECTIONS`] are open; when all are taken, the oldest without a session is closed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Far more than the streams of all sessions.
const MAX_CONNECTIONS: usize = 128;
/// From the connection to the end of the request's headers.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// From the connection to the last byte of an answer other than a stream. An action may take its whole time limit.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept: most likely the process is out of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whether a connection carries the stream of a session.
#[derive(Clone, Default)]
pub struct Admitted(Arc<AtomicBool>);

impl Admitted {
    /// It does from now on.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, router: Router) {
    let mut open: VecDeque<(AbortHandle, Admitted)> = VecDeque::with_capacity(MAX_CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        open.retain(|(connection, _)| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS {
            let oldest = open.iter().position(|(_, admitted)| !admitted.get());
            if let Some((connection, _)) = oldest.and_then(|at| open.remove(at)) {
                connection.abort();
            }
        }
        let admitted = Admitted::default();
        let router = router.clone().layer(Extension(admitted.clone()));
        open.push_back((tokio::spawn(connection(stream, router, admitted.clone())).abort_handle(), admitted));
    }
}

async fn connection(stream: TcpStream, router: Router, admitted: Admitted) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    // A client that disconnects or is too slow is not reported.
    if tokio::time::timeout(ANSWER_TIMEOUT, &mut served).await.is_err() && admitted.get() {
        let _gone = served.await;
    }
}
