//! A machine: its process with the agent and, while its certificate says so, the manager runtime; its disk; its clocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_agent::NodeTrouble;
use muster_agent::core as agent;
use muster_cert_authority::core as authority;
use muster_messages::{
    CertIdentity, Moment, Name, NodeDoubts, NodeId, RaftId, RequestId, Revision, Role, Tables, Term, WallTime,
};
use muster_raft_member::core::RaftCore;
use muster_role_manager::core as roles;
use muster_root_rotation::core as rotation;
use muster_sessions::core::dispatcher;
use muster_store::History;

use muster_elections::core::keeper::ReadId;

use crate::blocks::Blocks;
use crate::candidates::PendingRequest;
use crate::clients::{ChangeAttempt, WriteAttempt};
use crate::disk::Disk;
use crate::fleet;
use crate::hosts::Hosts;
use crate::keyrings::Keyring;
use crate::lease_clock::Clock;
use crate::model::{Floor, Key};
use crate::registers;
use crate::roots::Trust;
use crate::rotation::RotationAsker;

/// A machine's index in the simulation.
pub type MachineIdx = usize;

/// See the module.
pub struct Machine {
    pub id: NodeId,
    pub name: Name,
    pub addr: String,
    pub up: bool,
    /// The feature level that the build of its current process supports.
    pub build: u32,
    pub started_at: Moment,
    /// The cluster's feature level is too new for this process: no manager runtime starts.
    pub incompatible: bool,
    /// The current process. Events of an earlier one are ignored.
    pub life: u32,
    /// Frozen until then: its events wait.
    pub thaws: Option<Moment>,
    /// When it thawed last.
    pub thawed_at: Option<Moment>,
    /// A monotonic clock starts at a random value with each process; wall clocks differ.
    pub clock: u64,
    /// How much faster than the simulation's clock it runs, in millionths.
    pub rate: i64,
    pub wall_skew: i64,
    pub disk: Disk,
    pub keyring: Keyring,
    pub agent: Agent,
    pub runtime: Option<ManagerRuntime>,
    /// Since when its member is silent for a reason of its own.
    pub silent_since: Option<Moment>,
    /// It refuses larger snapshots.
    pub max_snapshot_bytes: Option<u64>,
    /// Lost in a disaster; it does not restart by itself.
    pub gone: bool,
    /// The cluster restored here is closed until then.
    pub closed_until: Moment,
}

/// The agent: its core and its persistent state.
#[derive(Clone, Debug)]
pub struct Agent {
    /// `None`: not joined yet, or its process is down.
    pub core: Option<agent::Agent>,
    /// `None`: not joined yet.
    pub certificate: Option<CertIdentity>,
    pub issued_at: WallTime,
    /// Earlier certificates and the current one, newest last.
    pub former: Vec<CertIdentity>,
    /// The roots that it trusts, and what its certificate leads to.
    pub trust: Trust,
    /// The serial of the certificate for which a demotion was reported.
    pub demotion_reported: Option<String>,
    /// Permanently out of the cluster.
    pub ended: Option<NodeTrouble>,
    /// The managers that it remembers.
    pub known: Vec<String>,
    /// Whether the manager runtime should run, as the core decides.
    pub wanted: bool,
    pub wakes: Option<Moment>,
    /// The join request in flight, and when it counts as lost.
    pub asking: Option<(u64, Moment)>,
    /// For the join request, which is retried under one id.
    pub joins_as: Role,
    pub request: RequestId,
}

/// The manager runtime.
pub struct ManagerRuntime {
    pub number: u32,
    pub core: RaftCore,
    pub asks: BTreeMap<u64, Asker>,
    pub keeper: Keeper,
    pub leader: Option<Leader>,
    pub hosts: Hosts,
    pub blocks: Blocks,
    /// An observation of the newest replica by the leader's actors is scheduled.
    pub observe_due: bool,
    /// A step of the core is due.
    pub step_due: bool,
    /// The revision that its data had at its start.
    pub opened_at: Revision,
    /// The revision checked last.
    pub checked: Revision,
    /// Since when it has no leader.
    pub leaderless_since: Option<Moment>,
    /// History for watchers.
    pub history: History,
}

/// Obtains this manager's membership, as the daemon's membership agent does.
#[derive(Clone, Debug, Default)]
pub struct Keeper {
    pub holds: Option<RaftId>,
    pub assigned: Option<RaftId>,
    pub pause: Duration,
    /// The question in flight.
    pub asking: Option<u64>,
}

/// Actors that run only while this member leads.
pub struct Leader {
    pub term: Term,
    pub slot: Option<roles::Checkpoint>,
    /// The revisions that its actors observed last: of the replica, and of the cluster's.
    pub shown: (Revision, Revision),
    pub roles: Option<Roles>,
    pub authority: Option<Authority>,
    pub rotation: Option<Rotation>,
    pub dispatch: Option<Dispatch>,
    pub clock: Option<Clock>,
    pub autopilot: Option<Autopilot>,
    /// What the dispatcher published last.
    pub doubts: Arc<NodeDoubts>,
    /// Both clocks when the term began.
    pub since: muster_autopilot::core::Now,
}

pub struct Autopilot {
    pub incarnation: u32,
    pub core: muster_autopilot::core::Core,
    /// It crashes during its next step that asks something.
    pub doomed: bool,
    pub wakes: Option<Moment>,
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
    /// It crashes during its next step.
    pub doomed: bool,
}

pub struct Authority {
    pub incarnation: u32,
    pub core: authority::CertAuthority,
    /// The caller, and the node that it asks for.
    pub asks: BTreeMap<authority::AskId, (Caller, Option<NodeId>)>,
}

pub struct Rotation {
    pub incarnation: u32,
    pub core: rotation::RootRotation,
    pub asks: BTreeMap<rotation::AskId, RotationAsker>,
    /// The replica that was compared last.
    pub shown: Option<Tables>,
    /// Revisions that it waits for.
    pub catching_up: Vec<Revision>,
}

/// A machine and the number of its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub idx: MachineIdx,
    pub life: u32,
    pub ask: u64,
}

impl Caller {
    /// The `life` in an adversary's requests. A machine never reaches it.
    pub const ADVERSARY: u32 = u32::MAX;
}

/// The requester of a role manager's answer.
pub enum RoleAsker {
    Operator(ChangeAttempt),
    Membership(Caller),
    Autopilot { incarnation: u32 },
}

/// The requester of a Raft member's answer.
pub enum Asker {
    /// The key and the number that the attempt writes.
    Writer(WriteAttempt, Key, u64),
    Reader(Box<Floor>),
    RoleStep {
        incarnation: u32,
        step: roles::StepId,
    },
    Transfer {
        incarnation: u32,
        step: roles::StepId,
    },
    RevocationCheck {
        incarnation: u32,
        step: rotation::StepId,
    },
    Reachability {
        incarnation: u32,
        step: roles::StepId,
    },
    Authority {
        incarnation: u32,
        step: authority::StepId,
    },
    Rotation {
        incarnation: u32,
        step: rotation::StepId,
    },
    Autopilot {
        incarnation: u32,
    },
    AutopilotTransfer {
        incarnation: u32,
    },
    Candidate(PendingRequest),
    Register(Box<registers::PendingRequest>),
    Fleet(Box<fleet::PendingRequest>),
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
    /// A report of a keyring.
    Seal(Caller),
    /// A write repeated long after its end.
    Late,
    /// The simulation itself: founding, liveness, outdated commands.
    Internal,
}

/// The simulation time that corresponds to this time on a clock of this rate; rounded up.
pub fn on_a_clock(rate: i64, time: u64) -> u64 {
    let per_million = i128::from(1_000_000 + rate);
    ((i128::from(time) * 1_000_000 + per_million - 1) / per_million) as u64
}

impl Machine {
    /// The reading of its monotonic clock at this time.
    pub fn clock_reading(&self, now: Moment) -> Moment {
        let passed = i128::from(now.0) * i128::from(1_000_000 + self.rate) / 1_000_000;
        Moment(self.clock + passed as u64)
    }
    /// When its clock shows this reading.
    pub fn virtual_time_of(&self, at: Moment) -> Moment {
        Moment(on_a_clock(self.rate, at.0.saturating_sub(self.clock)))
    }
    pub fn runs(&self) -> bool {
        self.up && self.thaws.is_none()
    }
    /// The manager runtime with this number, if it still runs.
    pub fn runtime(&self, number: u32) -> Option<&ManagerRuntime> {
        self.runtime.as_ref().filter(|h| h.number == number)
    }
    pub fn runtime_mut(&mut self, number: u32) -> Option<&mut ManagerRuntime> {
        self.runtime.as_mut().filter(|h| h.number == number)
    }
    /// The member id that its member holds.
    pub fn member_id(&self) -> Option<RaftId> {
        self.runtime.as_ref()?.core.replica().raft.raft_id
    }
    pub fn certified(&self) -> Option<Role> {
        Some(self.agent.certificate.as_ref()?.node()?.1)
    }
    pub fn wants_manager(&self) -> bool {
        self.up && self.agent.wanted && !self.incompatible
    }
}
