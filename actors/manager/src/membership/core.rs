//! The decisions of the membership agent. Pure: time, the local replica and the disk are the shell's.
//!
//! Owns        the member id that the Raft member holds, the one that the leader assigned last, the request in progress.
//! Inputs      `Input`; the member's Raft status.
//! Outputs     `Effect`; whether, and for how long, it may be without a leader.
//! Invariants  MEMBERID-1  a manager whose Raft data is missing or damaged never reuses its member id: it requests a new one, and
//!                     the old member is removed first.

use std::time::Duration;

use muster_messages::wire::{DataLoss, MembershipReply, MembershipRequest};
use muster_messages::{ErrorBody, ErrorCode, RaftId, RaftStatus, Trouble, WaitReason, word};

use crate::RaftData;

/// Pauses between requests that failed for lack of a session or a leader: short at first, for a joining manager waits
/// for them, and at most about as long as an election, after which the next one succeeds.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// How long a member is without a leader before this manager asks about its membership. Longer than an election. Without a quorum every
/// manager asks in vain, which costs nothing.
pub const NO_LEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this manager is a member without a leader. Without a member id it asks for one anyway.
pub fn is_without_leader(raft: &RaftStatus) -> bool {
    raft.raft_id.is_some() && !has_leader(raft)
}

/// Whether a time without a leader is over.
pub fn has_leader(raft: &RaftStatus) -> bool {
    raft.leader.is_some()
}

/// What this manager says of itself in each request.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where other nodes reach this manager.
    pub advertise: String,
    /// The highest level that this build supports.
    pub feature_level: u32,
    /// The folder of the Raft data, for people.
    pub raft_dir: String,
}

#[derive(Clone, Debug)]
pub enum Input {
    /// The actor started; an earlier incarnation may have published what is no longer true.
    Started,
    /// The pause is over.
    AskDue,
    /// The Raft member has had no leader for a while, or was sent something it cannot read.
    NoLeader,
    /// `member_id`: the id that the local replica shows now.
    Answered { answer: Result<MembershipReply, ErrorBody>, member_id: Option<RaftId> },
    /// The Raft member's id changed to this.
    Holds(Option<RaftId>),
    /// The old data is out of the way, and the Raft member restarts on an empty state.
    Emptied,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this request; its end is [`Input::Answered`].
    Request(MembershipRequest),
    /// [`Input::AskDue`] after this pause.
    AskAfter(Duration),
    /// Stop the Raft member, wipe its data and restart it on an empty state; then [`Input::Emptied`].
    Empty,
    /// For `status`: what only an operator of this machine can repair.
    ShowTrouble(Option<Trouble>),
    /// The cluster's feature level is too high for this build. Final: the level never falls.
    ReportIncompatible(String),
    /// Why this manager is no member yet, or that it is one. `warn`: an operator of this machine must act.
    Log { text: String, warn: bool },
    /// The data that was lost is replaced.
    Restored,
}

#[derive(Debug)]
pub struct MembershipCore {
    config: Config,
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

impl MembershipCore {
    pub fn new(config: Config) -> Self {
        let (pause, holds, assigned, emptied) = (FIRST_PAUSE, None, None, None);
        Self { config, pause, holds, assigned, emptied, asking: true, last_logged: String::new(), unreachable: None }
    }

    /// The member id that the Raft member holds.
    pub fn holds(&self) -> Option<RaftId> {
        self.holds
    }
    /// The member id that the leader assigned last.
    pub fn assigned(&self) -> Option<RaftId> {
        self.assigned
    }
    /// What it waits for.
    pub fn waiting(&self) -> &str {
        &self.last_logged
    }

    /// `data`: the state of this node's Raft data, which other actors of the manager runtime change as well.
    pub fn step(&mut self, data: &mut RaftData, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Started => {
                self.show_trouble(data, out);
                out.push(Effect::AskAfter(Duration::ZERO));
            }
            Input::AskDue => out.push(Effect::Request(self.request(data))),
            Input::NoLeader => {
                if !self.asking {
                    self.asking = true;
                    out.push(Effect::AskAfter(Duration::ZERO));
                }
            }
            Input::Answered { answer, member_id } => self.answered(data, answer, member_id, out),
            Input::Holds(holds) => self.holds_now(data, holds, out),
            Input::Emptied => out.push(Effect::AskAfter(FIRST_PAUSE)),
        }
    }

    fn request(&self, data: &RaftData) -> MembershipRequest {
        let (held, data_lost) = match data {
            RaftData::None | RaftData::Present => (self.holds, None),
            // The loss is repaired: the member id assigned since has lost nothing.
            RaftData::Missing { held } | RaftData::Damaged { held: Some(held), .. } if self.assigned > Some(*held) => {
                (self.holds, None)
            }
            RaftData::Missing { held } => {
                (Some(*held), Some(DataLoss { damaged: false, file: self.config.raft_dir.clone() }))
            }
            RaftData::Damaged { held, file, .. } => (*held, Some(DataLoss { damaged: true, file: file.clone() })),
        };
        let Config { advertise, feature_level, .. } = &self.config;
        MembershipRequest { advertise: advertise.clone(), held, data_lost, feature_level: *feature_level }
    }

    fn answered(
        &mut self,
        data: &mut RaftData,
        answer: Result<MembershipReply, ErrorBody>,
        member_id: Option<RaftId>,
        out: &mut Vec<Effect>,
    ) {
        match answer {
            // The request was sent before the data was lost: nothing has replaced the lost member yet.
            Ok(MembershipReply::IsMember { raft_id }) if data.lost_member() == Some(raft_id) => {
                self.asking = true;
                self.log(format!("the data of Raft member {raft_id} is lost: requesting a new Raft member id"), out);
                self.ask_after(self.pause, out);
            }
            Ok(MembershipReply::IsMember { raft_id }) => {
                self.pause = FIRST_PAUSE;
                self.asking = false;
                self.assigned = Some(raft_id);
                self.record_dial_back(data, None, out);
                self.log(format!("this manager is Raft member {raft_id}"), out);
                // The leader may have informed the member itself: the replica is then ahead of this answer.
                match member_id {
                    // The data on disk belongs to another member id and is worthless.
                    Some(old) if old != raft_id && member_id == self.holds && self.has_data_of(data, old) => {
                        *data = RaftData::Missing { held: old };
                        let text = "the Raft data belongs to an older member id: starting from an empty state";
                        self.log(text.to_owned(), out);
                        self.emptied = Some(old);
                        out.push(Effect::Empty);
                    }
                    _ => self.settle(data, out),
                }
                if member_id != Some(raft_id) {
                    self.asking = true;
                    // The id is assigned, but the leader has not contacted this member yet. The leader removes a silent learner;
                    // nothing would change here then, so ask again later.
                    self.ask_after(MAX_PAUSE, out);
                }
            }
            Ok(MembershipReply::Wait { reason, message, retry_after_ms }) => {
                // Any other reason is not for this machine to repair, and says nothing about the address.
                if reason == WaitReason::DialBackFailed {
                    self.record_dial_back(data, Some(&message), out);
                }
                self.log(format!("waiting to become a Raft member: {}: {message}", word(reason)), out);
                self.ask_after(Duration::from_millis(retry_after_ms).clamp(FIRST_PAUSE, MAX_PAUSE), out);
            }
            Ok(MembershipReply::NotWanted { message }) => {
                // The agent learns the same from its view and will stop the manager runtime; until then there is nothing to do.
                self.log(format!("Raft membership request denied: {message}"), out);
                self.ask_after(MAX_PAUSE, out);
            }
            Err(error) if error.code == ErrorCode::GateClosed => out.push(Effect::ReportIncompatible(error.message)),
            Err(error) => {
                self.log(format!("cannot request Raft membership yet: {error}"), out);
                self.ask_after(self.pause, out);
            }
        }
    }

    fn holds_now(&mut self, data: &mut RaftData, holds: Option<RaftId>, out: &mut Vec<Effect>) {
        let was_removed = self.holds.is_some() && holds.is_none();
        self.holds = holds;
        match holds {
            Some(_) => self.settle(data, out),
            // The member was removed: a new id is needed if this node is still to be a manager.
            None if was_removed => {
                self.asking = true;
                out.push(Effect::AskAfter(FIRST_PAUSE));
            }
            None => {}
        }
    }

    /// The Raft member runs on this id's data. An earlier incarnation may have given the id up and crashed before emptying the
    /// data.
    fn has_data_of(&self, data: &RaftData, member_id: RaftId) -> bool {
        self.emptied != Some(member_id)
            && (*data == RaftData::Present || *data == RaftData::Missing { held: member_id })
    }

    /// The data loss is over once a newer member has data (MEMBERID-1). That this node holds the lost id may have been published before
    /// the loss.
    fn settle(&mut self, data: &mut RaftData, out: &mut Vec<Effect>) {
        let is_newer = data.lost_member().is_none_or(|lost| self.holds > Some(lost));
        if self.holds.is_some() && self.holds == self.assigned && *data != RaftData::Present && is_newer {
            let before = std::mem::replace(data, RaftData::Present);
            self.show_trouble(data, out);
            if before != RaftData::None {
                out.push(Effect::Restored);
            }
        }
    }

    fn ask_after(&mut self, pause: Duration, out: &mut Vec<Effect>) {
        out.push(Effect::AskAfter(pause));
        self.pause = (self.pause.mul_f64(1.5)).min(MAX_PAUSE);
    }

    /// Once per change.
    fn log(&mut self, text: String, out: &mut Vec<Effect>) {
        if self.last_logged != text {
            out.push(Effect::Log { text: text.clone(), warn: self.unreachable.is_some() });
            self.last_logged = text;
        }
    }

    /// Whether the leader reached this manager at its advertised address: a matter for this machine's operator.
    fn record_dial_back(&mut self, data: &RaftData, failure: Option<&str>, out: &mut Vec<Effect>) {
        let failure = failure.map(str::to_owned);
        if self.unreachable != failure {
            self.unreachable = failure;
            self.show_trouble(data, out);
        }
    }

    fn show_trouble(&self, data: &RaftData, out: &mut Vec<Effect>) {
        out.push(Effect::ShowTrouble(match data {
            RaftData::Missing { .. } => Some(Trouble::RaftDataMissing),
            RaftData::Damaged { .. } => Some(Trouble::RaftDataDamaged),
            RaftData::None | RaftData::Present => self.unreachable.clone().map(Trouble::DialBackFailed),
        }));
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
