//! What this node's manager half lacks, told to the cluster for as long as it does not run: whoever promoted the node looks
//! there, and not into its log.

use std::time::Duration;

use muster_agent::ManagerWanted;
use muster_kernel::Tree;
use muster_messages::protocol::AgentMsg;
use muster_messages::wire::ManagerReport;
use tokio::sync::watch;

use super::node::Shared;

/// Between two looks. What fails at two in a row is no crash that is over by now.
const LOOK: Duration = Duration::from_secs(1);
/// Between two reports: a new leader has not heard of it.
const AGAIN: Duration = Duration::from_secs(5);
/// For the leader to answer from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts the reporter. It lives as long as the process.
pub fn report(shared: &Shared, wanted: watch::Receiver<ManagerWanted>) {
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut known: Option<String> = None;
        // Whoever leads may believe that something is lacking.
        let mut told = false;
        loop {
            tokio::time::sleep(if known.is_some() { AGAIN } else { LOOK }).await;
            known = match known {
                None if looks(&shared, &wanted).is_some() => {
                    tokio::time::sleep(LOOK).await;
                    looks(&shared, &wanted).map(Seen::text)
                }
                None => None,
                // Its group is started again after a while and gives up again: the cause that was found stays.
                Some(before) => looks(&shared, &wanted).map(|seen| match seen {
                    Seen::Cause(text) => text,
                    Seen::GaveUp(_) => before,
                }),
            };
            told = match &known {
                Some(why) => {
                    let _heard = send(&shared, Some(why.clone())).await;
                    true
                }
                None => told && !send(&shared, None).await,
            };
        }
    });
}

/// The cause, or only that the half was given up of it.
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

fn looks(shared: &Shared, wanted: &watch::Receiver<ManagerWanted>) -> Option<Seen> {
    // Outgrown: the leader is told so by other words (`feature_level`).
    let wanted = wanted.borrow().wanted && shared.outgrown.borrow().is_none();
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
    matches!(shared.agent.ask(PATIENCE, |reply| AgentMsg::ReportManager { report, reply }).await, Ok(Ok(())))
}
