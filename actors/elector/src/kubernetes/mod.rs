//! A lease in a Kubernetes API as a lock: what a client of `coordination.k8s.io/v1` reads and writes, as JSON.
//!
//! Invariants  LOCK-1  nothing is overwritten that was not read or written here before, at that version.
//!             LOCK-2  what other clients have added to the object (labels, annotations, owners) stays there.

#[cfg(feature = "kube")]
mod client;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::pending;
use futures_util::{FutureExt, StreamExt};
use muster_messages::FencingToken;
use muster_messages::wire::LeaseRef;
use serde_json::{Map, Value, json};

use crate::core::{LockError, Record, Versioned};
use crate::ports::Lock;

#[cfg(feature = "kube")]
pub use self::client::KubeClient;
/// What [`KubeApi::watch`] returns.
pub use futures_util::stream::BoxStream;

/// Annotation with the holder's fencing token. Muster clusters write it and ignore clients' values.
pub const FENCING_TOKEN: &str = "muster.dev/fencing-token";

/// A request to an API server.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiRequest {
    /// Reads an object.
    Get {
        /// Its path, from the API's root.
        path: String,
    },
    /// Creates an object.
    Post {
        /// The path of its collection.
        path: String,
        /// The object.
        body: Value,
    },
    /// Replaces an object.
    Put {
        /// Its path.
        path: String,
        /// The object.
        body: Value,
    },
    /// Deletes an object.
    Delete {
        /// Its path.
        path: String,
    },
}

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server answered {status}: {message}")]
pub struct ApiError {
    /// The HTTP status; 0 if there was no answer.
    pub status: u16,
    /// The server's message, or why the server could not be reached.
    pub message: String,
}

/// Any Kubernetes API, however it is reached.
pub trait KubeApi: Send + Sync + 'static {
    /// Returns the answer's object.
    fn call(&self, request: ApiRequest) -> BoxFuture<'static, Result<Value, ApiError>>;
    /// The events of a watch in wire form: `{"type","object"}`. Ends when the server ends or refuses it. An API without watches
    /// sends nothing.
    fn watch(&self, path: String) -> BoxStream<'static, Value> {
        let _ = path;
        pending().boxed()
    }
}

/// The pause between two watches: a refused one must not keep the server busy.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// Duration of one watch: below the five minutes after which proxies tend to close silent connections.
const WATCH_SECS: u64 = 290;

/// See the module.
#[derive(Clone)]
pub struct LeaseLock {
    api: Arc<dyn KubeApi>,
    lease: LeaseRef,
    /// Added to the object with each write.
    labels: BTreeMap<String, String>,
    /// The object as it was read or written last.
    seen: Arc<Mutex<Option<Value>>>,
}

impl LeaseLock {
    /// A lock that has not read its object yet.
    pub fn new(api: Arc<dyn KubeApi>, lease: LeaseRef) -> Self {
        Self { api, lease, labels: BTreeMap::new(), seen: Arc::default() }
    }
    /// With these labels.
    #[must_use]
    pub fn with_labels(mut self, labels: impl IntoIterator<Item = (String, String)>) -> Self {
        self.labels.extend(labels);
        self
    }

    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.lease.namespace)
    }
    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.lease.name)
    }

    fn call(&self, request: ApiRequest) -> BoxFuture<'static, Result<Versioned, LockError>> {
        let (called, seen) = (self.api.call(request), Arc::clone(&self.seen));
        async move {
            let object = called.await.map_err(lock_error)?;
            let versioned = read(&object)?;
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(object);
            Ok(versioned)
        }
        .boxed()
    }

    /// The version that was seen last, and its holders.
    fn last_seen(&self) -> Option<(String, [Value; 2])> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let object = seen.as_ref()?;
        Some((object["metadata"]["resourceVersion"].as_str()?.to_owned(), holders(object)))
    }
    fn watch_path(&self, version: &str) -> String {
        let (collection, name) = (self.collection(), &self.lease.name);
        format!(
            "{collection}?watch=true&fieldSelector=metadata.name%3D{name}&resourceVersion={version}&timeoutSeconds={WATCH_SECS}"
        )
    }

    /// The object with the record and our labels.
    fn write(&self, mut object: Value, record: &Record) -> Value {
        let spec = object_in(&mut object, "spec");
        record.write_to(spec);
        if !self.labels.is_empty() {
            let metadata = object_in(&mut object, "metadata");
            let mut labels = metadata.remove("labels").unwrap_or_default();
            if !labels.is_object() {
                labels = json!({});
            }
            for (key, value) in &self.labels {
                labels[key] = json!(value);
            }
            metadata.insert("labels".to_owned(), labels);
        }
        object
    }
}

impl Lock for LeaseLock {
    fn get(&self) -> BoxFuture<'static, Result<Versioned, LockError>> {
        self.call(ApiRequest::Get { path: self.path() })
    }

    fn create(&self, record: Record) -> BoxFuture<'static, Result<Versioned, LockError>> {
        let fresh = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self.lease.namespace, "name": self.lease.name},
        });
        self.call(ApiRequest::Post { path: self.collection(), body: self.write(fresh, &record) })
    }

    fn update(&self, record: Record) -> BoxFuture<'static, Result<Versioned, LockError>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(object) = seen else {
            let text = format!("{} has been neither read nor created", self.lease);
            return async move { Err(LockError::Other(text)) }.boxed();
        };
        self.call(ApiRequest::Put { path: self.path(), body: self.write(object, &record) })
    }

    fn describe(&self) -> String {
        self.lease.to_string()
    }

    /// Ends when a watch shows another holder or preferred holder. Renewals, mostly our own, do not count.
    fn changed(&self) -> BoxFuture<'static, ()> {
        let lock = self.clone();
        async move {
            loop {
                if let Some((version, _)) = lock.last_seen() {
                    let mut events = lock.api.watch(lock.watch_path(&version));
                    while let Some(event) = events.next().await {
                        match event["type"].as_str() {
                            Some("DELETED") => return,
                            Some("ADDED" | "MODIFIED")
                                if lock.last_seen().is_none_or(|(_, s)| s != holders(&event["object"])) =>
                            {
                                return;
                            }
                            Some("ERROR") => break, // too old, for example: a newer version has been seen
                            _ => {}
                        }
                    }
                }
                tokio::time::sleep(WATCH_PAUSE).await;
            }
        }
        .boxed()
    }
}

/// The holder and the preferred holder.
fn holders(object: &Value) -> [Value; 2] {
    ["holderIdentity", "preferredHolder"].map(|key| {
        let value = &object["spec"][key];
        if *value == "" { Value::Null } else { value.clone() }
    })
}

fn read(object: &Value) -> Result<Versioned, LockError> {
    let record = Record::from_spec(&object["spec"]).map_err(LockError::Unreadable)?;
    let metadata = &object["metadata"];
    let version = metadata["resourceVersion"].as_str();
    let version = version.ok_or_else(|| LockError::Unreadable("the object has no resourceVersion".to_owned()))?;
    let token = metadata["annotations"][FENCING_TOKEN].as_str().and_then(|text| text.parse().ok()).map(FencingToken);
    Ok(Versioned { record, resource_version: version.to_owned(), token })
}

fn lock_error(error: ApiError) -> LockError {
    match error.status {
        404 => LockError::NotFound,
        409 => LockError::Conflict,
        0 => LockError::Other(error.message),
        _ => LockError::Other(error.to_string()),
    }
}

/// The object under this key, created if it has another type.
fn object_in<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !object[key].is_object() {
        object[key] = json!({});
    }
    object[key].as_object_mut().expect("it was just made an object")
}

#[cfg(test)]
mod tests;
