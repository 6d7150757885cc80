//! The role manager as an actor of the leader.
//!
//! Owns   reply ports, timers, the checkpoint slot.
//! Hears  [`RoleManagerMsg`]; the newest replica, as a level.     Says  proposals, dial-backs, the published view.
//! Before the effects of a step are performed, queues and outbox are in the slot. A crash loses reply ports and nothing
//! else: whoever asked sees a closed port and asks again, with the same request id for a wish, and gets the first
//! outcome; a removal that goes on is joined; a node that asks for a seat asks again by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Alarm, AskError, Cx, Fault, Recipient, Shell, Slot};
use muster_messages::protocol::{MeshMsg, Named, ProposeError, RaftMemberMsg, Reply, RoleManagerMsg, WishAccepted};
use muster_messages::wire::SeatReply;
use muster_messages::{ErrorBody, ErrorCode, NodeId, RaftId, Replica, RoleView, millis};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::core::{
    Answer, AskId, Checkpoint, Config, Effect, Input, Now, RoleManager, Sent, StepId, StepOutcome, Wish, Wished,
};

/// Open asks at once. Each is a person's request or a node at the door; a cluster of 10,000 nodes has a few.
const MAX_OPEN_ASKS: usize = 1024;
/// Two looks at the replica are at least this far apart unless something else is heard, so that a busy log does not
/// keep the role manager busy.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// A seat change ends when the raft member knows its end, however long that takes; a member that crashed closes the port.
const UNTIL_KNOWN: Duration = Duration::from_secs(24 * 3600);
/// The mesh gives a dial-back up long before.
const DIAL_BACK: Duration = Duration::from_secs(15);
/// The raft member gives a transfer up long before.
const TRANSFER: Duration = Duration::from_secs(30);

/// Whom the role manager speaks to.
#[derive(Clone)]
pub struct Ports {
    pub raft: Recipient<RaftMemberMsg>,
    pub mesh: Recipient<MeshMsg>,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub view: Arc<watch::Sender<Arc<RoleView>>>,
}

/// What the actor hears.
pub enum Msg {
    Protocol(RoleManagerMsg),
    /// The replica has changed.
    Look,
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
impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Self::Protocol(msg) => msg.name(),
            Self::Look => "look",
            Self::Committed(..) => "committed",
            Self::Probed(..) => "probed",
            Self::Transferred(..) => "transferred",
            Self::ReachabilityChecked(..) => "reachability_checked",
            Self::Woke => "woke",
        }
    }
}

enum Port {
    Role(Reply<Result<WishAccepted, ErrorBody>>),
    Removed(Reply<Result<(), ErrorBody>>),
    Seat(Reply<Result<SeatReply, ErrorBody>>),
    Reported(Reply<Result<(), ErrorBody>>),
}

impl Port {
    fn is_closed(&self) -> bool {
        match self {
            Self::Role(port) => port.is_closed(),
            Self::Removed(port) => port.is_closed(),
            Self::Seat(port) => port.is_closed(),
            Self::Reported(port) => port.is_closed(),
        }
    }
    /// Whoever asked may have given up: that is no fault of ours.
    fn answer(self, answer: Answer) {
        match (self, answer) {
            (Self::Role(port), Answer::Role(result)) => {
                let _gone = port.send(result.map(|changed| WishAccepted { changed }));
            }
            (Self::Removed(port), Answer::Removed(result)) => drop(port.send(result)),
            (Self::Seat(port), Answer::Seat(result)) => drop(port.send(result)),
            (Self::Reported(port), Answer::Reported(result)) => drop(port.send(result)),
            (_, answer) => debug_assert!(false, "an answer of another kind: {answer:?}"),
        }
    }
    fn refuse(self, error: ErrorBody) {
        let answer = match &self {
            Self::Role(_) => Answer::Role(Err(error)),
            Self::Removed(_) => Answer::Removed(Err(error)),
            Self::Seat(_) => Answer::Seat(Err(error)),
            Self::Reported(_) => Answer::Reported(Err(error)),
        };
        self.answer(answer);
    }
}

/// The shell.
pub struct RoleManagerShell {
    core: RoleManager,
    propose_deadline: Duration,
    ports: Ports,
    slot: Slot<Checkpoint>,
    asks: BTreeMap<AskId, Port>,
    next_ask: u64,
    looked: Arc<Notify>,
    alarm: Alarm,
}

impl RoleManagerShell {
    /// One incarnation. `slot` is the same for all of one leadership.
    pub fn new(me: NodeId, config: Config, ports: Ports, slot: Slot<Checkpoint>) -> Self {
        Self {
            propose_deadline: config.propose_deadline,
            core: RoleManager::new(me, config, slot.get()),
            ports,
            slot,
            asks: BTreeMap::new(),
            next_ask: 0,
            looked: Arc::new(Notify::new()),
            alarm: Alarm::default(),
        }
    }

    fn turn(&mut self, cx: &Cx<Msg>, input: Input) {
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
            self.perform(cx, effect);
        }
    }

    /// The newest level, if it was not seen yet.
    fn look(&mut self, cx: &Cx<Msg>) {
        if self.ports.replica.has_changed().unwrap_or(false) {
            let replica = self.ports.replica.borrow_and_update().clone();
            self.turn(cx, Input::Seen(replica));
        }
    }

    /// Parks the reply port and says what the core is to hear; `None` if there are too many already.
    fn park(&mut self, msg: RoleManagerMsg) -> Option<Input> {
        self.next_ask += 1;
        let ask = AskId(self.next_ask);
        let (port, input) = match msg {
            RoleManagerMsg::SetRole { node, role, by, request, reply } => {
                let wish = Wish::Role(role);
                (Port::Role(reply), Input::Wished(Wished { ask, node, wish, by, request }))
            }
            RoleManagerMsg::Remove { node, force, by, request, reply } => {
                let wish = Wish::Remove { force };
                (Port::Removed(reply), Input::Wished(Wished { ask, node, wish, by, request }))
            }
            RoleManagerMsg::RequestSeat { node, request, reply } => {
                (Port::Seat(reply), Input::Knocked { ask, node, request })
            }
            RoleManagerMsg::ReportManager { node, report, reply } => {
                (Port::Reported(reply), Input::Reported { ask, node, report })
            }
        };
        if self.asks.len() >= MAX_OPEN_ASKS {
            self.asks.retain(|_, port| !port.is_closed());
        }
        if self.asks.len() >= MAX_OPEN_ASKS {
            let error = ErrorBody::new(ErrorCode::TooManyRequests, "too many role requests are open");
            port.refuse(error.retry_after(Duration::from_secs(1)));
            return None;
        }
        self.asks.insert(ask, port);
        Some(input)
    }

    fn perform(&mut self, cx: &Cx<Msg>, effect: Effect) {
        match effect {
            Effect::Propose { step, command } => {
                tracing::info!(%step, reason = command.reason, "writes");
                let deadline = self.propose_deadline;
                let deadline_ms = millis(deadline);
                self.propose(cx, step, deadline + Duration::from_secs(1), move |reply| RaftMemberMsg::Propose {
                    command,
                    deadline_ms,
                    reply,
                });
            }
            Effect::ProposeSeat { step, change } => {
                tracing::info!(%step, change = ?change.kind, "changes the membership");
                let change = Box::new(change);
                self.propose(cx, step, UNTIL_KNOWN, move |reply| RaftMemberMsg::ProposeSeat { change, reply });
            }
            Effect::Probe { step, addr, node } => {
                let (mesh, me) = (self.ports.mesh.clone(), cx.me().clone());
                cx.spawn(async move {
                    let asked = mesh.ask(DIAL_BACK, |reply| MeshMsg::Probe { addr, expect: node, reply }).await;
                    let _gone = me.tell(Msg::Probed(step, asked.unwrap_or_else(|why| Err(why.into()))));
                });
            }
            Effect::TransferLeadership { step, to } => {
                tracing::info!(%step, %to, "offers leadership");
                let (raft, me) = (self.ports.raft.clone(), cx.me().clone());
                cx.spawn(async move {
                    let make = |reply| RaftMemberMsg::TransferLeadership { to: Some(to), reply };
                    let taken = matches!(raft.ask(TRANSFER, make).await, Ok(Ok(_)));
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
                if let Some(port) = self.asks.remove(&ask) {
                    tracing::debug!(?answer, "answers");
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
        self.turn(cx, Input::Seen(replica));
        let (mut news, me, looked) = (self.ports.replica.clone(), cx.me().clone(), Arc::clone(&self.looked));
        cx.spawn(async move {
            while news.changed().await.is_ok() {
                if me.tell(Msg::Look).is_err() {
                    return;
                }
                looked.notified().await;
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        self.look(cx);
        match msg {
            Msg::Protocol(msg) => {
                if let Some(input) = self.park(msg) {
                    self.turn(cx, input);
                }
            }
            Msg::Look => self.looked.notify_one(),
            Msg::Committed(step, outcome) => self.turn(cx, Input::Committed { step, outcome }),
            Msg::Probed(step, result) => self.turn(cx, Input::Probed { step, result }),
            Msg::ReachabilityChecked(step, reachable) => {
                self.turn(cx, Input::ReachabilityChecked { step, reachable });
            }
            Msg::Transferred(step, taken) => self.turn(cx, Input::Transferred { step, taken }),
            Msg::Woke => {
                self.alarm.rang();
                self.turn(cx, Input::Woke);
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
        let steps: Vec<Value> = (self.core.outbox().0.iter())
            .map(|(step, o)| {
                let what = match &o.sent {
                    Sent::Wish { .. } => "wish",
                    Sent::Write(_) => "write",
                    Sent::Seat(_) => "membership",
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
