//! `muster events`: what happened, and with `--watch` what happens.

use muster_client::{Outcome, parse};
use muster_messages::Revision;
use muster_messages::wire::Request;
use serde_json::Value;

use super::Asking;
use crate::cli::args::EventsArgs;
use crate::cli::duration::millis;
use crate::cli::output::{cell, print};
use crate::cli::render;

pub async fn run(asking: &mut Asking, args: EventsArgs) -> Outcome<u8> {
    let revision = |d: &Value| cell(&d["revision"]);
    if !args.watch {
        let request = Request::Events { since: Revision(args.since), wait_ms: 0 };
        return asking.show(request, revision, |d| render::events(&d["items"])).await;
    }
    // Half of the time limit, so that a quiet cluster answers well before the call is given up.
    let wait_ms = millis(asking.client.timeout() / 2);
    let mut since = args.since;
    loop {
        let request = Request::Events { since: Revision(since), wait_ms };
        let document: Value = parse(&asking.client.call(request).await?)?;
        let items = document["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        for event in items {
            since = since.max(event["revision"].as_u64().unwrap_or(0));
            if asking.out.is_json() {
                print(&event.to_string());
            }
        }
        if !asking.out.is_json() && !items.is_empty() {
            print(&render::event_lines(&document["items"]));
        }
        since = since.max(document["revision"].as_u64().unwrap_or(0));
    }
}
