//! A native session: what tells this process apart in the cluster, and renews everything that it holds together.
//!
//! Electors of one process share a session, so that a thousand leases cost a request every few milliseconds instead of a
//! thousand each period.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{LeaseRef, LeaseRequest};
use muster_messages::{ErrorBody, ErrorCode, FencingToken, SessionId, millis};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};

use crate::core::native::{Answer, Ask, Seen, Trouble, Verdict};
use crate::ports::Cluster;

/// How long a renewal waits for others to join it: nothing beside the shortest period, a batch when there are many.
const GATHER: Duration = Duration::from_millis(2);
/// Leases and bytes of names in one renewal: with what else is in a request, half of what a frame may weigh.
const MOST: usize = 1024;
const MOST_BYTES: usize = 32 * 1024;
/// Renewals waiting to be sent; further ones wait to wait.
const QUEUE: usize = 1024;
/// A cluster ends a question by itself, and knows better why there is no answer. This is for one that does not.
const GRACE: Duration = Duration::from_millis(100);
/// What the answer to a watch may take on its way, beyond the time that it waits.
const ON_THE_WAY: Duration = Duration::from_secs(2);

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
    patience: Duration,
    reply: oneshot::Sender<Result<Verdict, Trouble>>,
}

impl Session {
    /// A new session. Needs a tokio runtime; its task ends with its last clone.
    pub fn new(cluster: Arc<dyn Cluster>) -> Self {
        let (renewals, wanted) = mpsc::channel(QUEUE);
        let id = SessionId(rand::random());
        tokio::spawn(renew_together(id, Arc::clone(&cluster), wanted));
        Self { id, cluster, renewals }
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Asks what an elector wants to know, and answers in any case.
    pub(crate) async fn ask(&self, lease: LeaseRef, holder: String, duration: Duration, ask: Ask) -> Answer {
        let session = self.id;
        match ask {
            Ask::Acquire { number, patience } => {
                let request = LeaseRequest::Acquire { lease, holder, session, duration_ms: millis(duration) };
                Answer::Acquired { number, result: self.request(request, patience).await }
            }
            Ask::Renew { number, token, patience } => {
                let (reply, answer) = oneshot::channel();
                let wanted = Wanted { lease, token, patience, reply };
                let result = match self.renewals.send(wanted).await {
                    Ok(()) => answer.await.unwrap_or_else(|_| Err(silence())),
                    Err(_) => Err(silence()),
                };
                Answer::Renewed { number, result }
            }
            Ask::Release { number, token, patience } => {
                let request = LeaseRequest::Release { lease, session, token };
                let released: Result<serde_json::Value, Trouble> = self.request(request, patience).await;
                Answer::Released { number, result: released.map(drop) }
            }
            Ask::Watch { number, seen, wait } => {
                let request = LeaseRequest::Watch { lease, seen, wait_ms: millis(wait) };
                Answer::Watched { number, result: self.request(request, wait + ON_THE_WAY).await }
            }
        }
    }

    async fn request<T: DeserializeOwned>(&self, request: LeaseRequest, patience: Duration) -> Result<T, Trouble> {
        request_of(&*self.cluster, request, patience).await
    }
}

async fn request_of<T: DeserializeOwned>(
    cluster: &dyn Cluster,
    request: LeaseRequest,
    patience: Duration,
) -> Result<T, Trouble> {
    let asked = tokio::time::timeout(patience + GRACE, cluster.ask(request, patience)).await;
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

/// Collects renewals and sends them; several requests may be on their way at once.
async fn renew_together(session: SessionId, cluster: Arc<dyn Cluster>, mut wanted: mpsc::Receiver<Wanted>) {
    while let Some(first) = wanted.recv().await {
        tokio::time::sleep(GATHER).await;
        let mut bytes = weight(&first);
        let mut batch = vec![first];
        while batch.len() < MOST
            && bytes < MOST_BYTES
            && let Ok(next) = wanted.try_recv()
        {
            bytes += weight(&next);
            batch.push(next);
        }
        let cluster = Arc::clone(&cluster);
        tokio::spawn(async move {
            let patience = batch.iter().map(|wanted| wanted.patience).max().unwrap_or_default();
            let held = batch.iter().map(|wanted| (wanted.lease.clone(), wanted.token)).collect();
            let request = LeaseRequest::Renew { session, held };
            let renewed: Result<Renewals, Trouble> = request_of(&*cluster, request, patience).await;
            let renewed = renewed.and_then(|renewals| {
                let complete = renewals.items.len() == batch.len();
                complete
                    .then_some(renewals.items)
                    .ok_or_else(|| Trouble::Unreadable("not all were answered".to_owned()))
            });
            for (index, wanted) in batch.into_iter().enumerate() {
                let verdict = match &renewed {
                    Ok(items) if items[index].renewed => Ok(Verdict::Renewed),
                    Ok(_) => Ok(Verdict::Lost),
                    Err(trouble) => Err(trouble.clone()),
                };
                let _gone = wanted.reply.send(verdict);
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

    /// Renews everything but leases called `lost`, and counts requests.
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
        Ask::Renew { number, token: FencingToken(number), patience: Duration::from_secs(1) }
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_of_one_moment_travel_together_and_each_gets_its_own_answer() {
        let cluster = Arc::new(Counting::default());
        let session = Session::new(cluster.clone());
        let names = ["a", "lost", "b"];
        let asks = (1..).zip(names).map(|(n, name)| session.ask(lease(name), "me".into(), GATHER, renewal(n)));
        let answers = join_all(asks).await;
        assert_eq!(*cluster.0.lock().unwrap(), [3]);
        let verdict = |number, verdict| Answer::Renewed { number, result: Ok(verdict) };
        assert_eq!(answers, [verdict(1, Verdict::Renewed), verdict(2, Verdict::Lost), verdict(3, Verdict::Renewed)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_stays_far_below_what_a_frame_may_weigh() {
        let cluster = Arc::new(Counting::default());
        let session = Session::new(cluster.clone());
        let name = "n".repeat(200);
        join_all((0..400).map(|n| session.ask(lease(&name), "me".into(), GATHER, renewal(n)))).await;
        let batches = cluster.0.lock().unwrap().clone();
        assert_eq!(batches.iter().sum::<usize>(), 400);
        assert!(batches.len() > 1 && batches.iter().all(|n| n * 223 <= MOST_BYTES + 223), "{batches:?}");
    }

    struct Silent;
    impl Cluster for Silent {
        fn ask(&self, _: LeaseRequest, _: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
            futures_util::future::pending().boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_an_answer_too() {
        let session = Session::new(Arc::new(Silent));
        let watch = Ask::Watch { number: 1, seen: Revision(0), wait: Duration::from_secs(20) };
        for ask in [renewal(1), watch, Ask::Acquire { number: 1, patience: Duration::from_secs(5) }] {
            let answer = session.ask(lease("a"), "me".into(), GATHER, ask).await;
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
