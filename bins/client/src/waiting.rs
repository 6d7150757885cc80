//! Waiting until a role change is in force, and for the steps of a root rotation. A node's state is watched, so that no change
//! is missed; a rotation takes minutes, and is asked about at intervals.

use std::time::{Duration, Instant};

use muster_messages::wire::Request;
use muster_messages::{
    AutolockView, Details, ErrorCode, NodeWatched, Revision, Role, RootId, RootsView, detail, millis,
};

use crate::autolock::autolock_progress;
use crate::client::{Client, RETRY_PAUSE, parse};
use crate::failure::{Failure, Outcome};
use crate::rotation::{RotationGoal, rotation_progress};
use crate::settled::{Progress, RoleWait, remaining_work};

/// The longest time between two answers: reasons that only the leader knows change without a change of the node.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// The shortest time between two requests.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// How long one request may take: one that hangs, during a change of leader for example, is repeated.
const WATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two questions that cost the leader something: about a rotation, time in proportion to the nodes; whether a node may
/// stop, a heartbeat to each manager.
const COSTLY_PAUSE: Duration = Duration::from_millis(500);

/// The time between two questions about managers' seals: each writes a small file.
const SEAL_PAUSE: Duration = Duration::from_millis(100);

/// A reason that lasts for less is not printed.
const MIN_REASON_DURATION: Duration = Duration::from_millis(500);

/// How far a settled change is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Everything agrees.
    Fully,
    /// The node is down; this is left for it to do when it returns.
    PendingReturn(String),
}

impl Client {
    /// Watches a node until its change is in force, and reports what it waits for, once for each reason. An accepted change
    /// continues when the time is up. The first answer is the leader's; the end may be seen by the manager that is asked, in its own
    /// replica.
    pub async fn wait_until_settled(
        &mut self,
        node: &str,
        role: Role,
        until: Instant,
        mut say: impl FnMut(&str),
    ) -> Outcome<Settled> {
        let mut last = "no manager has answered yet".to_owned();
        let mut reasons = Reasons::new(Instant::now());
        let (mut seen, mut wait) = (0, RoleWait::new(role));
        loop {
            if reasons.should_report(&last, Instant::now()) {
                say(&last);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::new(
                    ErrorCode::TimedOut,
                    format!("timed out; the change was accepted and continues: {last}"),
                )
                .with_details(about(node).with(detail::REASON, &last)));
            }
            let mut pause = MIN_PAUSE;
            let request = Request::NodeWatch { node: node.to_owned(), seen, wait_ms: millis(WATCH_INTERVAL) };
            match self.call_within(request, left.min(WATCH_TIMEOUT)).await {
                Ok(text) => {
                    let watched = parse::<NodeWatched>(&text)?;
                    seen = watched.seen;
                    match wait.progress(&watched.node) {
                        Progress::Settled => {
                            return Ok(
                                remaining_work(&watched.node, role).map_or(Settled::Fully, Settled::PendingReturn)
                            );
                        }
                        Progress::Waiting(reason) => last = reason,
                        Progress::Overridden => {
                            let other =
                                format!("the desired role was changed to {} by another request", other_than(role));
                            return Err(Failure::new(ErrorCode::Conflict, other).with_details(about(node)));
                        }
                    }
                }
                // Many role changes include a leader change; others' load must not end the wait for a change that was accepted.
                Err(failure) if failure.may_pass() => {
                    last = failure.message;
                    pause = RETRY_PAUSE;
                }
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(pause.min(left)).await;
        }
    }

    /// Asks about a rotation until it has reached its goal, and reports what it waits for, once for each reason. Returns the roots as
    /// JSON. An accepted rotation continues when the time is up.
    pub async fn wait_for_rotation(
        &mut self,
        root: RootId,
        goal: RotationGoal,
        until: Instant,
        say: impl FnMut(&str),
    ) -> Outcome<String> {
        let wait = Wait {
            request: Request::RootList,
            pause: COSTLY_PAUSE,
            accepted: "the rotation was accepted and continues",
            passes: Failure::may_pass,
            replaced: format!("root {root} was aborted or replaced by another request; `muster ca ls` shows the roots"),
            about: Details::default().with(detail::ROOT, &root),
        };
        wait.run(self, until, say, |text| Ok(rotation_progress(&parse::<RootsView>(text)?, root, goal))).await
    }

    /// Asks about the seals of managers until those that are ready have taken this version of the unlock key. An accepted change continues
    /// when the time is up.
    pub async fn wait_for_seals(
        &mut self,
        version: Revision,
        until: Instant,
        say: impl FnMut(&str),
    ) -> Outcome<String> {
        let wait = Wait {
            request: Request::AutolockStatus,
            pause: SEAL_PAUSE,
            accepted: "the change was accepted and continues",
            passes: Failure::may_pass,
            replaced: format!("version {version} of the unlock key was replaced by another request"),
            about: Details::default().with(detail::VERSION, &version),
        };
        wait.run(self, until, say, |text| Ok(autolock_progress(&parse::<AutolockView>(text)?, version))).await
    }

    /// Asks until a node may be stopped, and reports why it may not, once for each reason. Returns the answer as JSON.
    pub async fn wait_until_it_may_stop(
        &mut self,
        node: &str,
        until: Instant,
        say: impl FnMut(&str),
    ) -> Outcome<String> {
        let wait = Wait {
            request: Request::NodeMayStop { node: node.to_owned() },
            pause: COSTLY_PAUSE,
            accepted: "",
            passes: |failure| failure.may_pass() || failure.is(ErrorCode::QuorumAtRisk),
            replaced: String::new(),
            about: about(node),
        };
        wait.run(self, until, say, |_| Ok(Progress::Settled)).await
    }
}

/// A wait for an accepted change, by asking again and again.
struct Wait {
    request: Request,
    /// Between two questions.
    pause: Duration,
    /// What holds when the wait ends before the change does; empty: nothing was changed.
    accepted: &'static str,
    replaced: String,
    /// Which failures may be followed by an answer.
    passes: fn(&Failure) -> bool,
    /// The details of an error.
    about: Details,
}

fn about(node: &str) -> Details {
    Details::default().with(detail::NODE, &node.to_owned())
}

impl Wait {
    /// Returns the answer that shows the end.
    async fn run(
        self,
        client: &mut Client,
        until: Instant,
        mut say: impl FnMut(&str),
        progress: impl Fn(&str) -> Outcome<Progress>,
    ) -> Outcome<String> {
        let Self { request, pause, accepted, replaced, passes, about } = self;
        let accepted = if accepted.is_empty() { String::new() } else { format!("; {accepted}") };
        let mut reasons = Reasons::new(Instant::now());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Asked once in any case: what is reached already needs no time.
            let asked = client.call_within(request.clone(), left.clamp(pause, WATCH_TIMEOUT)).await;
            let last = match asked {
                Ok(text) => match progress(&text)? {
                    Progress::Settled => return Ok(text),
                    Progress::Waiting(reason) => reason,
                    Progress::Overridden => {
                        return Err(Failure::new(ErrorCode::Conflict, replaced).with_details(about));
                    }
                },
                // The leader may change meanwhile.
                Err(failure) if passes(&failure) => failure.message,
                // The caller's own certificate ends with the revocation of its root, for example.
                Err(mut failure) => {
                    failure.message += &accepted;
                    return Err(failure);
                }
            };
            if reasons.should_report(&last, Instant::now()) {
                say(&last);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("timed out{accepted}: {last}");
                let details = about.with(detail::REASON, &last);
                return Err(Failure::new(ErrorCode::TimedOut, text).with_details(details));
            }
            tokio::time::sleep(pause.min(left)).await;
        }
    }
}

fn other_than(role: Role) -> Role {
    match role {
        Role::Manager => Role::Worker,
        Role::Worker => Role::Manager,
    }
}

/// Whether the current reason was reported. The text before the colon identifies a reason: the rest may count seconds.
struct Reasons {
    kind: String,
    since: Instant,
    reported: bool,
}

impl Reasons {
    fn new(now: Instant) -> Self {
        Self { kind: String::new(), since: now, reported: false }
    }
    /// Whether to report the reason now: it has lasted for a while and was not reported.
    fn should_report(&mut self, reason: &str, now: Instant) -> bool {
        let kind = reason.split_once(':').map_or(reason, |(kind, _)| kind);
        if self.kind != kind {
            *self = Self { kind: kind.to_owned(), since: now, reported: false };
        }
        let report = !self.reported && now.duration_since(self.since) >= MIN_REASON_DURATION;
        self.reported |= report;
        report
    }
}

#[cfg(test)]
mod tests {
    use muster_gateway::Framed;
    use muster_messages::ErrorBody;
    use muster_messages::wire::{ApiAnswer, ApiCall};
    use serde_json::json;
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn load_ends_no_wait_for_an_accepted_change() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let node = json!({
            "id": "0000000000000000000000001", "name": "n4", "addr": "127.0.0.1:4404", "release": "0.1.0", "labels": {},
            "desired_role": "manager", "role": "manager", "state": "ready", "state_since": "2024-01-01T00:00:00Z",
            "stale": false, "membership": "voter", "manager": null,
            "certificate": {"role": "manager", "state": "issued", "serial": null, "not_after": null},
            "conditions": [], "generation": 2, "revision": 9
        });
        tokio::spawn(async move {
            let mut frames = Framed::new(listener.accept().await.unwrap().0);
            let refusal = ErrorBody::new(ErrorCode::TooManyRequests, "retry later");
            let mut answers = vec![Ok(json!({"seen": 1, "node": node}).to_string()), Err(refusal)];
            while let Ok(Some(ApiCall { id, .. })) = frames.recv().await {
                let Some(result) = answers.pop() else { break };
                frames.send(&ApiAnswer { id, result }).await.unwrap();
            }
        });
        let mut client = Client::to_socket(&socket, Duration::from_secs(10));
        let until = Instant::now() + Duration::from_secs(60);
        let settled = client.wait_until_settled("n4", Role::Manager, until, |_| {}).await;
        assert_eq!(settled, Ok(Settled::Fully));
    }

    #[test]
    fn lasting_reason_is_reported_once_until_it_changes() {
        let began = Instant::now();
        let mut reasons = Reasons::new(began);
        let mut reported = Vec::new();
        let polls = [
            (0, "waiting_for_certificate: it has none"),
            (20, "waiting_for_join: it has not asked"),
            (600, "waiting_for_join: it has not asked"),
            (5_000, "waiting_for_join: it has not asked for 4 s"),
            (6_000, "catching_up: 100 entries behind"),
            (6_100, "waiting_for_join: it has not asked"),
            (6_700, "waiting_for_join: it has not asked"),
        ];
        for (ms, reason) in polls {
            if reasons.should_report(reason, began + Duration::from_millis(ms)) {
                reported.push(ms);
            }
        }
        assert_eq!(reported, [600, 6_700]);
    }
}
