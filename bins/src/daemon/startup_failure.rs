//! Reports to the cluster why this node's manager runtime does not start, for as long as it does not run: an operator who promoted
//! the node looks in the cluster, not in this node's log.

use std::time::Duration;

use muster_agent::ManagerWanted;
use muster_kernel::Tree;
use muster_messages::protocol::AgentMsg;
use muster_messages::wire::ManagerReport;
use tokio::sync::watch;

use super::node::Shared;

/// Interval of checks. A failure seen twice in a row is not a crash that is already over.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of reports: a new leader does not know the reason yet.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// The leader answers from memory.
const LEADER_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the reporter. It lives as long as the process.
pub fn report(shared: &Shared, wanted: watch::Receiver<ManagerWanted>) {
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut known: Option<String> = None;
        // The leader may still believe that the runtime fails.
        let mut reported = false;
        loop {
            tokio::time::sleep(if known.is_some() { REPORT_INTERVAL } else { CHECK_INTERVAL }).await;
            known = match known {
                None if current_failure(&shared, &wanted).is_some() => {
                    tokio::time::sleep(CHECK_INTERVAL).await;
                    current_failure(&shared, &wanted).map(Seen::text)
                }
                None => None,
                // The group restarts after a while and gives up again: the cause found first stays.
                Some(before) => current_failure(&shared, &wanted).map(|seen| match seen {
                    Seen::Cause(text) => text,
                    Seen::GaveUp(_) => before,
                }),
            };
            reported = match &known {
                Some(why) => {
                    let _sent = send(&shared, Some(why.clone())).await;
                    true
                }
                None => reported && !send(&shared, None).await,
            };
        }
    });
}

/// The cause, or only that the supervisor gave up on the runtime.
enum Seen {
    Cause(String),
    GaveUp(String),
}

impl Seen {
    fn text(self) -> String {
        match self {
            Seen::Cause(text) | Seen::GaveUp(text) => text,
        }
    }
}

fn current_failure(shared: &Shared, wanted: &watch::Receiver<ManagerWanted>) -> Option<Seen> {
    // Incompatible: `feature_level` reports that to the leader.
    let wanted = wanted.borrow().wanted && shared.incompatible.borrow().is_none();
    wanted.then(|| failing(&shared.tree)).flatten()
}

fn failing(tree: &Tree) -> Option<Seen> {
    let part = ["raft-member", "mesh"]
        .into_iter()
        .find_map(|part| Some(format!("{part}: {}", tree.failing(&format!("node/manager/{part}"))?)));
    part.map(Seen::Cause).or_else(|| tree.failing("node/manager").map(Seen::GaveUp))
}

/// True once the leader has the report. Without a session or a leader it has not; the next attempt is soon.
async fn send(shared: &Shared, failure: Option<String>) -> bool {
    let report = ManagerReport { feature_level: shared.config.settings.debug.feature_level, failure };
    matches!(
        shared.agent.ask(LEADER_ANSWER_TIMEOUT, |reply| AgentMsg::ReportManager { report, reply }).await,
        Ok(Ok(()))
    )
}
