//! The door by raw HTTP, without a cluster: the dashboard must let its operator in when nothing else answers.

use muster_client::Target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Dashboard, LoginEvent, PLACES, secret_of};
use crate::Settings;
use crate::connections::HEADER_TIMEOUT;
use crate::shell::{asset, assets};

struct Server {
    dashboard: Dashboard,
    port: u16,
}

async fn serve() -> Server {
    serve_with(false).await
}

async fn serve_with(actions: bool) -> Server {
    let settings = Settings { port: 0, allow_hosts: vec!["tunnel.example:80".to_owned()], actions };
    let mut dashboard = Dashboard::bind(Target::Socket("/nonexistent/muster.sock".into()), &settings).await.unwrap();
    tokio::spawn(dashboard.serve());
    let port = dashboard.port();
    Server { dashboard, port }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Server {
    /// Sends a request as it stands, and reads until the server closes, or until `until` is in the body.
    async fn raw(&self, head: &str, body: &str, until: &str) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let request = format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut all, mut piece) = (String::new(), [0; 4096]);
        loop {
            let read = stream.read(&mut piece).await.unwrap();
            all.push_str(std::str::from_utf8(&piece[..read]).unwrap());
            if read == 0 || (!until.is_empty() && all.contains(until)) {
                break;
            }
        }
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}\r\n", self.port)
    }

    async fn get(&self, path: &str, headers: &str) -> Answer {
        self.raw(&format!("GET {path} HTTP/1.1\r\n{}{headers}", self.host()), "", "").await
    }

    async fn post(&self, path: &str, headers: &str, body: &str) -> Answer {
        let origin = format!("Origin: http://127.0.0.1:{}\r\nContent-Type: application/json\r\n", self.port);
        self.raw(&format!("POST {path} HTTP/1.1\r\n{}{origin}{headers}", self.host()), body, "").await
    }

    async fn log_in(&self, link: &str) -> Answer {
        self.post("/login", "", &format!("{{\"link\":\"{}\"}}", secret_of(link))).await
    }
}

/// Logs in; the headers with the two secrets of the session.
async fn secrets(server: &Server) -> (String, String) {
    let (cookie, tab, _) = session(server).await;
    (cookie, tab)
}

/// The same, with the proof that the server gives.
async fn session(server: &Server) -> (String, String, String) {
    let link = server.dashboard.link();
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    let body = format!("{{\"link\":\"{}\"}}", secret_of(&link));
    let origin = format!("Origin: http://127.0.0.1:{}\r\nContent-Type: application/json\r\n", server.port);
    let host = server.host();
    let request = format!(
        "POST /login HTTP/1.1\r\n{host}{origin}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let tab: serde_json::Value = serde_json::from_str(body).unwrap();
    let text = |key: &str| tab[key].as_str().unwrap().to_owned();
    (format!("Cookie: other=1; {cookie}\r\n"), format!("Muster-Tab: {}\r\n", text("tab")), text("proof"))
}

#[tokio::test]
async fn the_shell_and_assets_have_no_datum_and_strict_headers() {
    let server = serve().await;
    let script = format!("/assets/{}", assets().script);
    let link = server.dashboard.link();
    for path in PLACES.iter().map(|(path, ..)| *path).chain([script.as_str()]) {
        let answer = server.get(path, "").await;
        assert_eq!(answer.status, 200, "{path}");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
        ] {
            assert!(answer.head.contains(header), "{path}: {}", answer.head);
        }
        assert!(!answer.head.contains("access-control") && !answer.head.contains("set-cookie"), "{}", answer.head);
        assert!(!answer.body.contains(secret_of(&link)));
    }
    let shell = server.get("/", "").await.body;
    assert!(!shell.contains("<script>") && !shell.contains("style=") && !shell.contains("onclick="), "{shell}");
    assert!(asset("dashboard.js").is_none(), "only the names with digests are served");
    for path in ["/v1/nodes", "/assets/../Cargo.toml", "/x", "/login", "/actions/promote"] {
        assert!([404, 405].contains(&server.get(path, "").await.status), "{path}");
    }
}

#[tokio::test]
async fn data_needs_both_secrets_of_a_session() {
    let server = serve().await;
    let (cookie, tab, proof) = session(&server).await;
    let (other_cookie, other_tab) = secrets(&server).await;
    for (headers, what) in [
        (String::new(), "nothing"),
        (cookie.clone(), "the cookie alone"),
        (tab.clone(), "the tab alone"),
        (format!("{cookie}{other_tab}"), "secrets of two sessions"),
        (format!("{other_cookie}{tab}"), "secrets of two sessions"),
        (format!("{cookie}Muster-Tab: x\r\n"), "a wrong tab"),
    ] {
        for path in ["/stream", "/stream/nodes"] {
            let answer = server.get(path, &headers).await;
            assert_eq!((answer.status, answer.body.as_str()), (401, "log in first\n"), "{path} with {what}");
        }
        assert_eq!(server.post("/logout", &headers, "").await.status, 401, "{what}");
    }
    let request = format!("GET /stream HTTP/1.1\r\n{}{cookie}{tab}", server.host());
    let answer = server.raw(&request, "", "no daemon serves").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    assert!(answer.body.contains("no daemon serves /nonexistent"), "{}", answer.body);
    let first = answer.body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(first).unwrap(), serde_json::json!({"proof": proof}));
    // Another server on this host can plant a cookie of the same name, before or after ours.
    let name = cookie.trim_end().rsplit_once("; ").unwrap().1.split('=').next().unwrap().to_owned();
    for planted in [format!("Cookie: {name}=planted\r\n{cookie}"), format!("{cookie}Cookie: {name}=planted\r\n")] {
        let request = format!("GET /stream HTTP/1.1\r\n{}{planted}{tab}", server.host());
        assert_eq!(server.raw(&request, "", "proof").await.status, 200, "{planted}");
    }
    assert_eq!(server.get("/stream/nothing", &format!("{cookie}{tab}")).await.status, 404);
}

#[tokio::test]
async fn link_used_twice_ends_the_session_and_is_reported() {
    let mut server = serve().await;
    let link = server.dashboard.link();
    assert_eq!(server.log_in(&link).await.status, 200);
    assert_eq!(server.dashboard.login_event().await, LoginEvent::LoggedIn);
    assert!(server.dashboard.in_use());
    let second = server.log_in(&link).await;
    assert_eq!(second.status, 403);
    assert!(second.body.contains("used before"), "{}", second.body);
    assert_eq!(server.dashboard.login_event().await, LoginEvent::LinkUsedTwice);
    assert!(!server.dashboard.in_use());
    for wrong in ["http://x/#", "http://x/#abc"] {
        assert_eq!(server.log_in(wrong).await.status, 403);
    }
    assert_eq!(server.post("/login", "", "{\"link\":\"x\",\"more\":1}").await.status, 422);
    assert_eq!(server.post("/login", "", &format!("{{\"link\":\"{}\"}}", "x".repeat(5000))).await.status, 413);
    // A link in a message is only followed: reading an address spends nothing.
    let link = server.dashboard.link();
    assert_eq!(server.get(&format!("/login?link={}", secret_of(&link)), "").await.status, 405);
    assert_eq!(server.log_in(&link).await.status, 200);
}

#[tokio::test]
async fn logging_out_ends_all_sessions_and_open_pages() {
    let mut server = serve().await;
    let (cookie, tab) = secrets(&server).await;
    let request = format!("GET /stream HTTP/1.1\r\n{}{cookie}{tab}", server.host());
    // Reads until the server closes.
    let page = {
        let (host, port) = (request.clone(), server.port);
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(format!("{host}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
            let mut all = String::new();
            stream.read_to_string(&mut all).await.unwrap();
            all
        })
    };
    assert_eq!(server.dashboard.login_event().await, LoginEvent::LoggedIn);
    assert_eq!(server.post("/logout", &format!("{cookie}{tab}"), "").await.status, 204);
    assert_eq!(server.dashboard.login_event().await, LoginEvent::LoggedOut);
    let all = page.await.unwrap();
    assert!(all.starts_with("HTTP/1.1 200") || all.starts_with("HTTP/1.1 401"), "{all}");
    assert_eq!(server.get("/stream", &format!("{cookie}{tab}")).await.status, 401);
}

#[tokio::test]
async fn other_hosts_and_origins_get_nothing() {
    let server = serve().await;
    let port = server.port;
    for (host, status) in [
        (format!("localhost:{port}"), 200),
        (format!("[::1]:{port}"), 200),
        ("tunnel.example:80".to_owned(), 200),
        ("evil.example".to_owned(), 421),
    ] {
        assert_eq!(server.raw(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n"), "", "").await.status, status, "{host}");
    }
    let answer = server.raw("GET / HTTP/1.0\r\n", "", "").await;
    assert_eq!(answer.status, 421, "no host");
    let link = server.dashboard.link();
    let body = format!("{{\"link\":\"{}\"}}", secret_of(&link));
    let foreign = format!(
        "POST /login HTTP/1.1\r\n{}Content-Type: application/json\r\nOrigin: http://evil.example\r\n",
        server.host()
    );
    assert_eq!(server.raw(&foreign, &body, "").await.status, 403);
    let preflight = format!("OPTIONS /login HTTP/1.1\r\n{}Origin: http://127.0.0.1:{port}\r\n", server.host());
    assert_eq!(server.raw(&preflight, "", "").await.status, 405);
    assert_eq!(server.log_in(&link).await.status, 200, "none of these spent it");
}

#[tokio::test]
async fn open_pages_are_bounded() {
    let server = serve().await;
    let (cookie, tab) = secrets(&server).await;
    let mut open = Vec::new();
    for _ in 0..super::MAX_STREAMS {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        let request = format!("GET /stream HTTP/1.1\r\n{}{cookie}{tab}\r\n", server.host());
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut start = [0; 15];
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200 OK");
        open.push(stream);
    }
    assert_eq!(server.get("/stream", &format!("{cookie}{tab}")).await.status, 429);
    drop(open);
}

#[tokio::test]
async fn actions_need_the_flag_and_both_secrets() {
    let id = muster_messages::RequestId::fresh(muster_kernel::Clock.wall(), rand::random());
    let action = &format!(r#"{{"dialog":"{id}","action":{{"do":"promote","node":"n4"}}}}"#);
    let server = serve().await;
    let (cookie, tab) = secrets(&server).await;
    assert_eq!(
        server.post("/actions", &format!("{cookie}{tab}"), action).await.status,
        404,
        "the route does not exist"
    );
    assert!(!server.get("/", "").await.body.contains("actions are on"));

    let server = serve_with(true).await;
    let (cookie, tab) = secrets(&server).await;
    for headers in [String::new(), cookie.clone(), tab.clone()] {
        assert_eq!(server.post("/actions", &headers, action).await.status, 401);
    }
    assert_eq!(server.get("/actions", &format!("{cookie}{tab}")).await.status, 405);
    let foreign = format!(
        "POST /actions HTTP/1.1\r\n{}{cookie}{tab}Content-Type: application/json\r\nOrigin: http://evil.example\r\n",
        server.host()
    );
    assert_eq!(server.raw(&foreign, action, "").await.status, 403);
    let answer = server.post("/actions", &format!("{cookie}{tab}"), action).await;
    assert_eq!(answer.status, 409);
    assert!(
        answer.body.contains("no daemon serves /nonexistent") && answer.body.contains("\"retry\":true"),
        "{}",
        answer.body
    );
    assert!(server.get("/", "").await.body.contains("actions are on"));
}

/// As another local user could.
#[tokio::test]
async fn silent_connections_do_not_block_others() {
    let server = serve().await;
    let (cookie, tab) = secrets(&server).await;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    let request = format!("GET /stream HTTP/1.1\r\n{}{cookie}{tab}\r\n", server.host());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut start = [0; 15];
    stream.read_exact(&mut start).await.unwrap();
    let mut silent = Vec::new();
    for number in 0..300 {
        let mut stranger = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        if number % 2 == 0 {
            stranger.write_all(b"GET / HTTP/1.1\r\nHost: ").await.unwrap();
        }
        silent.push(stranger);
    }
    assert_eq!(server.get("/", "").await.status, 200);
    // The page that was open before them still is: signs of life arrive.
    let mut byte = [0];
    for _ in 0..2_000 {
        assert_eq!(stream.read(&mut byte).await.unwrap(), 1);
    }
    // Closed because of their number, before their time.
    let mut oldest = silent.swap_remove(0);
    let closed = tokio::time::timeout(HEADER_TIMEOUT / 2, oldest.read(&mut byte)).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
}
