//! The role manager as an actor of the leader.
//!
//! Owns        reply ports, timers, the checkpoint slot.
//! Inputs      [`RoleManagerMsg`]; the newest replica, as a watched value.
//! Outputs     proposals, dial-backs, the published view.
//! Before the effects of a step are applied, queues and outbox are in the slot. A crash loses only reply ports. Each
//! caller sees a closed port and asks again: a request with the same request id gets the first outcome, a removal in
//! progress is joined, and a node that asks for membership asks again by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Alarm, Cx, Fault, Recipient, Shell, Slot};
use muster_messages::protocol::{Applied, MeshMsg, Named, ProposeError, RaftMemberMsg, Reply, RoleManagerMsg};
use muster_messages::{ErrorBody, NodeId, RaftId, Replica, RoleView, millis};
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::asks::Asks;
use crate::core::{Checkpoint, Config, Effect, Input, Now, RoleManager, StepId, StepOutcome};
use crate::log::described;
use crate::outcomes::outcome;
use crate::view::view;

/// The replica is read at most this often unless another message arrives, so that a busy log does not keep the role
/// manager busy.
const OBSERVE_INTERVAL: Duration = Duration::from_millis(1);
/// A membership change ends when the raft member knows its outcome, however long that takes; a member that crashed closes
/// the port.
const MEMBERSHIP_CHANGE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The mesh gives up a dial-back long before.
const DIAL_BACK_TIMEOUT: Duration = Duration::from_secs(15);
/// The raft member gives up a transfer long before.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// The collaborators of the role manager.
#[derive(Clone)]
pub struct Ports {
    /// The log.
    pub raft: Recipient<RaftMemberMsg>,
    /// The sessions with other managers, for dial-backs.
    pub mesh: Recipient<MeshMsg>,
    /// The replicated state.
    pub replica: watch::Receiver<Arc<Replica>>,
    /// Where it publishes its view.
    pub view: Arc<watch::Sender<Arc<RoleView>>>,
}

/// Messages of the actor.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    /// A message of others.
    #[strum(transparent)]
    Protocol(RoleManagerMsg),
    /// The replicated state has changed.
    ReplicaChanged,
    /// A proposal ended.
    Committed(StepId, StepOutcome),
    /// A dial-back ended.
    Probed(StepId, Result<(), ErrorBody>),
    /// An offer of leadership ended.
    Transferred(StepId, bool),
    /// A reachability check ended.
    ReachabilityChecked(StepId, Option<BTreeSet<RaftId>>),
    /// The time that its core asked for has come.
    Woke,
}

impl From<RoleManagerMsg> for Msg {
    fn from(msg: RoleManagerMsg) -> Self {
        Self::Protocol(msg)
    }
}

/// One incarnation of the actor.
pub struct RoleManagerShell {
    core: RoleManager,
    propose_deadline: Duration,
    ports: Ports,
    slot: Slot<Checkpoint>,
    asks: Asks,
    observed: Arc<Notify>,
    alarm: Alarm,
}

impl RoleManagerShell {
    /// One incarnation. `slot` is shared by all incarnations of one leadership.
    pub fn new(me: NodeId, config: Config, ports: Ports, slot: Slot<Checkpoint>) -> Self {
        Self {
            propose_deadline: config.propose_deadline,
            core: RoleManager::new(me, config, slot.get()),
            ports,
            slot,
            asks: Asks::default(),
            observed: Arc::new(Notify::new()),
            alarm: Alarm::default(),
        }
    }

    fn handle_input(&mut self, cx: &Cx<Msg>, input: Input) {
        let now = Now { at: cx.now(), wall: cx.wall() };
        let mut effects = Vec::new();
        self.core.step(now, input, &mut effects);
        // First what the next incarnation needs, then what others see, then what cannot be undone.
        self.slot.set(self.core.checkpoint());
        let view = self.core.view();
        self.ports.view.send_if_modified(|published| {
            let news = **published != view;
            if news {
                *published = Arc::new(view);
            }
            news
        });
        for effect in effects {
            self.apply(cx, effect);
        }
    }

    /// Passes on the newest replica if it was not seen yet.
    fn observe(&mut self, cx: &Cx<Msg>) {
        if self.ports.replica.has_changed().unwrap_or(false) {
            let replica = self.ports.replica.borrow_and_update().clone();
            self.handle_input(cx, Input::Seen(replica));
        }
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) {
        match effect {
            Effect::Propose { step, command } => {
                tracing::info!(%step, reason = command.reason, "proposing a command");
                let deadline = self.propose_deadline;
                let deadline_ms = millis(deadline);
                self.propose(cx, step, deadline + Duration::from_secs(1), move |reply| RaftMemberMsg::Propose {
                    command,
                    deadline_ms,
                    reply,
                });
            }
            Effect::ProposeMembership { step, change, confirm_within } => {
                tracing::info!(%step, change = described(&change.kind), "proposing a membership change");
                let (change, confirm_within_ms) = (Box::new(change), confirm_within.map(millis));
                self.propose(cx, step, MEMBERSHIP_CHANGE_TIMEOUT, move |reply| RaftMemberMsg::ProposeMembership {
                    change,
                    confirm_within_ms,
                    reply,
                });
            }
            Effect::Probe { step, addr, node } => {
                let mesh = self.ports.mesh.clone();
                cx.report(async move {
                    let asked = mesh.ask(DIAL_BACK_TIMEOUT, |reply| MeshMsg::Probe { addr, expect: node, reply }).await;
                    Msg::Probed(step, asked.unwrap_or_else(|why| Err(why.into())))
                });
            }
            Effect::TransferLeadership { step, to } => {
                tracing::info!(%step, %to, "offering leadership to another manager");
                let raft = self.ports.raft.clone();
                cx.report(async move {
                    let make = |reply| RaftMemberMsg::TransferLeadership { to: Some(to), reply };
                    Msg::Transferred(step, matches!(raft.ask(TRANSFER_TIMEOUT, make).await, Ok(Ok(_))))
                });
            }
            Effect::CheckReachable { step, members, needed, within } => {
                let (raft, deadline_ms) = (self.ports.raft.clone(), millis(within));
                cx.report(async move {
                    let make = |reply| RaftMemberMsg::CheckReachable { members, needed, deadline_ms, reply };
                    let reachable = raft.ask(within + Duration::from_secs(1), make).await;
                    Msg::ReachabilityChecked(step, reachable.ok().and_then(Result::ok))
                });
            }
            Effect::Answer(ask, answer) => self.asks.answer(ask, answer),
            Effect::WakeAt(at) => self.alarm.set(cx, Some(at), Msg::Woke),
        }
    }

    fn propose(
        &self,
        cx: &Cx<Msg>,
        step: StepId,
        deadline: Duration,
        make: impl FnOnce(Reply<Result<Applied, ProposeError>>) -> RaftMemberMsg + Send + 'static,
    ) {
        let raft = self.ports.raft.clone();
        cx.report(async move { Msg::Committed(step, outcome(raft.ask(deadline, make).await)) });
    }
}

impl Shell for RoleManagerShell {
    type Msg = Msg;
    const KIND: &'static str = "RoleManager";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let replica = self.ports.replica.borrow_and_update().clone();
        self.handle_input(cx, Input::Seen(replica));
        cx.on_change_taken(self.ports.replica.clone(), &self.observed, OBSERVE_INTERVAL, || Msg::ReplicaChanged);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        self.observe(cx);
        match msg {
            Msg::Protocol(msg) => {
                if let Some(input) = self.asks.park(msg) {
                    self.handle_input(cx, input);
                }
            }
            Msg::ReplicaChanged => self.observed.notify_one(),
            Msg::Committed(step, outcome) => self.handle_input(cx, Input::Committed { step, outcome }),
            Msg::Probed(step, result) => self.handle_input(cx, Input::Probed { step, result }),
            Msg::ReachabilityChecked(step, reachable) => {
                self.handle_input(cx, Input::ReachabilityChecked { step, reachable });
            }
            Msg::Transferred(step, taken) => self.handle_input(cx, Input::Transferred { step, taken }),
            Msg::Woke => {
                self.alarm.fired();
                self.handle_input(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        view(&self.core, self.asks.len())
    }

    async fn stopping(&mut self, _cx: &Cx<Msg>) {
        self.ports.view.send_replace(Arc::default());
    }
}
