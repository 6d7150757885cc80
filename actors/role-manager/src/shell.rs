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

use muster_kernel::{Alarm, AskError, Cx, Fault, Parked, Recipient, Shell, Slot};
use muster_messages::protocol::{MeshMsg, Named, ProposeError, RaftMemberMsg, Reply, RequestAccepted, RoleManagerMsg};
use muster_messages::wire::MembershipReply;
use muster_messages::{ErrorBody, ErrorCode, NodeId, RaftId, Replica, RoleView, millis};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::core::{
    Answer, Checkpoint, Config, DesiredChange, Effect, Input, Now, PendingChange, RoleManager, Sent, StepId,
    StepOutcome,
};

/// Open requests at once. Each is a person's request or a join request; a cluster of 10,000 nodes has a few.
const MAX_OPEN_ASKS: usize = 1024;
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
    pub raft: Recipient<RaftMemberMsg>,
    pub mesh: Recipient<MeshMsg>,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub view: Arc<watch::Sender<Arc<RoleView>>>,
}

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(RoleManagerMsg),
    ReplicaChanged,
    Committed(StepId, StepOutcome),
    Probed(StepId, Result<(), ErrorBody>),
    Transferred(StepId, bool),
    ReachabilityChecked(StepId, Option<BTreeSet<RaftId>>),
    Woke,
}

impl From<RoleManagerMsg> for Msg {
    fn from(msg: RoleManagerMsg) -> Self {
        Self::Protocol(msg)
    }
}

enum Port {
    Role(Reply<Result<RequestAccepted, ErrorBody>>),
    Removed(Reply<Result<(), ErrorBody>>),
    Membership(Reply<Result<MembershipReply, ErrorBody>>),
    Reported(Reply<Result<(), ErrorBody>>),
}

impl Port {
    fn is_closed(&self) -> bool {
        match self {
            Self::Role(port) => port.is_closed(),
            Self::Removed(port) => port.is_closed(),
            Self::Membership(port) => port.is_closed(),
            Self::Reported(port) => port.is_closed(),
        }
    }
    /// The caller may have given up: that is not a fault.
    fn answer(self, answer: Answer) {
        match (self, answer) {
            (Self::Role(port), Answer::Role(result)) => {
                let _gone = port.send(result.map(|changed| RequestAccepted { changed }));
            }
            (Self::Removed(port), Answer::Removed(result)) => drop(port.send(result)),
            (Self::Membership(port), Answer::Membership(result)) => drop(port.send(result)),
            (Self::Reported(port), Answer::Reported(result)) => drop(port.send(result)),
            (_, answer) => debug_assert!(false, "an answer of another kind: {answer:?}"),
        }
    }
    fn refuse(self, error: ErrorBody) {
        let answer = match &self {
            Self::Role(_) => Answer::Role(Err(error)),
            Self::Removed(_) => Answer::Removed(Err(error)),
            Self::Membership(_) => Answer::Membership(Err(error)),
            Self::Reported(_) => Answer::Reported(Err(error)),
        };
        self.answer(answer);
    }
}

pub struct RoleManagerShell {
    core: RoleManager,
    propose_deadline: Duration,
    ports: Ports,
    slot: Slot<Checkpoint>,
    asks: Parked<Port>,
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
            asks: Parked::default(),
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

    /// Parks the reply port and returns the core's input; `None` if too many requests are open.
    fn park(&mut self, msg: RoleManagerMsg) -> Option<Input> {
        let ask = self.asks.next_id();
        let (port, input) = match msg {
            RoleManagerMsg::SetRole { node, role, by, request, reply } => {
                let change = DesiredChange::Role(role);
                (Port::Role(reply), Input::PendingChange(PendingChange { ask, node, change, by, request }))
            }
            RoleManagerMsg::Remove { node, force, by, request, reply } => {
                let change = DesiredChange::Remove { force };
                (Port::Removed(reply), Input::PendingChange(PendingChange { ask, node, change, by, request }))
            }
            RoleManagerMsg::RequestMembership { node, request, reply } => {
                (Port::Membership(reply), Input::MembershipRequested { ask, node, request })
            }
            RoleManagerMsg::ReportManager { node, report, reply } => {
                (Port::Reported(reply), Input::Reported { ask, node, report })
            }
        };
        if self.asks.len() >= MAX_OPEN_ASKS {
            self.asks.retain(|port| !port.is_closed());
        }
        if self.asks.len() >= MAX_OPEN_ASKS {
            let error = ErrorBody::new(ErrorCode::TooManyRequests, "too many role requests are open; retry later");
            port.refuse(error.retry_after(Duration::from_secs(1)));
            return None;
        }
        self.asks.park(port);
        Some(input)
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
            Effect::ProposeMembership { step, change } => {
                tracing::info!(%step, change = ?change.kind, "proposing a membership change");
                let change = Box::new(change);
                self.propose(cx, step, MEMBERSHIP_CHANGE_TIMEOUT, move |reply| RaftMemberMsg::ProposeMembership {
                    change,
                    reply,
                });
            }
            Effect::Probe { step, addr, node } => {
                let (mesh, me) = (self.ports.mesh.clone(), cx.me().clone());
                cx.spawn(async move {
                    let asked = mesh.ask(DIAL_BACK_TIMEOUT, |reply| MeshMsg::Probe { addr, expect: node, reply }).await;
                    let _gone = me.tell(Msg::Probed(step, asked.unwrap_or_else(|why| Err(why.into()))));
                });
            }
            Effect::TransferLeadership { step, to } => {
                tracing::info!(%step, %to, "offering leadership to another manager");
                let (raft, me) = (self.ports.raft.clone(), cx.me().clone());
                cx.spawn(async move {
                    let make = |reply| RaftMemberMsg::TransferLeadership { to: Some(to), reply };
                    let taken = matches!(raft.ask(TRANSFER_TIMEOUT, make).await, Ok(Ok(_)));
                    let _gone = me.tell(Msg::Transferred(step, taken));
                });
            }
            Effect::CheckReachable { step, members, needed, within } => {
                let (raft, me) = (self.ports.raft.clone(), cx.me().clone());
                let deadline_ms = millis(within);
                cx.spawn(async move {
                    let make = |reply| RaftMemberMsg::CheckReachable { members, needed, deadline_ms, reply };
                    let reachable = raft.ask(within + Duration::from_secs(1), make).await;
                    let _gone = me.tell(Msg::ReachabilityChecked(step, reachable.ok().and_then(Result::ok)));
                });
            }
            Effect::Answer(ask, answer) => {
                if let Some(port) = self.asks.take(ask) {
                    tracing::debug!(?answer, "answering a request");
                    port.answer(answer);
                }
            }
            Effect::WakeAt(at) => self.alarm.set(cx, Some(at), Msg::Woke),
        }
    }

    fn propose(
        &self,
        cx: &Cx<Msg>,
        step: StepId,
        deadline: Duration,
        make: impl FnOnce(Reply<Result<muster_messages::protocol::Applied, ProposeError>>) -> RaftMemberMsg + Send + 'static,
    ) {
        let (raft, me) = (self.ports.raft.clone(), cx.me().clone());
        cx.spawn(async move {
            let outcome = match raft.ask(deadline, make).await {
                Ok(Ok(applied)) => StepOutcome::Applied(applied.revision),
                Ok(Err(error)) => outcome_of(error),
                Err(AskError::Full) => StepOutcome::Crowded,
                Err(AskError::Down) => StepOutcome::NotLeader,
                Err(AskError::Closed | AskError::TimedOut) => StepOutcome::Unknown,
            };
            let _gone = me.tell(Msg::Committed(step, outcome));
        });
    }
}

fn outcome_of(error: ProposeError) -> StepOutcome {
    match error {
        ProposeError::Refused(refusal) => StepOutcome::Refused(refusal),
        ProposeError::NotLeader { .. } => StepOutcome::NotLeader,
        ProposeError::Busy => StepOutcome::Crowded,
        ProposeError::MembershipBusy => StepOutcome::MembershipBusy,
        ProposeError::NoQuorum { missing } => StepOutcome::NoQuorum { missing },
        ProposeError::TimedOut => StepOutcome::TimedOut,
        ProposeError::TooLarge { .. } | ProposeError::StateFull { .. } | ProposeError::UnknownOutcome => {
            StepOutcome::Unknown
        }
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
                if let Some(input) = self.park(msg) {
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
        let queues = self.core.queues();
        let entry = |(node, p): (&NodeId, &crate::core::Pending)| {
            json!({"node": node, "wants": p.wants, "reason": p.reason, "message": p.message, "since": p.since,
                   "retry_at": p.retry_at})
        };
        let steps: Vec<Value> = (self.core.outbox().iter())
            .map(|(step, o)| {
                let what = match &o.sent {
                    Sent::DesiredChange { .. } => "desired_change",
                    Sent::Write(_) => "write",
                    Sent::Membership(_) => "membership",
                    Sent::Transfer { .. } => "transfer",
                };
                json!({"step": step.0, "node": o.node, "what": what, "since": o.since.wall, "applied": o.applied})
            })
            .collect();
        json!({
            "pending_reconciliation": queues.reconciliation.iter().map(entry).collect::<Vec<_>>(),
            "pending_removal": queues.removal.keys().collect::<Vec<_>>(),
            "steps": steps,
            "open_asks": self.asks.len(),
        })
    }

    async fn stopping(&mut self, _cx: &Cx<Msg>) {
        self.ports.view.send_replace(Arc::default());
    }
}
