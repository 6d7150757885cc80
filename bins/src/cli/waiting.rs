//! Waiting until a role change is in force: a level that is looked at, never an edge that could be missed.

use std::time::{Duration, Instant};

use muster_messages::wire::Request;
use muster_messages::{ErrorCode, NodeView, Role};
use serde_json::json;

use super::client::{Client, parse};
use super::failure::{Failure, Outcome};
use super::settled::{Progress, progress};

/// How often a waiting command looks. A promotion takes about 100 ms; a look costs the daemon far under 1 ms.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long one look may take: one that hangs, in the middle of a change of leader say, is made again.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// Looks at a node until its change is in force. What was accepted goes on when the time is up.
pub async fn wait_until_settled(client: &mut Client, node: &str, role: Role, until: Instant) -> Outcome {
    let mut last = "nobody has answered yet".to_owned();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::new(ErrorCode::TimedOut, format!("gave up waiting, the change goes on: {last}"))
                .with_details(json!({"node": node, "reason": last})));
        }
        let request = Request::NodeInspect { node: node.to_owned(), fresh: false };
        match client.call_within(request, left.min(LOOK_WITHIN)).await {
            Ok(text) => match progress(&parse::<NodeView>(&text)?, role) {
                Progress::Settled => return Ok(()),
                Progress::Waiting(reason) => last = reason,
                Progress::Overridden => {
                    let other = format!("somebody asked meanwhile that it be no {role}");
                    return Err(Failure::new(ErrorCode::Conflict, other).with_details(json!({"node": node})));
                }
            },
            // A change of leader in between is part of many a role change.
            Err(failure) if failure.exit == ErrorCode::NoQuorum.exit_status() => last = failure.message,
            Err(failure) if failure.is(ErrorCode::TimedOut) => last = failure.message,
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK_EVERY.min(left)).await;
    }
}
