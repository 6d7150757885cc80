//! What a candidate's elector does with a term: passes it to the runner, and keeps the lease until none of its work is running.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::{Candidate, Ending, Term};
use tokio::sync::watch;
use tracing::info;

use crate::action_slot::ActionSlot;

/// How long a term is kept for the last record of a run: a write takes milliseconds, and one that does not would delay a successor.
const RECORD_TIMEOUT: Duration = Duration::from_secs(1);

/// The runner's side of an election.
pub struct RunnerCandidate {
    pub reconciler: String,
    /// The term that is held, if any. It may have ended by itself.
    pub terms: Arc<watch::Sender<Option<Term>>>,
    pub action_slot: ActionSlot,
    /// Everything that was run is on record.
    pub recorded: watch::Receiver<bool>,
    /// It runs a program's own code.
    pub handler: bool,
}

impl Candidate for RunnerCandidate {
    /// The log refuses writes of an earlier term, and a guardian ends a command in time even while this process is frozen. Only a
    /// program's own code may go on.
    fn must_end_in_time(&self) -> bool {
        self.handler && self.action_slot.is_running()
    }

    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        let (terms, action_slot) = (Arc::clone(&self.terms), self.action_slot.clone());
        let mut recorded = self.recorded.clone();
        async move {
            terms.send_replace(Some(term.clone()));
            term.ended().await;
            // Its actions were cancelled with it, and none begins any more.
            action_slot.idle().await;
            // While the lease is held, how they ended can be recorded.
            let _in_time = tokio::time::timeout(RECORD_TIMEOUT, recorded.wait_for(|recorded| *recorded)).await.is_ok();
        }
        .boxed()
    }

    fn on_stopped_leading(&self, ending: &Ending) {
        info!(reconciler = %self.reconciler, %ending, "reconciler term ended");
        self.terms.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::run::Outcome;
    use muster_messages::FencingToken;
    use tokio_util::sync::CancellationToken;

    /// After a freeze the work of a command, or of objects, has not gone on: nothing outlives its lease.
    #[tokio::test]
    async fn only_a_running_handler_can_outlive_its_lease() {
        for handler in [true, false] {
            let (terms, action_slot) = (Arc::new(watch::Sender::new(None)), ActionSlot::default());
            let candidate = RunnerCandidate {
                reconciler: "schema".to_owned(),
                terms,
                action_slot: action_slot.clone(),
                recorded: watch::channel(true).1,
                handler,
            };
            assert!(!candidate.must_end_in_time(), "nothing runs");
            let over = CancellationToken::new();
            let running = action_slot.start((FencingToken(1), 1), &over, |cancelled| async move {
                cancelled.cancelled().await;
                Outcome::Done.into()
            });
            assert_eq!(candidate.must_end_in_time(), handler);
            over.cancel();
            let _ended = running.ended().await;
            assert!(!candidate.must_end_in_time());
        }
    }
}
