//! What is known of an actor from outside: kept beside it, so that it can be read while the actor is busy or stuck.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::{ActorExit, ActorNode, ActorState, CrashHow, ExitKind, Handling, WallTime, millis};
use serde_json::Value;
use tokio::time::Instant;

use crate::Clock;

/// Exits that are remembered.
const EXITS_KEPT: usize = 8;

/// What can be done to a running actor from outside.
pub(crate) trait Handle: Send + Sync {
    /// Asks for a fresh view; false: there is none to come.
    fn refresh(&self) -> bool;
    fn crash(&self, how: CrashHow);
    fn restart(&self);
    fn depth(&self) -> u64;
    /// Messages of older incarnations that were dropped.
    fn stale(&self) -> u64;
}

struct Inner {
    incarnation: u64,
    state: ActorState,
    since: WallTime,
    restarts: u64,
    exits: VecDeque<ActorExit>,
    handling: Option<(&'static str, Instant)>,
    view: Value,
    view_at: Instant,
}

/// One actor's vital signs, over all its incarnations.
pub(crate) struct Vitals {
    pub(crate) path: String,
    pub(crate) kind: &'static str,
    inner: Mutex<Inner>,
    handled: AtomicU64,
    views: AtomicU64,
    /// What older incarnations still reported.
    stale: AtomicU64,
    handle: Mutex<Option<Arc<dyn Handle>>>,
}

impl Vitals {
    pub(crate) fn new(path: String, kind: &'static str) -> Self {
        let inner = Inner {
            incarnation: 0,
            state: ActorState::Starting,
            since: Clock.wall(),
            restarts: 0,
            exits: VecDeque::new(),
            handling: None,
            view: Value::Null,
            view_at: Instant::now(),
        };
        Self {
            path,
            kind,
            inner: Mutex::new(inner),
            handled: AtomicU64::new(0),
            views: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            handle: Mutex::new(None),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle(&self) -> Option<Arc<dyn Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    }
    pub(crate) fn exited(&self, kind: ExitKind, text: String) {
        let mut inner = self.inner();
        inner.handling = None;
        if inner.exits.len() == EXITS_KEPT {
            inner.exits.pop_front();
        }
        inner.exits.push_back(ActorExit { kind, text, at: Clock.wall() });
    }

    /// Shows why nothing runs here.
    pub(crate) fn explain(&self, view: Value) {
        self.inner().view = view;
        self.views.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn count_stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }
    /// Reports and messages of older incarnations that were dropped.
    pub(crate) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed) + self.handle().map_or(0, |h| h.stale())
    }
    /// What is shown of the present incarnation when it is left behind: as it was, at a path of its own.
    pub(crate) fn left_behind(&self) -> Vitals {
        let inner = self.inner();
        let left = Vitals::new(format!("{}@{}", self.path, inner.incarnation), self.kind);
        *left.inner() = Inner {
            state: ActorState::Stuck,
            since: Clock.wall(),
            exits: inner.exits.clone(),
            view: inner.view.clone(),
            ..*inner
        };
        left
    }
    pub(crate) fn views(&self) -> u64 {
        self.views.load(Ordering::Relaxed)
    }

    pub(crate) fn node(&self) -> ActorNode {
        let mailbox = self.handle().map_or(0, |h| h.depth());
        let inner = self.inner();
        ActorNode {
            path: self.path.clone(),
            kind: self.kind.to_owned(),
            incarnation: inner.incarnation,
            state: inner.state,
            since: inner.since,
            restarts: inner.restarts,
            mailbox,
            handled: self.handled.load(Ordering::Relaxed),
            handling: inner
                .handling
                .map(|(message, at)| Handling { message: message.to_owned(), for_ms: millis(at.elapsed()) }),
            last_exits: inner.exits.iter().cloned().collect(),
            view: inner.view.clone(),
            children: Vec::new(),
        }
    }
}

/// The vital signs of one incarnation. What an older one still shows is dropped and counted.
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
            self.vitals.handled.fetch_add(1, Ordering::Relaxed);
            inner.handling = None;
            inner.view_at.elapsed() >= VIEW_EVERY
        })
    }
    pub(crate) fn publish(&self, view: Value) {
        if let Some(mut inner) = self.current() {
            inner.view = view;
            inner.view_at = Instant::now();
            drop(inner);
            self.vitals.views.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How often a busy actor publishes its view by itself: often enough to show what a stuck one was doing, rarely
/// enough to cost nothing under load.
const VIEW_EVERY: std::time::Duration = std::time::Duration::from_millis(100);
