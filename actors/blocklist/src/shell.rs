//! The shell of [`Blocklist`]: follows the replica, sends to the gateway, proposes to the Raft member.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault, Recipient, Shell, Slot};
use muster_messages::protocol::{GatewayMsg, RaftMemberMsg};
use muster_messages::{Command, Replica, millis};
use serde_json::Value;
use tokio::sync::{oneshot, watch};
use tracing::{debug, info, warn};

use crate::core::{Blocklist, Cut, Effect, Input, Memory, SWEEP_INTERVAL};
use crate::msg::Msg;

/// Bound of a sweep: the next tick tries again.
const SWEEP_DEADLINE: Duration = Duration::from_secs(10);

/// One incarnation.
pub struct BlocklistShell {
    core: Blocklist,
    slot: Slot<Memory>,
    replica: watch::Receiver<Arc<Replica>>,
    gateway: Recipient<GatewayMsg>,
    raft: Recipient<RaftMemberMsg>,
}

impl BlocklistShell {
    /// Starts from the state that the last incarnation left in the slot.
    pub fn new(
        replica: watch::Receiver<Arc<Replica>>,
        gateway: Recipient<GatewayMsg>,
        raft: Recipient<RaftMemberMsg>,
        slot: Slot<Memory>,
    ) -> Self {
        let core = Blocklist::resume(slot.get().unwrap_or_default());
        Self { core, slot, replica, gateway, raft }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input<'_>) {
        let (now, wall) = (cx.now(), cx.wall());
        let mut effects = Vec::new();
        self.core.step(now, wall, input, &mut effects);
        self.slot.set(self.core.memory()); // before any effect: after a crash, undelivered disconnects stay pending
        let mut more = Vec::new();
        for effect in effects {
            match effect {
                Effect::Cut(cut) => {
                    let told = self.tell(cut);
                    self.core.step(now, wall, told, &mut more);
                }
                other => more.push(other),
            }
        }
        self.slot.set(self.core.memory());
        for effect in more {
            match effect {
                Effect::Sweep(command) => self.sweep(cx, command),
                Effect::RetryAt(at) => cx.after(at.since(now), Msg::Retry),
                Effect::Cut(cut) => debug_assert!(false, "reporting {cut:?} led to another disconnect"),
            }
        }
    }

    fn tell(&self, cut: Cut) -> Input<'static> {
        let Cut { principal, services, reason } = cut;
        debug!(%principal, ?services, ?reason, "disconnecting a principal");
        match self.gateway.tell(GatewayMsg::Cut { principal: principal.clone(), services, reason }) {
            Ok(()) => Input::Told(principal),
            Err(because) => {
                debug!(%principal, %because, "the gateway did not accept a disconnect; retrying");
                Input::NotTold
            }
        }
    }

    fn sweep(&self, cx: &Cx<Msg>, command: Box<Command>) {
        let (raft, me) = (self.raft.clone(), cx.me().clone());
        cx.spawn(async move {
            let count = command.changes.len();
            // The member answers by its own deadline; this one is a little longer.
            let deadline_ms = millis(SWEEP_DEADLINE);
            let answer_timeout = SWEEP_DEADLINE + Duration::from_secs(1);
            let asked = raft.ask(answer_timeout, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply }).await;
            let applied = match asked {
                Ok(Ok(applied)) => {
                    info!(count, revision = %applied.revision, "expired blocks deleted");
                    Some(applied.revision)
                }
                Ok(Err(because)) => {
                    debug!(%because, "blocklist sweep not applied");
                    None
                }
                Err(because) => {
                    warn!(%because, "blocklist sweep got no answer");
                    None
                }
            };
            let _gone = me.tell(Msg::Swept(applied));
        });
    }
}

/// Passes on one replica at a time, always the newest.
async fn follow(mut replicas: watch::Receiver<Arc<Replica>>, me: muster_kernel::Address<Msg>) {
    loop {
        let replica = Arc::clone(&replicas.borrow_and_update());
        let (seen, processed) = oneshot::channel();
        if me.tell(Msg::NewReplica { replica, seen }).is_err() {
            return; // this incarnation has ended
        }
        let _ = processed.await;
        if replicas.changed().await.is_err() {
            return; // the manager runtime is stopping
        }
    }
}

impl Shell for BlocklistShell {
    type Msg = Msg;
    const KIND: &'static str = "Blocklist";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        cx.spawn(follow(self.replica.clone(), cx.me().clone()));
        cx.after(SWEEP_INTERVAL, Msg::Tick);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::NewReplica { replica, seen } => {
                self.step(cx, Input::NewReplica(&replica));
                drop(seen);
            }
            Msg::Retry => self.step(cx, Input::Retry),
            Msg::Swept(applied) => self.step(cx, Input::Swept(applied)),
            Msg::Tick => {
                cx.after(SWEEP_INTERVAL, Msg::Tick);
                self.step(cx, Input::Ticked);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        serde_json::to_value(self.core.view()).unwrap_or_default()
    }
}
