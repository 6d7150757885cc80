//! What is known about an actor from outside: kept beside it, so that it can be read while the actor is busy or stuck.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use muster_messages::{ActorExit, ActorNode, ActorState, CrashHow, ExitKind, HandlerTimes, Handling, WallTime, millis};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::{Clock, Fuse};

/// Exits that are remembered.
const MAX_EXITS_KEPT: usize = 8;
/// And bytes of the text of each: a fault may quote a peer's message.
const MAX_EXIT_TEXT_BYTES: usize = 1024;

/// What can be done to a running actor from outside.
pub(crate) trait Handle: Send + Sync {
    /// Asks for a fresh view; false: none will follow.
    fn refresh(&self) -> bool;
    fn crash(&self, how: CrashHow);
    fn restart(&self);
    /// Its mailbox, if it has a counted one.
    fn mailbox(&self) -> Option<Mailbox>;
}

/// What is known of a mailbox.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mailbox {
    pub(crate) depth: u64,
    pub(crate) limit: u64,
    pub(crate) refused: u64,
    /// Messages of older incarnations that were dropped.
    pub(crate) stale: u64,
}

struct Inner {
    incarnation: u64,
    state: ActorState,
    since: WallTime,
    restarts: u64,
    exits: VecDeque<ActorExit>,
    handling: Option<(&'static str, Instant)>,
    times: HandlerTimes,
    view: Value,
    view_at: Instant,
}

/// One actor's vital signs, over all its incarnations.
pub(crate) struct Vitals {
    pub(crate) path: String,
    pub(crate) kind: &'static str,
    /// Its name in metrics: its path, or a label that it shares with others of its kind.
    pub(crate) label: String,
    inner: Mutex<Inner>,
    published: Notify,
    /// A request for a fresh view is in the mailbox. One at a time: a stuck actor may be watched for hours.
    refreshing: AtomicBool,
    /// Dropped reports of older incarnations.
    stale: AtomicU64,
    handle: Mutex<Option<Arc<dyn Handle>>>,
    fuse: OnceLock<Fuse>,
}

impl Vitals {
    pub(crate) fn new(path: String, kind: &'static str, label: String) -> Self {
        let inner = Inner {
            incarnation: 0,
            state: ActorState::Starting,
            since: Clock.wall(),
            restarts: 0,
            exits: VecDeque::new(),
            handling: None,
            times: HandlerTimes::default(),
            view: Value::Null,
            view_at: Instant::now(),
        };
        Self {
            path,
            kind,
            label,
            inner: Mutex::new(inner),
            published: Notify::new(),
            refreshing: AtomicBool::new(false),
            stale: AtomicU64::new(0),
            handle: Mutex::new(None),
            fuse: OnceLock::new(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle(&self) -> Option<Arc<dyn Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets where it crashes; the first call wins.
    pub(crate) fn arm(&self, fuse: Fuse) {
        let _first = self.fuse.set(fuse);
    }
    pub(crate) fn fuse(&self) -> Option<&Fuse> {
        self.fuse.get()
    }

    pub(crate) fn enter(&self, state: ActorState) {
        let mut inner = self.inner();
        if inner.state != state {
            inner.state = state;
            inner.since = Clock.wall();
        }
    }
    pub(crate) fn incarnate(&self, incarnation: u64) {
        let mut inner = self.inner();
        inner.restarts += u64::from(inner.incarnation != 0);
        inner.incarnation = incarnation;
        inner.handling = None;
        inner.view = Value::Null;
        inner.state = ActorState::Starting;
        inner.since = Clock.wall();
        self.refreshing.store(false, Ordering::Relaxed);
    }
    pub(crate) fn exited(&self, kind: ExitKind, mut text: String) {
        if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= MAX_EXIT_TEXT_BYTES) {
            text.truncate(end);
        }
        let mut inner = self.inner();
        inner.handling = None;
        if inner.exits.len() == MAX_EXITS_KEPT {
            inner.exits.pop_front();
        }
        inner.exits.push_back(ActorExit { kind, text, at: Clock.wall() });
    }

    /// Shows why nothing runs here.
    pub(crate) fn explain(&self, view: Value) {
        let mut inner = self.inner();
        inner.view = view;
        inner.view_at = Instant::now();
        drop(inner);
        self.published.notify_waiters();
    }
    pub(crate) fn count_stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }
    /// Reports and messages of older incarnations that were dropped.
    pub(crate) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed) + self.mailbox().stale
    }
    fn mailbox(&self) -> Mailbox {
        self.handle().and_then(|handle| handle.mailbox()).unwrap_or_default()
    }
    /// Asks for a fresh view; false: none will follow.
    pub(crate) fn refresh(&self) -> bool {
        let Some(handle) = self.handle() else { return false };
        if self.refreshing.swap(true, Ordering::Relaxed) {
            return true;
        }
        let asked = handle.refresh();
        if !asked {
            self.refreshing.store(false, Ordering::Relaxed);
        }
        asked
    }
    /// How notable it is: first actors that are unhealthy or long at one message, then those that have failed, then those
    /// with work.
    pub(crate) fn notable(&self) -> (bool, Duration, u64, u64) {
        let inner = self.inner();
        let unwell = !matches!(inner.state, ActorState::Healthy | ActorState::Done);
        let at_it = inner.handling.map(|(_, since)| since.elapsed()).unwrap_or_default();
        let restarts = inner.restarts;
        drop(inner);
        (unwell, at_it, restarts, self.mailbox().depth)
    }
    /// The present incarnation as shown once it is abandoned: as it was, at its own path.
    pub(crate) fn abandoned_vitals(&self) -> Vitals {
        let inner = self.inner();
        let [path, mut label] = [&self.path, &self.label].map(|name| format!("{name}@{}", inner.incarnation));
        if !self.has_series_of_its_own() {
            label.clone_from(&self.label);
        }
        let left = Vitals::new(path, self.kind, label);
        *left.inner() = Inner {
            state: ActorState::Stuck,
            since: Clock.wall(),
            exits: inner.exits.clone(),
            times: HandlerTimes::default(),
            view: inner.view.clone(),
            ..*inner
        };
        left
    }
    /// The next view that is published.
    pub(crate) fn published(&self) -> Notified<'_> {
        self.published.notified()
    }

    /// Whether its label stands for it alone.
    pub(crate) fn has_series_of_its_own(&self) -> bool {
        self.label == self.path
    }

    pub(crate) fn node(&self) -> ActorNode {
        let mailbox = self.handle().and_then(|handle| handle.mailbox());
        let Mailbox { depth, refused, stale, .. } = mailbox.unwrap_or_default();
        let inner = self.inner();
        ActorNode {
            kind: self.kind.to_owned(),
            incarnation: inner.incarnation,
            state: inner.state,
            since: inner.since,
            restarts: inner.restarts,
            mailbox: depth,
            mailbox_limit: mailbox.map(|mailbox| mailbox.limit),
            refused,
            stale: stale + self.stale.load(Ordering::Relaxed),
            handled: inner.times.handled(),
            handling: inner
                .handling
                .map(|(message, at)| Handling { message: message.to_owned(), for_ms: millis(at.elapsed()) }),
            handler_times: inner.times,
            last_exits: inner.exits.iter().cloned().collect(),
            view: inner.view.clone(),
            view_age_ms: (!inner.view.is_null()).then(|| millis(inner.view_at.elapsed())),
            ..ActorNode::unknown(self.path.clone())
        }
    }
}

/// The vital signs of one incarnation. Those of an older one are dropped and counted.
#[derive(Clone)]
pub(crate) struct Pulse {
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) incarnation: u64,
}

impl Pulse {
    fn current(&self) -> Option<MutexGuard<'_, Inner>> {
        let inner = self.vitals.inner();
        let current = inner.incarnation == self.incarnation;
        if !current {
            self.vitals.count_stale();
        }
        current.then_some(inner)
    }
    pub(crate) fn set_handle(&self, handle: Arc<dyn Handle>) {
        if let Some(_current) = self.current() {
            *self.vitals.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        }
    }
    pub(crate) fn begin(&self, message: &'static str) {
        if let Some(mut inner) = self.current() {
            inner.handling = Some((message, Instant::now()));
        }
    }
    /// Ends a message; true when it is time for a fresh view.
    pub(crate) fn end(&self) -> bool {
        self.current().is_some_and(|mut inner| {
            if let Some((_, since)) = inner.handling.take() {
                inner.times.add(since.elapsed());
            }
            inner.view_at.elapsed() >= VIEW_INTERVAL
        })
    }
    /// The requested view.
    pub(crate) fn answer(&self, view: Value) {
        if self.current().is_some() {
            self.vitals.refreshing.store(false, Ordering::Relaxed);
        }
        self.publish(view);
    }
    pub(crate) fn publish(&self, view: Value) {
        if let Some(mut inner) = self.current() {
            inner.view = view;
            inner.view_at = Instant::now();
            drop(inner);
            self.vitals.published.notify_waiters();
        }
    }
}

/// How often a busy actor publishes its view unasked: often enough to show what a stuck one was doing, rarely enough to
/// cost nothing under load.
const VIEW_INTERVAL: Duration = Duration::from_millis(100);
