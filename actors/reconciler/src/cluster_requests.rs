//! Requests to the cluster, with their answers as values.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{ErrorBody, ErrorCode, Revision, RunRecord, millis};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::core::admission::WATCH_WAIT;
use crate::core::retry::Backoff;
use crate::core::run::is_refused;
use crate::ports::Cluster;

/// Time limit for an answer that does not wait for news.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Transit time of a watch's answer, beyond the time that it waits.
pub const ANSWER_TRANSIT_TIME: Duration = Duration::from_secs(2);
/// A cluster ends a request itself, with a better reason. This limit is for one that does not.
const LOCAL_TIMEOUT_MARGIN: Duration = Duration::from_millis(500);
/// Minimum pause between two reads: a busy cluster must not keep its nodes busy.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(50);

/// Sends a request. Always returns an answer.
pub async fn ask<T: DeserializeOwned>(
    cluster: &dyn Cluster,
    request: ReconcilerRequest,
    limit: Duration,
) -> Result<T, ErrorBody> {
    let asked = tokio::time::timeout(limit + LOCAL_TIMEOUT_MARGIN, cluster.reconcile(request, limit)).await;
    let text =
        asked.unwrap_or_else(|_| Err(ErrorBody::new(ErrorCode::TimedOut, "the cluster did not answer in time")))?;
    let unreadable = |error| ErrorBody::new(ErrorCode::Internal, format!("the answer cannot be read: {error}"));
    serde_json::from_str(&text).map_err(unreadable)
}

/// Writes the record of a run. False: the cluster has not answered, and the same record may be sent again.
pub async fn record(cluster: &dyn Cluster, record: Box<RunRecord>) -> bool {
    let request = ReconcilerRequest::RecordRun { record };
    let recorded: Result<Value, ErrorBody> = ask(cluster, request, ANSWER_TIMEOUT).await;
    recorded.map_or_else(|error| is_refused(&error), |_| true)
}

/// A watched value: the request, given the revision seen, and the revision of its answer.
pub trait WatchedValue: Send + 'static {
    type View: DeserializeOwned + Send;
    fn request(&self, seen: Revision, wait_ms: u64) -> ReconcilerRequest;
    fn revision(view: &Self::View) -> Revision;
}

/// Watches until `tell` returns false. An unreachable cluster is asked less and less often.
pub async fn watch<L: WatchedValue, F: Future<Output = bool> + Send>(
    cluster: Arc<dyn Cluster>,
    watched_value: L,
    mut tell: impl FnMut(Result<L::View, ErrorBody>) -> F + Send,
) {
    let mut seen = Revision(0);
    let mut backoff = Backoff::new(rand::random());
    loop {
        let request = watched_value.request(seen, millis(WATCH_WAIT));
        let answer: Result<L::View, ErrorBody> = ask(&*cluster, request, WATCH_WAIT + ANSWER_TRANSIT_TIME).await;
        let pause = match &answer {
            Ok(view) => {
                backoff.reset();
                seen = seen.max(L::revision(view));
                MIN_READ_INTERVAL
            }
            Err(_) => backoff.pause().min(Duration::from_secs(5)),
        };
        if !tell(answer).await {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}
