//! What every request must show before anything is read, and what every answer says.
//!
//! A page in the same browser can send requests to this port, a name that it resolves to 127.0.0.1 too (DNS rebinding), and every
//! local user can connect. So: `Host` is one that this server gave out, `Origin` is that host where one is sent, and no answer may be
//! framed, cached, or read by another origin.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The names under which this server may be asked: `127.0.0.1:PORT` and the like.
#[derive(Clone, Debug)]
pub struct Hosts(pub Arc<[String]>);

/// The headers of every answer. The policy allows this server's own script and stylesheet, and nothing inline.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses what does not come from a page of this server, apart from the navigation to a page.
pub async fn check(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let mut answer = match judge(&hosts, request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((status, why)) => (status, why).into_response(),
    };
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

type Refusal = (StatusCode, &'static str);

fn judge(hosts: &Hosts, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    let host = only(headers, &header::HOST).filter(|host| hosts.0.iter().any(|known| known == host));
    let host = host.ok_or((StatusCode::MISDIRECTED_REQUEST, "this is not a name of this dashboard\n"))?;
    if ![Method::GET, Method::HEAD, Method::POST].contains(method) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "not allowed\n"));
    }
    let foreign = (StatusCode::FORBIDDEN, "the request comes from a page of another origin\n");
    let origin = only(headers, &header::ORIGIN);
    let is_ours = |origin: &str| origin.strip_prefix("http://") == Some(host);
    match origin {
        Some(origin) if is_ours(origin) => {}
        None if *method != Method::POST && !headers.contains_key(header::ORIGIN) => {}
        _ => return Err(foreign),
    }
    // A link in a message, or the file that opens the browser, is another site's; what it opens has no data.
    let is_page = *method == Method::GET && crate::pages::is_page(path);
    match only(headers, &SEC_FETCH_SITE) {
        Some("same-origin") => Ok(()),
        None if !headers.contains_key(SEC_FETCH_SITE) => Ok(()),
        _ if is_page => Ok(()),
        _ => Err(foreign),
    }
}

/// A header's value, if it is there once and is text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// The cookies whose names begin so. Browsers send those of every server on this host, which may have set some of these names, too.
pub fn cookies<'a>(headers: &'a HeaderMap, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(name, _)| name.starts_with(prefix)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(method: &Method, path: &str, headers: &[(&str, &str)]) -> u16 {
        let hosts = Hosts(["127.0.0.1:7000".to_owned(), "localhost:7000".to_owned()].into());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        judge(&hosts, method, path, &map).map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    const OURS: (&str, &str) = ("host", "127.0.0.1:7000");

    #[test]
    fn only_names_that_were_given_out_are_answered() {
        for (host, status) in [
            ("127.0.0.1:7000", 200),
            ("localhost:7000", 200),
            ("LOCALHOST:7000", 421),
            ("localhost:7001", 421),
            ("localhost", 421),
            ("evil.example:7000", 421),
            ("127.0.0.1:7000.evil.example", 421),
            ("x.localhost:7000", 421),
            ("", 421),
        ] {
            assert_eq!(status_of(&Method::GET, "/", &[("host", host)]), status, "{host}");
        }
        assert_eq!(status_of(&Method::GET, "/", &[]), 421);
        assert_eq!(status_of(&Method::GET, "/", &[OURS, OURS]), 421, "which of them counts is not for us to choose");
    }

    #[test]
    fn another_origin_is_refused_everywhere() {
        for origin in
            ["http://evil.example", "http://localhost:7000", "https://127.0.0.1:7000", "null", "http://127.0.0.1:7000/"]
        {
            for (method, path) in [(Method::GET, "/"), (Method::GET, "/stream"), (Method::POST, "/login")] {
                assert_eq!(status_of(&method, path, &[OURS, ("origin", origin)]), 403, "{method} {path} {origin}");
            }
        }
        let ours = ("origin", "http://127.0.0.1:7000");
        assert_eq!(status_of(&Method::POST, "/login", &[OURS, ours]), 200);
        assert_eq!(status_of(&Method::POST, "/login", &[OURS, ours, ours]), 403);
        assert_eq!(status_of(&Method::POST, "/login", &[OURS]), 403, "a write shows where it comes from");
    }

    #[test]
    fn another_site_may_only_open_a_page() {
        for (site, page, data) in
            [("same-origin", 200, 200), ("none", 200, 403), ("cross-site", 200, 403), ("same-site", 200, 403)]
        {
            let site = ("sec-fetch-site", site);
            assert_eq!(status_of(&Method::GET, "/nodes", &[OURS, site]), page);
            for path in ["/stream", "/assets/x.js", "/login", "/nothing"] {
                assert_eq!(status_of(&Method::GET, path, &[OURS, site]), data, "{path}");
            }
        }
    }

    #[test]
    fn preflights_and_other_methods_are_refused() {
        for method in [Method::OPTIONS, Method::PUT, Method::DELETE, Method::TRACE, Method::CONNECT] {
            assert_eq!(status_of(&method, "/", &[OURS]), 405, "{method}");
        }
    }

    #[test]
    fn own_cookies_are_found_among_those_of_other_servers() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; muster-0-a=x; muster-1-a=y"));
        headers.append(header::COOKIE, HeaderValue::from_static("b=2; muster-0-a=planted"));
        assert_eq!(cookies(&headers, "muster-0-").collect::<Vec<_>>(), ["x", "planted"]);
        assert_eq!(cookies(&headers, "c").next(), None);
    }
}
