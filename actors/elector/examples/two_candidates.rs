//! Two candidates contend for one lease, which this program keeps itself. Run it with `cargo run -p muster-elector --example two_candidates`; it
//! ends by itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_elector::{
    BoxFuture, Candidate, Election, ElectorConfig, LeaderElector, LeaseRef, Lock, LockError, Record, Setup, Term,
    Versioned,
};

/// The lease: a record that is overwritten only by a candidate that has seen its present version, as in a database.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<Option<(u64, Record)>>>);

/// One candidate's access to it.
struct OwnLock {
    store: Store,
    seen: Mutex<u64>,
}

impl OwnLock {
    /// Writes if the version is the one that was seen last.
    fn write(&self, record: Record) -> Result<Versioned, LockError> {
        let mut stored = self.store.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if stored.as_ref().map_or(0, |(version, _)| *version) != *seen {
            return Err(LockError::Conflict);
        }
        *seen += 1;
        *stored = Some((*seen, record.clone()));
        Ok(Versioned { record, resource_version: seen.to_string(), token: None })
    }
    fn read(&self) -> Result<Versioned, LockError> {
        let stored = self.store.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (version, record) = stored.clone().ok_or(LockError::NotFound)?;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = version;
        Ok(Versioned { record, resource_version: version.to_string(), token: None })
    }
}

impl Lock for OwnLock {
    fn get(&self) -> BoxFuture<'static, Result<Versioned, LockError>> {
        let read = self.read();
        Box::pin(async { read })
    }
    fn create(&self, record: Record) -> BoxFuture<'static, Result<Versioned, LockError>> {
        let written = self.write(record);
        Box::pin(async { written })
    }
    fn update(&self, record: Record) -> BoxFuture<'static, Result<Versioned, LockError>> {
        let written = self.write(record);
        Box::pin(async { written })
    }
    fn describe(&self) -> String {
        "example/lease".to_owned()
    }
}

struct Worker(&'static str);

impl Candidate for Worker {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        let name = self.0;
        Box::pin(async move {
            println!("{name} leads, with token {:?}", term.token().map(|token| token.0));
            term.ended().await;
            println!("{name} stops: {}", term.why_ended().unwrap_or("its elector crashed"));
        })
    }
}

async fn candidate(store: &Store, name: &'static str) -> Result<LeaderElector, Box<dyn std::error::Error>> {
    let config = ElectorConfig {
        lease_duration: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        retry_period: Duration::from_millis(200),
        ..ElectorConfig::new(LeaseRef { namespace: "example".into(), name: "lease".into() }, name)
    };
    let lock = OwnLock { store: store.clone(), seen: Mutex::new(0) };
    let setup = Setup::new(config, Election::Kubernetes(Arc::new(lock)), Arc::new(Worker(name)));
    Ok(LeaderElector::start(setup).await?)
}

async fn until_leader(elector: &LeaderElector) -> Result<(), Box<dyn std::error::Error>> {
    elector.status().wait_for(|status| status.hold.is_some()).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::default();
    let first = candidate(&store, "first").await?;
    until_leader(&first).await?;
    let second = candidate(&store, "second").await?;
    second.status().wait_for(|status| status.view.leader.as_deref() == Some("first")).await?;
    assert!(first.is_leader() && !second.is_leader());

    first.stop(); // in order: the lease is released, and the second need not wait for its end
    first.ended().await?;
    until_leader(&second).await?;
    assert!(second.is_leader());
    second.stop();
    second.ended().await?;
    Ok(())
}
