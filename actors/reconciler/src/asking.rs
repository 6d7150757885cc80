//! Questions to the cluster, and their answers as values.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{ErrorBody, ErrorCode, Revision, millis};
use serde::de::DeserializeOwned;

use crate::core::admission::WATCH;
use crate::core::retry::Backoff;
use crate::ports::Cluster;

/// How long an answer is waited for that is not waiting itself.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// What the answer to a watch may take on its way, beyond the time that it waits.
pub const ON_THE_WAY: Duration = Duration::from_secs(2);
/// A cluster ends a question by itself, and knows better why there is no answer. This is for one that does not.
const LAST: Duration = Duration::from_millis(500);
/// Two looks are at least this far apart, so that a busy cluster does not keep its nodes busy.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Asks; there is an answer in any case.
pub async fn ask<T: DeserializeOwned>(
    cluster: &dyn Cluster,
    request: ReconcilerRequest,
    patience: Duration,
) -> Result<T, ErrorBody> {
    let asked = tokio::time::timeout(patience + LAST, cluster.reconcile(request, patience)).await;
    let text =
        asked.unwrap_or_else(|_| Err(ErrorBody::new(ErrorCode::TimedOut, "the cluster did not answer in time")))?;
    let unreadable = |error| ErrorBody::new(ErrorCode::Internal, format!("the answer cannot be read: {error}"));
    serde_json::from_str(&text).map_err(unreadable)
}

/// What a level is read from: the question, given what was seen; and the revision of its answer.
pub trait Level: Send + 'static {
    type View: DeserializeOwned + Send;
    fn request(&self, seen: Revision, wait_ms: u64) -> ReconcilerRequest;
    fn revision(view: &Self::View) -> Revision;
}

/// Watches for ever; ends when `tell` says that nobody listens. What cannot be reached is asked again, less and less often.
pub async fn watch<L: Level, F: Future<Output = bool> + Send>(
    cluster: Arc<dyn Cluster>,
    level: L,
    mut tell: impl FnMut(Result<L::View, ErrorBody>) -> F + Send,
) {
    let mut seen = Revision(0);
    let mut backoff = Backoff::new(rand::random());
    loop {
        let request = level.request(seen, millis(WATCH));
        let answer: Result<L::View, ErrorBody> = ask(&*cluster, request, WATCH + ON_THE_WAY).await;
        let pause = match &answer {
            Ok(view) => {
                backoff.reset();
                seen = seen.max(L::revision(view));
                BETWEEN_LOOKS
            }
            Err(_) => backoff.pause().min(Duration::from_secs(5)),
        };
        if !tell(answer).await {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}
