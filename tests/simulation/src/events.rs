//! All events, and the machine that each concerns.

use muster_agent::core as agent;
use muster_messages::protocol::RootsChanged;
use muster_messages::wire::RootsOffer;
use muster_messages::wire::{MembershipReply, PeerCall, RaftPacket, SessionDigest, SnapshotHead};
use muster_messages::{ErrorBody, NodeId, RefusalReason, Revision, Role};
use muster_raft_member::core::Input;
use muster_role_manager::core::StepId;

use crate::candidates::{PendingRequest, Reply};
use crate::clients::{OpNumber, Write, WriteAttempt, WriteOutcome};
use crate::connections::ConnectionNumber;
use crate::faults::TimedFault;
use crate::fleet;
use crate::machine::{Caller, MachineIdx};
use crate::registers;
use crate::root_operators::RootAttempt;

/// All events. An event for a process or manager runtime that has ended is dropped.
pub enum Event {
    Tick {
        idx: MachineIdx,
        runtime: u32,
    },
    Woke {
        idx: MachineIdx,
        runtime: u32,
    },
    Synced {
        idx: MachineIdx,
        runtime: u32,
        number: u64,
    },
    /// Input for the member from its own machine.
    Local {
        idx: MachineIdx,
        runtime: u32,
        input: Box<Input>,
    },
    Mail(Box<Mail>),
    Session {
        idx: MachineIdx,
        runtime: u32,
        peer: NodeId,
        up: bool,
    },
    RefusedByPeer {
        idx: MachineIdx,
        life: u32,
        serial: String,
        reason: RefusalReason,
    },

    Observe {
        idx: MachineIdx,
        runtime: u32,
    },
    RolesWoke {
        idx: MachineIdx,
        incarnation: u32,
    },
    RolesBack {
        idx: MachineIdx,
        runtime: u32,
    },
    AuthorityWoke {
        idx: MachineIdx,
        incarnation: u32,
    },
    AuthorityBack {
        idx: MachineIdx,
        runtime: u32,
    },
    /// A certificate whose signature took long.
    SignedLate {
        idx: MachineIdx,
        incarnation: u32,
        step: muster_cert_authority::core::StepId,
        signed: Box<muster_pki::Signed>,
    },
    RotationWoke {
        idx: MachineIdx,
        incarnation: u32,
    },
    RotationBack {
        idx: MachineIdx,
        runtime: u32,
    },
    AutopilotWoke {
        idx: MachineIdx,
        incarnation: u32,
    },
    AutopilotBack {
        idx: MachineIdx,
        runtime: u32,
    },
    /// The role manager's answer, or that there will be none.
    AutopilotAnswered {
        idx: MachineIdx,
        incarnation: u32,
        input: Box<muster_autopilot::core::Input>,
    },
    Probed {
        idx: MachineIdx,
        incarnation: u32,
        step: StepId,
        ok: bool,
    },
    Tally {
        idx: MachineIdx,
        runtime: u32,
    },

    /// A machine's periodic work: joining, and a member without a leader.
    Agent {
        idx: MachineIdx,
        life: u32,
    },
    AgentWoke {
        idx: MachineIdx,
        life: u32,
    },
    AgentInput {
        idx: MachineIdx,
        life: u32,
        input: Box<agent::Input>,
    },
    Installed {
        idx: MachineIdx,
        life: u32,
        id: u64,
        text: String,
    },
    /// Offered roots reach the disk.
    RootsWritten {
        idx: MachineIdx,
        life: u32,
        offer: Box<RootsOffer>,
    },
    DialArrives {
        connection: ConnectionNumber,
        idx: MachineIdx,
    },
    DataArrives {
        connection: ConnectionNumber,
        idx: MachineIdx,
        to_host: bool,
    },
    ObserveInHosts {
        idx: MachineIdx,
        runtime: u32,
    },
    HostWoke {
        idx: MachineIdx,
        runtime: u32,
    },
    SessionWoke {
        idx: MachineIdx,
        runtime: u32,
        node: NodeId,
    },
    CallLate {
        idx: MachineIdx,
        runtime: u32,
        ask: u64,
    },
    Digest {
        to: MachineIdx,
        caller: Caller,
        runtime: u32,
        digest: Box<SessionDigest>,
    },
    DigestAnswered {
        idx: MachineIdx,
        runtime: u32,
        sequence: u64,
        ok: bool,
    },
    DispatcherWoke {
        idx: MachineIdx,
        incarnation: u32,
    },
    DispatcherBack {
        idx: MachineIdx,
        runtime: u32,
    },
    Question {
        to: MachineIdx,
        caller: Caller,
        question: Box<Question>,
    },
    Answered {
        to: Caller,
        answer: Box<Answered>,
    },
    ObserveInBlocks {
        idx: MachineIdx,
        runtime: u32,
    },
    BlocksTick {
        idx: MachineIdx,
        runtime: u32,
    },
    BlocksRetry {
        idx: MachineIdx,
        runtime: u32,
        incarnation: u32,
    },
    BlocksBack {
        idx: MachineIdx,
        runtime: u32,
    },
    /// Two manager runtimes, one of which disconnected the other.
    RetrySession {
        a: (MachineIdx, u32),
        b: (MachineIdx, u32),
    },
    AskMembership {
        idx: MachineIdx,
        runtime: u32,
        unanswered: Option<u64>,
    },

    Writer(usize),
    Reader,
    Operator,
    WriteArrives {
        idx: MachineIdx,
        attempt: WriteAttempt,
    },
    WriteAnswered {
        attempt: WriteAttempt,
        result: WriteOutcome,
    },
    ChangeArrives {
        idx: MachineIdx,
        op: OpNumber,
        attempt: u32,
    },
    ChangeAnswered {
        op: OpNumber,
        attempt: u32,
        result: Result<bool, ErrorBody>,
    },
    RetryChange(OpNumber),
    RequestedChange(NodeId, Role),
    Dismiss(NodeId),
    DisconnectLeader,

    Register(usize),
    RegisterAsks {
        idx: MachineIdx,
        pending: Box<registers::PendingRequest>,
    },
    RegisterReply {
        pending: Box<registers::PendingRequest>,
        reply: registers::Reply,
    },

    Candidate {
        candidate: usize,
        life: u32,
    },
    CandidateAsks {
        idx: MachineIdx,
        pending: PendingRequest,
    },
    CandidateReply {
        pending: PendingRequest,
        reply: Reply,
    },
    Process {
        process: usize,
        life: u32,
    },
    FleetAsks {
        idx: MachineIdx,
        pending: Box<fleet::PendingRequest>,
    },
    FleetReply {
        pending: Box<fleet::PendingRequest>,
        reply: Box<fleet::Reply>,
    },
    FleetOperator,
    Beat {
        idx: MachineIdx,
        incarnation: u32,
    },
    ClockWoke {
        idx: MachineIdx,
        incarnation: u32,
    },

    LateWrite {
        writer: usize,
        write: Write,
        recoveries: u32,
    },
    Adversary,
    /// An operator restarts some manager, mostly with the newer build.
    Upgrade,
    /// An operator takes a step of a rotation.
    RootOperator,
    RootAsked {
        idx: MachineIdx,
        attempt: RootAttempt,
    },
    RootAnswered {
        attempt: RootAttempt,
        result: Result<RootsChanged, ErrorBody>,
    },
    RetryRoot(usize),
    /// An operator changes the unlock key.
    KeyOperator,
    /// An operator gives a locked manager its key.
    Unlock(MachineIdx),
    KeyringWritten {
        idx: MachineIdx,
        life: u32,
        runtime: u32,
        number: u64,
    },
    FilesSealed {
        idx: MachineIdx,
        runtime: u32,
        version: Revision,
    },
    KeyringWoke {
        idx: MachineIdx,
        runtime: u32,
    },
    SealReported {
        to: Caller,
        result: Result<(), ErrorBody>,
    },
    /// A fault or an attack that concerns rotations.
    RootFault,
    /// An operator changes the declared number of managers, pauses, prefers, drains.
    PolicyOperator,
    /// A fault that concerns the autopilot.
    PolicyFault,
    Watcher(usize),
    Backup,
    /// All managers are lost.
    Disaster,
    /// One manager recovers alone.
    Recover {
        attempt: u32,
    },
    /// A lost manager returns.
    Straggler,
    Fault,
    TimedFaultEnds(TimedFault),
}

/// Raft messages in flight.
pub struct Mail {
    pub from: MachineIdx,
    pub to: MachineIdx,
    pub packets: Vec<RaftPacket>,
    pub snapshot: Option<(SnapshotHead, Vec<u8>)>,
    pub sender: u32,
}

/// Questions to the leader, from a joining machine or from a host for an agent.
pub enum Question {
    Join,
    Call(PeerCall),
}

/// Answers to them.
pub enum Answered {
    Certificate(Result<String, ErrorBody>),
    Membership(Result<MembershipReply, ErrorBody>),
    /// Acknowledged roots are recorded.
    Roots(Result<(), ErrorBody>),
    /// A report of a keyring is recorded.
    Seal(Result<(), ErrorBody>),
}

impl Event {
    /// The machine that it concerns. If that is frozen, the event waits for its thaw.
    pub fn idx(&self) -> Option<MachineIdx> {
        use Event as E;
        let idx = match self {
            E::Mail(mail) => mail.to,
            E::Answered { to, .. } | E::SealReported { to, .. } => to.idx,
            E::Tick { idx, .. }
            | E::Woke { idx, .. }
            | E::Synced { idx, .. }
            | E::Local { idx, .. }
            | E::Session { idx, .. }
            | E::RefusedByPeer { idx, .. }
            | E::Observe { idx, .. }
            | E::RolesWoke { idx, .. }
            | E::RolesBack { idx, .. }
            | E::AuthorityWoke { idx, .. }
            | E::AuthorityBack { idx, .. }
            | E::SignedLate { idx, .. }
            | E::RotationWoke { idx, .. }
            | E::RotationBack { idx, .. }
            | E::AutopilotWoke { idx, .. }
            | E::AutopilotBack { idx, .. }
            | E::AutopilotAnswered { idx, .. }
            | E::RootsWritten { idx, .. }
            | E::KeyringWritten { idx, .. }
            | E::FilesSealed { idx, .. }
            | E::KeyringWoke { idx, .. }
            | E::RootAsked { idx, .. }
            | E::Probed { idx, .. }
            | E::Tally { idx, .. }
            | E::Agent { idx, .. }
            | E::AgentWoke { idx, .. }
            | E::AgentInput { idx, .. }
            | E::Installed { idx, .. }
            | E::DialArrives { idx, .. }
            | E::DataArrives { idx, .. }
            | E::ObserveInHosts { idx, .. }
            | E::HostWoke { idx, .. }
            | E::SessionWoke { idx, .. }
            | E::CallLate { idx, .. }
            | E::Digest { to: idx, .. }
            | E::DigestAnswered { idx, .. }
            | E::DispatcherWoke { idx, .. }
            | E::DispatcherBack { idx, .. }
            | E::Question { to: idx, .. }
            | E::ObserveInBlocks { idx, .. }
            | E::BlocksTick { idx, .. }
            | E::BlocksRetry { idx, .. }
            | E::BlocksBack { idx, .. }
            | E::RetrySession { b: (idx, _), .. }
            | E::AskMembership { idx, .. }
            | E::WriteArrives { idx, .. }
            | E::ChangeArrives { idx, .. }
            | E::RegisterAsks { idx, .. }
            | E::CandidateAsks { idx, .. }
            | E::FleetAsks { idx, .. }
            | E::Beat { idx, .. }
            | E::ClockWoke { idx, .. } => *idx,
            E::Writer(_) | E::Reader | E::Operator | E::WriteAnswered { .. } | E::ChangeAnswered { .. } => return None,
            E::Register(_) | E::RegisterReply { .. } => return None,
            E::Candidate { .. } | E::CandidateReply { .. } => return None,
            E::Process { .. } | E::FleetReply { .. } | E::FleetOperator => return None,
            E::LateWrite { .. }
            | E::Adversary
            | E::Upgrade
            | E::RootOperator
            | E::RootAnswered { .. }
            | E::RetryRoot(_)
            | E::RootFault
            | E::PolicyOperator
            | E::PolicyFault
            | E::KeyOperator
            | E::Unlock(_)
            | E::Watcher(_)
            | E::Backup
            | E::Disaster
            | E::Recover { .. }
            | E::Straggler => return None,
            E::Fault
            | E::TimedFaultEnds(_)
            | E::RetryChange(_)
            | E::RequestedChange(..)
            | E::Dismiss(_)
            | E::DisconnectLeader => return None,
        };
        Some(idx)
    }
}
