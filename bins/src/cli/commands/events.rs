//! `muster events`: past events, and with `--watch` new ones.

use std::time::Duration;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, Revision};
use serde_json::Value;
use tokio::time::Instant;

use super::Context;
use crate::cli::args::EventsArgs;
use crate::cli::duration::millis;
use crate::cli::output::{cell, print};
use crate::cli::render;

/// The pause between two attempts of a watch whose daemon restarts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

pub async fn run(ctx: &mut Context, args: EventsArgs) -> Outcome<u8> {
    if !args.watch {
        let mut document = ctx.client.events(Revision(args.since)).await?;
        let text = document.to_string();
        if !ctx.out.is_json() {
            render::with_names(&mut document, &ctx.names().await);
        }
        ctx.out.document(&text, || cell(&document["revision"]), || render::events(&document["items"]));
        return Ok(0);
    }
    watch(ctx, args.since).await
}

/// Continues from the last revision across daemon restarts and leader changes; ends when no answer has arrived within the
/// time limit.
async fn watch(ctx: &mut Context, mut since: u64) -> Outcome<u8> {
    let mut names = ctx.names().await;
    // Half of the time limit: a quiet cluster answers well before the call times out.
    let wait_ms = millis(ctx.client.timeout() / 2);
    let mut answered = Instant::now();
    loop {
        let request = Request::Events { since: Revision(since), wait_ms };
        let mut document: Value = match ctx.client.call(request).await {
            Ok(text) => parse(&text)?,
            Err(failure) if is_transient(&failure) && answered.elapsed() < ctx.client.timeout() => {
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        answered = Instant::now();
        let items = document["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        for event in items {
            since = since.max(event["revision"].as_u64().unwrap_or(0));
            if ctx.out.is_json() {
                print(&event.to_string());
            }
        }
        since = since.max(document["revision"].as_u64().unwrap_or(0));
        if !ctx.out.is_json() && !items.is_empty() {
            // Nodes join and are renamed.
            if items.iter().any(|event| event["kind"] == "node") {
                names.extend(ctx.names().await);
            }
            render::with_names(&mut document, &names);
            print(&render::event_lines(&document["items"]));
        }
    }
}

/// Whether the failure is transient: a daemon that restarts, a leader change, a full pool.
fn is_transient(failure: &Failure) -> bool {
    let codes = [
        ErrorCode::Unreachable,
        ErrorCode::NoQuorum,
        ErrorCode::UnknownOutcome,
        ErrorCode::NotKnownHereYet,
        ErrorCode::TooManyRequests,
    ];
    codes.iter().any(|code| failure.code == code.to_string())
}
