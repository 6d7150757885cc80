//! Answers over HTTP, errors among them: in the envelope of the contract, or as RFC 9457 describes to a client that asks for it.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use muster_messages::{ErrorBody, ErrorCode, RequestId};
use serde_json::{Value, json};

use crate::core;

const PROBLEM: &str = "application/problem+json";
/// Bytes of an error that the HTTP library has written: it says what it could not parse.
const MAX_LIBRARY_ERROR_BYTES: usize = 16 * 1024;

pub(crate) fn json_response(status: StatusCode, text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn error_response(error: &ErrorBody) -> Response {
    let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_response(status, error.to_json().to_string());
    response.extensions_mut().insert(error.clone());
    let retry = error.retry_after_ms.or(matches!(status.as_u16(), 429 | 503).then_some(1000));
    if let Some(ms) = retry {
        // Whole seconds, at least one (RFC 9110, section 10.2.3).
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(ms.div_ceil(1000).max(1)));
    }
    response
}

/// A path that lacks a node's name is invalid rather than unknown.
pub(super) fn no_such_path(path: &str) -> ErrorBody {
    let nodes = ["/v1/nodes/", "/v1/certificates/"];
    match nodes.iter().find_map(|before| path.strip_prefix(before)) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            core::check_node_ref("").err().unwrap_or_else(|| ErrorBody::invalid("a node's name is missing"))
        }
        _ => ErrorBody::new(ErrorCode::NotFound, "no such path; /v1/openapi.json lists them"),
    }
}

/// What decides about the form of an error.
pub(super) struct Asked {
    method: Method,
    problem: bool,
}

impl Asked {
    pub fn of(request: &axum::extract::Request) -> Self {
        Self { method: request.method().clone(), problem: accepts_problem(request.headers()) }
    }
}

/// An answer of `/v1` as its client accepts it. Errors of the HTTP library get the envelope of the contract.
pub(super) async fn as_accepted(response: Response, id: RequestId, asked: &Asked) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let (error, body) = match head.extensions.get::<ErrorBody>() {
        Some(error) => (error.clone(), body),
        None => {
            let text = to_bytes(body, MAX_LIBRARY_ERROR_BYTES).await.unwrap_or_default();
            let error = library_error(status, &String::from_utf8_lossy(&text), &asked.method);
            let body = Body::from(error.to_json().to_string());
            (error, body)
        }
    };
    head.headers.remove(header::CONTENT_LENGTH);
    if !asked.problem {
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Response::from_parts(head, body);
    }
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
    Response::from_parts(head, Body::from(problem(&error, status, id).to_string()))
}

fn library_error(status: StatusCode, text: &str, method: &Method) -> ErrorBody {
    let code = match status {
        StatusCode::NOT_FOUND => ErrorCode::NotFound,
        StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::TooLarge,
        _ if status.is_client_error() => ErrorCode::Invalid,
        _ => ErrorCode::Internal,
    };
    match text.trim() {
        _ if status == StatusCode::METHOD_NOT_ALLOWED => {
            ErrorBody::new(code, format!("this path does not take {method}; the header `Allow` lists what it takes"))
        }
        "" => ErrorBody::new(code, format!("HTTP status {status}")),
        text => ErrorBody::new(code, text),
    }
}

/// RFC 9457. `code`, `details` and `retry_after_ms` are those of the envelope.
fn problem(error: &ErrorBody, status: StatusCode, id: RequestId) -> Value {
    let envelope = error.to_json()["error"].take();
    let code = envelope["code"].as_str().unwrap_or_default();
    let mut title = code.replace('_', " ");
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let mut problem = json!({
        "type": format!("urn:muster:error:{code}"),
        "title": title,
        "status": status.as_u16(),
        "detail": error.message,
        "code": code,
        "details": envelope["details"],
        "request": id.to_string(),
    });
    if let Some(ms) = error.retry_after_ms {
        problem["retry_after_ms"] = ms.into();
    }
    problem
}

/// Whether the client prefers a problem document to plain JSON. A wildcard does not ask for one.
fn accepts_problem(headers: &HeaderMap) -> bool {
    let plain = weight(headers, "application/json").unwrap_or(0.0);
    weight(headers, PROBLEM).is_some_and(|problem| problem > 0.0 && problem >= plain)
}

/// The weight that the client gives to a media type (RFC 9110, section 12.4.2); `None`: it does not name it.
pub(super) fn weight(headers: &HeaderMap, media_type: &str) -> Option<f32> {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut named = values.flat_map(|value| value.split(',')).filter_map(|range| {
        let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
        let is_it = parts.next().is_some_and(|name| name == media_type);
        let weight = parts.find_map(|part| part.strip_prefix("q=").map(|weight| weight.parse().unwrap_or(0.0)));
        is_it.then(|| weight.unwrap_or(1.0))
    });
    named.next()
}

#[cfg(test)]
#[path = "errors_tests.rs"]
mod tests;
