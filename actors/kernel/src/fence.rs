//! The fence around an incarnation: what counts once it has been closed, whatever the incarnation's thread is at.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use ractor::{ActorCell, ActorProcessingErr};
use tokio_util::sync::CancellationToken;

use crate::Fuse;

tokio::task_local! {
    /// The incarnation whose handler is at work.
    static AT_WORK: AtWork;
}

struct AtWork {
    ended: CancellationToken,
    fuse: Option<Fuse>,
}

/// What a supervisor shares with one run of a child: whether it still counts, and which actor it has become.
///
/// Fences lie within each other as their actors do. Closing one closes all within it before anything else happens, so that
/// whoever is below an actor that died cannot outlive it, even if nobody can wait for them.
#[derive(Clone, Default)]
pub(crate) struct Fence {
    closed: CancellationToken,
    actor: Arc<OnceLock<ActorCell>>,
}

impl Fence {
    pub(crate) fn within(outer: &CancellationToken) -> Self {
        Self { closed: outer.child_token(), actor: Arc::default() }
    }
    /// An actor that comes to life shows itself here before it is linked: its supervisor can reach it from now on, and
    /// one that was given up while it was being made goes no further.
    pub(crate) fn enter(&self, actor: ActorCell) -> Result<(), ActorProcessingErr> {
        let _first = self.actor.set(actor);
        if self.is_closed() { Err("it was given up while it was being made".into()) } else { Ok(()) }
    }
    pub(crate) fn actor(&self) -> Option<&ActorCell> {
        self.actor.get()
    }
    /// Closed, and with it all that lies within: addresses, tasks, timers, slots, children.
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

/// Runs a task of the incarnation that ends with `ended`: each turn of it is the incarnation's own. What it holds may say goodbye
/// when it is dropped. Tasks have no crash points: their order is nobody's promise.
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

/// Ends whoever is at work here if it was told to crash at this point.
pub(crate) fn crash_point() {
    let here = AT_WORK.try_with(|at_work| at_work.fuse.as_ref().is_some_and(Fuse::pass)).unwrap_or(false);
    assert!(!here, "{}", Fuse::BLOWN);
}

/// Whether whoever is at work here is an incarnation that has ended or was given up: what it says and writes counts no more.
pub(crate) fn speaks_too_late() -> bool {
    AT_WORK.try_with(|at_work| at_work.ended.is_cancelled()).unwrap_or(false)
}
