//! The actor around the core.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Alarm, Clock, Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{AutopilotMsg, Named, RaftMemberMsg, RoleManagerMsg};
use muster_messages::{
    AutopilotStep, Change, Command, ErrorBody, Guard, NodeDoubts, NodeId, Principal, Replica, RequestId, Role, Term,
    WallTime, millis,
};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tracing::info;

use crate::Config;
use crate::core::{Core, Effect, Input, Now};
use crate::view::view;

/// Bound of a proposal: entries are applied within milliseconds while a quorum answers. The core tries again later.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(5);
/// The Raft member answers by its deadline; this is a little longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// The role manager answers after one log entry and one check of the voters.
const ROLE_TIMEOUT: Duration = Duration::from_secs(15);
/// The Raft member gives up a transfer long before.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// The least time between two looks at the state. Every delay of a decision is seconds or more.
const OBSERVE_INTERVAL: Duration = Duration::from_millis(200);

/// What the actor reads and asks.
#[derive(Clone)]
pub struct Ports {
    pub raft: Recipient<RaftMemberMsg>,
    pub roles: Recipient<RoleManagerMsg>,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub doubts: watch::Receiver<Arc<NodeDoubts>>,
}

/// Inputs of the actor.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(AutopilotMsg),
    /// The replica has changed.
    ReplicaChanged,
    /// The doubts have changed.
    DoubtsChanged,
    /// Its proposal has ended.
    Proposed(bool),
    /// The role manager has answered.
    Requested(Result<(), ErrorBody>),
    /// No other node took over leadership.
    NotHandedOver,
    Wake,
}

impl From<AutopilotMsg> for Msg {
    fn from(msg: AutopilotMsg) -> Self {
        Msg::Protocol(msg)
    }
}

/// See the crate.
pub struct AutopilotShell {
    core: Core,
    ports: Ports,
    term: Term,
    alarm: Alarm,
    observed: Arc<Notify>,
    doubted: Arc<Notify>,
}

impl AutopilotShell {
    /// `leads_since`: both clocks when this term of leadership began, the same for all incarnations: a restart is not a new leader.
    pub fn new(config: Config, term: Term, leads_since: Now, ports: Ports) -> Self {
        let core = Core::new(config, leads_since);
        let (observed, doubted) = (Arc::default(), Arc::default());
        Self { core, ports, term, alarm: Alarm::default(), observed, doubted }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut effects = Vec::new();
        self.core.step(cx.now(), input, &mut effects);
        for effect in effects {
            self.apply(cx, effect);
        }
    }

    /// Every decision uses the newest state.
    fn refresh(&mut self, cx: &Cx<Msg>) {
        let replica = Arc::clone(&self.ports.replica.borrow_and_update());
        let doubts = Arc::clone(&self.ports.doubts.borrow_and_update());
        self.step(cx, Input::State { replica, doubts });
    }

    /// Cloned, because the Raft member cannot publish the next one while this one is borrowed.
    fn replica(&self) -> Arc<Replica> {
        Arc::clone(&self.ports.replica.borrow())
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) {
        match effect {
            Effect::Propose { at, step } => self.propose(cx, at, step),
            Effect::SetRole { node, role } => self.set_role(cx, node, role),
            Effect::HandOver { to } => self.hand_over(cx, to),
            Effect::Decided(message) => info!(message, "autopilot decided"),
            Effect::WakeAt(at) => self.alarm.set(cx, at, Msg::Wake),
        }
    }

    /// Guarded by the term: a former leader's decision is not applied.
    fn propose(&self, cx: &Cx<Msg>, at: WallTime, step: AutopilotStep) {
        let raft = self.ports.raft.clone();
        let command = Command::idempotent(at, Principal::Cluster, "autopilot")
            .guard(Guard::InTerm(self.term))
            .change(Change::Autopilot(Box::new(step)));
        cx.report(async move {
            let (deadline_ms, command) = (millis(PROPOSAL_DEADLINE), Box::new(command));
            let asked = raft.ask(ANSWER_TIMEOUT, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply }).await;
            Msg::Proposed(matches!(asked, Ok(Ok(_))))
        });
    }

    /// Without a request id: repeated, it changes nothing.
    fn set_role(&self, cx: &Cx<Msg>, node: NodeId, role: Role) {
        let roles = self.ports.roles.clone();
        cx.report(async move {
            let (by, request) = (Principal::Cluster, RequestId(0));
            let make = |reply| RoleManagerMsg::SetRole { node, role, by, request, reply };
            Msg::Requested(match roles.ask(ROLE_TIMEOUT, make).await {
                Ok(answer) => answer.map(|_| ()),
                Err(lost) => Err(ErrorBody::unknown_outcome(lost)),
            })
        });
    }

    /// Another leader ends this actor: only a failure is reported.
    fn hand_over(&self, cx: &Cx<Msg>, to: NodeId) {
        let raft = self.ports.raft.clone();
        info!(%to, "offering leadership: this node is drained");
        cx.report(async move {
            let make = |reply| RaftMemberMsg::TransferLeadership { to: Some(to), reply };
            let _taken = raft.ask(TRANSFER_TIMEOUT, make).await;
            Msg::NotHandedOver
        });
    }
}

impl Shell for AutopilotShell {
    type Msg = Msg;
    const KIND: &'static str = "Autopilot";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.refresh(cx);
        let Ports { replica, doubts, .. } = self.ports.clone();
        cx.on_change_taken(replica, &self.observed, OBSERVE_INTERVAL, || Msg::ReplicaChanged);
        cx.on_change_taken(doubts, &self.doubted, OBSERVE_INTERVAL, || Msg::DoubtsChanged);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Protocol(AutopilotMsg::State { policy, reply }) => {
                self.refresh(cx);
                let (facts, plan) = self.core.plan(cx.now(), policy.as_deref().cloned());
                let replica = self.replica();
                let policy = policy.as_deref().or(replica.tables.autopilot.policy.as_deref());
                let _gone = reply.send(Ok(view(&replica.tables, policy, &facts, &plan))).is_ok();
            }
            Msg::ReplicaChanged => {
                self.observed.notify_one();
                let replica = self.replica();
                if self.core.observe(cx.now(), &replica) {
                    self.refresh(cx);
                }
            }
            Msg::DoubtsChanged => {
                self.doubted.notify_one();
                self.refresh(cx);
            }
            Msg::Proposed(applied) => {
                // What was applied is in the replica before the answer.
                self.refresh(cx);
                self.step(cx, Input::Proposed(applied));
            }
            Msg::Requested(answer) => {
                self.refresh(cx);
                self.step(cx, Input::Requested(answer));
            }
            Msg::NotHandedOver => {
                self.refresh(cx);
                self.step(cx, Input::NotHandedOver);
            }
            Msg::Wake => {
                self.alarm.fired();
                self.refresh(cx);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let replica = self.replica();
        serde_json::to_value(self.core.view(Clock.now(), &replica)).unwrap_or_default()
    }
}
