//! The messages to a supervisor from its owner, its children and its own timers, and the handles that send them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_messages::{CrashHow, ExitKind};
use ractor::{Actor, ActorCell, ActorId, ActorRef, ActorRuntime};
use tokio::sync::oneshot;

use super::core::Timer;
use super::shell::SupervisorActor;
use super::state::SupervisorArgs;
use crate::fence::Fence;
use crate::spec::SHUTDOWN_LIMIT;
use crate::vitals::Pulse;
use crate::{Fault, Group, Spec, Tree};

pub(crate) enum SupervisorMsg {
    Start(Box<Spec>),
    Stop {
        name: String,
        done: Option<oneshot::Sender<()>>,
    },
    Restart {
        name: String,
    },
    /// `muster actors crash --how start`.
    FailToStart {
        name: String,
        times: u32,
    },
    Launched {
        name: String,
        run: u64,
        fence: Fence,
        result: Result<(), Fault>,
    },
    /// A killed actor has ended, with everything it held.
    Ended {
        actor: ActorId,
        kind: ExitKind,
        text: String,
    },
    Healthy {
        name: String,
        run: u64,
    },
    /// The group's first children have been started; report to this when all of them are healthy.
    Filled(Report),
    Timer {
        name: String,
        run: u64,
        timer: Timer,
    },
    Crash(CrashHow),
    /// Answered by the handler: it is not stuck.
    Beat(oneshot::Sender<()>),
}
#[cfg(feature = "cluster")]
impl ractor::Message for SupervisorMsg {}
impl SupervisorMsg {
    /// The message's name in the live tree while it is handled.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Start(_) => "start",
            Self::Stop { .. } => "stop",
            Self::Restart { .. } => "restart",
            Self::FailToStart { .. } => "fail_to_start",
            Self::Launched { .. } => "launched",
            Self::Ended { .. } => "ended",
            Self::Healthy { .. } => "healthy",
            Self::Filled(_) => "filled",
            Self::Timer { .. } => "timer",
            Self::Crash(_) => "crash",
            Self::Beat(_) => "beat",
        }
    }
}

/// A handle on a supervisor's children.
#[derive(Clone)]
pub struct Children {
    pub(super) supervisor: ActorRef<SupervisorMsg>,
}

impl Children {
    /// Starts a child, or replaces the one of that name (the old one stops first).
    ///
    /// A name is one segment of a path, of printable ASCII characters without `/` and `@`. A child with any other name
    /// is not started, and an error is logged.
    pub fn start(&self, spec: Spec) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Start(Box::new(spec)));
    }
    /// Asks a child to stop; it is not restarted.
    pub fn stop(&self, name: &str) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Stop { name: name.to_owned(), done: None });
    }
    /// Asks a child to stop and waits until it has ended or was given up as stuck. Not for use in a handler.
    pub async fn stop_and_wait(&self, name: &str) {
        let (tx, rx) = oneshot::channel();
        if self.supervisor.send_message(SupervisorMsg::Stop { name: name.to_owned(), done: Some(tx) }).is_ok() {
            let _gone = rx.await;
        }
    }
    /// Asks a child to stop and starts it again, together with the siblings that would restart if it failed.
    pub fn restart(&self, name: &str) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Restart { name: name.to_owned() });
    }
    /// Stops all children in reverse start order, and the group itself.
    pub async fn shut_down(&self) {
        let cell = self.supervisor.get_cell();
        cell.stop(Some("shutdown".to_owned()));
        if cell.wait(Some(SHUTDOWN_LIMIT)).await.is_err() {
            // The supervisor waits for no child now, and never blocks its thread.
            let _gone = cell.kill_and_wait(None).await;
        }
    }

    /// An actor's own group of children.
    pub(crate) fn launch(path: String, tree: Tree, group: Group, fence: Fence, parent: ActorCell) -> Self {
        let args = SupervisorArgs { path, tree, group, fence, pulse: None };
        let (supervisor, _starting) = ActorRuntime::spawn_linked_instant(None, SupervisorActor, args, parent)
            .expect("an unnamed actor can always be spawned");
        Self { supervisor }
    }
    pub(crate) async fn spawn(
        path: String,
        tree: Tree,
        group: Group,
        fence: Fence,
        pulse: Pulse,
        parent: Option<ActorCell>,
    ) -> Result<Self, Fault> {
        let args = SupervisorArgs { path, tree, group, fence, pulse: Some(pulse) };
        let spawned = match parent {
            Some(parent) => Actor::spawn_linked(None, SupervisorActor, args, parent).await,
            None => Actor::spawn(None, SupervisorActor, args).await,
        };
        let (supervisor, _joined) = spawned.map_err(|e| Fault::new(e.to_string()))?;
        Ok(Self { supervisor })
    }
    pub(crate) fn cell(&self) -> ActorCell {
        self.supervisor.get_cell()
    }
    pub(super) async fn beat(&self) -> bool {
        let (tx, rx) = oneshot::channel();
        self.supervisor.send_message(SupervisorMsg::Beat(tx)).is_ok() && rx.await.is_ok()
    }
    pub(crate) fn crash(&self, how: CrashHow) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Crash(how));
    }
    /// Restarts a child whose next starts fail.
    pub(crate) fn fail_to_start(&self, name: &str, times: u32) {
        let _gone = self.supervisor.send_message(SupervisorMsg::FailToStart { name: name.to_owned(), times });
    }
    pub(crate) fn filled(&self, report: Report) {
        let _gone = self.supervisor.send_message(SupervisorMsg::Filled(report));
    }
}

/// How one incarnation reports to its supervisor that it is healthy.
#[derive(Clone)]
pub(crate) struct Report {
    to: ActorRef<SupervisorMsg>,
    name: String,
    run: u64,
    sent: Arc<AtomicBool>,
}

impl Report {
    pub(super) fn new(to: &Children, name: String, run: u64) -> Self {
        Self { to: to.supervisor.clone(), name, run, sent: Arc::default() }
    }
    /// Sent only once, however often it is called: a supervisor's mailbox is unbounded.
    pub(crate) fn healthy(&self) {
        if !self.sent.swap(true, Ordering::Relaxed) {
            let _gone = self.to.send_message(SupervisorMsg::Healthy { name: self.name.clone(), run: self.run });
        }
    }
}
