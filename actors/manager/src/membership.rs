//! The membership agent: makes this manager a Raft member and keeps its membership correct.
//!
//! A manager sends one request after each start, also with its data in place: its address may have changed, or its membership may
//! be gone. It sends another when it has had no leader for a while: while it was disconnected, its member may have been removed
//! or replaced, and then no member talks to the old one. The log names what it waits for, once per change. What only an operator of
//! this machine can repair (lost data, an unreachable address) also appears in this node's own `status`.

pub mod core;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_agent::NodeMemory;
use muster_kernel::{Children, Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{AgentMsg, Named};
use muster_messages::wire::MembershipReply;
use muster_messages::{ErrorBody, RaftId, Replica, Trouble};
use muster_raft_member::{Incompatible, disk};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use self::core::{Config, Effect, Input, MembershipCore, NO_LEADER_TIMEOUT, has_leader, is_without_leader};
use crate::{RaftData, ReportIncompatible};

/// Bound of one request: the leader may be dialling back or waiting for a quorum.
const MEMBERSHIP_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages of the membership agent, all of them its own.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
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
    pub trouble: Arc<watch::Sender<Option<Trouble>>>,
    /// Where other nodes reach this manager.
    pub advertise: String,
    /// The highest level that this build supports.
    pub feature_level: u32,
    pub report_incompatible: ReportIncompatible,
}

/// The shell.
pub struct MembershipAgent {
    core: MembershipCore,
    ports: MembershipPorts,
}

impl MembershipAgent {
    pub fn new(ports: MembershipPorts) -> Self {
        let core = MembershipCore::new(Config {
            advertise: ports.advertise.clone(),
            feature_level: ports.feature_level,
            raft_dir: ports.raft_dir.display().to_string(),
        });
        Self { core, ports }
    }

    fn data(&self) -> RaftData {
        self.ports.data.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn step(&mut self, cx: &Cx<MembershipAgentMsg>, input: Input) {
        let mut effects = Vec::new();
        {
            let mut data = self.ports.data.lock().unwrap_or_else(PoisonError::into_inner);
            self.core.step(&mut data, input, &mut effects);
        }
        for effect in effects {
            self.apply(cx, effect);
        }
    }

    fn apply(&self, cx: &Cx<MembershipAgentMsg>, effect: Effect) {
        match effect {
            Effect::Request(request) => {
                let (agent, me) = (self.ports.agent.clone(), cx.me().clone());
                cx.spawn(async move {
                    let make = |reply| AgentMsg::RequestMembership { request, reply };
                    let answer = agent.ask(MEMBERSHIP_ANSWER_TIMEOUT, make).await;
                    let _stopping = me.tell(MembershipAgentMsg::Answered(answer.unwrap_or_else(|e| Err(e.into()))));
                });
            }
            Effect::AskAfter(pause) => cx.after(pause, MembershipAgentMsg::Ask),
            Effect::Empty => self.empty(cx),
            Effect::ShowTrouble(trouble) => {
                self.ports.trouble.send_if_modified(|published| {
                    let differs = *published != trouble;
                    *published = trouble;
                    differs
                });
            }
            Effect::ReportIncompatible(why) => (self.ports.report_incompatible)(&why),
            Effect::Log { text, warn: true } => warn!("{text}"),
            Effect::Log { text, warn: false } => info!("{text}"),
            Effect::Restored => info!("Raft data restored"),
        }
    }

    /// Stops the Raft member, wipes its data and restarts it on an empty state. It must not resume the old member id: a replaced
    /// leader that has not noticed may still talk to that id.
    fn empty(&self, cx: &Cx<MembershipAgentMsg>) {
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
                let write = move || memory.update(|node| node.held_member_id = Some(held));
                if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
                    warn!(%error, "cannot record the Raft member id");
                }
                written = Some(held);
            }
        });
    }

    /// Follows the Raft member's id, its leader, and whether it was sent something it cannot read.
    fn watch_member(&self, cx: &Cx<MembershipAgentMsg>) {
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
        let (me, mut incompatible) = (cx.me().clone(), self.ports.incompatible.clone());
        cx.spawn(async move {
            // Only a newer build could have written this snapshot: the leader knows whether one exists.
            if incompatible.wait_for(Option::is_some).await.is_ok() {
                let _stopping = me.tell(MembershipAgentMsg::NoLeader);
            }
        });
        let (me, mut replica) = (cx.me().clone(), self.ports.replica.clone());
        cx.spawn(async move {
            while replica.wait_for(|r| is_without_leader(&r.raft)).await.is_ok() {
                let back = replica.wait_for(|r| has_leader(&r.raft));
                let still_no_leader = tokio::time::timeout(NO_LEADER_TIMEOUT, back).await.is_err();
                if still_no_leader && me.tell(MembershipAgentMsg::NoLeader).is_err() {
                    return;
                }
            }
        });
    }
}

impl Shell for MembershipAgent {
    type Msg = MembershipAgentMsg;
    const KIND: &'static str = "MembershipAgent";

    async fn started(&mut self, cx: &Cx<MembershipAgentMsg>) -> Result<(), Fault> {
        match self.data() {
            RaftData::Missing { held } => {
                warn!("raft_data_missing: the data of Raft member {held} is missing; requesting a new Raft member id");
            }
            RaftData::Damaged { file, why, .. } => {
                warn!("raft_data_damaged: {file} is damaged: {why}; requesting a new Raft member id");
            }
            RaftData::None | RaftData::Present => {}
        }
        self.watch_member(cx);
        self.record_member_ids(cx);
        self.step(cx, Input::Started);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<MembershipAgentMsg>, msg: MembershipAgentMsg) -> Result<(), Fault> {
        let input = match msg {
            MembershipAgentMsg::Ask => Input::AskDue,
            MembershipAgentMsg::NoLeader => Input::NoLeader,
            MembershipAgentMsg::Answered(answer) => {
                let member_id = self.ports.replica.borrow().raft.raft_id;
                Input::Answered { answer, member_id }
            }
            MembershipAgentMsg::Holds(holds) => Input::Holds(holds),
            MembershipAgentMsg::Emptied(Ok(())) => Input::Emptied,
            MembershipAgentMsg::Emptied(Err(why)) => {
                return Err(Fault::new(format!("cannot empty the Raft data: {why}")));
            }
        };
        self.step(cx, input);
        Ok(())
    }

    fn view(&self) -> Value {
        json!({
            "holds": self.core.holds(), "assigned": self.core.assigned(), "waiting": self.core.waiting(),
            "data": self.data().to_string(),
        })
    }
}

#[cfg(test)]
#[path = "membership_tests.rs"]
mod tests;
