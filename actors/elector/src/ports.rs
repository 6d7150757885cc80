//! External dependencies of an elector: a Muster cluster, or a lock in Kubernetes.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use muster_messages::ErrorBody;
use muster_messages::wire::LeaseRequest;

use crate::core::{LockError, Record, Versioned};

/// A Muster cluster, however it is reached. [`crate::Link`] implements it.
pub trait Cluster: Send + Sync + 'static {
    /// Sends a request, which may be repeated; the answer is JSON text. After `timeout` the caller no longer waits.
    fn ask(&self, request: LeaseRequest, timeout: Duration) -> BoxFuture<'static, Result<String, ErrorBody>>;
}

/// A record that candidates overwrite in turn. The lock overwrites only the object that it read or wrote last.
/// [`crate::kubernetes::LeaseLock`] implements it.
pub trait Lock: Send + Sync + 'static {
    /// Reads the object.
    fn get(&self) -> BoxFuture<'static, Result<Versioned, LockError>>;
    /// Creates it; fails if it exists.
    fn create(&self, record: Record) -> BoxFuture<'static, Result<Versioned, LockError>>;
    /// Overwrites the object that was read or written last; fails if it has changed.
    fn update(&self, record: Record) -> BoxFuture<'static, Result<Versioned, LockError>>;
    /// `namespace/name`.
    fn describe(&self) -> String;
    /// Ends when the object may have changed. A lock without change detection never ends it: the elector reads every period.
    fn changed(&self) -> BoxFuture<'static, ()> {
        pending().boxed()
    }
}
