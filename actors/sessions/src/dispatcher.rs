//! The dispatcher's shell: digests in, proposals out. [`crate::core::dispatcher`] decides.

mod msg;
mod ports;
mod spec;
mod view;

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Alarm, AskError, Cx, Fault, Shell};
use muster_messages::protocol::{Applied, DispatcherMsg, ProposeError, RaftMemberMsg};
use muster_messages::{Command, Duplicated, ErrorBody, ErrorCode, millis};
use serde_json::Value;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

pub use self::msg::Msg;
pub use self::ports::DispatcherPorts;
pub use self::spec::{dispatcher_address, dispatcher_spec};
use self::view::shown;
use crate::core::dispatcher::{BatchId, DigestOutcome, Dispatcher, Effect, Input, Outcome};

pub struct DispatcherShell {
    core: Dispatcher,
    ports: DispatcherPorts,
    taken: Arc<Notify>,
    alarm: Alarm,
}

impl DispatcherShell {
    fn new(ports: DispatcherPorts) -> Self {
        let clock = muster_kernel::Clock;
        let core = Dispatcher::new(ports.config.clone(), clock.now(), clock.wall());
        Self { core, ports, taken: Arc::default(), alarm: Alarm::default() }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) -> DigestOutcome {
        let mut effects = Vec::new();
        let digest_outcome = self.core.step(cx.now(), cx.wall(), input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Propose { batch, command } => self.propose(cx, batch, command),
                Effect::DuplicateFound(node) => {
                    let named = self.core.doubts().duplicates.get(&node).map(Duplicated::named).unwrap_or_default();
                    warn!(%node, processes = named,
                        "two processes use the identity of one node; stop the one on the copied data directory, empty that, \
                         and join it as a new node");
                }
                Effect::DuplicateResolved(node) => info!(%node, "duplicate node identity resolved"),
            }
        }
        let doubts = self.core.doubts();
        self.ports.doubts.send_if_modified(|old| {
            let differs = **old != doubts;
            if differs {
                *old = Arc::new(doubts);
            }
            differs
        });
        self.alarm.set(cx, self.core.wake_at(cx.now()), Msg::Wake);
        digest_outcome
    }

    fn propose(&self, cx: &Cx<Msg>, batch: BatchId, command: Command) {
        let (raft, limit) = (self.ports.raft.clone(), self.ports.config.propose_deadline);
        cx.report(async move {
            let deadline_ms = millis(limit);
            let command = Box::new(command);
            let asked = raft.ask(limit, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply }).await;
            Msg::Proposed { batch, outcome: outcome(asked) }
        });
    }

    fn watch_replica(&self, cx: &Cx<Msg>) {
        let mut replica = self.ports.replica.clone();
        replica.mark_changed();
        cx.on_change_taken(replica, &self.taken, Duration::ZERO, || Msg::Replica);
    }
}

fn outcome(asked: Result<Result<Applied, ProposeError>, AskError>) -> Outcome {
    match asked {
        Ok(Ok(applied)) => Outcome::Applied(applied.revision),
        Ok(Err(ProposeError::Refused(why))) => {
            debug!(%why, "liveness command refused");
            Outcome::Refused
        }
        Ok(Err(why)) => {
            debug!(%why, "liveness command not applied");
            Outcome::Failed
        }
        Err(why) => {
            debug!(%why, "liveness command not applied");
            Outcome::Failed
        }
    }
}

impl Shell for DispatcherShell {
    type Msg = Msg;
    const KIND: &'static str = "Dispatcher";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.watch_replica(cx);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Protocol(DispatcherMsg::Digest { host, digest, reply }) => {
                let answer = match self.step(cx, Input::Digest { host, digest }) {
                    DigestOutcome::Accepted => Ok(()),
                    DigestOutcome::NeedFull => Err(ErrorBody::new(
                        ErrorCode::Conflict,
                        "this leader has no digest of this host yet; send a full one",
                    )),
                };
                let _gone = reply.send(answer);
            }
            Msg::Replica => {
                let tables = self.ports.replica.borrow_and_update().tables.clone();
                self.step(cx, Input::Replica(tables));
                self.taken.notify_one();
            }
            Msg::Proposed { batch, outcome } => {
                self.step(cx, Input::Proposed { batch, outcome });
            }
            Msg::Wake => {
                self.alarm.fired();
                self.step(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        shown(&self.core, muster_kernel::Clock.now())
    }

    async fn stopping(&mut self, _cx: &Cx<Msg>) {
        self.ports.doubts.send_replace(Arc::default());
    }
}
