//! The end of the manager runtime of an incompatible build, as this process carries it out: see `muster_manager::feature_level`.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use muster_manager::ReportIncompatible;
use muster_messages::protocol::AgentMsg;
use muster_messages::wire::ManagerReport;
use tracing::error;

use super::node::Shared;

/// The leader answers from memory.
const LEADER_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a refusal or without a leader: nothing waits for these attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Interval of reports once a leader has this one: a new leader learns it within this time.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);
/// How long a stopping manager may take to give its candidacy back. Otherwise the others wait for that lease.
const CANDIDACY_RETURN_TIMEOUT: Duration = Duration::from_secs(1);

/// Ends the manager runtime of this process for good; the agent keeps running. Logged once.
pub fn report_incompatible(shared: &Shared, sentence: &str) {
    let first = shared.incompatible.send_if_modified(|reported| {
        let first = reported.is_none();
        reported.get_or_insert_with(|| sentence.to_owned());
        first
    });
    if first {
        error!("{sentence}; until then this node is not a manager: its manager runtime stops, its agent keeps running");
        tokio::spawn(keep_reporting(shared.clone()));
    }
}

/// See [`report_incompatible`].
pub fn incompatible_reporter(shared: &Shared) -> ReportIncompatible {
    let shared = shared.clone();
    Arc::new(move |why| report_incompatible(&shared, why))
}

/// Reports the feature level of this build for as long as the process runs, so that the leader shows operators why this node is
/// not a manager.
async fn keep_reporting(shared: Shared) {
    let report = ManagerReport { feature_level: shared.config.settings.debug.feature_level, failure: None };
    loop {
        let report = report.clone();
        let reported = shared.agent.ask(LEADER_ANSWER_TIMEOUT, |reply| AgentMsg::ReportManager { report, reply }).await;
        tokio::time::sleep(if matches!(reported, Ok(Ok(()))) { REPORT_INTERVAL } else { RETRY_PAUSE }).await;
    }
}

/// Before the process stops: lets another manager raise the level at once. This manager's own lease is left to expire, so that a build
/// that restarts in time, and is the last of its level, finds the level unchanged.
pub async fn hand_over(shared: &Shared) {
    let led = shared.manager.borrow().as_ref().is_some_and(|manager| manager.replica.borrow().raft.leader.is_some());
    let candidacy = shared.raising.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(candidacy) = candidacy.filter(|_| led) else { return };
    let _in_time = tokio::time::timeout(CANDIDACY_RETURN_TIMEOUT, candidacy.hand_over()).await;
}
