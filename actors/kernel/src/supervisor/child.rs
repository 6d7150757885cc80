//! One child of a supervisor.
//!
//! Owns        its newest run and timer, the starts that are to fail on request, and the callers that wait for its end.
//! Inputs      what the supervisor's core decides.
//! When it is dropped, its run and all that is below it end.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_messages::{ActorState, ExitKind, word};
use ractor::{ActorCell, ActorStatus};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::fence::Fence;
use crate::host::Start;
use crate::spec::KILL_DEADLINE;
use crate::tree::Registration;
use crate::vitals::Vitals;
use crate::{Fault, Spec};

pub(super) struct Child {
    pub(super) spec: Spec,
    pub(super) vitals: Arc<Vitals>,
    _registration: Registration,
    /// The latest run, until it has ended or was abandoned.
    fence: Option<(u64, Fence)>,
    stopped: Vec<oneshot::Sender<()>>,
    /// How many of its next starts fail on request.
    bad_starts: u32,
    /// Start order, for the reverse order of shutdown.
    pub(super) order: u64,
    /// The latest timer: a child has one at a time.
    timer: Option<AbortHandle>,
}

impl Drop for Child {
    fn drop(&mut self) {
        self.abort_timer();
        self.close();
    }
}

impl Child {
    /// `order`: among all starts of its supervisor.
    pub(super) fn new(spec: Spec, vitals: Arc<Vitals>, registration: Registration, order: u64) -> Self {
        let (fence, stopped, bad_starts, timer) = (None, Vec::new(), 0, None);
        Self { spec, vitals, _registration: registration, fence, stopped, bad_starts, order, timer }
    }

    pub(super) fn begin(&mut self, run: u64, incarnation: u64, fence: Fence) {
        self.vitals.incarnate(incarnation);
        self.fence = Some((run, fence));
    }

    /// Replaces the number of an earlier request.
    pub(super) fn fail_next_starts(&mut self, times: u32) {
        self.bad_starts = times;
    }

    /// Makes the actor of a run, unless this start is to fail on request.
    pub(super) fn launch(&mut self, start: Start) -> BoxFuture<'static, Result<(), Fault>> {
        let Some(left) = self.bad_starts.checked_sub(1) else { return self.spec.launch.launch(start) };
        self.bad_starts = left;
        Box::pin(std::future::ready(Err(Fault::new("failed to start on request"))))
    }

    pub(super) fn enter(&mut self, state: ActorState) {
        self.vitals.enter(state);
        if state == ActorState::Healthy {
            self.abort_timer();
        }
    }

    /// Its run has ended, and everything below it ends.
    pub(super) fn ended(&mut self, kind: ExitKind, text: String) {
        self.close();
        if kind == ExitKind::Normal {
            tracing::debug!(path = %self.vitals.path, %text, "actor ended");
        } else {
            tracing::warn!(path = %self.vitals.path, kind = %word(kind), %text, "actor ended");
        }
        self.vitals.exited(kind, text);
    }

    pub(super) fn notify_when_stopped(&mut self, caller: oneshot::Sender<()>) {
        self.stopped.push(caller);
    }
    pub(super) fn notify_stopped(&mut self) {
        for caller in self.stopped.drain(..) {
            let _gone = caller.send(());
        }
    }

    pub(super) fn replace_timer(&mut self, timer: AbortHandle) {
        self.abort_timer();
        self.timer = Some(timer);
    }
    fn abort_timer(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }

    fn cell(&self) -> Option<&ActorCell> {
        self.fence.as_ref()?.1.actor()
    }
    /// The actor of this run, unless another run has begun.
    pub(super) fn cell_of(&self, run: u64) -> Option<&ActorCell> {
        self.fence.as_ref().filter(|(of, _)| *of == run)?.1.actor()
    }

    fn close(&mut self) {
        if let Some((_, fence)) = self.fence.take() {
            fence.close();
        }
    }

    /// Stops it, or kills it after its deadline, as part of its supervisor's own end.
    pub(super) async fn stop_in_order(self) {
        let Some(cell) = self.cell() else { return };
        if cell.get_status() == ActorStatus::Stopped {
            return;
        }
        self.vitals.enter(ActorState::Stopping);
        let began = tokio::time::Instant::now();
        if !ends(cell, self.spec.stop_deadline).await {
            self.abandon();
            tracing::error!(path = %self.vitals.path, "actor ignored stop and kill");
        }
        tracing::debug!(path = %self.vitals.path, took = ?began.elapsed(), "actor stop finished");
    }

    /// Ends the parts of a stuck incarnation that can be ended: its address, tasks, timers and children. The kill has not reached
    /// the children, because only the end of the incarnation does that.
    pub(super) fn abandon(&self) {
        self.vitals.enter(ActorState::Stuck);
        if let Some((_, fence)) = &self.fence {
            fence.close();
        }
        let Some(cell) = self.cell() else { return };
        for below in cell.get_children() {
            // Unlinked first: a child's final message carries its state, and would wait for the stuck actor to read it.
            below.unlink(cell.clone());
            below.kill();
        }
    }
}

/// Asks an actor to stop, and kills it after the deadline; returns whether it has ended.
async fn ends(cell: &ActorCell, deadline: Duration) -> bool {
    // Not `stop_and_wait`: that fails at once for an actor that was asked before and is stopping.
    cell.stop(Some("shutdown".to_owned()));
    cell.wait(Some(deadline)).await.is_ok() || cell.kill_and_wait(Some(deadline.min(KILL_DEADLINE))).await.is_ok()
}
