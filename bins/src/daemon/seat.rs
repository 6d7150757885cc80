//! SeatKeeper: gets this manager its Raft seat and keeps it right.
//!
//! Hears  the local copy; the answers to its requests.     Says  `RequestSeat` through the agent's session.
//! Keeps  SEAT-1  a manager whose Raft data is missing or damaged never reuses its seat: it asks for a new one, and the
//!                old one is removed first.
//! A manager asks once after each start, also with its data in place: its address may have changed, or its seat may be
//! gone. It asks again when it has followed nobody for a while: its seat may have been taken, or replaced, while it was
//! cut off, and then nobody speaks to the old one any more. What it waits for is in the log, once per change; what only
//! somebody at this machine can mend (lost data, an address that nobody can dial) is in this node's own `status` as well.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_agent::NodeMemory;
use muster_kernel::{Children, Cx, Fault, Recipient, Shell};
use muster_messages::protocol::{AgentMsg, Named};
use muster_messages::wire::{DataLoss, SeatReply, SeatRequest};
use muster_messages::{ErrorBody, ErrorCode, RaftId, Replica, WaitReason, word};
use muster_raft_member::{Outgrown, disk};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use super::boot::RaftData;
use super::feature_level::Outgrow;

/// How long one request may take; the leader may be dialling back or waiting for a quorum.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Following nobody for this long is no election any more. Without a quorum everybody asks in vain, which costs nothing.
const ALONE: Duration = Duration::from_secs(5);
/// Between requests that failed for lack of a session or a leader: quick at first, a joining manager waits for it.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What the keeper hears.
pub enum SeatMsg {
    Ask,
    /// The raft member has followed nobody for a while, or was sent what it cannot read.
    Alone,
    Answered(Result<SeatReply, ErrorBody>),
    /// The raft member has this seat.
    Holds(Option<RaftId>),
    /// The old data is out of the way and the raft member runs on an empty copy.
    Emptied(Result<(), String>),
}
impl Named for SeatMsg {
    fn name(&self) -> &'static str {
        match self {
            SeatMsg::Ask => "ask",
            SeatMsg::Alone => "alone",
            SeatMsg::Answered(_) => "answered",
            SeatMsg::Holds(_) => "holds",
            SeatMsg::Emptied(_) => "emptied",
        }
    }
}

/// What the keeper is wired to.
#[derive(Clone)]
pub struct SeatPorts {
    pub agent: Recipient<AgentMsg>,
    pub replica: watch::Receiver<Arc<Replica>>,
    /// The raft member was sent what it cannot read.
    pub outgrown: watch::Receiver<Option<Outgrown>>,
    /// Its siblings, of which `raft-member` is one.
    pub group: Children,
    pub raft_dir: PathBuf,
    pub memory: NodeMemory,
    /// What became of this node's Raft data, as everybody on it knows it.
    pub data: Arc<Mutex<RaftData>>,
    /// For `status`, while the data is lost or nobody can dial this manager.
    pub trouble: Arc<watch::Sender<Option<String>>>,
    /// Where others reach this manager.
    pub advertise: String,
    /// What this build speaks at most.
    pub feature_level: u32,
    pub outgrow: Outgrow,
}

/// The keeper's shell.
pub struct SeatKeeper {
    ports: SeatPorts,
    pause: Duration,
    holds: Option<RaftId>,
    seated: Option<RaftId>,
    /// The data of this seat has been emptied; the raft member may not have said so yet.
    emptied: Option<RaftId>,
    /// A request is on its way, or will be.
    asking: bool,
    said: String,
    /// The last dial-back failed, and how.
    unreachable: Option<String>,
}

impl SeatKeeper {
    pub fn new(ports: SeatPorts) -> Self {
        let (pause, holds, seated, emptied) = (FIRST_PAUSE, None, None, None);
        Self { ports, pause, holds, seated, emptied, asking: true, said: String::new(), unreachable: None }
    }

    fn data(&self) -> RaftData {
        self.ports.data.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn request(&self) -> SeatRequest {
        let (held, data_lost) = match self.data() {
            RaftData::None | RaftData::Present => (self.holds, None),
            // The loss is known and made good: of the seat given since, nothing is lost.
            RaftData::Missing { held } | RaftData::Damaged { held: Some(held), .. } if self.seated > Some(held) => {
                (self.holds, None)
            }
            RaftData::Missing { held } => {
                let file = self.ports.raft_dir.display().to_string();
                (Some(held), Some(DataLoss { damaged: false, file }))
            }
            RaftData::Damaged { held, file, .. } => (held, Some(DataLoss { damaged: true, file })),
        };
        let SeatPorts { advertise, feature_level, .. } = &self.ports;
        SeatRequest { advertise: advertise.clone(), held, data_lost, feature_level: *feature_level }
    }

    /// One line per change, to whoever looks at why a manager is not there yet.
    fn say(&mut self, text: String) {
        if self.said != text {
            match self.unreachable {
                Some(_) => warn!("{text}"),
                None => info!("{text}"),
            }
            self.said = text;
        }
    }

    /// Whether the leader found this manager where it says it is: a matter for whoever looks after this machine.
    fn dialled(&mut self, failure: Option<&str>) {
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
        self.ports.trouble.send_if_modified(|shown| {
            let differs = *shown != trouble;
            *shown = trouble;
            differs
        });
    }

    fn again(&mut self, cx: &Cx<SeatMsg>, pause: Duration) {
        cx.after(pause, SeatMsg::Ask);
        self.pause = (self.pause.mul_f64(1.5)).min(LONGEST_PAUSE);
    }

    fn answered(&mut self, cx: &Cx<SeatMsg>, answer: Result<SeatReply, ErrorBody>) {
        match answer {
            Ok(SeatReply::Seated { raft_id }) => {
                self.pause = FIRST_PAUSE;
                self.asking = false;
                self.seated = Some(raft_id);
                self.dialled(None);
                self.say(format!("this manager has raft seat {raft_id}"));
                // The member may have been told by the leader itself: its news is behind this answer then.
                let holds = self.ports.replica.borrow().raft.raft_id;
                match holds {
                    // Another seat than the data on disk is of: that data is worthless now.
                    Some(old) if old != raft_id && holds == self.holds && self.is_there(old) => self.empty(cx, old),
                    _ => self.settle(),
                }
                if holds != Some(raft_id) {
                    self.asking = true;
                    // Given, but the leader has not spoken to it yet. Should it be taken away before it does (the
                    // leader gives up on a silent learner), nothing here would change: look again.
                    self.again(cx, LONGEST_PAUSE);
                }
            }
            Ok(SeatReply::Wait { reason, message, retry_after_ms }) => {
                // Any other reason is somebody else's to mend, and says nothing about the address.
                if reason == WaitReason::DialBackFailed {
                    self.dialled(Some(&message));
                }
                self.say(format!("waiting for a raft seat: {}: {message}", word(reason)));
                let pause = Duration::from_millis(retry_after_ms).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                self.again(cx, pause);
            }
            Ok(SeatReply::NotWanted { message }) => {
                // The agent hears the same from its view and will stop this half; until then there is nothing to do.
                self.say(format!("this node is not wanted as a manager: {message}"));
                self.again(cx, LONGEST_PAUSE);
            }
            // Whatever is asked again, the answer stays: the level never falls.
            Err(error) if error.code == ErrorCode::GateClosed => (self.ports.outgrow)(&error.message),
            Err(error) => {
                self.say(format!("cannot ask for a raft seat yet: {error}"));
                let pause = self.pause;
                self.again(cx, pause);
            }
        }
    }

    /// The raft member runs on the data of this seat. An earlier incarnation may have given it up and not got to
    /// emptying it.
    fn is_there(&self, seat: RaftId) -> bool {
        let data = self.data();
        self.emptied != Some(seat) && (data == RaftData::Present || data == RaftData::Missing { held: seat })
    }

    /// Data loss is over once the new seat holds data.
    fn settle(&mut self) {
        let mut data = self.ports.data.lock().unwrap_or_else(PoisonError::into_inner);
        if self.holds.is_some() && self.holds == self.seated && *data != RaftData::Present {
            let before = std::mem::replace(&mut *data, RaftData::Present);
            drop(data);
            self.show_trouble();
            if before != RaftData::None {
                info!("the raft data is back");
            }
        }
    }

    /// Stops the raft member, wipes its data, starts it again on an empty copy, which does not take the old seat up
    /// again: a leader that was replaced and does not know it may still talk to that one.
    fn empty(&mut self, cx: &Cx<SeatMsg>, old: RaftId) {
        *self.ports.data.lock().unwrap_or_else(PoisonError::into_inner) = RaftData::Missing { held: old };
        self.say("this seat's data is of an older seat: starting from an empty copy".to_owned());
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
            let _stopping = me.tell(SeatMsg::Emptied(result));
        });
    }

    /// Writes down each seat that the raft member has: the newest, one at a time, however long the disk takes.
    fn remember(&self, cx: &Cx<SeatMsg>) {
        let (memory, mut replica) = (self.ports.memory.clone(), self.ports.replica.clone());
        cx.spawn(async move {
            let mut written = None;
            loop {
                let news = replica.wait_for(|r| r.raft.raft_id.is_some_and(|held| written != Some(held))).await;
                let Some(held) = news.ok().and_then(|copy| copy.raft.raft_id) else { return };
                let memory = memory.clone();
                let write = move || memory.update(|node| node.held_seat = Some(held));
                if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
                    warn!(%error, "cannot remember the raft seat");
                }
                written = Some(held);
            }
        });
    }
}

impl Shell for SeatKeeper {
    type Msg = SeatMsg;
    const KIND: &'static str = "SeatKeeper";

    async fn started(&mut self, cx: &Cx<SeatMsg>) -> Result<(), Fault> {
        let trouble = match self.data() {
            RaftData::Missing { held } => {
                Some(("raft_data_missing", format!("the data of raft seat {held} is missing")))
            }
            RaftData::Damaged { file, why, .. } => Some(("raft_data_damaged", format!("{file} is damaged: {why}"))),
            RaftData::None | RaftData::Present => None,
        };
        if let Some((word, text)) = trouble {
            warn!("{word}: {text}; asking for a new raft seat");
        }
        // Also what an earlier incarnation has shown and is not so any more.
        self.show_trouble();
        let (me, mut replica) = (cx.me().clone(), self.ports.replica.clone());
        cx.spawn(async move {
            loop {
                let holds = replica.borrow_and_update().raft.raft_id;
                if me.tell(SeatMsg::Holds(holds)).is_err() {
                    return;
                }
                // Only another seat is news.
                if replica.wait_for(|r| r.raft.raft_id != holds).await.is_err() {
                    return;
                }
            }
        });
        self.remember(cx);
        let (me, mut outgrown) = (cx.me().clone(), self.ports.outgrown.clone());
        cx.spawn(async move {
            // A snapshot that only a newer build could have written: the leader knows whether there is one.
            if outgrown.wait_for(Option::is_some).await.is_ok() {
                let _stopping = me.tell(SeatMsg::Alone);
            }
        });
        let (me, mut replica) = (cx.me().clone(), self.ports.replica.clone());
        cx.spawn(async move {
            while replica.wait_for(|r| r.raft.raft_id.is_some() && r.raft.leader.is_none()).await.is_ok() {
                let back = replica.wait_for(|r| r.raft.leader.is_some());
                let still_alone = tokio::time::timeout(ALONE, back).await.is_err();
                if still_alone && me.tell(SeatMsg::Alone).is_err() {
                    return;
                }
            }
        });
        cx.after(Duration::ZERO, SeatMsg::Ask);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<SeatMsg>, msg: SeatMsg) -> Result<(), Fault> {
        match msg {
            SeatMsg::Ask => {
                let (agent, request, me) = (self.ports.agent.clone(), self.request(), cx.me().clone());
                cx.spawn(async move {
                    let asked = agent.ask(ASK_LIMIT, |reply| AgentMsg::RequestSeat { request, reply }).await;
                    let _stopping = me.tell(SeatMsg::Answered(asked.unwrap_or_else(|e| Err(e.into()))));
                });
            }
            SeatMsg::Answered(answer) => self.answered(cx, answer),
            SeatMsg::Alone if self.asking => {}
            SeatMsg::Alone => {
                self.asking = true;
                cx.after(Duration::ZERO, SeatMsg::Ask);
            }
            SeatMsg::Holds(holds) => {
                let lost_it = self.holds.is_some() && holds.is_none();
                self.holds = holds;
                match holds {
                    Some(_) => self.settle(),
                    // The seat was removed under us: a new one is needed, if we are still wanted.
                    None if lost_it => {
                        self.asking = true;
                        cx.after(FIRST_PAUSE, SeatMsg::Ask);
                    }
                    None => {}
                }
            }
            SeatMsg::Emptied(result) => {
                if let Err(why) = result {
                    return Err(Fault::new(format!("cannot empty the raft data: {why}")));
                }
                cx.after(FIRST_PAUSE, SeatMsg::Ask);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        json!({"holds": self.holds, "seated": self.seated, "waiting": self.said, "data": format!("{:?}", self.data())})
    }
}

#[cfg(test)]
mod tests;
