//! A cluster proxy that holds certain writes, with everything that their senders read before, until it is released.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_messages::wire::{LeaseRequest, ReconcilerRequest};
use muster_messages::{ErrorBody, ErrorCode, GateStep};
use muster_reconciler::{Cluster, Link};
use tokio::sync::{oneshot, watch};

/// Timeout of a held write's answer: a busy machine is slow.
const LATE_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The cluster's answer.
pub type Answer = Result<String, ErrorBody>;

/// A held write.
pub struct HeldWrite {
    go: oneshot::Sender<()>,
    answer: oneshot::Receiver<Answer>,
}

impl HeldWrite {
    /// Releases it; returns the receiver of its answer.
    pub fn release_held(self) -> oneshot::Receiver<Answer> {
        let _gone = self.go.send(());
        self.answer
    }
}

/// See the module.
pub struct Barrier {
    link: Link,
    stops: fn(&ReconcilerRequest) -> bool,
    proxy: Mutex<Option<oneshot::Sender<HeldWrite>>>,
    completed: watch::Sender<u64>,
}

impl Barrier {
    /// A proxy for this cluster and writes of this kind. Open at first.
    pub fn new(link: Link, stops: fn(&ReconcilerRequest) -> bool) -> Arc<Self> {
        Arc::new(Self { link, stops, proxy: Mutex::default(), completed: watch::Sender::new(0) })
    }
    /// Holds the next write.
    pub fn close(&self) -> oneshot::Receiver<HeldWrite> {
        let (tell, held) = oneshot::channel();
        *self.proxy.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
        held
    }
    /// How many runs have completed.
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
    fn ask(&self, request: LeaseRequest, timeout: Duration) -> BoxFuture<'static, Answer> {
        muster_elector::Cluster::ask(&self.link, request, timeout)
    }
}

impl Cluster for Barrier {
    fn reconcile(&self, request: ReconcilerRequest, timeout: Duration) -> BoxFuture<'static, Answer> {
        let mut proxy = self.proxy.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = if (self.stops)(&request) { proxy.take() } else { None };
        let completes = matches!(request, ReconcilerRequest::Step { step: GateStep::Complete, .. });
        let (link, completed) = (self.link.clone(), self.completed.clone());
        let asked = async move {
            let mut hear = None;
            let mut timeout = timeout;
            if let Some(stopped) = stopped {
                let ((go, opened), (tell, answer)) = (oneshot::channel(), oneshot::channel());
                let _unused_port = stopped.send(HeldWrite { go, answer });
                let _opened = opened.await;
                (hear, timeout) = (Some(tell), LATE_ANSWER_TIMEOUT);
            }
            let answer = link.reconcile(request, timeout).await;
            if completes && answer.is_ok() {
                completed.send_modify(|runs| *runs += 1);
            }
            if let Some(tell) = hear {
                let _unused_port = tell.send(answer.clone());
            }
            answer
        };
        // A task of its own, so that a released write completes even if its sender has given up.
        let asked = tokio::spawn(asked);
        async move { asked.await.unwrap_or_else(|fault| Err(ErrorBody::new(ErrorCode::Internal, fault.to_string()))) }
            .boxed()
    }
}
