//! `muster events`: what happened, and with `--watch` what happens.

use std::time::Duration;

use muster_client::{Failure, Outcome, parse};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, Revision};
use serde_json::Value;
use tokio::time::Instant;

use super::Asking;
use crate::cli::args::EventsArgs;
use crate::cli::duration::millis;
use crate::cli::output::{cell, print};
use crate::cli::render;

/// Between two attempts of a watch whose daemon restarts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

pub async fn run(asking: &mut Asking, args: EventsArgs) -> Outcome<u8> {
    if !args.watch {
        let mut document = asking.client.events(Revision(args.since)).await?;
        let text = document.to_string();
        if !asking.out.is_json() {
            render::with_names(&mut document, &asking.names().await);
        }
        asking.out.document(&text, || cell(&document["revision"]), || render::events(&document["items"]));
        return Ok(0);
    }
    watch(asking, args.since).await
}

/// Continues from the last revision over restarts of the daemon and changes of the leader; ends when nothing has answered for as
/// long as the time limit.
async fn watch(asking: &mut Asking, mut since: u64) -> Outcome<u8> {
    let mut names = asking.names().await;
    // Half of the time limit, so that a quiet cluster answers well before the call is given up.
    let wait_ms = millis(asking.client.timeout() / 2);
    let mut answered = Instant::now();
    loop {
        let request = Request::Events { since: Revision(since), wait_ms };
        let mut document: Value = match asking.client.call(request).await {
            Ok(text) => parse(&text)?,
            Err(failure) if passes(&failure) && answered.elapsed() < asking.client.timeout() => {
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        answered = Instant::now();
        let items = document["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        for event in items {
            since = since.max(event["revision"].as_u64().unwrap_or(0));
            if asking.out.is_json() {
                print(&event.to_string());
            }
        }
        since = since.max(document["revision"].as_u64().unwrap_or(0));
        if !asking.out.is_json() && !items.is_empty() {
            // Nodes come, and are given other names.
            if items.iter().any(|event| event["kind"] == "node") {
                names.extend(asking.names().await);
            }
            render::with_names(&mut document, &names);
            print(&render::event_lines(&document["items"]));
        }
    }
}

/// Whether it may be another answer in a moment: a daemon that restarts, a leader that changes, a full pool.
fn passes(failure: &Failure) -> bool {
    let codes = [
        ErrorCode::Unreachable,
        ErrorCode::NoQuorum,
        ErrorCode::UnknownOutcome,
        ErrorCode::NotKnownHereYet,
        ErrorCode::TooManyRequests,
    ];
    codes.iter().any(|code| failure.code == code.to_string())
}
