//! What a handler may use.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use muster_messages::{Moment, WallTime};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::address::Letter;
use crate::beside::Beside;
use crate::fence::{Fence, crash_point, within_task};
use crate::host::panic_text;
use crate::supervisor::{Children, Report};
use crate::{Address, Clock, Intensity, Tree};

/// What an actor's own children may fail: they are many and alike (sessions, peers, contests), one for each of something out
/// there. What goes wrong out there may end many of them at once, and is no reason to end the others.
const CHILDREN: Intensity = Intensity { max: 1000, window: Duration::from_secs(60) };

/// One incarnation's means: its address, timers, tasks and children. All of them end with it.
pub struct Cx<M: Send + 'static> {
    me: Address<M>,
    inner: Arc<Inner>,
}

struct Inner {
    path: String,
    incarnation: u64,
    fence: Fence,
    tree: Tree,
    children: OnceLock<Children>,
    report: Report,
}

impl<M: Send + 'static> Clone for Cx<M> {
    fn clone(&self) -> Self {
        Self { me: self.me.clone(), inner: Arc::clone(&self.inner) }
    }
}

impl<M: Send + 'static> Cx<M> {
    pub(crate) fn new(
        me: Address<M>,
        path: String,
        incarnation: u64,
        tree: Tree,
        report: Report,
        fence: Fence,
    ) -> Self {
        let inner = Inner { path, incarnation, fence, tree, children: OnceLock::new(), report };
        Self { me, inner: Arc::new(inner) }
    }
    pub(crate) fn fence(&self) -> &Fence {
        &self.inner.fence
    }
    pub(crate) fn running_children(&self) -> Option<&Children> {
        self.inner.children.get()
    }

    /// This incarnation's own address: what it says to itself dies with it.
    pub fn me(&self) -> &Address<M> {
        &self.me
    }
    /// The actor's path.
    pub fn path(&self) -> &str {
        &self.inner.path
    }
    /// Which life of the actor this is, from 1.
    pub fn incarnation(&self) -> u64 {
        self.inner.incarnation
    }
    /// Ends with this incarnation; for tasks that own something to let go of in order.
    pub fn ended(&self) -> &CancellationToken {
        self.inner.fence.closed()
    }
    /// Monotonic time of this process.
    pub fn now(&self) -> Moment {
        Clock.now()
    }
    /// Wall time.
    pub fn wall(&self) -> WallTime {
        Clock.wall()
    }

    /// Says that this incarnation is healthy: its work can be relied on. For actors whose spec
    /// [says so](crate::Spec::says_ready); the kernel says it of the others when `started` has returned. Once is enough:
    /// what is repeated, or said by an incarnation that has been given up, changes nothing.
    pub fn ready(&self) {
        self.inner.report.healthy();
    }
    /// Says that there is nothing left to do: this incarnation stops in order once its present message is handled. It is
    /// done when it has ended, not before; whether another follows is up to its [restart kind](crate::Restart).
    pub fn done(&self) {
        if let Some(cell) = self.inner.fence.actor() {
            cell.stop(Some("done".to_owned()));
        }
    }

    /// Sends `msg` to this incarnation after a while.
    pub fn after(&self, delay: Duration, msg: M) {
        let _lives_on = self.timer(delay, msg);
    }

    /// [`Cx::after`], and the way to call it off.
    pub(crate) fn timer(&self, delay: Duration, msg: M) -> AbortHandle {
        let (me, ended) = (self.me.clone(), self.ended().clone());
        let timer = begin(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = tokio::time::sleep(delay) => { let _gone = me.tell(msg); }
            }
        });
        timer.abort_handle()
    }

    /// Runs a task that ends with this incarnation. A panic in it is a fault of the actor.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let (me, ended) = (self.me.clone(), self.ended().clone());
        begin(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                done = AssertUnwindSafe(within_task(&ended, task)).catch_unwind() => {
                    if let Err(panic) = done {
                        let _ended = me.letter(Letter::TaskPanicked(panic_text(panic.as_ref())));
                    }
                }
            }
        });
    }

    /// Runs a task that ends with this incarnation and whose panic is its own: for work on behalf of one peer, which
    /// must not take the others' along. The panic is logged as the error that it is.
    pub fn spawn_apart(&self, task: impl Future<Output = ()> + Send + 'static) {
        let (path, ended) = (Arc::clone(&self.inner), self.ended().clone());
        begin(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                done = AssertUnwindSafe(within_task(&ended, task)).catch_unwind() => {
                    if let Err(panic) = done {
                        tracing::error!(path = %path.path, text = %panic_text(panic.as_ref()), "a task panicked");
                    }
                }
            }
        });
    }

    /// Shows something below this actor that works beside it and may block, such as a thread that owns a disk.
    pub fn beside(&self, name: &str, kind: &'static str) -> Beside {
        Beside::show(&self.inner.tree, &self.inner.path, name, kind, self.inner.incarnation)
    }

    /// This actor's children: a supervised group of its own, one level below its path. They stop before it does.
    pub fn children(&self) -> &Children {
        self.inner.children.get_or_init(|| {
            let cell = self.inner.fence.actor().cloned().expect("children are asked for by a running actor");
            // Within its own: an incarnation that was given up brings no child to life.
            let fence = Fence::within(self.ended());
            Children::launch(self.inner.path.clone(), self.inner.tree.clone(), CHILDREN.into(), fence, cell)
        })
    }
}

/// Starts a task, between two crash points.
fn begin(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    crash_point();
    let begun = tokio::spawn(task);
    crash_point();
    begun
}
