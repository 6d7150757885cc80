//! `muster events`: past events, and with `--watch` new ones.

use std::time::Duration;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, EventKind, EventView, EventsView, Revision, word};
use serde_json::Value;
use tokio::time::Instant;

use super::Context;
use crate::cli::args::EventsArgs;
use crate::cli::duration::millis;
use crate::cli::output::print;
use crate::cli::render;

/// The pause between two attempts of a watch whose daemon restarts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

pub async fn run(ctx: &mut Context, args: EventsArgs) -> Outcome<u8> {
    if !args.watch {
        let events = ctx.client.events(Revision(args.since)).await?;
        if ctx.out.is_json() {
            print(&serde_json::to_string(&events).map_err(Failure::internal)?);
            return Ok(0);
        }
        let (revision, items, names) = (events.revision, read(events.items)?, ctx.names().await);
        ctx.out.document("", || revision.to_string(), || render::events(&items, &names));
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
        let page: EventsView<Value> = match ctx.client.call(request).await {
            Ok(text) => parse(&text)?,
            Err(failure) if is_transient(&failure) && answered.elapsed() < ctx.client.timeout() => {
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        answered = Instant::now();
        since = since.max(page.revision.0);
        if ctx.out.is_json() {
            page.items.iter().for_each(|event| print(&event.to_string()));
        } else if !page.items.is_empty() {
            let events = read(page.items)?;
            // Nodes join and are renamed.
            if events.iter().any(|event| event.kind == word(EventKind::Node)) {
                names.extend(ctx.names().await);
            }
            print(&render::event_lines(&events, &names));
        }
    }
}

/// The events, for tables. As JSON they are printed as they came.
fn read(items: Vec<Value>) -> Outcome<Vec<EventView>> {
    items.into_iter().map(|item| serde_json::from_value(item).map_err(Failure::internal)).collect()
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
