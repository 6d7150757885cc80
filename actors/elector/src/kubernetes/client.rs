//! The client of the `kube` crate as a [`KubeApi`]: kubeconfigs, service accounts, and its other credentials.

use std::future::ready;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use http::{Method, Request, header};
use kube::core::WatchEvent;
use serde_json::{Value, json};

use super::{ApiError, ApiRequest, KubeApi};

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct KubeClient(kube::Client);

impl KubeClient {
    /// Sends its requests with this client, as the identity that it is configured with.
    pub fn new(client: kube::Client) -> Self {
        Self(client)
    }
}

impl KubeApi for KubeClient {
    fn call(&self, request: ApiRequest) -> BoxFuture<'static, Result<Value, ApiError>> {
        let client = self.0.clone();
        async move {
            let (method, path, body) = match request {
                ApiRequest::Get { path } => (Method::GET, path, None),
                ApiRequest::Post { path, body } => (Method::POST, path, Some(body)),
                ApiRequest::Put { path, body } => (Method::PUT, path, Some(body)),
                ApiRequest::Delete { path } => (Method::DELETE, path, None),
            };
            client.request::<Value>(http_request(method, path, body)?).await.map_err(api_error)
        }
        .boxed()
    }

    fn watch(&self, path: String) -> BoxStream<'static, Value> {
        let client = self.0.clone();
        async move {
            let opened = match http_request(Method::GET, path, None) {
                Ok(request) => client.request_events::<Value>(request).await.map_err(api_error),
                Err(error) => Err(error),
            };
            match opened {
                Ok(events) => events
                    .map(|event: Result<WatchEvent<Value>, kube::Error>| event.ok().map(event_document))
                    .take_while(|event| ready(event.is_some()))
                    .filter_map(ready)
                    .boxed(),
                Err(error) => {
                    tracing::debug!(%error, "Kubernetes watch refused");
                    futures_util::stream::empty().boxed()
                }
            }
        }
        .flatten_stream()
        .boxed()
    }
}

fn http_request(method: Method, path: String, body: Option<Value>) -> Result<Request<Vec<u8>>, ApiError> {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    request.body(body).map_err(|error| ApiError { status: 0, message: error.to_string() })
}

fn event_document(event: WatchEvent<Value>) -> Value {
    let (kind, object) = match event {
        WatchEvent::Added(object) => ("ADDED", object),
        WatchEvent::Modified(object) => ("MODIFIED", object),
        WatchEvent::Deleted(object) => ("DELETED", object),
        WatchEvent::Bookmark(_) => ("BOOKMARK", Value::Null),
        WatchEvent::Error(status) => ("ERROR", json!({"code": status.code, "message": status.message})),
    };
    json!({"type": kind, "object": object})
}

fn api_error(error: kube::Error) -> ApiError {
    match error {
        kube::Error::Api(status) => ApiError { status: status.code, message: status.message },
        other => {
            let cause = std::error::Error::source(&other).map(|cause| format!(": {cause}")).unwrap_or_default();
            ApiError { status: 0, message: format!("{other}{cause}") }
        }
    }
}
