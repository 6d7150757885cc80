//! The id of a request of `/v1`: from `Muster-Request-Id`, or from `Idempotency-Key`, another name of it. Each answer carries it.
//!
//! A request without an id gets a fresh one. One with an id that cannot be read is refused: its client believes that a retry is safe.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use muster_kernel::Clock;
use muster_messages::{ErrorBody, RequestId};

pub(super) const HEADER: HeaderName = HeaderName::from_static("muster-request-id");
const NAMES: [&str; 2] = ["Muster-Request-Id", "Idempotency-Key"];

/// The id that a request carries.
pub(super) fn given(headers: &HeaderMap) -> Result<Option<RequestId>, ErrorBody> {
    let mut given = None;
    for name in NAMES {
        for value in headers.get_all(name) {
            let id = value.to_str().ok().and_then(parse).ok_or_else(|| malformed(name))?;
            if given.replace(id).is_some_and(|other| other != id) {
                let text = format!("{} and {} are two names of one id: give one of them", NAMES[0], NAMES[1]);
                return Err(ErrorBody::invalid(text));
            }
        }
    }
    Ok(given)
}

/// 1 to 32 hexadecimal digits, or a UUID with its hyphens; quoted or not. 0 stands for no id.
fn parse(text: &str) -> Option<RequestId> {
    let unquoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let hyphens: Vec<usize> = unquoted.match_indices('-').map(|(at, _)| at).collect();
    let digits = match hyphens.as_slice() {
        [] => unquoted.to_owned(),
        [8, 13, 18, 23] if unquoted.len() == 36 => unquoted.replace('-', ""),
        _ => return None,
    };
    let hexadecimal = (1..=32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = hexadecimal.then(|| u128::from_str_radix(&digits, 16).ok()).flatten()?;
    (id != 0).then_some(RequestId(id))
}

fn malformed(name: &str) -> ErrorBody {
    ErrorBody::invalid(format!(
        "the header {name} must be 1 to 32 hexadecimal digits, not all 0, or a UUID; the first 48 of 128 bits are milliseconds since \
         1970, as in a UUID of version 7"
    ))
}

pub(super) fn fresh() -> RequestId {
    RequestId::fresh(Clock.wall(), rand::random())
}

pub(super) fn value(id: RequestId) -> HeaderValue {
    HeaderValue::from_str(&id.to_string()).expect("hexadecimal digits are a header's value")
}

#[cfg(test)]
#[path = "request_id_tests.rs"]
mod tests;
