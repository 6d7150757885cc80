//! The membership agent: makes this manager a Raft member and keeps its membership correct.
//!
//! Inputs      the local replica; the answers to its requests.  Outputs  `RequestMembership` through the agent's session.
//! Invariants  SEAT-1  a manager whose Raft data is missing or damaged never reuses its member id: it requests a new one, and
//!                     the old member is removed first.
//! A manager sends one request after each start, also with its data in place: its address may have changed, or its membership may
//! be gone. It sends another when it has had no leader for a while: while it was disconnected, its member may have been removed
//! or replaced, and then no member talks to the old one. The log names what it waits for, once per change. What only an operator of
//! this machine can repair (lost data, an unreachable address) also appears in this node's own `status`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_agent::NodeMemory;
use muster_kernel::{Children, Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{AgentMsg, Named};
use muster_messages::wire::{DataLoss, MembershipReply, MembershipRequest};
use muster_messages::{ErrorBody, ErrorCode, RaftId, Replica, WaitReason, word};
use muster_raft_member::{Incompatible, disk};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use super::boot::RaftData;
use super::feature_level::ReportIncompatible;

/// Bound of one request: the leader may be dialling back or waiting for a quorum.
const MEMBERSHIP_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than an election. Without a quorum every manager asks in vain, which costs nothing.
const NO_LEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses between requests that failed for lack of a session or a leader: short at first, for a joining manager waits for them.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Inputs of the membership agent.
pub enum MembershipAgentMsg {
    Ask,
    /// The Raft member has had no leader for a while, or was sent something it cannot read.
    NoLeader,
    Answered(Result<MembershipReply, ErrorBody>),
    /// The Raft member's id.
    Holds(Option<RaftId>),
    /// The old data is out of the way and the Raft member runs on an empty state.
    Emptied(Result<(), String>),
}
impl Named for MembershipAgentMsg {
    fn name(&self) -> &'static str {
        match self {
            MembershipAgentMsg::Ask => "ask",
            MembershipAgentMsg::NoLeader => "alone",
            MembershipAgentMsg::Answered(_) => "answered",
            MembershipAgentMsg::Holds(_) => "holds",
            MembershipAgentMsg::Emptied(_) => "emptied",
        }
    }
}

/// Ports of the membership agent.
#[derive(Clone)]
pub struct MembershipPorts {
    pub agent: Recipient<AgentMsg>,
    pub replica: watch::Receiver<Arc<Replica>>,
    /// The Raft member was sent something it cannot read.
    pub incompatible: watch::Receiver<Option<Incompatible>>,
    /// Its siblings, of which `raft-member` is one.
    pub group: Children,
    pub raft_dir: PathBuf,
    pub memory: NodeMemory,
    /// The state of this node's Raft data, shared by its actors.
    pub data: Arc<Mutex<RaftData>>,
    /// For `status`, while the data is lost or this manager cannot be dialled.
    pub trouble: Arc<watch::Sender<Option<String>>>,
    /// Where other nodes reach this manager.
    pub advertise: String,
    /// The highest level that this build supports.
    pub feature_level: u32,
    pub report_incompatible: ReportIncompatible,
}

/// The membership agent's shell.
pub struct MembershipAgent {
    ports: MembershipPorts,
    pause: Duration,
    holds: Option<RaftId>,
    assigned: Option<RaftId>,
    /// The data of this member has been emptied; the Raft member may not have reported it yet.
    emptied: Option<RaftId>,
    /// A request is in progress or scheduled.
    asking: bool,
    last_logged: String,
    /// How the last dial-back failed, if it did.
    unreachable: Option<String>,
}

impl MembershipAgent {
    pub fn new(ports: MembershipPorts) -> Self {
        let (pause, holds, assigned, emptied) = (FIRST_PAUSE, None, None, None);
        Self { ports, pause, holds, assigned, emptied, asking: true, last_logged: String::new(), unreachable: None }
    }

    fn data(&self) -> RaftData {
        self.ports.data.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn request(&self) -> MembershipRequest {
        let (held, data_lost) = match self.data() {
            RaftData::None | RaftData::Present => (self.holds, None),
            // The loss is repaired: the member id assigned since has lost nothing.
            RaftData::Missing { held } | RaftData::Damaged { held: Some(held), .. } if self.assigned > Some(held) => {
                (self.holds, None)
            }
            RaftData::Missing { held } => {
                let file = self.ports.raft_dir.display().to_string();
                (Some(held), Some(DataLoss { damaged: false, file }))
            }
            RaftData::Damaged { held, file, .. } => (held, Some(DataLoss { damaged: true, file })),
        };
        let MembershipPorts { advertise, feature_level, .. } = &self.ports;
        MembershipRequest { advertise: advertise.clone(), held, data_lost, feature_level: *feature_level }
    }

    /// One log line per change: why a manager is not ready yet.
    fn log_change(&mut self, text: String) {
        if self.last_logged != text {
            match self.unreachable {
                Some(_) => warn!("{text}"),
                None => info!("{text}"),
            }
            self.last_logged = text;
        }
    }

    /// Whether the leader reached this manager at its advertised address: a matter for this machine's operator.
    fn record_dial_back(&mut self, failure: Option<&str>) {
        let failure = failure.map(str::to_owned);
        if self.unreachable != failure {
            self.unreachable = failure;
            self.show_trouble();
        }
    }

    fn show_trouble(&self) {
        let trouble = match self.data() {
            RaftData::Missing { .. } => Some("raft_data_missing".to_owned()),
            RaftData::Damaged { .. } => Some("raft_data_damaged".to_owned()),
            RaftData::None | RaftData::Present => {
                self.unreachable.as_ref().map(|why| format!("{}: {why}", word(WaitReason::DialBackFailed)))
            }
        };
        self.ports.trouble.send_if_modified(|published| {
            let differs = *published != trouble;
            *published = trouble;
            differs
        });
    }

    fn ask_later(&mut self, cx: &Cx<MembershipAgentMsg>, pause: Duration) {
        cx.after(pause, MembershipAgentMsg::Ask);
        self.pause = (self.pause.mul_f64(1.5)).min(MAX_PAUSE);
    }

    fn answered(&mut self, cx: &Cx<MembershipAgentMsg>, answer: Result<MembershipReply, ErrorBody>) {
        match answer {
            Ok(MembershipReply::IsMember { raft_id }) => {
                self.pause = FIRST_PAUSE;
                self.asking = false;
                self.assigned = Some(raft_id);
                self.record_dial_back(None);
                self.log_change(format!("this manager is Raft member {raft_id}"));
                // The leader may have informed the member itself: the replica is then ahead of this answer.
                let holds = self.ports.replica.borrow().raft.raft_id;
                match holds {
                    // The data on disk belongs to another member id and is worthless.
                    Some(old) if old != raft_id && holds == self.holds && self.has_data_of(old) => self.empty(cx, old),
                    _ => self.settle(),
                }
                if holds != Some(raft_id) {
                    self.asking = true;
                    // The id is assigned, but the leader has not contacted this member yet. The leader removes a silent learner;
                    // nothing would change here then, so ask again later.
                    self.ask_later(cx, MAX_PAUSE);
                }
            }
            Ok(MembershipReply::Wait { reason, message, retry_after_ms }) => {
                // Any other reason is not for this machine to repair, and says nothing about the address.
                if reason == WaitReason::DialBackFailed {
                    self.record_dial_back(Some(&message));
                }
                self.log_change(format!("waiting to become a Raft member: {}: {message}", word(reason)));
                let pause = Duration::from_millis(retry_after_ms).clamp(FIRST_PAUSE, MAX_PAUSE);
                self.ask_later(cx, pause);
            }
            Ok(MembershipReply::NotWanted { message }) => {
                // The agent learns the same from its view and will stop the manager runtime; until then there is nothing to do.
                self.log_change(format!("this node is not to be a manager: {message}"));
                self.ask_later(cx, MAX_PAUSE);
            }
            // Final, however often the request is sent: the feature level never falls.
            Err(error) if error.code == ErrorCode::GateClosed => (self.ports.report_incompatible)(&error.message),
            Err(error) => {
                self.log_change(format!("cannot request Raft membership yet: {error}"));
                let pause = self.pause;
                self.ask_later(cx, pause);
            }
        }
    }

    /// The Raft member runs on this id's data. An earlier incarnation may have given the id up and crashed before emptying the
    /// data.
    fn has_data_of(&self, member_id: RaftId) -> bool {
        let data = self.data();
        self.emptied != Some(member_id) && (data == RaftData::Present || data == RaftData::Missing { held: member_id })
    }

    /// The data loss is over once the new member has data.
    fn settle(&mut self) {
        let mut data = self.ports.data.lock().unwrap_or_else(PoisonError::into_inner);
        if self.holds.is_some() && self.holds == self.assigned && *data != RaftData::Present {
            let before = std::mem::replace(&mut *data, RaftData::Present);
            drop(data);
            self.show_trouble();
            if before != RaftData::None {
                info!("Raft data restored");
            }
        }
    }

    /// Stops the Raft member, wipes its data and restarts it on an empty state. It must not resume the old member id: a replaced
    /// leader that has not noticed may still talk to that id.
    fn empty(&mut self, cx: &Cx<MembershipAgentMsg>, old: RaftId) {
        *self.ports.data.lock().unwrap_or_else(PoisonError::into_inner) = RaftData::Missing { held: old };
        self.log_change("the Raft data belongs to an older member id: starting from an empty state".to_owned());
        self.emptied = Some(old);
        let (dir, group, me) = (self.ports.raft_dir.clone(), self.ports.group.clone(), cx.me().clone());
        cx.spawn(async move {
            let wiped = tokio::task::spawn_blocking(move || disk::mark_for_wipe(&dir)).await;
            let result = match wiped {
                Ok(Ok(())) => {
                    group.restart("raft-member");
                    Ok(())
                }
                Ok(Err(error)) => Err(Fault::from(error).0),
                Err(error) => Err(error.to_string()),
            };
            let _stopping = me.tell(MembershipAgentMsg::Emptied(result));
        });
    }

    /// Records each member id on disk: only the newest, one write at a time, however slow the disk.
    fn record_member_ids(&self, cx: &Cx<MembershipAgentMsg>) {
        let (memory, mut replica) = (self.ports.memory.clone(), self.ports.replica.clone());
        cx.spawn(async move {
            let mut written = None;
            loop {
                let news = replica.wait_for(|r| r.raft.raft_id.is_some_and(|held| written != Some(held))).await;
                let Some(held) = news.ok().and_then(|local_replica| local_replica.raft.raft_id) else { return };
                let memory = memory.clone();
                let write = move || memory.update(|node| node.held_seat = Some(held));
                if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
                    warn!(%error, "cannot record the Raft member id");
                }
                written = Some(held);
            }
        });
    }
}

impl Shell for MembershipAgent {
    type Msg = MembershipAgentMsg;
    const KIND: &'static str = "MembershipAgent";

    async fn started(&mut self, cx: &Cx<MembershipAgentMsg>) -> Result<(), Fault> {
        let trouble = match self.data() {
            RaftData::Missing { held } => {
                Some(("raft_data_missing", format!("the data of Raft member {held} is missing")))
            }
            RaftData::Damaged { file, why, .. } => Some(("raft_data_damaged", format!("{file} is damaged: {why}"))),
            RaftData::None | RaftData::Present => None,
        };
        if let Some((word, text)) = trouble {
            warn!("{word}: {text}; requesting a new Raft member id");
        }
        // Also clears what an earlier incarnation published and is no longer true.
        self.show_trouble();
        let (me, mut replica) = (cx.me().clone(), self.ports.replica.clone());
        cx.spawn(async move {
            loop {
                let holds = replica.borrow_and_update().raft.raft_id;
                if me.tell(MembershipAgentMsg::Holds(holds)).is_err() {
                    return;
                }
                // Only a change of the id matters.
                if replica.wait_for(|r| r.raft.raft_id != holds).await.is_err() {
                    return;
                }
            }
        });
        self.record_member_ids(cx);
        let (me, mut incompatible) = (cx.me().clone(), self.ports.incompatible.clone());
        cx.spawn(async move {
            // Only a newer build could have written this snapshot: the leader knows whether one exists.
            if incompatible.wait_for(Option::is_some).await.is_ok() {
                let _stopping = me.tell(MembershipAgentMsg::NoLeader);
            }
        });
        let (me, mut replica) = (cx.me().clone(), self.ports.replica.clone());
        cx.spawn(async move {
            while replica.wait_for(|r| r.raft.raft_id.is_some() && r.raft.leader.is_none()).await.is_ok() {
                let back = replica.wait_for(|r| r.raft.leader.is_some());
                let still_no_leader = tokio::time::timeout(NO_LEADER_TIMEOUT, back).await.is_err();
                if still_no_leader && me.tell(MembershipAgentMsg::NoLeader).is_err() {
                    return;
                }
            }
        });
        cx.after(Duration::ZERO, MembershipAgentMsg::Ask);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<MembershipAgentMsg>, msg: MembershipAgentMsg) -> Result<(), Fault> {
        match msg {
            MembershipAgentMsg::Ask => {
                let (agent, request, me) = (self.ports.agent.clone(), self.request(), cx.me().clone());
                cx.spawn(async move {
                    let asked = agent
                        .ask(MEMBERSHIP_ANSWER_TIMEOUT, |reply| AgentMsg::RequestMembership { request, reply })
                        .await;
                    let _stopping = me.tell(MembershipAgentMsg::Answered(asked.unwrap_or_else(|e| Err(e.into()))));
                });
            }
            MembershipAgentMsg::Answered(answer) => self.answered(cx, answer),
            MembershipAgentMsg::NoLeader if self.asking => {}
            MembershipAgentMsg::NoLeader => {
                self.asking = true;
                cx.after(Duration::ZERO, MembershipAgentMsg::Ask);
            }
            MembershipAgentMsg::Holds(holds) => {
                let was_removed = self.holds.is_some() && holds.is_none();
                self.holds = holds;
                match holds {
                    Some(_) => self.settle(),
                    // The member was removed: a new id is needed if this node is still to be a manager.
                    None if was_removed => {
                        self.asking = true;
                        cx.after(FIRST_PAUSE, MembershipAgentMsg::Ask);
                    }
                    None => {}
                }
            }
            MembershipAgentMsg::Emptied(result) => {
                if let Err(why) = result {
                    return Err(Fault::new(format!("cannot empty the Raft data: {why}")));
                }
                cx.after(FIRST_PAUSE, MembershipAgentMsg::Ask);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        json!({"holds": self.holds, "seated": self.assigned, "waiting": self.last_logged, "data": format!("{:?}", self.data())})
    }
}

#[cfg(test)]
mod tests;
