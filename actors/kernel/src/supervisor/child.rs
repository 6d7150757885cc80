//! One child of a supervisor.
//!
//! Owns        its newest run and timer, the starts that are to fail on request, and the callers that wait for its end.
//! Inputs      what the supervisor's core decides.
//! When it is dropped, its run and all that is below it end.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_messages::{ActorState, ExitKind, word};
use ractor::{ActorCell, ActorRef, ActorStatus};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::Children;
use super::children::{Report, SupervisorMsg};
use crate::fence::Fence;
use crate::launch::Start;
use crate::spec::KILL_DEADLINE;
use crate::tree::Registration;
use crate::vitals::{Pulse, Vitals};
use crate::{Fault, Spec, Tree};

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

    /// Replaces the number of an earlier request.
    pub(super) fn fail_next_starts(&mut self, times: u32) {
        self.bad_starts = times;
    }

    /// Begins a run, and makes its actor within this fence, unless this start is to fail on request.
    pub(super) fn launch(
        &mut self,
        run: u64,
        incarnation: u64,
        fence: Fence,
        siblings: &Children,
        tree: &Tree,
    ) -> BoxFuture<'static, Result<(), Fault>> {
        // The callers that waited for the end of an earlier incarnation have it, also if a later start brought another.
        self.notify_stopped();
        self.vitals.incarnate(incarnation);
        self.fence = Some((run, fence.clone()));
        if let Some(left) = self.bad_starts.checked_sub(1) {
            self.bad_starts = left;
            return Box::pin(std::future::ready(Err(Fault::new("failed to start on request"))));
        }
        let name = self.spec.name.clone();
        self.spec.launch.launch(Start {
            path: self.vitals.path.clone(),
            name: name.clone(),
            incarnation,
            pulse: Pulse { vitals: Arc::clone(&self.vitals), incarnation },
            report: Report::new(siblings, name, run),
            reports_ready: self.spec.reports_ready,
            fence,
            tree: tree.clone(),
            supervisor: siblings.cell(),
            siblings: siblings.clone(),
        })
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

    /// Sends the message after this time, unless the child gets another timer before.
    pub(super) fn set_timer(&mut self, after: Duration, supervisor: ActorRef<SupervisorMsg>, msg: SupervisorMsg) {
        let timer = tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _gone = supervisor.send_message(msg);
        });
        self.abort_timer();
        self.timer = Some(timer.abort_handle());
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
