//! The fence around an incarnation: once closed, the incarnation has no more effect, whatever its thread is doing.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use ractor::{ActorCell, ActorProcessingErr};
use tokio_util::sync::CancellationToken;

use crate::Fuse;

tokio::task_local! {
    /// The incarnation whose handler is running.
    static AT_WORK: AtWork;
}

struct AtWork {
    ended: CancellationToken,
    fuse: Option<Fuse>,
}

/// State shared by a supervisor and one run of a child: whether the run still counts, and its actor.
///
/// Fences are nested as their actors are. Closing a fence first closes all fences within it, so no descendant outlives an actor
/// that died, even if no supervisor can wait for it.
#[derive(Clone, Default)]
pub(crate) struct Fence {
    closed: CancellationToken,
    actor: Arc<OnceLock<ActorCell>>,
}

impl Fence {
    pub(crate) fn within(outer: &CancellationToken) -> Self {
        Self { closed: outer.child_token(), actor: Arc::default() }
    }
    /// A starting actor registers here before it is linked: from now on its supervisor can reach it, and an actor that was given
    /// up while being made stops here.
    pub(crate) fn enter(&self, actor: ActorCell) -> Result<(), ActorProcessingErr> {
        let _first = self.actor.set(actor);
        if self.is_closed() { Err("it was given up while it was starting".into()) } else { Ok(()) }
    }
    pub(crate) fn actor(&self) -> Option<&ActorCell> {
        self.actor.get()
    }
    /// Closes it and everything within: addresses, tasks, timers, slots, children.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }
}

/// Runs a task of the incarnation that ends with `ended`: each poll counts as the incarnation's own. Values that the task holds
/// may still send when they are dropped. Tasks have no crash points: their order is not guaranteed.
pub(crate) fn within_task<F: Future>(ended: &CancellationToken, task: F) -> impl Future<Output = F::Output> + use<F> {
    let ended = ended.clone();
    let mut task = Box::pin(task);
    std::future::poll_fn(move |cx| {
        let at_work = AtWork { ended: ended.clone(), fuse: None };
        AT_WORK.sync_scope(at_work, || task.as_mut().poll(cx))
    })
}

/// Runs a handler of the incarnation that ends with `ended`.
pub(crate) fn at_work<F: Future>(
    ended: &CancellationToken,
    fuse: Option<&Fuse>,
    work: F,
) -> impl Future<Output = F::Output> + use<F> {
    let at_work = AtWork { ended: ended.clone(), fuse: fuse.cloned() };
    AT_WORK.scope(at_work, async {
        crash_point();
        let done = work.await;
        crash_point();
        done
    })
}

/// Ends the running incarnation if its fuse is set to this point.
pub(crate) fn crash_point() {
    let here = AT_WORK.try_with(|at_work| at_work.fuse.as_ref().is_some_and(Fuse::pass)).unwrap_or(false);
    assert!(!here, "{}", Fuse::BLOWN);
}

/// Whether the running incarnation has ended or was given up: its messages and writes are dropped.
pub(crate) fn is_stale() -> bool {
    AT_WORK.try_with(|at_work| at_work.ended.is_cancelled()).unwrap_or(false)
}
