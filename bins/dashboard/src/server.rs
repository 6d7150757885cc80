//! The routes, and what an open page is sent.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router, middleware};
use futures_util::{Stream, StreamExt, stream};
use muster_client::Target;
use muster_kernel::Clock;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::access::{Access, Refused, Secret};
use crate::actions::{self, Confirmed};
use crate::connections::{self, Admitted};
use crate::document::Shown;
use crate::door::{self, Hosts};
use crate::feed::{Feed, Sample, Topic};
use crate::html::text;
use crate::pages::{PLACES, Page, Seen};
use crate::shell;

/// Open pages at once.
const MAX_STREAMS: usize = 32;
/// At most four patches a second.
const PATCH_PAUSE: Duration = Duration::from_millis(250);
/// A page that has had no byte for longer is cut off from this server, and says so.
const BEAT: Duration = Duration::from_secs(2);
/// Bytes of a request's body.
const MAX_BODY: usize = 1024;

/// The header with the tab's secret.
const TAB: HeaderName = HeaderName::from_static("muster-tab");

/// What happens to links and sessions, for the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginEvent {
    LoggedIn,
    /// A link was used twice, and its session has ended.
    LinkUsedTwice,
    LoggedOut,
}

/// The server, bound and not yet served.
pub struct Dashboard {
    listeners: Vec<TcpListener>,
    port: u16,
    shared: Arc<Shared>,
    hosts: Hosts,
    events: mpsc::Receiver<LoginEvent>,
    /// The status is asked also while no page is open.
    _status: watch::Receiver<Sample>,
}

struct Shared {
    access: Mutex<Access>,
    feed: Arc<Feed>,
    /// With what the names of its cookies begin: other dashboards on this host have others, and so has each session.
    cookies: String,
    streams: Arc<Semaphore>,
    target: Target,
    /// Whether it does more than show.
    actions: bool,
    events: mpsc::Sender<LoginEvent>,
}

impl Shared {
    fn access(&self) -> MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The proof of the session of which a request has both secrets. Another server on this host can add cookies of the same name.
    fn admit(&self, headers: &HeaderMap) -> Option<Secret> {
        let tab = headers.get(TAB)?.to_str().ok()?;
        let (mut access, now) = (self.access(), Instant::now());
        door::cookies(headers, &self.cookies).find_map(|cookie| access.admit(cookie, tab, now))
    }
}

impl Dashboard {
    pub(crate) fn new(
        listeners: Vec<TcpListener>,
        port: u16,
        hosts: Arc<[String]>,
        target: Target,
        actions: bool,
    ) -> Self {
        let (events, received) = mpsc::channel(16);
        let feed = Feed::new(target.clone());
        let status = feed.follow(&Topic::Status);
        let cookies = format!("muster-{:08x}-", rand::random::<u32>());
        let access = Mutex::default();
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        let shared = Arc::new(Shared { access, feed, cookies, streams, target, actions, events });
        Self { listeners, port, shared, hosts: Hosts(hosts), events: received, _status: status }
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A link that is good for one login. Its secret is in the fragment, which browsers do not send.
    pub fn link(&self) -> String {
        let link = self.shared.access().new_link(Instant::now());
        format!("http://127.0.0.1:{}/#{}", self.port, link.text())
    }

    /// Whether a browser is logged in.
    pub fn in_use(&self) -> bool {
        self.shared.access().in_use(Instant::now())
    }

    /// What happened at the door. Cancelling the wait loses nothing.
    pub async fn login_event(&mut self) -> LoginEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await, // it holds a sender itself
        }
    }

    /// Serves until this process ends.
    pub fn serve(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let router = router(self.shared.clone(), self.hosts.clone());
        let listeners = std::mem::take(&mut self.listeners).into_iter();
        let all = futures_util::future::join_all(listeners.map(move |it| connections::serve(it, router.clone())));
        async move { drop(all.await) }
    }
}

fn router(shared: Arc<Shared>, hosts: Hosts) -> Router {
    let pages = PLACES.iter().fold(Router::new(), |router, (path, ..)| router.route(path, get(serve_shell)));
    // Read-only by the absence of a route, not of buttons.
    let pages = if shared.actions { pages.route("/actions", post(act)) } else { pages };
    pages
        .route("/assets/{name}", get(serve_asset))
        .route("/login", post(log_in))
        .route("/logout", post(log_out))
        .route("/stream", get(|state, headers, query, on| open_stream(state, headers, Path(String::new()), query, on)))
        .route("/stream/{page}", get(open_stream))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(hosts, door::check))
        .with_state(shared)
}

async fn serve_asset(Path(name): Path<String>) -> Response {
    match shell::asset(&name) {
        Some((kind, text)) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn serve_shell(State(shared): State<Arc<Shared>>) -> Html<String> {
    Html(shell::shell(shared.actions).into_string())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    link: String,
}

#[derive(Serialize)]
struct LoggedIn {
    tab: String,
    proof: String,
}

async fn log_in(State(shared): State<Arc<Shared>>, Json(login): Json<Login>) -> Response {
    let opened = shared.access().log_in(&login.link, Instant::now());
    match opened {
        Ok(session) => {
            let _full = shared.events.try_send(LoginEvent::LoggedIn);
            let (name, value) = (format!("{}{:08x}", shared.cookies, rand::random::<u32>()), session.cookie.text());
            let cookie = format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/");
            let secrets = LoggedIn { tab: session.tab.text(), proof: session.proof.text() };
            ([(header::SET_COOKIE, cookie)], Json(secrets)).into_response()
        }
        Err(refused) => {
            let why = match refused {
                Refused::Spent { ended } => {
                    if ended {
                        let _full = shared.events.try_send(LoginEvent::LinkUsedTwice);
                    }
                    "this link was used before: the session that it opened has ended\n"
                }
                Refused::Expired => "this link is more than a minute old\n",
                Refused::Unknown => "this link is not of this dashboard\n",
            };
            (StatusCode::FORBIDDEN, why).into_response()
        }
    }
}

async fn log_out(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if shared.admit(&headers).is_none() {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    shared.access().log_out();
    let _full = shared.events.try_send(LoginEvent::LoggedOut);
    StatusCode::NO_CONTENT.into_response()
}

/// The answer to an action.
#[derive(Serialize)]
struct ActionOutcome {
    message: String,
    /// Whether the same dialog may be sent again: the outcome is unknown, or the reason may pass.
    retry: bool,
}

async fn act(State(shared): State<Arc<Shared>>, headers: HeaderMap, Json(confirmed): Json<Confirmed>) -> Response {
    if shared.admit(&headers).is_none() {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match actions::ask(shared.target.clone(), &confirmed).await {
        Ok(_) => {
            let message = "accepted: the page shows when it has settled".to_owned();
            Json(ActionOutcome { message, retry: false }).into_response()
        }
        Err(failure) => {
            let outcome = ActionOutcome { message: text(&failure.message), retry: failure.may_pass() };
            (StatusCode::CONFLICT, Json(outcome)).into_response()
        }
    }
}

async fn open_stream(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Path(path): Path<String>,
    RawQuery(query): RawQuery,
    Extension(connection): Extension<Admitted>,
) -> Response {
    let Some(proof) = shared.admit(&headers) else {
        return (StatusCode::UNAUTHORIZED, "log in first\n").into_response();
    };
    let Some(page) = Page::at(&format!("/{path}"), &query.unwrap_or_default()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let Ok(place) = shared.streams.clone().try_acquire_owned() else {
        return (StatusCode::TOO_MANY_REQUESTS, "too many pages are open\n").into_response();
    };
    connection.set();
    let open = OpenPage::new(page, shared, headers, place);
    // Nothing is shown before the browser knows that it has the server to which it logged in.
    let first = stream::once(async move { format!("data: {}\n\n", serde_json::json!({"proof": proof.text()})) });
    let kind = [(header::CONTENT_TYPE, "text/event-stream")];
    (kind, Body::from_stream(first.chain(messages(open)).map(Ok::<_, Infallible>))).into_response()
}

/// One open page.
struct OpenPage {
    page: Page,
    shared: Arc<Shared>,
    /// With the session: a page of one that has ended is sent nothing more.
    headers: HeaderMap,
    followed: HashMap<Topic, watch::Receiver<Sample>>,
    shown: Shown,
    _place: OwnedSemaphorePermit,
}

impl OpenPage {
    fn new(page: Page, shared: Arc<Shared>, headers: HeaderMap, place: OwnedSemaphorePermit) -> Self {
        let followed = page.topics().into_iter().map(|topic| (topic.clone(), shared.feed.follow(&topic))).collect();
        Self { page, shared, headers, followed, shown: Shown::default(), _place: place }
    }

    /// What the page must be sent now.
    fn patch(&mut self) -> Option<String> {
        let samples =
            self.followed.iter_mut().map(|(topic, newest)| (topic.clone(), newest.borrow_and_update().clone()));
        let seen = Seen {
            samples: samples.collect(),
            points: self.shared.feed.points(),
            now: Clock.wall(),
            actions: self.shared.actions,
        };
        let patch = self.shown.patch(&self.page.render(&seen))?;
        serde_json::to_string(&patch).ok()
    }

    /// Waits for an answer to any of its questions.
    async fn changed(&mut self) {
        let each = self.followed.values_mut().map(|newest| -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
            Box::pin(async move {
                if newest.changed().await.is_err() {
                    std::future::pending::<()>().await; // its task has ended
                }
            })
        });
        futures_util::future::select_all(each).await;
    }
}

/// Server-sent events: a patch whenever something differs, and a comment as a sign of life.
fn messages(open: OpenPage) -> impl Stream<Item = String> + Send {
    stream::unfold((open, true), |(mut open, first)| async move {
        if !first {
            tokio::time::sleep(PATCH_PAUSE).await;
            let _quiet = tokio::time::timeout(BEAT, open.changed()).await;
        }
        open.shared.admit(&open.headers)?;
        let message = open.patch().map_or_else(|| ":\n\n".to_owned(), |patch| format!("data: {patch}\n\n"));
        Some((message, (open, false)))
    })
}

/// The secret of a link, for tests.
#[cfg(test)]
fn secret_of(link: &str) -> &str {
    link.split_once('#').unwrap().1
}

#[cfg(test)]
mod tests;
