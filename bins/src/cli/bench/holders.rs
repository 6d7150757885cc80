//! Holders of leases: electors as a program embeds them, whose guarded work notes how long each renewal took.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_client::{Failure, Outcome, parse};
use muster_elector::clock::TokioTime;
use muster_elector::{
    Candidate, Cluster, Election, ElectorConfig, Ending, LeaderElector, Link, Managers, Session, Setup, Term,
};
use muster_gateway::Dialer;
use muster_kernel::{Intensity, Supervisor, Tree};
use muster_messages::wire::{LeaseRef, LeaseRequest};
use muster_messages::{ErrorCode, FencingToken, LeaseView};

use super::stats::Times;

/// Where their leases are.
const NAMESPACE: &str = "muster-bench-leases";

/// How long all of them together may take to be where they are waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the guarded works note. Cheap to clone.
#[derive(Clone, Default)]
pub struct Book(Arc<Notes>);

#[derive(Default)]
struct Notes {
    measuring: AtomicBool,
    renewals: Mutex<Times>,
    holding: AtomicU32,
    lost: AtomicU64,
    /// Why the first one was lost.
    why: Mutex<Option<String>>,
}

impl Book {
    /// Leases held now.
    fn holding(&self) -> u32 {
        self.0.holding.load(Ordering::Relaxed)
    }
    /// From now on renewals count.
    pub fn open(&self) {
        self.0.measuring.store(true, Ordering::Relaxed);
    }
    /// How long each renewal took that counted.
    pub fn close(&self) -> Times {
        self.0.measuring.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.0.renewals.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Leases lost by their holders' own records.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }
    /// Why the first one was.
    pub fn why(&self) -> Option<String> {
        self.0.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn renewed(&self, took: Duration) {
        if self.0.measuring.load(Ordering::Relaxed) {
            self.0.renewals.lock().unwrap_or_else(PoisonError::into_inner).add(took);
        }
    }
}

/// Work that lasts. What it sees of its hold are the confirmed renewals.
struct Work {
    book: Book,
    renew_deadline: Duration,
}

impl Candidate for Work {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        let (book, renew_deadline) = (self.book.clone(), self.renew_deadline);
        book.0.holding.fetch_add(1, Ordering::Relaxed);
        async move {
            let mut hold = term.hold();
            loop {
                tokio::select! {
                    () = term.ended() => break,
                    Ok(()) = hold.changed() => {
                        // Leadership counts from when the renewal was sent.
                        let sent = hold.borrow_and_update().step_down_at - renew_deadline;
                        book.renewed(term.now().since(sent));
                    }
                }
            }
            book.0.holding.fetch_sub(1, Ordering::Relaxed);
        }
        .boxed()
    }

    fn on_stopped_leading(&self, ending: &Ending) {
        self.book.0.lost.fetch_add(1, Ordering::Relaxed);
        let mut why = self.book.0.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.get_or_insert_with(|| ending.to_string());
    }
}

/// The electors of one session.
pub struct Holders {
    link: Link,
    electors: Vec<LeaderElector>,
    /// Their tokens, once all hold.
    tokens: Vec<Option<FencingToken>>,
    supervisor: Supervisor,
    book: Book,
}

impl Holders {
    /// A session that asks these managers, the first one first.
    pub async fn new(dialer: Dialer, managers: Vec<String>, book: Book) -> Outcome<Self> {
        let supervisor = Supervisor::root("bench", Tree::new(), Intensity::default()).await;
        let supervisor = supervisor.map_err(Failure::internal)?;
        let link = Link::new(Managers::new(dialer, managers));
        Ok(Self { link, electors: Vec::new(), tokens: Vec::new(), supervisor, book })
    }

    /// A config of the lease of this number.
    pub fn config(number: u32, lease_duration: Duration, every: Duration) -> ElectorConfig {
        let lease = LeaseRef { namespace: NAMESPACE.to_owned(), name: format!("lease-{number}") };
        ElectorConfig {
            lease_duration,
            renew_deadline: lease_duration * 2 / 3,
            retry_period: every,
            stand_again: false,
            ..ElectorConfig::new(lease, format!("holder-{number}"))
        }
    }

    /// Its session, shared by its electors.
    pub fn session(&self) -> Session {
        Session::new(Arc::new(self.link.clone()))
    }

    /// One more elector.
    pub fn stand(&mut self, session: &Session, config: ElectorConfig) -> Outcome {
        let name = config.lease.name.clone();
        let work = Work { book: self.book.clone(), renew_deadline: config.renew_deadline };
        let mut setup = Setup::new(config, Election::Native(session.clone()), Arc::new(work));
        // Boot time costs a file per elector, and nobody suspends this machine.
        setup.clock = Arc::new(TokioTime);
        let (spec, elector) = LeaderElector::spec(&name, setup)
            .map_err(|refusal| Failure::new(ErrorCode::Invalid, refusal.to_string()))?;
        self.supervisor.children().start(spec);
        self.electors.push(elector);
        Ok(())
    }

    /// Notes under which tokens they hold.
    pub fn remember(&mut self) {
        self.tokens = self.electors.iter().map(LeaderElector::token).collect();
    }

    /// Renewals that were not confirmed.
    pub fn failures(&self) -> u64 {
        self.electors.iter().map(|elector| elector.status().borrow().view.failures).sum()
    }

    /// How many of the leases are still held by the cluster's own record, under the tokens that were remembered.
    pub async fn kept(&self) -> Outcome<u32> {
        let mut kept = 0;
        for (elector, token) in self.electors.iter().zip(&self.tokens) {
            let config = elector.config();
            let seen = self.look(&config.lease).await?;
            let held = seen.holder.as_deref() == Some(&config.identity) && !seen.expired;
            kept += u32::from(held && Some(seen.fencing_token) == *token);
        }
        Ok(kept)
    }
}

impl Holders {
    /// A lease as the cluster sees it, beside all the renewals that go on.
    async fn look(&self, lease: &LeaseRef) -> Outcome<LeaseView> {
        let until = Instant::now() + PATIENCE;
        loop {
            let get = LeaseRequest::Get { lease: lease.clone() };
            match self.link.ask(get, PATIENCE).await {
                Ok(text) => return parse(&text),
                Err(body) if body.code == ErrorCode::TooManyRequests && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(body) => return Err(body.into()),
            }
        }
    }
}

/// Waits until so many leases are held.
pub async fn all_hold(book: &Book, leases: u32) -> Outcome {
    let until = Instant::now() + PATIENCE;
    while book.holding() < leases {
        if Instant::now() >= until {
            let (held, lost) = (book.holding(), book.lost());
            let why = book.why().map(|why| format!(" ({why})")).unwrap_or_default();
            let text = format!("{held} of {leases} leases are held after {PATIENCE:?}, {lost} were lost{why}");
            return Err(Failure::new(ErrorCode::TimedOut, text));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
