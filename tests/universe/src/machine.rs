//! A machine: its process with the agent half and, while its certificate says so, the manager half; its disk; its clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_agent::NodeTrouble;
use muster_agent::core as agent;
use muster_cert_authority::core as authority;
use muster_messages::{CertIdentity, Moment, Name, NodeId, RaftId, RequestId, Revision, Role, Term, WallTime};
use muster_raft_member::core::RaftCore;
use muster_role_manager::core as roles;
use muster_sessions::core::dispatcher;
use muster_store::History;

use muster_elections::core::keeper::ReadId;

use crate::blocks::Blocks;
use crate::candidates::{Asked, Clock};
use crate::clients::{OpNumber, Try};
use crate::disk::Disk;
use crate::fleet;
use crate::hosts::Hosts;
use crate::model::Floor;
use crate::registers;

/// A machine's place in the universe.
pub type Place = usize;

/// See the module.
pub struct Machine {
    pub id: NodeId,
    pub name: Name,
    pub addr: String,
    pub up: bool,
    /// The process of now. Whatever belongs to an earlier one is ignored.
    pub life: u32,
    /// It is frozen until then: nothing happens in it, everything waits for it.
    pub thaws: Option<Moment>,
    /// A monotonic clock starts anywhere, and anew with each process; wall clocks differ.
    pub clock: u64,
    /// How much faster than the universe's it runs, in millionths.
    pub rate: i64,
    pub wall_skew: i64,
    pub disk: Disk,
    pub agent: Agent,
    pub half: Option<Half>,
    /// Since when its member could not be heard, for whatever reason of its own.
    pub silent_since: Option<Moment>,
    /// It refuses larger snapshots.
    pub takes_at_most: Option<u64>,
    /// It was lost in a disaster, and does not come back by itself.
    pub gone: bool,
    /// The cluster that was restored here is closed until then.
    pub closed_until: Moment,
}

/// The agent half: its core, and what its disk keeps for the next one.
#[derive(Clone, Debug)]
pub struct Agent {
    /// `None`: it has not joined yet, or its process is down.
    pub core: Option<agent::Agent>,
    /// `None`: it has not joined yet.
    pub certificate: Option<CertIdentity>,
    pub issued_at: WallTime,
    /// Those before it, the newest last, and it.
    pub former: Vec<CertIdentity>,
    /// The serial of the certificate that was called demoted.
    pub told_demoted: Option<String>,
    /// Out for good.
    pub ended: Option<NodeTrouble>,
    /// The managers it remembers.
    pub known: Vec<String>,
    /// Whether the manager half should run, as the core says.
    pub wanted: bool,
    pub wakes: Option<Moment>,
    /// The request to join that is on its way, and when it counts as lost.
    pub asking: Option<(u64, Moment)>,
    /// For the join request, which is repeated under one id.
    pub joins_as: Role,
    pub request: RequestId,
}

/// The manager half.
pub struct Half {
    pub number: u32,
    pub core: RaftCore,
    pub asks: BTreeMap<u64, Asker>,
    pub keeper: Keeper,
    pub leader: Option<Leader>,
    pub hosts: Hosts,
    pub blocks: Blocks,
    /// A look of the leader's actors at the newest copy is scheduled.
    pub look_due: bool,
    /// A turn of the core is due.
    pub turn_due: bool,
    /// The copy as it was last checked.
    pub checked: Revision,
    /// Since when it follows nobody.
    pub alone_since: Option<Moment>,
    /// What watchers are told.
    pub history: History,
}

/// Gets this manager its seat, as the daemon's seat keeper does.
#[derive(Clone, Debug, Default)]
pub struct Keeper {
    pub holds: Option<RaftId>,
    pub seated: Option<RaftId>,
    pub pause: Duration,
    /// The question on its way.
    pub asking: Option<u64>,
}

/// What runs only while this member leads.
pub struct Leader {
    pub term: Term,
    pub slot: Option<roles::Checkpoint>,
    /// The copy that its actors were shown last.
    pub shown: Revision,
    pub roles: Option<Roles>,
    pub authority: Option<Authority>,
    pub dispatch: Option<Dispatch>,
    pub clock: Option<Clock>,
}

pub struct Dispatch {
    pub incarnation: u32,
    pub core: dispatcher::Dispatcher,
    pub wakes: Option<Moment>,
}

pub struct Roles {
    pub incarnation: u32,
    pub core: roles::RoleManager,
    pub asks: BTreeMap<roles::AskId, RoleAsker>,
    /// It crashes in the middle of its next step.
    pub doomed: bool,
    /// When each reachability check in progress began.
    pub checks: BTreeMap<roles::StepId, Moment>,
    /// When the last reachability check to end began.
    pub checked_since: Option<Moment>,
}

pub struct Authority {
    pub incarnation: u32,
    pub core: authority::CertAuthority,
    /// Who asks, and for which node.
    pub asks: BTreeMap<authority::AskId, (Caller, Option<NodeId>)>,
}

/// A machine that asked, and which of its questions it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub place: Place,
    pub life: u32,
    pub ask: u64,
}

/// Who waits for an answer of the role manager.
pub enum RoleAsker {
    Operator { op: OpNumber, attempt: u32 },
    Seat(Caller),
}

/// Who waits for an answer of the raft member.
pub enum Asker {
    Writer(Try),
    Reader(Box<Floor>),
    RoleStep {
        incarnation: u32,
        step: roles::StepId,
    },
    Transfer {
        incarnation: u32,
        step: roles::StepId,
    },
    Reachability {
        incarnation: u32,
        step: roles::StepId,
    },
    Authority {
        incarnation: u32,
        step: authority::StepId,
    },
    Candidate(Asked),
    Register(Box<registers::Asked>),
    Fleet(Box<fleet::Asked>),
    /// One object of a wave.
    FleetWrite {
        wave: u64,
    },
    Dispatch {
        incarnation: u32,
        batch: dispatcher::BatchId,
    },
    ClockRead {
        incarnation: u32,
        read: ReadId,
    },
    Sweep {
        incarnation: u32,
    },
    Expiry {
        incarnation: u32,
        request: RequestId,
    },
    /// A write that is repeated long after its end.
    Late,
    /// Nobody in particular: founding, liveness, outdated commands.
    House,
}

/// So long on a clock of this rate, as the universe's time; rounded up.
pub fn on_a_clock(rate: i64, time: u64) -> u64 {
    let per_million = i128::from(1_000_000 + rate);
    ((i128::from(time) * 1_000_000 + per_million - 1) / per_million) as u64
}

impl Machine {
    /// What its monotonic clock shows then.
    pub fn shows(&self, now: Moment) -> Moment {
        let passed = i128::from(now.0) * i128::from(1_000_000 + self.rate) / 1_000_000;
        Moment(self.clock + passed as u64)
    }
    /// When its clock shows this.
    pub fn when(&self, at: Moment) -> Moment {
        Moment(on_a_clock(self.rate, at.0.saturating_sub(self.clock)))
    }
    pub fn runs(&self) -> bool {
        self.up && self.thaws.is_none()
    }
    /// Its process, but never its disk, is shown to others.
    pub fn half(&self, number: u32) -> Option<&Half> {
        self.half.as_ref().filter(|h| h.number == number)
    }
    pub fn half_mut(&mut self, number: u32) -> Option<&mut Half> {
        self.half.as_mut().filter(|h| h.number == number)
    }
    /// The seat that its member holds.
    pub fn seat(&self) -> Option<RaftId> {
        self.half.as_ref()?.core.replica().raft.raft_id
    }
    pub fn certified(&self) -> Option<Role> {
        Some(self.agent.certificate.as_ref()?.node()?.1)
    }
    pub fn wants_half(&self) -> bool {
        self.up && self.agent.wanted
    }
}
