//! What a handler may use.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use muster_messages::{Moment, WallTime};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::address::Letter;
use crate::beside::Beside;
use crate::fence::{Fence, crash_point, within_task};
use crate::panicked::panic_text;
use crate::supervisor::{Children, Report};
use crate::{Address, Clock, Intensity, Tree};

/// How many failures an actor's own children may have. They are many and alike (sessions, peers, contended elections), one
/// for each remote party. A remote failure may end many of them at once and must not end the others.
const CHILDREN_INTENSITY: Intensity = Intensity { max: 1000, window: Duration::from_secs(60) };

/// What arrived through a channel ([`Cx::forward`]). It counts as unhandled until it is dropped.
pub struct Arrived<T> {
    /// What arrived.
    pub item: T,
    _room: OwnedSemaphorePermit,
}

/// What one incarnation works with: its address, timers, tasks and children. All of them end with it.
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

    /// This incarnation's own address: messages sent through it die with the incarnation.
    pub fn me(&self) -> &Address<M> {
        &self.me
    }
    /// This actor's path in the live tree.
    pub fn path(&self) -> &str {
        &self.inner.path
    }
    /// The number of this incarnation, from 1.
    pub fn incarnation(&self) -> u64 {
        self.inner.incarnation
    }
    /// Cancelled when this incarnation ends; for tasks that must release something in order.
    pub fn ended(&self) -> &CancellationToken {
        self.inner.fence.closed()
    }
    /// Monotonic time of this process.
    pub fn now(&self) -> Moment {
        Clock.now()
    }
    /// Wall time, for people and certificates.
    pub fn wall(&self) -> WallTime {
        Clock.wall()
    }

    /// Reports that this incarnation is healthy: other actors can rely on its work. For actors whose spec has
    /// [`reports_ready`](crate::Spec::reports_ready); for the others the kernel reports it when `started` returns. Repeated
    /// reports, and those of an incarnation that was given up, have no effect.
    pub fn ready(&self) {
        self.inner.report.healthy();
    }
    /// Reports that no work is left: this incarnation stops in order after its present message. It is done when it has
    /// ended, not before; its [restart kind](crate::Restart) decides whether another follows.
    pub fn done(&self) {
        if let Some(cell) = self.inner.fence.actor() {
            cell.stop(Some("done".to_owned()));
        }
    }

    /// Sends `msg` to this incarnation after a delay. It cannot be cancelled; for a time that changes use [`Alarm`](crate::Alarm).
    pub fn after(&self, delay: Duration, msg: M) {
        let _lives_on = self.timer(delay, msg);
    }

    /// [`Cx::after`] with a handle that cancels it.
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

    /// Runs a task that ends with this incarnation, and sends its result to it as a message. That message is exempt from the
    /// mailbox's bound: the result is lost only with this incarnation.
    pub fn report(&self, task: impl Future<Output = M> + Send + 'static) {
        let me = self.me.clone();
        self.spawn(async move {
            let _ended = me.tell(task.await);
        });
    }

    /// Runs a task that ends with this incarnation and whose panic stays in the task: for work on behalf of one peer, which
    /// must not affect the others. The panic is logged as an error.
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

    /// Sends a message after each change of a watched value, while its sender lives. For the present value too:
    /// `mark_changed`.
    pub fn on_change<T: Send + Sync + 'static>(&self, mut watched: watch::Receiver<T>, msg: fn() -> M) {
        let me = self.me.clone();
        self.spawn(async move { while watched.changed().await.is_ok() && me.tell(msg()).is_ok() {} });
    }

    /// The same, one message at a time: the next one follows once the actor has notified `taken` and a pause is over. However
    /// often the value changes meanwhile, the actor reads the newest.
    pub fn on_change_taken<T: Send + Sync + 'static>(
        &self,
        mut watched: watch::Receiver<T>,
        taken: &Arc<Notify>,
        pause: Duration,
        msg: fn() -> M,
    ) {
        let (me, taken) = (self.me.clone(), Arc::clone(taken));
        self.spawn(async move {
            while watched.changed().await.is_ok() && me.tell(msg()).is_ok() {
                taken.notified().await;
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
        });
    }

    /// Sends a message once a watched value holds. A publisher that ends before it does sends none.
    pub fn when<T: Send + Sync + 'static>(
        &self,
        mut watched: watch::Receiver<T>,
        holds: impl FnMut(&T) -> bool + Send + 'static,
        msg: M,
    ) {
        let me = self.me.clone();
        self.spawn(async move {
            let holds_now = watched.wait_for(holds).await.is_ok();
            if holds_now {
                let _ended = me.tell(msg);
            }
        });
    }

    /// Sends a message for the present value, and after each change of a part of it.
    pub fn on_change_of<T: Send + Sync + 'static, P: PartialEq + Send + 'static>(
        &self,
        mut watched: watch::Receiver<T>,
        part: fn(&T) -> P,
        msg: fn() -> M,
    ) {
        let me = self.me.clone();
        self.spawn(async move {
            let mut seen = None;
            loop {
                let now = Some(part(&watched.borrow_and_update()));
                if seen != now {
                    seen = now;
                    if me.tell(msg()).is_err() {
                        return;
                    }
                }
                if watched.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// Sends what arrives in a channel as messages, at most `room` of them unhandled at a time: the rest stays in the channel, whose
    /// bound the sender notices.
    pub fn forward<T: Send + 'static>(&self, mut arriving: mpsc::Receiver<T>, room: usize, msg: fn(Arrived<T>) -> M) {
        let (me, room) = (self.me.clone(), Arc::new(Semaphore::new(room)));
        self.spawn(async move {
            loop {
                let permit = Arc::clone(&room).acquire_owned().await;
                let permit = permit.expect("the semaphore is never closed");
                let Some(item) = arriving.recv().await else { return };
                if me.tell(msg(Arrived { item, _room: permit })).is_err() {
                    return;
                }
            }
        });
    }

    /// Shows a helper of this actor that may block, such as a thread that owns a disk.
    pub fn beside(&self, name: &str, kind: &'static str) -> Beside {
        Beside::show(&self.inner.tree, &self.inner.path, name, kind, self.inner.incarnation)
    }

    /// This actor's children: its own supervised group, one level below its path. They stop before it does.
    pub fn children(&self) -> &Children {
        self.inner.children.get_or_init(|| {
            let cell = self.inner.fence.actor().cloned().expect("only a running actor asks for its children");
            // Within this incarnation's fence: an incarnation that was given up starts no child.
            let fence = Fence::within(self.ended());
            Children::launch(self.inner.path.clone(), self.inner.tree.clone(), CHILDREN_INTENSITY.into(), fence, cell)
        })
    }
}

/// Starts a task between two crash points.
fn begin(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    crash_point();
    let begun = tokio::spawn(task);
    crash_point();
    begun
}
