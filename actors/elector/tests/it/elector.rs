//! Whole electors against a cluster of a few lines, in virtual time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::clock::TokioTime;
use muster_elector::{
    Candidate, Cluster, Election, ElectorConfig, Ending, HealthCheck, LeaderElector, Session, Setup, Status, Term,
};
use muster_messages::wire::{LeaseRef, LeaseRequest};
use muster_messages::{ErrorBody, ErrorCode, FencingToken, LeaseView, Revision, SessionId};
use muster_testkit::ActorHarness;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// One lease, kept as a cluster does: expiry by its own clock, a token for each change of holder.
#[derive(Clone)]
struct Judge(watch::Sender<Lease>);

#[derive(Clone, Default)]
struct Lease {
    revision: u64,
    token: u64,
    holder: Option<(String, SessionId)>,
    expires: Option<Instant>,
    lasts: Duration,
    unreachable: bool,
    preferred: Option<String>,
}

impl Lease {
    fn is_live(&self) -> bool {
        self.holder.is_some() && self.expires.is_some_and(|at| Instant::now() < at)
    }
    fn view(&self) -> LeaseView {
        let view = json!({
            "namespace": "default", "name": "job", "holder": self.holder.as_ref().map(|(name, _)| name),
            "expired": !self.is_live() && self.holder.is_some(), "fencing_token": self.token, "transitions": 0,
            "acquired_at": null, "renewed_at": null, "lease_duration_ms": null, "expires_in_ms": null,
            "strategy": null, "preferred_holder": self.preferred, "revision": self.revision,
        });
        serde_json::from_value(view).unwrap()
    }
}

impl Judge {
    fn new() -> Self {
        Self(watch::Sender::new(Lease::default()))
    }
    fn answer(&self, request: &LeaseRequest) -> Result<Value, ErrorBody> {
        let mut result = Err(ErrorBody::new(ErrorCode::Conflict, "another holds it"));
        self.0.send_modify(|lease| {
            let now = Instant::now();
            let own = |session: &SessionId| lease.holder.as_ref().is_some_and(|(_, of)| of == session);
            match request {
                LeaseRequest::Acquire { holder, session, duration_ms, .. } if !lease.is_live() || own(session) => {
                    lease.revision += 1;
                    if !own(session) {
                        lease.token = lease.revision;
                    }
                    lease.holder = Some((holder.clone(), *session));
                    lease.lasts = Duration::from_millis(*duration_ms);
                    lease.expires = Some(now + lease.lasts);
                    lease.preferred = None;
                    result = Ok(serde_json::to_value(lease.view()).unwrap());
                }
                LeaseRequest::Renew { session, held } => {
                    let renewed = own(session) && lease.is_live() && held[0].1 == FencingToken(lease.token);
                    if renewed {
                        lease.expires = Some(now + lease.lasts);
                    }
                    result = Ok(json!({"items": [{"renewed": renewed}]}));
                }
                LeaseRequest::Release { session, token, .. } if own(session) && token.0 == lease.token => {
                    lease.revision += 1;
                    lease.holder = None;
                    result = Ok(json!({}));
                }
                _ => {}
            }
        });
        result
    }
    async fn watched(&self, seen: Revision, wait: Duration) -> Value {
        let mut lease = self.0.subscribe();
        let changed = async {
            loop {
                let (revision, expires) = {
                    let l = lease.borrow_and_update();
                    (l.revision, l.expires.filter(|_| l.is_live()))
                };
                if revision > seen.0 {
                    return;
                }
                let expiry = async {
                    match expires {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! { _ = lease.changed() => {}, () = expiry => return }
            }
        };
        let _waited = timeout(wait, changed).await;
        let lease = self.0.borrow().clone();
        json!({"revision": lease.revision, "lease": lease.view()})
    }
    fn set(&self, change: impl FnOnce(&mut Lease)) {
        self.0.send_modify(change);
    }
    fn holder(&self) -> Option<String> {
        let lease = self.0.borrow();
        lease.holder.as_ref().filter(|_| lease.is_live()).map(|(name, _)| name.clone())
    }
}

impl Cluster for Judge {
    fn ask(&self, request: LeaseRequest, _timeout: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let judge = self.clone();
        async move {
            sleep(Duration::from_millis(1)).await; // a round trip
            if judge.0.borrow().unreachable {
                return Err(ErrorBody::new(ErrorCode::NoQuorum, "no quorum"));
            }
            match &request {
                LeaseRequest::Watch { seen, wait_ms, .. } => {
                    Ok(judge.watched(*seen, Duration::from_millis(*wait_ms)).await.to_string())
                }
                _ => judge.answer(&request).map(|value| value.to_string()),
            }
        }
        .boxed()
    }
}

/// What several candidates did, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);
impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Work that takes a while to end.
#[derive(Clone)]
struct Worker {
    name: &'static str,
    log: Log,
    drains: Duration,
    at_work: Arc<AtomicU64>,
    tokens: Arc<Mutex<Vec<u64>>>,
    panics: bool,
    must_end: bool,
}

impl Candidate for Worker {
    fn must_end_in_time(&self) -> bool {
        self.must_end
    }
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        let me = self.clone();
        async move {
            let others = me.at_work.fetch_add(1, Ordering::SeqCst);
            let _guard = WorkGuard(me.at_work.clone());
            assert_eq!(others, 0, "two at work at once");
            me.tokens.lock().unwrap().push(term.token().unwrap().0);
            assert!(term.is_current());
            if me.panics && term.token() == Some(FencingToken(1)) {
                panic!("the work panics");
            }
            term.ended().await;
            assert!(!term.is_current());
            sleep(me.drains).await;
        }
        .boxed()
    }
    fn on_stopped_leading(&self, ending: &Ending) {
        self.log.add(format!("{}: {ending}", self.name));
    }
    fn on_new_leader(&self, leader: Option<&str>) {
        self.log.add(format!("{} sees {}", self.name, leader.unwrap_or("none")));
    }
    fn on_event(&self, event: &str) {
        self.log.add(event);
    }
}

struct WorkGuard(Arc<AtomicU64>);
impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A judge and candidates for its lease, each with a tree of its own.
struct World {
    harness: ActorHarness,
    judge: Judge,
    worker: Worker,
}

impl World {
    async fn begin() -> Self {
        let worker = Worker {
            name: "",
            log: Log::default(),
            drains: Duration::ZERO,
            at_work: Arc::default(),
            tokens: Arc::default(),
            panics: false,
            must_end: true,
        };
        Self { harness: ActorHarness::start().await, judge: Judge::new(), worker }
    }
    fn config(&self, name: &str) -> ElectorConfig {
        ElectorConfig::new(LeaseRef { namespace: "default".into(), name: "job".into() }, name)
    }
    async fn candidate(&self, name: &'static str) -> LeaderElector {
        self.candidate_as(self.config(name), Worker { name, ..self.worker.clone() }).await
    }
    async fn candidate_as(&self, config: ElectorConfig, worker: Worker) -> LeaderElector {
        let election = Election::Muster(Session::new(Arc::new(self.judge.clone())));
        let setup = Setup { config, election, candidate: Arc::new(worker), clock: Arc::new(TokioTime) };
        LeaderElector::start(setup).await.unwrap()
    }
    fn tokens(&self) -> Vec<u64> {
        self.worker.tokens.lock().unwrap().clone()
    }
}

/// Waits for a status, with a limit in virtual time.
async fn until(elector: &LeaderElector, holds: impl Fn(&Status) -> bool) {
    let mut status = elector.status();
    timeout(Duration::from_secs(120), status.wait_for(|status| holds(status))).await.expect("timed out").unwrap();
}
async fn leads(elector: &LeaderElector) {
    until(elector, |status| status.hold.is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn lease_is_released_only_after_the_work_returned() {
    let mut world = World::begin().await;
    world.worker.drains = Duration::from_secs(60);
    let first = world.candidate("a").await;
    leads(&first).await;
    let second = world.candidate("b").await;
    until(&second, |status| status.view.leader.as_deref() == Some("a")).await;
    let asked = Instant::now();
    first.stop();
    leads(&second).await; // the worker itself checks that no other is working
    assert!(asked.elapsed() >= Duration::from_secs(60), "four lease times: renewed throughout");
    assert!(asked.elapsed() < Duration::from_millis(60_100), "handed over at once: {:?}", asked.elapsed());
    assert_eq!(first.ended().await, Ok(()));
    assert_eq!(world.tokens(), [1, 3]);
    assert!(!first.is_leader() && second.is_leader());
    assert_eq!(second.leader().as_deref(), Some("b"));
    drop((first, second));
    world.harness.finish().await;
}

/// Cases 29 and 30: events are the identity and a text, and handling them is optional.
#[tokio::test(start_paused = true)]
async fn callbacks_run_once_and_in_order() {
    let world = World::begin().await;
    let elector = world.candidate("a").await;
    leads(&elector).await;
    elector.stop();
    elector.ended().await.unwrap();
    let events = ["a sees a", "a became leader", "a stopped leading", "a: the elector was stopped", "a sees none"];
    assert_eq!(world.worker.log.lines(), events);
    drop(elector);

    struct Deaf;
    impl Candidate for Deaf {
        fn on_started_leading(&self, _: Term) -> BoxFuture<'static, ()> {
            async {}.boxed()
        }
    }
    let election = Election::Muster(Session::new(Arc::new(world.judge.clone())));
    let setup = Setup { clock: Arc::new(TokioTime), ..Setup::new(world.config("b"), election, Arc::new(Deaf)) };
    let elector = LeaderElector::start(setup).await.unwrap();
    assert_eq!(elector.ended().await, Ok(()), "work that returns by itself ends the elector");
    assert_eq!(world.judge.holder(), None);
    drop(elector);
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn leadership_ends_without_a_cluster_and_resumes_with_new_token() {
    let world = World::begin().await;
    let elector = world.candidate("a").await;
    leads(&elector).await;
    let since = Instant::now();
    world.judge.set(|lease| lease.unreachable = true);
    until(&elector, |status| status.hold.is_none()).await;
    assert!(since.elapsed() > Duration::from_secs(7) && since.elapsed() <= Duration::from_secs(10));
    assert!(elector.status().borrow().view.blocked.is_some(), "with a reason");
    world.judge.set(|lease| lease.unreachable = false);
    leads(&elector).await;
    assert_eq!(world.tokens().len(), 2);
    assert!(world.tokens()[1] > world.tokens()[0]);
    drop(elector);
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn work_outliving_its_lease_is_reported_if_it_must_end() {
    for must_end in [true, false] {
        let mut world = World::begin().await;
        world.worker.drains = Duration::from_secs(60);
        world.worker.must_end = must_end;
        if must_end {
            world.harness.expects_error("the guarded work outlives its lease");
        }
        let elector = world.candidate("a").await;
        leads(&elector).await;
        world.judge.set(|lease| lease.unreachable = true);
        until(&elector, |status| status.hold.is_none()).await;
        sleep(Duration::from_secs(30)).await;
        let called = world.worker.log.lines().contains(&"the work of a outlives its lease".to_owned());
        assert_eq!(called, must_end, "{:?}", world.worker.log.lines());
        drop(elector);
        world.harness.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_preferred_holder_gets_the_lease_in_a_moment() {
    let world = World::begin().await;
    let first = world.candidate("a").await;
    leads(&first).await;
    let second = world.candidate("b").await;
    until(&second, |status| status.view.leader.as_deref() == Some("a")).await;
    let asked = Instant::now();
    world.judge.set(|lease| (lease.preferred, lease.revision) = (Some("b".into()), lease.revision + 1));
    leads(&second).await;
    assert!(asked.elapsed() < Duration::from_millis(100), "{:?}", asked.elapsed());
    assert!(world.worker.log.lines().contains(&"a: b is preferred".to_owned()));
    drop((first, second));
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn term_after_a_crash_has_its_own_token() {
    let mut world = World::begin().await;
    world.worker.panics = true;
    world.harness.expects_panic("the work panics");
    let elector = world.candidate("a").await;
    until(&elector, |status| status.view.token.is_some_and(|token| token > FencingToken(1))).await;
    assert_eq!(world.tokens(), [1, 3], "released in between, once the first work was over");
    drop(elector);
    world.harness.finish().await;
}

/// Case 21, and every query of a running elector.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elector_is_observable_from_any_thread_while_it_renews() {
    let world = World::begin().await;
    let quick = ElectorConfig { retry_period: Duration::from_millis(5), ..world.config("a") };
    let elector = world.candidate_as(quick, world.worker.clone()).await;
    leads(&elector).await;
    let health = Arc::new(HealthCheck::new(Duration::from_secs(20)));
    health.attach(elector.clone());
    let reading = Arc::new(AtomicBool::new(true));
    let checks = std::thread::spawn({
        let (health, elector, reading) = (Arc::clone(&health), elector.clone(), Arc::clone(&reading));
        move || {
            let mut reads = 0;
            while reading.load(Ordering::Relaxed) {
                assert!(health.check().is_ok() && elector.leader().is_some());
                reads += 1;
            }
            reads
        }
    });
    // A hundred renewals, each of them read.
    let renewals = elector.status().borrow().view.renewals;
    let mut status = elector.status();
    let renewed = status.wait_for(|status| status.view.renewals >= renewals + 100);
    timeout(Duration::from_secs(60), renewed).await.expect("it renews").unwrap();
    reading.store(false, Ordering::Relaxed);
    assert!(checks.join().unwrap() > 100);
    let mut registry = prometheus_client::registry::Registry::default();
    muster_elector::metrics::describe(&mut registry, &[elector]);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("leader_election_master_status{name=\"default/job\"} 1"), "{text}");
    assert!(text.contains("leader_election_terms_total{name=\"default/job\"} 1"), "{text}");
    drop((health, registry));
    world.harness.finish().await;
}

/// A hundred rounds of taking the lease away, disconnecting the cluster and stopping candidates: the worker checks that it is
/// alone.
#[tokio::test(start_paused = true)]
async fn disturbed_electors_work_one_at_a_time_and_tokens_grow() {
    let mut world = World::begin().await;
    world.worker.drains = Duration::from_millis(300);
    let config = |name: &str| ElectorConfig {
        lease_duration: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        retry_period: Duration::from_millis(400),
        ..world.config(name)
    };
    let mut electors = BTreeMap::new();
    for name in ["a", "b", "c"] {
        let worker = Worker { name, ..world.worker.clone() };
        electors.insert(name, world.candidate_as(config(name), worker).await);
    }
    for round in 0..100u64 {
        let leader = loop {
            if let Some(name) = electors.iter().find(|(_, e)| e.is_leader()).map(|(name, _)| *name) {
                break name;
            }
            sleep(Duration::from_millis(20)).await;
        };
        match round % 3 {
            0 => {
                world.judge.set(|lease| lease.unreachable = true);
                sleep(Duration::from_millis(700 * (round % 7))).await;
                world.judge.set(|lease| lease.unreachable = false);
            }
            1 => world.judge.set(|lease| (lease.preferred, lease.revision) = (Some("c".into()), lease.revision + 1)),
            _ => {
                let gone = electors.remove(leader).unwrap();
                gone.stop();
                gone.ended().await.unwrap();
                let worker = Worker { name: leader, ..world.worker.clone() };
                electors.insert(leader, world.candidate_as(config(leader), worker).await);
            }
        }
        sleep(Duration::from_millis(137)).await;
    }
    let tokens = world.tokens();
    assert!(tokens.len() > 50 && tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    drop(electors);
    world.harness.finish().await;
}
