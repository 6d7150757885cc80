//! A cluster with a door: whoever asks for a certain write waits there, with everything read that it decided by, until it is let go.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_messages::wire::{LeaseRequest, ReconcilerRequest};
use muster_messages::{ErrorBody, ErrorCode, GateStep};
use muster_reconciler::{Cluster, Link};
use tokio::sync::{oneshot, watch};

/// How long the answer to a write is waited for that was held: a busy machine is slow.
const LONG: Duration = Duration::from_secs(30);

/// What the cluster answers.
pub type Answer = Result<String, ErrorBody>;

/// A write at the door.
pub struct Held {
    go: oneshot::Sender<()>,
    answer: oneshot::Receiver<Answer>,
}

impl Held {
    /// Lets it go; the result is where its answer will be.
    pub fn let_go(self) -> oneshot::Receiver<Answer> {
        let _gone = self.go.send(());
        self.answer
    }
}

/// See the module.
pub struct Barrier {
    link: Link,
    stops: fn(&ReconcilerRequest) -> bool,
    door: Mutex<Option<oneshot::Sender<Held>>>,
    completed: watch::Sender<u64>,
}

impl Barrier {
    /// In front of this cluster, for writes of this sort. Open at first.
    pub fn new(link: Link, stops: fn(&ReconcilerRequest) -> bool) -> Arc<Self> {
        Arc::new(Self { link, stops, door: Mutex::default(), completed: watch::Sender::new(0) })
    }
    /// Closes the door for the next one.
    pub fn close(&self) -> oneshot::Receiver<Held> {
        let (tell, held) = oneshot::channel();
        *self.door.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
        held
    }
    /// How many runs have come to their end.
    pub fn completed(&self) -> watch::Receiver<u64> {
        self.completed.subscribe()
    }
}

pub fn is_admission(request: &ReconcilerRequest) -> bool {
    matches!(request, ReconcilerRequest::Admit { .. })
}

pub fn is_restriction(request: &ReconcilerRequest) -> bool {
    matches!(request, ReconcilerRequest::Step { step: GateStep::Restrict, .. })
}

impl muster_elector::Cluster for Barrier {
    fn ask(&self, request: LeaseRequest, patience: Duration) -> BoxFuture<'static, Answer> {
        muster_elector::Cluster::ask(&self.link, request, patience)
    }
}

impl Cluster for Barrier {
    fn reconcile(&self, request: ReconcilerRequest, patience: Duration) -> BoxFuture<'static, Answer> {
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = if (self.stops)(&request) { door.take() } else { None };
        let completes = matches!(request, ReconcilerRequest::Step { step: GateStep::Complete, .. });
        let (link, completed) = (self.link.clone(), self.completed.clone());
        let asked = async move {
            let mut hear = None;
            let mut patience = patience;
            if let Some(stopped) = stopped {
                let ((go, opened), (tell, answer)) = (oneshot::channel(), oneshot::channel());
                let _nobody_listens = stopped.send(Held { go, answer });
                let _opened = opened.await;
                (hear, patience) = (Some(tell), LONG);
            }
            let answer = link.reconcile(request, patience).await;
            if completes && answer.is_ok() {
                completed.send_modify(|runs| *runs += 1);
            }
            if let Some(tell) = hear {
                let _nobody_listens = tell.send(answer.clone());
            }
            answer
        };
        // A task of its own: a write that was let go is made, and its answer heard, also if whoever asked has given up.
        let asked = tokio::spawn(asked);
        async move { asked.await.unwrap_or_else(|fault| Err(ErrorBody::new(ErrorCode::Internal, fault.to_string()))) }
            .boxed()
    }
}
