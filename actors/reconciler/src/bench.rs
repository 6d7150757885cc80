//! Where actions run: outside the actor that wants them, so that they outlive its crash and the next incarnation finds them.
//!
//! Keeps  RUN-5  one action at a time: the next one begins when nothing of the one before is left. A term is given up only
//!               when nothing of it is at work.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use muster_messages::FencingToken;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::core::run::Outcome;

/// How an action ended, and the end of what it wrote.
pub type Ended = (Outcome, String);

/// An action at work, or one that has ended and was not followed by another yet.
#[derive(Clone)]
pub struct Doing {
    pub term: FencingToken,
    pub number: u64,
    pub cancel: CancellationToken,
    ended: watch::Receiver<Option<Ended>>,
}

impl Doing {
    /// Waits for its end.
    pub async fn ended(mut self) -> Ended {
        let ended = self.ended.wait_for(Option::is_some).await;
        let lost = || (Outcome::Failed("the action was dropped".to_owned()), String::new());
        ended.ok().and_then(|ended| ended.clone()).unwrap_or_else(lost)
    }
}

/// See the module. Clones are the same one.
#[derive(Clone, Default)]
pub struct Bench(Arc<Mutex<Option<Doing>>>);

impl Bench {
    fn place(&self) -> MutexGuard<'_, Option<Doing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last action.
    pub fn doing(&self) -> Option<Doing> {
        self.place().clone()
    }

    /// Begins an action, once the one before has ended. `over`: its term; an action of a term that has ended does not begin.
    pub fn start<F>(
        &self,
        (term, number): (FencingToken, u64),
        over: &CancellationToken,
        action: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) -> Doing
    where
        F: Future<Output = Ended> + Send + 'static,
    {
        let mut place = self.place();
        let before = place.take();
        let cancel = over.child_token();
        let (tell, ended) = watch::channel(None);
        let doing = Doing { term, number, cancel: cancel.clone(), ended };
        *place = Some(doing.clone());
        tokio::spawn(async move {
            if let Some(before) = before {
                before.cancel.cancel();
                before.ended().await;
            }
            if cancel.is_cancelled() {
                tell.send_replace(Some((Outcome::Failed("its term is over".to_owned()), String::new())));
                return;
            }
            let ended = AssertUnwindSafe(async { action(cancel).await }).catch_unwind().await;
            let ended = ended
                .unwrap_or_else(|panic| (Outcome::Failed(format!("it panicked: {}", text_of(&*panic))), String::new()));
            tell.send_replace(Some(ended));
        });
        doing
    }

    /// Waits until nothing is at work. For a term that has ended: then nothing more of it begins.
    pub async fn idle(&self) {
        let doing = self.doing();
        if let Some(doing) = doing {
            doing.ended().await;
        }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
