//! `/v1/actors…`: the live tree of a process, and admin actions on it.

use axum::Router;
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use axum::routing::get;
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{CrashHow, ErrorBody};
use serde::Deserialize;

use super::{Peer, answer, error_response};

pub(super) fn routes() -> Router {
    Router::new().route("/v1/actors", get(actors)).route("/v1/actors/{*path}", get(actor_inspect).post(actor_action))
}

#[derive(Deserialize)]
struct Whose {
    node: Option<String>,
    #[serde(default)]
    all: bool,
}
#[derive(Deserialize)]
struct ActorActionQuery {
    node: Option<String>,
    action: String,
    how: Option<String>,
    times: Option<u32>,
}
async fn actors(Extension(peer): Extension<Peer>, Query(q): Query<Whose>) -> Response {
    answer(&peer, Request::Actors { node: ActorsOf::asked(q.node, q.all), ask: ActorsAsk::Tree }).await
}
async fn actor_inspect(Extension(peer): Extension<Peer>, Path(path): Path<String>, Query(q): Query<Whose>) -> Response {
    answer(&peer, Request::Actors { node: ActorsOf::asked(q.node, q.all), ask: ActorsAsk::Inspect { path } }).await
}
fn crash_how(word: &str, times: Option<u32>) -> Result<CrashHow, ErrorBody> {
    Ok(match word {
        "panic" => CrashHow::Panic,
        "error" => CrashHow::Error,
        "kill" => CrashHow::Kill,
        "hang" => CrashHow::Hang,
        "start" => CrashHow::Start { times: times.unwrap_or(CrashHow::STARTS) },
        other => {
            return Err(ErrorBody::invalid(format!("how={other}: must be panic, error, kill, hang or start")));
        }
    })
}
async fn actor_action(
    Extension(peer): Extension<Peer>,
    Path(path): Path<String>,
    Query(q): Query<ActorActionQuery>,
) -> Response {
    let ask = match (q.action.as_str(), q.how.as_deref()) {
        ("restart", _) => ActorsAsk::Restart { path },
        ("crash", how) => match crash_how(how.unwrap_or("panic"), q.times) {
            Ok(how) => ActorsAsk::Crash { path, how },
            Err(body) => return error_response(&body),
        },
        (other, _) => {
            let text = format!("action={other}: must be restart or crash");
            return error_response(&ErrorBody::invalid(text));
        }
    };
    answer(&peer, Request::Actors { node: ActorsOf::asked(q.node, false), ask }).await
}
