//! Waiting until a role change is in force. The node's state is watched, so that no change is missed.

use std::time::{Duration, Instant};

use muster_client::{Client, Failure, Outcome, Progress, left_to_do, parse, progress};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, NodeWatched, Role, millis};
use serde_json::json;

/// The longest time between two answers: reasons that only the leader knows change without a change of the node.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// The shortest time between two requests.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// How long one request may take: one that hangs, during a change of leader for example, is repeated.
const WATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// A reason that is over sooner is not worth a line.
const WORTH_A_LINE: Duration = Duration::from_millis(500);

/// Watches a node until its change is in force, and reports what it waits for, once for each reason. An accepted change
/// continues when the time is up. Returns what is left for a node that is down to do when it returns.
pub async fn wait_until_settled(
    client: &mut Client,
    node: &str,
    role: Role,
    until: Instant,
    mut say: impl FnMut(&str),
) -> Outcome<Option<String>> {
    let mut last = "no manager has answered yet".to_owned();
    let mut reasons = Reasons::new(Instant::now());
    let mut seen = 0;
    loop {
        if reasons.is_news(&last, Instant::now()) {
            say(&last);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::new(
                ErrorCode::TimedOut,
                format!("gave up waiting; the change was accepted and continues: {last}"),
            )
            .with_details(json!({"node": node, "reason": last})));
        }
        let request = Request::NodeWatch { node: node.to_owned(), seen, wait_ms: millis(WATCH_INTERVAL) };
        match client.call_within(request, left.min(WATCH_TIMEOUT)).await {
            Ok(text) => {
                let watched = parse::<NodeWatched>(&text)?;
                seen = watched.seen;
                match progress(&watched.node, role) {
                    Progress::Settled => return Ok(left_to_do(&watched.node, role)),
                    Progress::Waiting(reason) => last = reason,
                    Progress::Overridden => {
                        let other = format!("the desired role was changed to {} by another request", other_than(role));
                        return Err(Failure::new(ErrorCode::Conflict, other).with_details(json!({"node": node})));
                    }
                }
            }
            // A change of leader in between is part of many a role change.
            Err(failure) if failure.exit == ErrorCode::NoQuorum.exit_status() => last = failure.message,
            Err(failure) if failure.is(ErrorCode::TimedOut) => last = failure.message,
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(MIN_PAUSE.min(left)).await;
    }
}

fn other_than(role: Role) -> Role {
    match role {
        Role::Manager => Role::Worker,
        Role::Worker => Role::Manager,
    }
}

/// What has been said of the reasons. A reason is its first word, as long as it has one: the rest counts seconds.
struct Reasons {
    word: String,
    since: Instant,
    said: bool,
}

impl Reasons {
    fn new(now: Instant) -> Self {
        Self { word: String::new(), since: now, said: false }
    }
    /// Whether it is to be said now: it has been the reason for a while, and nobody has said so.
    fn is_news(&mut self, reason: &str, now: Instant) -> bool {
        let word = reason.split_once(':').map_or(reason, |(word, _)| word);
        if self.word != word {
            *self = Self { word: word.to_owned(), since: now, said: false };
        }
        let news = !self.said && now.duration_since(self.since) >= WORTH_A_LINE;
        self.said |= news;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_lasts_is_said_once_until_there_is_another() {
        let began = Instant::now();
        let mut reasons = Reasons::new(began);
        let mut said = Vec::new();
        let told = [
            (0, "waiting_for_certificate: it has none"),
            (20, "waiting_for_join: it has not asked"),
            (600, "waiting_for_join: it has not asked"),
            (5_000, "waiting_for_join: it has not asked for 4 s"),
            (6_000, "catching_up: 100 entries behind"),
            (6_100, "waiting_for_join: it has not asked"),
            (6_700, "waiting_for_join: it has not asked"),
        ];
        for (ms, reason) in told {
            if reasons.is_news(reason, began + Duration::from_millis(ms)) {
                said.push(ms);
            }
        }
        assert_eq!(said, [600, 6_700]);
    }
}
