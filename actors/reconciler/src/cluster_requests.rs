//! Requests to the cluster, with their answers as values.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{ErrorBody, ErrorCode, Revision, RunRecord, millis};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::warn;

use crate::core::admission::WATCH_WAIT;
use crate::core::retry::Backoff;
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
    let RunRecord { reconciler, term, of_term, .. } = &*record;
    let (reconciler, term, of_term) = (reconciler.clone(), *term, *of_term);
    let request = ReconcilerRequest::RecordRun { record };
    let recorded: Result<Value, ErrorBody> = ask(cluster, request, ANSWER_TIMEOUT).await;
    let Err(error) = recorded else { return true };
    let refused = !error.code.is_transient();
    // Often a term ends before its last record arrives. Any other refusal leaves a gap in the history that the log must explain.
    if refused && error.code != ErrorCode::Conflict {
        warn!(%reconciler, %term, of_term, %error, "the record of a run was refused: it is missing in the history");
    }
    refused
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::{BoxFuture, ready};
    use muster_messages::wire::LeaseRequest;
    use muster_messages::{FencingToken, NodeId, RunOutcome, WallTime};
    use muster_testkit::LoggedLevels;
    use tracing::Level;

    use super::*;

    /// Answers every request with this.
    struct Answers(Result<String, ErrorBody>);

    impl muster_elector::Cluster for Answers {
        fn ask(&self, _: LeaseRequest, _: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
            ready(self.0.clone()).boxed()
        }
    }
    impl Cluster for Answers {
        fn reconcile(&self, _: ReconcilerRequest, _: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
            ready(self.0.clone()).boxed()
        }
    }

    fn run() -> Box<RunRecord> {
        Box::new(RunRecord {
            reconciler: "schema".into(),
            number: 0,
            term: FencingToken(40),
            of_term: 1,
            attempt: 1,
            node: NodeId::from_entropy(1),
            release: "2.0.0".parse().unwrap(),
            step: None,
            began: WallTime(1),
            ran_for_ms: None,
            exit: None,
            outcome: RunOutcome::Running,
            head: String::new(),
            tail: String::new(),
            revision: Revision(0),
        })
    }

    #[tokio::test]
    async fn refused_record_of_a_term_in_force_is_logged() {
        let refused = |code| Err(ErrorBody::new(code, "no"));
        for (answer, decided, logged) in [
            (Ok("{}".to_owned()), true, vec![]),
            (refused(ErrorCode::Conflict), true, vec![]), // its term has ended
            (refused(ErrorCode::NoQuorum), false, vec![]),
            (refused(ErrorCode::AuditUnavailable), false, vec![]),
            (refused(ErrorCode::Locked), false, vec![]),
            (refused(ErrorCode::Invalid), true, vec![Level::WARN]),
            (refused(ErrorCode::Forbidden), true, vec![Level::WARN]),
        ] {
            let logged_levels = LoggedLevels::of("muster_reconciler::cluster_requests");
            assert_eq!(record(&Answers(answer.clone()), run()).await, decided, "{answer:?}");
            assert_eq!(logged_levels.levels(), logged, "{answer:?}");
        }
    }
}
