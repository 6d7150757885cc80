//! Whole electors on a lease in an API server of a few lines, in virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::clock::TokioTime;
use muster_elector::kubernetes::{ApiError, ApiRequest, KubeApi, LeaseLock};
use muster_elector::{Candidate, ConfigRefusal, Election, ElectorConfig, LeaderElector, Setup, StartError, Term};
use muster_messages::FencingToken;
use muster_messages::wire::LeaseRef;
use muster_testkit::ActorHarness;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

/// One lease, written only at the version that was read.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    revision: u64,
    lease: Option<Value>,
    writes: u64,
}

impl KubeApi for Server {
    fn call(&self, request: ApiRequest) -> BoxFuture<'static, Result<Value, ApiError>> {
        let mut stored = self.0.lock().unwrap();
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        let error = |status| Err(ApiError { status, message: "no".into() });
        let answer = match (request, stored.lease.clone()) {
            (ApiRequest::Get { .. }, Some(lease)) => Ok(lease),
            (ApiRequest::Post { .. }, Some(_)) => error(409),
            (ApiRequest::Put { body, .. }, Some(lease)) if version(&body) != version(&lease) => error(409),
            (ApiRequest::Post { mut body, .. } | ApiRequest::Put { mut body, .. }, _) => {
                stored.revision += 10;
                stored.writes += 1;
                body["metadata"]["resourceVersion"] = json!(stored.revision.to_string());
                stored.lease = Some(body.clone());
                Ok(body)
            }
            _ => error(404),
        };
        async move { answer }.boxed()
    }
}

impl Server {
    fn holder(&self) -> String {
        let lease = self.0.lock().unwrap().lease.clone().unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }
}

struct Idle;
impl Candidate for Idle {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        async move { term.ended().await }.boxed()
    }
}

fn setup(server: &Server, name: &str) -> Setup {
    let lease = LeaseRef { namespace: "foo".into(), name: "bar".into() };
    let lock = LeaseLock::new(Arc::new(server.clone()), lease.clone());
    let election = Election::Kubernetes(Arc::new(lock));
    Setup { clock: Arc::new(TokioTime), ..Setup::new(ElectorConfig::new(lease, name), election, Arc::new(Idle)) }
}

async fn leads(elector: &LeaderElector) {
    let mut status = elector.status();
    timeout(Duration::from_secs(120), status.wait_for(|status| status.hold.is_some())).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn next_elector_leads_within_a_poll_with_a_larger_token() {
    let (harness, server) = (ActorHarness::start().await, Server::default());
    let first = LeaderElector::start(setup(&server, "a")).await.unwrap();
    leads(&first).await;
    let second = LeaderElector::start(setup(&server, "b")).await.unwrap();
    let mut status = second.status();
    status.wait_for(|status| status.view.leader.as_deref() == Some("a")).await.unwrap();
    first.stop();
    first.ended().await.unwrap();
    assert_eq!(server.holder(), "");
    let released = Instant::now();
    leads(&second).await;
    assert!(released.elapsed() <= Duration::from_millis(4400), "{:?}", released.elapsed());
    assert!(second.token() > Some(FencingToken(10)));
    drop((first, second));
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn dead_leader_is_followed_after_its_lease_ran_out() {
    let (harness, server) = (ActorHarness::start().await, Server::default());
    let first = LeaderElector::start(setup(&server, "a")).await.unwrap();
    leads(&first).await;
    let second = LeaderElector::start(setup(&server, "b")).await.unwrap();
    second.status().wait_for(|status| status.view.leader.is_some()).await.unwrap();
    drop(first); // as if its process had been killed
    let killed = Instant::now();
    leads(&second).await;
    let took = killed.elapsed();
    assert!(took >= Duration::from_secs(15) && took < Duration::from_secs(20), "{took:?}");
    assert_eq!(server.0.lock().unwrap().writes, 2, "the dropped elector wrote nothing more");
    drop(second);
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_costs_one_write_each_period() {
    let (harness, server) = (ActorHarness::start().await, Server::default());
    let elector = LeaderElector::start(setup(&server, "a")).await.unwrap();
    leads(&elector).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let writes = server.0.lock().unwrap().writes;
    assert!((10..=12).contains(&writes), "{writes}");
    assert_eq!(elector.status().borrow().view.read_after_failed_renewal, 0);
    drop(elector);
    harness.finish().await;
}

#[tokio::test]
async fn fractions_of_seconds_are_refused() {
    let mut setup = setup(&Server::default(), "a");
    setup.config.lease_duration = Duration::from_millis(15_500);
    let refused = LeaderElector::start(setup).await.err();
    assert!(matches!(refused, Some(StartError::Config(ConfigRefusal::NotWholeSeconds { .. }))));
}
