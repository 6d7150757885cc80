//! A candidacy that a coordinator may choose: a `LeaseCandidate` object that describes this process, and renewals when the
//! coordinator asks for them. A ping is answered with a time later than the ping, whatever either clock shows. A candidate that
//! stops is deleted, unless its cluster cannot be reached.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::MicroTime;
use muster_messages::wire::LeaseRef;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::core::record::{read_time, show_time};
use crate::kubernetes::{ApiError, ApiRequest, KubeApi};

/// Interval of checks for a ping. Muster's coordinator waits 3 s for the answer, Kubernetes' 5 s.
const PING_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Renewal interval without a ping. A candidate silent for 30 min is deleted.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(300);
/// Time limit for the end of a candidacy.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The annotation by which Muster's strategy `muster.dev/Priority` chooses.
pub const PRIORITY: &str = "muster.dev/priority";
/// Muster's strategy: the highest priority leads.
pub const BY_PRIORITY: &str = "muster.dev/Priority";
/// Muster's strategy: the newest binary leads.
pub const BY_RELEASE: &str = "muster.dev/NewestRelease";
/// Kubernetes' strategy: no candidate runs ahead of the oldest one present.
pub const BY_OLDEST_VERSION: &str = "OldestEmulationVersion";

/// The candidate, and the strategy by which it wants to be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidacy {
    /// The elector's identity, which must be a valid object name.
    pub name: String,
    /// The lease that it is a candidate for.
    pub lease: LeaseRef,
    /// How the coordinator should choose, such as [`BY_OLDEST_VERSION`].
    pub strategy: String,
    /// `major.minor.patch`.
    pub binary_version: String,
    /// The version that it emulates; not later than the binary's.
    pub emulation_version: String,
    /// For strategies that decide by annotations, such as [`BY_PRIORITY`].
    pub annotations: BTreeMap<String, String>,
}

/// A running candidacy. When dropped, it lasts until the coordinator forgets it: call [`RunningCandidacy::end`].
pub struct RunningCandidacy {
    stop: CancellationToken,
    trouble: watch::Receiver<Option<String>>,
    task: tokio::task::JoinHandle<()>,
}

impl RunningCandidacy {
    /// Why the coordinator does not know this candidate, if so.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.clone()
    }
    /// Ends the candidacy.
    pub async fn end(self) {
        self.stop.cancel();
        let _ended = tokio::time::timeout(END_TIMEOUT, self.task).await;
    }
}

impl Candidacy {
    /// Begins the candidacy.
    pub fn start(self, api: Arc<dyn KubeApi>) -> RunningCandidacy {
        let stop = CancellationToken::new();
        let (tell, trouble) = watch::channel(Some("the candidate has not been announced yet".to_owned()));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut heartbeat = Instant::now();
            while !stopped.is_cancelled() {
                let checked = self.check(&*api, &mut heartbeat).await;
                tell.send_replace(checked.err().map(|error| error.to_string()));
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = tokio::time::sleep(PING_CHECK_INTERVAL) => {}
                }
            }
            let _gone = api.call(ApiRequest::Delete { path: self.path() }).await;
        });
        RunningCandidacy { stop, trouble, task }
    }

    /// Ensures that the object exists, and answers a ping.
    async fn check(&self, api: &dyn KubeApi, heartbeat: &mut Instant) -> Result<(), ApiError> {
        let written = match api.call(ApiRequest::Get { path: self.path() }).await {
            Ok(object) => match self.answer(&object, Clock.wall().into(), *heartbeat <= Instant::now()) {
                None => return Ok(()),
                Some(body) => api.call(ApiRequest::Put { path: self.path(), body }).await,
            },
            Err(error) if error.status == 404 => {
                let body = self.object(Clock.wall().into());
                api.call(ApiRequest::Post { path: self.collection(), body }).await
            }
            Err(error) => return Err(error),
        };
        match written {
            Ok(_) => *heartbeat = Instant::now() + HEARTBEAT_INTERVAL,
            Err(error) if error.status == 409 => {} // written meanwhile, most likely by the coordinator
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1beta1/namespaces/{}/leasecandidates", self.lease.namespace)
    }
    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }

    fn object(&self, now: MicroTime) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1beta1",
            "kind": "LeaseCandidate",
            "metadata": {"namespace": self.lease.namespace, "name": self.name, "annotations": self.annotations},
            "spec": self.spec(now),
        })
    }
    fn spec(&self, now: MicroTime) -> Value {
        json!({
            "leaseName": self.lease.name,
            "binaryVersion": self.binary_version,
            "emulationVersion": self.emulation_version,
            "strategy": self.strategy,
            "renewTime": show_time(now),
        })
    }

    /// The object's replacement: renewed if requested or due, and corrected if it is an earlier process's.
    fn answer(&self, object: &Value, now: MicroTime, due: bool) -> Option<Value> {
        let spec = &object["spec"];
        let time = |key: &str| spec[key].as_str().and_then(read_time).unwrap_or(MicroTime(0));
        let (pinged, renewed) = (time("pingTime"), time("renewTime"));
        let now = MicroTime(now.0.max(pinged.0 + 1).max(renewed.0 + 1));
        let mut wanted = object.clone();
        let ours = self.spec(now);
        for (key, value) in ours.as_object().into_iter().flatten() {
            wanted["spec"][key] = value.clone();
        }
        for (key, value) in &self.annotations {
            wanted["metadata"]["annotations"][key] = json!(value);
        }
        let mut unrenewed = wanted.clone();
        unrenewed["spec"]["renewTime"] = spec["renewTime"].clone();
        (pinged > renewed || due || unrenewed != *object).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use std::sync::{Mutex, PoisonError};

    /// One object, or none; versions are ignored.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<Option<Value>>>);
    impl Server {
        fn set(&self, change: impl FnOnce(&mut Option<Value>)) {
            change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
        fn get(&self) -> Option<Value> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }
    impl KubeApi for Server {
        fn call(&self, request: ApiRequest) -> BoxFuture<'static, Result<Value, ApiError>> {
            let none = || ApiError { status: 404, message: "none".into() };
            let mut answer = Err(none());
            self.set(|object| {
                answer = match request {
                    ApiRequest::Get { .. } => object.clone().ok_or_else(none),
                    ApiRequest::Delete { .. } => object.take().ok_or_else(none),
                    ApiRequest::Post { body, .. } | ApiRequest::Put { body, .. } => {
                        *object = Some(body.clone());
                        Ok(body)
                    }
                };
            });
            async move { answer }.boxed()
        }
    }

    fn candidacy() -> Candidacy {
        Candidacy {
            name: "baz".into(),
            lease: LeaseRef { namespace: "foo".into(), name: "bar".into() },
            strategy: BY_PRIORITY.into(),
            binary_version: "1.30.0".into(),
            emulation_version: "1.29.0".into(),
            annotations: BTreeMap::from([(PRIORITY.to_owned(), "7".to_owned())]),
        }
    }
    async fn within_ten_seconds(what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < end, "{what}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Case 38.
    #[tokio::test(start_paused = true)]
    async fn a_candidate_appears_with_all_that_a_coordinator_asks() {
        let server = Server::default();
        let running = candidacy().start(Arc::new(server.clone()));
        within_ten_seconds("the candidate exists", || server.get().is_some()).await;
        let object = server.get().unwrap();
        let spec = &object["spec"];
        assert_eq!((&spec["leaseName"], &spec["strategy"]), (&json!("bar"), &json!(BY_PRIORITY)));
        assert_eq!((&spec["binaryVersion"], &spec["emulationVersion"]), (&json!("1.30.0"), &json!("1.29.0")));
        assert_eq!(object["metadata"]["annotations"][PRIORITY], "7");
        assert!(spec["renewTime"].is_string());
        running.end().await;
        assert_eq!(server.get(), None, "deleted when the candidacy ends");
    }

    /// Case 39.
    #[tokio::test(start_paused = true)]
    async fn a_ping_is_answered_with_a_later_time() {
        let server = Server::default();
        let _running = candidacy().start(Arc::new(server.clone()));
        within_ten_seconds("the candidate exists", || server.get().is_some()).await;
        // By a clock a century ahead of ours.
        let ping = "2126-11-21T05:37:55.525623Z";
        server.set(|object| object.as_mut().unwrap()["spec"]["pingTime"] = json!(ping));
        let later = |object: Value| object["spec"]["renewTime"].as_str().is_some_and(|renewed| renewed > ping);
        within_ten_seconds("the answer is later", || server.get().is_some_and(later)).await;
    }

    #[test]
    fn nothing_is_written_without_a_reason() {
        let candidacy = candidacy();
        let object = candidacy.object(MicroTime(5));
        assert_eq!(candidacy.answer(&object, MicroTime(9), false), None);
        assert!(candidacy.answer(&object, MicroTime(9), true).is_some());
        let changed = Candidacy { binary_version: "1.31.0".into(), ..candidacy };
        let answer = changed.answer(&object, MicroTime(9), false).unwrap();
        assert_eq!(answer["spec"]["binaryVersion"], "1.31.0", "the object of an earlier process is corrected");
    }
}
