//! What an elector needs of the world: a Muster cluster, or a lock in Kubernetes.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use muster_messages::ErrorBody;
use muster_messages::wire::LeaseRequest;

use crate::core::{LockError, Record, Versioned};

/// A Muster cluster, however it is reached. [`crate::Link`] is the one in use.
pub trait Cluster: Send + Sync + 'static {
    /// Asks; the answer is JSON text. Asking twice is harmless for everything that an elector asks. After `patience`
    /// nobody waits for the answer any more.
    fn ask(&self, request: LeaseRequest, patience: Duration) -> BoxFuture<'static, Result<String, ErrorBody>>;
}

/// A record that candidates overwrite in turns. It remembers the object that it read or wrote last and overwrites no other.
/// [`crate::kubernetes::LeaseLock`] is the one in use.
pub trait Lock: Send + Sync + 'static {
    fn get(&self) -> BoxFuture<'static, Result<Versioned, LockError>>;
    fn create(&self, record: Record) -> BoxFuture<'static, Result<Versioned, LockError>>;
    fn update(&self, record: Record) -> BoxFuture<'static, Result<Versioned, LockError>>;
    /// `namespace/name`.
    fn describe(&self) -> String;
    /// Ends when the object may have changed. A lock that cannot tell never ends it: the elector looks every period.
    fn changed(&self) -> BoxFuture<'static, ()> {
        pending().boxed()
    }
}
