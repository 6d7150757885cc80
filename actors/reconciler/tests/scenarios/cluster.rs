//! The judge as a cluster that answers over a network: a millisecond each way, watches, expiry by its own clock. And the
//! harness of all actors that use it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::clock::TokioTime;
use muster_elector::{Cluster as Leases, Timekeeper};
use muster_messages::wire::{LeaseRequest, ReconcilerRequest};
use muster_messages::{ErrorBody, ErrorCode, Revision, Triple};
use muster_reconciler::Cluster;
use muster_testkit::ActorHarness;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::fleet::Node;
use crate::judge::Judge;

const NETWORK_DELAY: Duration = Duration::from_millis(1);

/// One scenario. Its harness checks what its actors leave behind.
pub struct World {
    pub harness: ActorHarness,
    network: Network,
    ticking: JoinHandle<()>,
}

impl World {
    pub async fn begin() -> Self {
        let (harness, network) = (ActorHarness::start().await, Network::new());
        let ticking = tokio::spawn(network.clone().expires_leases());
        Self { harness, network, ticking }
    }
    /// The cluster, for observers elsewhere.
    pub fn network(&self) -> Network {
        self.network.clone()
    }
    /// Stops the nodes that still run. Members must have been dropped.
    pub async fn end(self, nodes: impl IntoIterator<Item = Node>) {
        for node in nodes {
            node.stop().await;
        }
        self.ticking.abort();
        self.harness.finish().await;
    }
}

impl Deref for World {
    type Target = Network;
    fn deref(&self) -> &Network {
        &self.network
    }
}

/// Clones share one network.
#[derive(Clone)]
pub struct Network {
    judge: Arc<Mutex<Judge>>,
    news: Arc<watch::Sender<Revision>>,
    cuts: Arc<Mutex<BTreeMap<String, Arc<AtomicBool>>>>,
    /// What happens to the next records of runs, and of steps of chains; the others arrive.
    records: Arc<Mutex<VecDeque<Travel>>>,
    step_records: Arc<Mutex<VecDeque<Travel>>>,
    /// The releases whose definitions are watched by requests that wait.
    watched: Arc<Mutex<Vec<Triple>>>,
    /// Members of a build that cannot read the definitions.
    outdated: Arc<Mutex<BTreeSet<String>>>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
pub enum Travel {
    Lost,
    AnswerLost,
    Late(Duration),
    /// It arrives, and after this time once more.
    Again(Duration),
}

impl Network {
    fn new() -> Self {
        let judge = Arc::new(Mutex::new(Judge::founded()));
        Self {
            judge,
            news: Arc::new(watch::Sender::new(Revision(0))),
            cuts: Arc::default(),
            records: Arc::default(),
            step_records: Arc::default(),
            watched: Arc::default(),
            outdated: Arc::default(),
        }
    }
    async fn expires_leases(self) {
        loop {
            sleep(Duration::from_millis(50)).await;
            self.with(|judge| judge.expire(TokioTime.now()));
        }
    }

    /// Reads or changes the state.
    pub fn with<T>(&self, access: impl FnOnce(&mut Judge) -> T) -> T {
        let (result, revision) = {
            let mut judge = self.judge.lock().unwrap();
            let result = access(&mut judge);
            (result, judge.tables.revision)
        };
        self.news.send_if_modified(|known| std::mem::replace(known, revision) != revision);
        result
    }

    /// One member's connection to the cluster.
    pub fn link(&self, member: &str) -> Arc<Link> {
        let cut = Arc::clone(self.cuts.lock().unwrap().entry(member.to_owned()).or_default());
        Arc::new(Link { network: self.clone(), cut, member: member.to_owned() })
    }
    /// Whether the definitions are of a kind that only a later build than this member's knows.
    pub fn outdate(&self, member: &str, outdated: bool) {
        let mut members = self.outdated.lock().unwrap();
        if outdated {
            members.insert(member.to_owned())
        } else {
            members.remove(member)
        };
    }
    /// The next records of runs travel like this.
    pub fn records_travel(&self, like: impl IntoIterator<Item = Travel>) {
        self.records.lock().unwrap().extend(like);
    }
    /// The next records of steps of chains travel like this.
    pub fn step_records_travel(&self, like: impl IntoIterator<Item = Travel>) {
        self.step_records.lock().unwrap().extend(like);
    }
    /// The releases whose definitions are watched now.
    pub fn watched_releases(&self) -> Vec<Triple> {
        let mut watched = self.watched.lock().unwrap().clone();
        watched.sort_unstable();
        watched
    }
    /// Connects or disconnects a member.
    pub fn cut(&self, member: &str, cut: bool) {
        self.cuts.lock().unwrap().entry(member.to_owned()).or_default().store(cut, Ordering::SeqCst);
    }

    /// Waits until the condition holds, in virtual time, within a limit.
    pub async fn until(&self, what: &str, mut holds: impl FnMut(&mut Judge) -> bool) {
        let end = Instant::now() + Duration::from_secs(600);
        loop {
            let (so, seen) = self.with(|judge| (holds(judge), judge.tables.revision));
            if so {
                return;
            }
            assert!(
                Instant::now() < end,
                "timed out waiting: {what}; {:#?}",
                self.with(|judge| judge.progress.clone())
            );
            self.after(seen, 40).await;
        }
    }
    /// The condition holds for this long.
    pub async fn stays(&self, what: &str, secs: u64, mut holds: impl FnMut(&mut Judge) -> bool) {
        let end = Instant::now() + Duration::from_secs(secs);
        while Instant::now() < end {
            assert!(self.with(&mut holds), "{what}; {:#?}", self.with(|judge| judge.progress.clone()));
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits for a change after `seen`.
    async fn after(&self, seen: Revision, wait_ms: u64) {
        let mut news = self.news.subscribe();
        let limit = sleep_until(Instant::now() + Duration::from_millis(wait_ms));
        tokio::select! {
            _ = news.wait_for(|revision| *revision > seen) => {}
            () = limit => {}
        }
    }
}

/// A watch of the definitions of a release, until it is dropped.
struct Watching(Network, Triple);

impl Watching {
    fn of(network: &Network, release: Triple) -> Self {
        network.watched.lock().unwrap().push(release);
        Self(network.clone(), release)
    }
}
impl Drop for Watching {
    fn drop(&mut self) {
        let mut watched = self.0.watched.lock().unwrap();
        let at = watched.iter().position(|release| *release == self.1);
        watched.swap_remove(at.expect("it is listed until it is dropped"));
    }
}

/// One member's connection.
pub struct Link {
    network: Network,
    cut: Arc<AtomicBool>,
    member: String,
}

/// The same view with a definition of a later build.
fn of_a_later_build(view: &str) -> String {
    let mut view: Value = serde_json::from_str(view).unwrap();
    if let Some(action) = view["definition"].get_mut("action") {
        *action = json!({"of_a_later_build": []});
    }
    view.to_string()
}

impl Link {
    fn travel(&self) -> impl Future<Output = Result<(), ErrorBody>> + use<> {
        let cut = Arc::clone(&self.cut);
        async move {
            sleep(NETWORK_DELAY).await;
            while cut.load(Ordering::SeqCst) {
                sleep(Duration::from_millis(10)).await; // lost: the caller times out by itself
            }
            Ok(())
        }
    }
}

fn late() -> ErrorBody {
    ErrorBody::new(ErrorCode::TimedOut, "no answer")
}

impl Leases for Link {
    fn ask(&self, request: LeaseRequest, limit: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let (there, back, network) = (self.travel(), self.travel(), self.network.clone());
        let asked = async move {
            there.await?;
            if let LeaseRequest::Watch { lease, seen, wait_ms } = &request {
                let end = Instant::now() + Duration::from_millis(*wait_ms);
                while network.with(|judge| judge.lease_revision(lease)) <= *seen && Instant::now() < end {
                    network.after(network.with(|judge| judge.tables.revision), 100).await;
                }
            }
            let answer = network.with(|judge| judge.lease(TokioTime.now(), request));
            back.await?;
            answer
        };
        async move { tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(late())) }.boxed()
    }
}

impl Cluster for Link {
    fn reconcile(&self, request: ReconcilerRequest, limit: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        use ReconcilerRequest as R;
        let (there, back, network) = (self.travel(), self.travel(), self.network.clone());
        let member = self.member.clone();
        let asked = async move {
            there.await?;
            let _watching = match &request {
                R::Definitions { release, .. } => Some(Watching::of(&network, *release)),
                _ => None,
            };
            match &request {
                R::View { name, seen, wait_ms, .. } => {
                    // Reports of progress are no news to a runner.
                    let end = Instant::now() + Duration::from_millis(*wait_ms);
                    while network.with(|judge| judge.view_revision(name)) <= *seen && Instant::now() < end {
                        network.after(network.with(|judge| judge.tables.revision), 100).await;
                    }
                }
                R::Definitions { seen, wait_ms, .. }
                | R::Admission { seen, wait_ms, .. }
                | R::Status { seen, wait_ms, .. } => network.after(*seen, *wait_ms).await,
                _ => {}
            }
            let travel = match &request {
                R::RecordRun { .. } => network.records.lock().unwrap().pop_front(),
                R::StepDone { .. } => network.step_records.lock().unwrap().pop_front(),
                _ => None,
            };
            match travel {
                Some(Travel::Lost) => pending().await,
                Some(Travel::Late(delay)) => sleep(delay).await,
                Some(Travel::Again(delay)) => {
                    let (network, request) = (network.clone(), request.clone());
                    tokio::spawn(async move {
                        sleep(delay).await;
                        let _unread = network.with(|judge| judge.reconcile(request));
                    });
                }
                _ => {}
            }
            let is_view = matches!(request, R::View { .. });
            let answer = network.with(|judge| judge.reconcile(request));
            let outdated = is_view && network.outdated.lock().unwrap().contains(&member);
            let answer = if outdated { answer.map(|view| of_a_later_build(&view)) } else { answer };
            if let Some(Travel::AnswerLost) = travel {
                pending::<()>().await;
            }
            back.await?;
            answer
        };
        async move { tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(late())) }.boxed()
    }
}
