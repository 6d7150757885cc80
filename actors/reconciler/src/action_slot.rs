//! Where actions run: outside the actor that starts them, so that they outlive its crash and the next incarnation finds them.
//!
//! Invariants  RUN-5  one action at a time: the next one begins when nothing of the one before is left. A term is given up only
//!                    when none of its actions is running.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use muster_messages::FencingToken;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::core::run::{Ended, Outcome};

/// An action that is running, or that has ended without a successor.
#[derive(Clone)]
pub struct RunningAction {
    pub term: FencingToken,
    pub number: u64,
    pub cancel: CancellationToken,
    ended: watch::Receiver<Option<Ended>>,
}

impl RunningAction {
    /// Waits for its end.
    pub async fn ended(mut self) -> Ended {
        let ended = self.ended.wait_for(Option::is_some).await;
        let lost = || Outcome::Failed("the action was dropped".to_owned()).into();
        ended.ok().and_then(|ended| ended.clone()).unwrap_or_else(lost)
    }
}

/// See the module. Clones share one action.
#[derive(Clone, Default)]
pub struct ActionSlot(Arc<Mutex<Option<RunningAction>>>);

impl ActionSlot {
    fn slot(&self) -> MutexGuard<'_, Option<RunningAction>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last action.
    pub fn running_action(&self) -> Option<RunningAction> {
        self.slot().clone()
    }

    /// Whether an action is running.
    pub fn is_running(&self) -> bool {
        self.slot().as_ref().is_some_and(|action| action.ended.borrow().is_none())
    }

    /// Begins an action once the previous one has ended. `over`: cancelled with the term; an action of an ended term does not
    /// begin.
    pub fn start<F>(
        &self,
        (term, number): (FencingToken, u64),
        over: &CancellationToken,
        action: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) -> RunningAction
    where
        F: Future<Output = Ended> + Send + 'static,
    {
        let mut slot = self.slot();
        let before = slot.take();
        let cancel = over.child_token();
        let (tell, ended) = watch::channel(None);
        let running_action = RunningAction { term, number, cancel: cancel.clone(), ended };
        *slot = Some(running_action.clone());
        tokio::spawn(async move {
            if let Some(before) = before {
                before.cancel.cancel();
                before.ended().await;
            }
            if cancel.is_cancelled() {
                tell.send_replace(Some(Outcome::Failed("the term is over".to_owned()).into()));
                return;
            }
            let ended = AssertUnwindSafe(async { action(cancel).await }).catch_unwind().await;
            let ended = ended
                .unwrap_or_else(|panic| Outcome::Failed(format!("the action panicked: {}", text_of(&*panic))).into());
            tell.send_replace(Some(ended));
        });
        running_action
    }

    /// Waits for the end of the action that is running, if any. Of a term that has ended no other one begins.
    pub async fn idle(&self) {
        let running_action = self.running_action();
        if let Some(running_action) = running_action {
            running_action.ended().await;
        }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
