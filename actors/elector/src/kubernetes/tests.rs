//! The lock against an API server of a few lines, which checks versions.

use std::time::Duration;

use tokio::sync::broadcast;

use super::*;

#[derive(Default)]
struct Server {
    lease: Mutex<Option<Value>>,
    requests: Mutex<Vec<ApiRequest>>,
    watchers: Mutex<Vec<broadcast::Sender<Value>>>,
}

impl Server {
    fn stored(&self) -> Value {
        self.lease.lock().unwrap().clone().expect("there is a lease")
    }
    /// Sends an object to the watches.
    fn show(&self, kind: &str, object: &Value) {
        for watcher in self.watchers.lock().unwrap().iter() {
            let _gone = watcher.send(json!({"type": kind, "object": object}));
        }
    }
    /// A write of another client.
    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut lease = self.lease.lock().unwrap();
        let object = lease.as_mut().expect("there is a lease");
        change(object);
    }
    fn answer(&self, request: ApiRequest) -> Result<Value, ApiError> {
        self.requests.lock().unwrap().push(request.clone());
        let mut lease = self.lease.lock().unwrap();
        let error = |status| Err(ApiError { status, message: "no".into() });
        let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        let mut body = match (request, &*lease) {
            (ApiRequest::Delete { .. }, _) | (ApiRequest::Get { .. }, None) | (ApiRequest::Put { .. }, None) => {
                return error(404);
            }
            (ApiRequest::Get { .. }, Some(object)) => return Ok(object.clone()),
            (ApiRequest::Post { .. }, Some(_)) => return error(409),
            (ApiRequest::Put { body, .. }, Some(object)) if version(&body) != version(object) => return error(409),
            (ApiRequest::Post { body, .. } | ApiRequest::Put { body, .. }, _) => body,
        };
        let next: u64 = version(&body).parse::<u64>().unwrap() + 1;
        body["metadata"]["resourceVersion"] = json!(next.to_string());
        *lease = Some(body.clone());
        Ok(body)
    }
}

impl KubeApi for Arc<Server> {
    fn call(&self, request: ApiRequest) -> BoxFuture<'static, Result<Value, ApiError>> {
        let answer = self.answer(request);
        async move { answer }.boxed()
    }
    fn watch(&self, _path: String) -> BoxStream<'static, Value> {
        let (tell, events) = broadcast::channel(8);
        self.watchers.lock().unwrap().push(tell);
        let next = |mut events: broadcast::Receiver<Value>| async move { Some((events.recv().await.ok()?, events)) };
        futures_util::stream::unfold(events, next).boxed()
    }
}

fn lock(server: &Arc<Server>) -> LeaseLock {
    LeaseLock::new(Arc::new(server.clone()), LeaseRef { namespace: "foo".into(), name: "bar".into() })
}
fn labelled(server: &Arc<Server>) -> LeaseLock {
    lock(server).with_labels([("app".to_owned(), "ours".to_owned())])
}
fn record() -> Record {
    Record { holder: "baz".into(), lease_duration: Duration::from_secs(15), transitions: 2, ..Record::default() }
}

/// Case 27.
#[tokio::test]
async fn a_missing_lease_is_not_found() {
    assert_eq!(lock(&Arc::default()).get().await, Err(LockError::NotFound));
}

/// Case 28.
#[tokio::test]
async fn what_was_created_is_read_again() {
    let server = Arc::default();
    let created = lock(&server).create(record()).await.unwrap();
    let read = lock(&server).get().await.unwrap();
    assert_eq!((&read, &read.record), (&created, &record()));
    assert_eq!(server.stored()["spec"]["leaseDurationSeconds"], 15);
}

/// Case 31.
#[tokio::test]
async fn a_second_creation_fails() {
    let server = Arc::default();
    lock(&server).create(record()).await.unwrap();
    assert_eq!(lock(&server).create(record()).await, Err(LockError::Conflict));
}

/// Case 32.
#[tokio::test]
async fn update_before_a_read_fails_without_a_request() {
    let server: Arc<Server> = Arc::default();
    assert!(matches!(lock(&server).update(record()).await, Err(LockError::Other(_))));
    assert!(server.requests.lock().unwrap().is_empty());
}

/// Case 33.
#[test]
fn a_lock_is_described_by_namespace_and_name() {
    assert_eq!(lock(&Arc::default()).describe(), "foo/bar");
}

/// Case 35.
#[tokio::test]
async fn labels_are_put_on_an_object_without_any() {
    let server = Arc::default();
    lock(&server).create(record()).await.unwrap();
    let lock = labelled(&server);
    lock.get().await.unwrap();
    lock.update(record()).await.unwrap();
    assert_eq!(server.stored()["metadata"]["labels"], json!({"app": "ours"}));
}

/// Case 36.
#[tokio::test]
async fn a_lock_without_labels_leaves_those_of_the_object() {
    let server = Arc::default();
    labelled(&server).create(record()).await.unwrap();
    let lock = lock(&server);
    lock.get().await.unwrap();
    lock.update(record()).await.unwrap();
    assert_eq!(server.stored()["metadata"]["labels"], json!({"app": "ours"}));
}

/// Case 37.
#[tokio::test]
async fn our_labels_are_restored_and_others_stay() {
    let server = Arc::default();
    let lock = labelled(&server);
    lock.create(record()).await.unwrap();
    server.change(|object| object["metadata"]["labels"] = json!({"app": "theirs", "team": "blue"}));
    lock.get().await.unwrap();
    lock.update(record()).await.unwrap();
    assert_eq!(server.stored()["metadata"]["labels"], json!({"app": "ours", "team": "blue"}));
}

#[tokio::test]
async fn metadata_of_other_clients_is_kept_by_each_write() {
    let server = Arc::default();
    let lock = lock(&server);
    lock.create(record()).await.unwrap();
    server.change(|object| {
        object["metadata"]["annotations"] = json!({"note": "kept", FENCING_TOKEN: "77"});
        object["metadata"]["ownerReferences"] = json!([{"name": "owner"}]);
    });
    let read = lock.get().await.unwrap();
    assert_eq!(read.fencing_token(), Some(FencingToken(77)));
    lock.update(Record { holder: "bing".into(), ..record() }).await.unwrap();
    let metadata = &server.stored()["metadata"];
    assert_eq!(
        (&metadata["annotations"]["note"], &metadata["ownerReferences"][0]["name"]),
        (&json!("kept"), &json!("owner"))
    );
}

#[tokio::test]
async fn a_version_that_was_overtaken_is_a_conflict() {
    let server = Arc::default();
    let (slow, quick) = (lock(&server), lock(&server));
    slow.create(record()).await.unwrap();
    quick.get().await.unwrap();
    quick.update(record()).await.unwrap();
    assert_eq!(slow.update(record()).await, Err(LockError::Conflict));
    slow.get().await.unwrap();
    assert!(slow.update(record()).await.is_ok());
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_not_overwritten() {
    let server = Arc::default();
    lock(&server).create(record()).await.unwrap();
    server.change(|object| object["spec"]["renewTime"] = json!("yesterday"));
    let lock = lock(&server);
    assert!(matches!(lock.get().await, Err(LockError::Unreadable(_))));
    assert!(matches!(lock.update(record()).await, Err(LockError::Other(_))));
}

#[tokio::test(start_paused = true)]
async fn watch_reports_another_holder_and_no_renewals() {
    let server = Arc::default();
    let lock = lock(&server);
    lock.create(record()).await.unwrap();
    let changed = tokio::spawn(lock.changed());
    tokio::task::yield_now().await;
    server.change(|object| object["metadata"]["resourceVersion"] = json!("8"));
    server.show("MODIFIED", &server.stored());
    server.show("BOOKMARK", &json!({}));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!changed.is_finished());
    server.change(|object| object["spec"]["holderIdentity"] = json!(""));
    server.show("MODIFIED", &server.stored());
    changed.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ended_watch_restarts_from_the_last_seen_version() {
    let server: Arc<Server> = Arc::default();
    let lock = lock(&server);
    lock.create(record()).await.unwrap();
    let changed = tokio::spawn(lock.changed());
    tokio::task::yield_now().await;
    server.show("ERROR", &json!({"code": 410}));
    tokio::time::sleep(WATCH_PAUSE * 2).await;
    assert_eq!(server.watchers.lock().unwrap().len(), 2);
    server.show("DELETED", &server.stored());
    changed.await.unwrap();
}
