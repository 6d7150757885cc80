//! A native session: it identifies this process in the cluster, and renews all its leases together.
//!
//! The electors of a process share a session, so that a thousand leases cost a request every few milliseconds instead of a
//! thousand each period.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{LeaseRef, LeaseRequest};
use muster_messages::{ErrorBody, ErrorCode, FencingToken, SessionId, millis};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};

use crate::core::muster_lease::{Answer, Ask, RenewalOutcome, Seen, Trouble};
use crate::ports::Cluster;

/// How long a renewal waits for others: negligible against the shortest period, a batch when there are many.
const GATHER_TIME: Duration = Duration::from_millis(2);
/// Leases and bytes of names in one renewal: with the rest, half of a frame's maximum size.
const MAX_BATCH_LEASES: usize = 1024;
const MAX_BATCH_BYTES: usize = 32 * 1024;
/// Renewals waiting to be sent; a sender waits while the queue is full.
const QUEUE_CAPACITY: usize = 1024;
/// A cluster ends a request itself, with a better reason. This limit is for one that does not.
const LOCAL_TIMEOUT_MARGIN: Duration = Duration::from_millis(100);
/// Transit time of a watch's answer, beyond the time that it waits.
const ANSWER_TRANSIT_TIME: Duration = Duration::from_secs(2);

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    id: SessionId,
    cluster: Arc<dyn Cluster>,
    renewals: mpsc::Sender<Wanted>,
}

struct Wanted {
    lease: LeaseRef,
    token: FencingToken,
    timeout: Duration,
    reply: oneshot::Sender<Result<RenewalOutcome, Trouble>>,
}

impl Session {
    /// A new session. Needs a tokio runtime; its task ends with its last clone.
    pub fn new(cluster: Arc<dyn Cluster>) -> Self {
        let (renewals, wanted) = mpsc::channel(QUEUE_CAPACITY);
        let id = SessionId(rand::random());
        tokio::spawn(renew_together(id, Arc::clone(&cluster), wanted));
        Self { id, cluster, renewals }
    }

    /// The session's id: the cluster knows one holder by it.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Sends an elector's request. Always returns an answer.
    pub(crate) async fn ask(&self, lease: LeaseRef, holder: String, duration: Duration, ask: Ask) -> Answer {
        let session = self.id;
        match ask {
            Ask::Acquire { number, timeout } => {
                let request = LeaseRequest::Acquire { lease, holder, session, duration_ms: millis(duration) };
                Answer::Acquired { number, result: self.request(request, timeout).await }
            }
            Ask::Renew { number, token, timeout } => {
                let (reply, answer) = oneshot::channel();
                let wanted = Wanted { lease, token, timeout, reply };
                let result = match self.renewals.send(wanted).await {
                    Ok(()) => answer.await.unwrap_or_else(|_| Err(silence())),
                    Err(_) => Err(silence()),
                };
                Answer::Renewed { number, result }
            }
            Ask::Release { number, token, timeout } => {
                let request = LeaseRequest::Release { lease, session, token };
                let released: Result<serde_json::Value, Trouble> = self.request(request, timeout).await;
                Answer::Released { number, result: released.map(drop) }
            }
            Ask::Watch { number, seen, wait } => {
                let request = LeaseRequest::Watch { lease, seen, wait_ms: millis(wait) };
                Answer::Watched { number, result: self.request(request, wait + ANSWER_TRANSIT_TIME).await }
            }
        }
    }

    async fn request<T: DeserializeOwned>(&self, request: LeaseRequest, timeout: Duration) -> Result<T, Trouble> {
        request_of(&*self.cluster, request, timeout).await
    }
}

async fn request_of<T: DeserializeOwned>(
    cluster: &dyn Cluster,
    request: LeaseRequest,
    timeout: Duration,
) -> Result<T, Trouble> {
    let asked = tokio::time::timeout(timeout + LOCAL_TIMEOUT_MARGIN, cluster.ask(request, timeout)).await;
    let text = asked.map_err(|_| silence())?.map_err(Trouble::Error)?;
    serde_json::from_str(&text).map_err(|error| Trouble::Unreadable(error.to_string()))
}

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Document {
            revision: muster_messages::Revision,
            lease: Option<muster_messages::LeaseView>,
        }
        Document::deserialize(d).map(|Document { revision, lease }| Seen { revision, lease })
    }
}

#[derive(Deserialize)]
struct Renewals {
    items: Vec<Item>,
}
#[derive(Deserialize)]
struct Item {
    renewed: bool,
}

/// Collects renewals and sends them; several requests may be in flight at once.
async fn renew_together(session: SessionId, cluster: Arc<dyn Cluster>, mut wanted: mpsc::Receiver<Wanted>) {
    while let Some(first) = wanted.recv().await {
        tokio::time::sleep(GATHER_TIME).await;
        let mut bytes = weight(&first);
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH_LEASES
            && bytes < MAX_BATCH_BYTES
            && let Ok(next) = wanted.try_recv()
        {
            bytes += weight(&next);
            batch.push(next);
        }
        let cluster = Arc::clone(&cluster);
        tokio::spawn(async move {
            let timeout = batch.iter().map(|wanted| wanted.timeout).max().unwrap_or_default();
            let held = batch.iter().map(|wanted| (wanted.lease.clone(), wanted.token)).collect();
            let request = LeaseRequest::Renew { session, held };
            let renewed: Result<Renewals, Trouble> = request_of(&*cluster, request, timeout).await;
            let renewed = renewed.and_then(|renewals| {
                let complete = renewals.items.len() == batch.len();
                complete
                    .then_some(renewals.items)
                    .ok_or_else(|| Trouble::Unreadable("the answer does not cover every renewal".to_owned()))
            });
            for (index, wanted) in batch.into_iter().enumerate() {
                let outcome = match &renewed {
                    Ok(items) if items[index].renewed => Ok(RenewalOutcome::Renewed),
                    Ok(_) => Ok(RenewalOutcome::Lost),
                    Err(trouble) => Err(trouble.clone()),
                };
                let _gone = wanted.reply.send(outcome);
            }
        });
    }
}

fn weight(wanted: &Wanted) -> usize {
    wanted.lease.namespace.len() + wanted.lease.name.len() + 16
}

fn silence() -> Trouble {
    Trouble::Error(ErrorBody::new(ErrorCode::TimedOut, "the cluster did not answer in time"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::{BoxFuture, join_all};
    use muster_messages::Revision;
    use serde_json::json;
    use std::sync::Mutex;

    /// Renews every lease except those named `lost`, and counts requests.
    #[derive(Default)]
    struct Counting(Mutex<Vec<usize>>);
    impl Cluster for Counting {
        fn ask(&self, request: LeaseRequest, _: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
            let LeaseRequest::Renew { held, .. } = request else { panic!("{request:?}") };
            self.0.lock().unwrap().push(held.len());
            let item = |(lease, _): &(LeaseRef, _)| json!({"renewed": lease.name != "lost"});
            let items: Vec<_> = held.iter().map(item).collect();
            async move { Ok(json!({"items": items}).to_string()) }.boxed()
        }
    }

    fn lease(name: &str) -> LeaseRef {
        LeaseRef { namespace: "default".into(), name: name.into() }
    }
    fn renewal(number: u64) -> Ask {
        Ask::Renew { number, token: FencingToken(number), timeout: Duration::from_secs(1) }
    }

    #[tokio::test(start_paused = true)]
    async fn simultaneous_renewals_share_a_request() {
        let cluster = Arc::new(Counting::default());
        let session = Session::new(cluster.clone());
        let names = ["a", "lost", "b"];
        let asks = (1..).zip(names).map(|(n, name)| session.ask(lease(name), "me".into(), GATHER_TIME, renewal(n)));
        let answers = join_all(asks).await;
        assert_eq!(*cluster.0.lock().unwrap(), [3]);
        let outcome = |number, outcome| Answer::Renewed { number, result: Ok(outcome) };
        assert_eq!(
            answers,
            [
                outcome(1, RenewalOutcome::Renewed),
                outcome(2, RenewalOutcome::Lost),
                outcome(3, RenewalOutcome::Renewed)
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn batch_stays_far_below_the_frame_limit() {
        let cluster = Arc::new(Counting::default());
        let session = Session::new(cluster.clone());
        let name = "n".repeat(200);
        join_all((0..400).map(|n| session.ask(lease(&name), "me".into(), GATHER_TIME, renewal(n)))).await;
        let batches = cluster.0.lock().unwrap().clone();
        assert_eq!(batches.iter().sum::<usize>(), 400);
        assert!(batches.len() > 1 && batches.iter().all(|n| n * 223 <= MAX_BATCH_BYTES + 223), "{batches:?}");
    }

    struct Silent;
    impl Cluster for Silent {
        fn ask(&self, _: LeaseRequest, _: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
            futures_util::future::pending().boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_each_request_with_an_error() {
        let session = Session::new(Arc::new(Silent));
        let watch = Ask::Watch { number: 1, seen: Revision(0), wait: Duration::from_secs(20) };
        for ask in [renewal(1), watch, Ask::Acquire { number: 1, timeout: Duration::from_secs(5) }] {
            let answer = session.ask(lease("a"), "me".into(), GATHER_TIME, ask).await;
            let silent = match &answer {
                Answer::Renewed { result, .. } => result.is_err(),
                Answer::Watched { result, .. } => result.is_err(),
                Answer::Acquired { result, .. } => result.is_err(),
                Answer::Released { result, .. } => result.is_err(),
            };
            assert!(silent, "{answer:?}");
        }
    }
}
