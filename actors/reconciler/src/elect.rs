//! What a candidate's elector does with a term: hands it to the runner, and keeps the lease until nothing of it is at work.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::{Candidate, Ending, Term};
use tokio::sync::watch;
use tracing::info;

use crate::bench::Bench;

/// The runner's side of an election.
pub struct Standing {
    pub reconciler: String,
    /// The term that is held; `None` while none is. It may have ended by itself.
    pub terms: Arc<watch::Sender<Option<Term>>>,
    pub bench: Bench,
}

impl Candidate for Standing {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        let (terms, bench) = (Arc::clone(&self.terms), self.bench.clone());
        async move {
            terms.send_replace(Some(term.clone()));
            term.ended().await;
            // Its actions were cancelled with it, and none begins any more.
            bench.idle().await;
        }
        .boxed()
    }

    fn on_stopped_leading(&self, ending: &Ending) {
        info!(reconciler = %self.reconciler, %ending, "runs no more");
        self.terms.send_replace(None);
    }
}
