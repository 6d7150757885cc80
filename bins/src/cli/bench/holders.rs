//! Holders of leases: embedded electors whose guarded work records the time of each renewal.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_client::{Failure, Outcome, parse};
use muster_elector::clock::TokioTime;
use muster_elector::{
    Candidate, Cluster, Election, ElectorConfig, Ending, LeaderElector, Link, Managers, Session, Setup, Term,
};
use muster_gateway::Dialer;
use muster_kernel::{Intensity, Supervisor, Tree};
use muster_local_cluster::until_within;
use muster_messages::wire::{LeaseRef, LeaseRequest};
use muster_messages::{ErrorCode, FencingToken, LeaseView};

use super::stats::Times;

/// The namespace of their leases.
const NAMESPACE: &str = "muster-bench-leases";

/// How long all leases may take to be acquired, and one to be read.
const HOLD_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause after a refused read, as the managers ask for it: the renewals beside it are what is measured.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// The record of all guarded works. Cheap to clone.
#[derive(Clone, Default)]
pub struct Record(Arc<RecordData>);

#[derive(Default)]
struct RecordData {
    measuring: AtomicBool,
    renewals: Mutex<Times>,
    holding: AtomicU32,
    lost: AtomicU64,
    /// Why the first lost lease was lost.
    why: Mutex<Option<String>>,
}

impl Record {
    /// The number of leases held now.
    fn holding(&self) -> u32 {
        self.0.holding.load(Ordering::Relaxed)
    }
    /// Starts recording renewals.
    pub fn open(&self) {
        self.0.measuring.store(true, Ordering::Relaxed);
    }
    /// Stops recording; returns the times of the recorded renewals.
    pub fn close(&self) -> Times {
        self.0.measuring.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.0.renewals.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// The number of leases lost, by their holders' own records.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }
    /// Why the first lost lease was lost.
    pub fn why(&self) -> Option<String> {
        self.0.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn renewed(&self, took: Duration) {
        if self.0.measuring.load(Ordering::Relaxed) {
            self.0.renewals.lock().unwrap_or_else(PoisonError::into_inner).add(took);
        }
    }
}

/// Work that runs until its lease ends. Each change of its hold is a confirmed renewal.
struct Work {
    record: Record,
    renew_deadline: Duration,
}

impl Candidate for Work {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        let (record, renew_deadline) = (self.record.clone(), self.renew_deadline);
        record.0.holding.fetch_add(1, Ordering::Relaxed);
        async move {
            let mut hold = term.hold();
            loop {
                tokio::select! {
                    () = term.ended() => break,
                    Ok(()) = hold.changed() => {
                        // The hold is measured from when the renewal was sent.
                        let sent = hold.borrow_and_update().step_down_at - renew_deadline;
                        record.renewed(term.now().since(sent));
                    }
                }
            }
            record.0.holding.fetch_sub(1, Ordering::Relaxed);
        }
        .boxed()
    }

    fn on_stopped_leading(&self, ending: &Ending) {
        self.record.0.lost.fetch_add(1, Ordering::Relaxed);
        let mut why = self.record.0.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.get_or_insert_with(|| ending.to_string());
    }
}

/// The electors of one session.
pub struct Holders {
    link: Link,
    electors: Vec<LeaderElector>,
    /// Their tokens, once all leases are held.
    tokens: Vec<Option<FencingToken>>,
    supervisor: Supervisor,
    record: Record,
}

impl Holders {
    /// A session that tries these managers in order.
    pub async fn new(dialer: Dialer, managers: Vec<String>, record: Record) -> Outcome<Self> {
        let supervisor = Supervisor::root("bench", Tree::new(), Intensity::default()).await;
        let supervisor = supervisor.map_err(Failure::internal)?;
        let link = Link::new(Managers::new(dialer, managers));
        Ok(Self { link, electors: Vec::new(), tokens: Vec::new(), supervisor, record })
    }

    /// The configuration of lease `number`.
    pub fn config(number: u32, lease_duration: Duration, every: Duration) -> ElectorConfig {
        let lease = LeaseRef { namespace: NAMESPACE.to_owned(), name: format!("lease-{number}") };
        ElectorConfig {
            lease_duration,
            renew_deadline: lease_duration * 2 / 3,
            retry_period: every,
            campaign_again: false,
            ..ElectorConfig::new(lease, format!("holder-{number}"))
        }
    }

    /// The session that its electors share.
    pub fn session(&self) -> Session {
        Session::new(Arc::new(self.link.clone()))
    }

    /// Adds an elector.
    pub fn start_electing(&mut self, session: &Session, config: ElectorConfig) -> Outcome {
        let name = config.lease.name.clone();
        let work = Work { record: self.record.clone(), renew_deadline: config.renew_deadline };
        let mut setup = Setup::new(config, Election::Muster(session.clone()), Arc::new(work));
        // Boot time costs a file per elector, and this machine is not suspended during a benchmark.
        setup.clock = Arc::new(TokioTime);
        let (spec, elector) = LeaderElector::spec(&name, setup)
            .map_err(|refusal| Failure::new(ErrorCode::Invalid, refusal.to_string()))?;
        self.supervisor.children().start(spec);
        self.electors.push(elector);
        Ok(())
    }

    /// Records the tokens of all holders.
    pub fn record_tokens(&mut self) {
        self.tokens = self.electors.iter().map(LeaderElector::token).collect();
    }

    /// The number of unconfirmed renewals.
    pub fn failures(&self) -> u64 {
        self.electors.iter().map(|elector| elector.status().borrow().view.failures).sum()
    }

    /// The number of leases still held in the cluster's own record, under the recorded tokens.
    pub async fn kept(&self) -> Outcome<u32> {
        let mut kept = 0;
        for (elector, token) in self.electors.iter().zip(&self.tokens) {
            let config = elector.config();
            let seen = self.read_lease(&config.lease).await?;
            let held = seen.holder.as_deref() == Some(&config.identity) && !seen.expired;
            kept += u32::from(held && Some(seen.fencing_token) == *token);
        }
        Ok(kept)
    }
}

impl Holders {
    /// Reads a lease from the cluster, concurrently with all renewals.
    async fn read_lease(&self, lease: &LeaseRef) -> Outcome<LeaseView> {
        until_within("reading a lease", HOLD_TIMEOUT, async || {
            let get = LeaseRequest::Get { lease: lease.clone() };
            match self.link.ask(get, HOLD_TIMEOUT).await {
                Ok(text) => parse(&text).map(Some),
                Err(body) if body.code == ErrorCode::TooManyRequests => {
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    Ok(None)
                }
                Err(body) => Err(body.into()),
            }
        })
        .await
    }
}

/// Waits until this many leases are held.
pub async fn wait_until_held(record: &Record, leases: u32) -> Outcome {
    let held =
        until_within("acquiring the leases", HOLD_TIMEOUT, async || Ok((record.holding() >= leases).then_some(())));
    held.await.map_err(|mut late| {
        let (held, lost) = (record.holding(), record.lost());
        let why = record.why().map(|why| format!(" ({why})")).unwrap_or_default();
        late.message += &format!("; {held} of {leases} are held, {lost} were lost{why}");
        late
    })
}
