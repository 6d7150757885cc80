//! Everything that can happen, and to which machine.

use muster_agent::core as agent;
use muster_messages::wire::{PeerCall, RaftPacket, SeatReply, SessionDigest, SnapshotHead};
use muster_messages::{ErrorBody, NodeId, RefusalReason, Role};
use muster_raft_member::core::Input;
use muster_role_manager::core::StepId;

use crate::candidates::{Asked, Told};
use crate::clients::{OpNumber, Try, Write, Written};
use crate::faults::Injury;
use crate::fleet;
use crate::lines::LineId;
use crate::machine::{Caller, Place};
use crate::registers;

/// Everything that can happen. What belongs to a process or a manager half that has ended happens to nobody.
pub enum Event {
    Tick {
        place: Place,
        half: u32,
    },
    Woke {
        place: Place,
        half: u32,
    },
    Synced {
        place: Place,
        half: u32,
        number: u64,
    },
    /// Something for the member that comes from its own machine.
    Local {
        place: Place,
        half: u32,
        input: Box<Input>,
    },
    Mail(Box<Mail>),
    Session {
        place: Place,
        half: u32,
        peer: NodeId,
        up: bool,
    },
    Told {
        place: Place,
        life: u32,
        serial: String,
        reason: RefusalReason,
    },

    Look {
        place: Place,
        half: u32,
    },
    RolesWoke {
        place: Place,
        incarnation: u32,
    },
    RolesBack {
        place: Place,
        half: u32,
    },
    AuthorityWoke {
        place: Place,
        incarnation: u32,
    },
    AuthorityBack {
        place: Place,
        half: u32,
    },
    Probed {
        place: Place,
        incarnation: u32,
        step: StepId,
        ok: bool,
    },
    Tally {
        place: Place,
        half: u32,
    },

    /// What a machine looks after by itself: joining, and a member that follows nobody.
    Agent {
        place: Place,
        life: u32,
    },
    AgentWoke {
        place: Place,
        life: u32,
    },
    AgentHears {
        place: Place,
        life: u32,
        input: Box<agent::Input>,
    },
    Installed {
        place: Place,
        life: u32,
        id: u64,
        text: String,
    },
    Dialled {
        line: LineId,
        place: Place,
    },
    Carried {
        line: LineId,
        place: Place,
        to_host: bool,
    },
    HostsLook {
        place: Place,
        half: u32,
    },
    HostWoke {
        place: Place,
        half: u32,
    },
    SessionWoke {
        place: Place,
        half: u32,
        node: NodeId,
    },
    CallLate {
        place: Place,
        half: u32,
        ask: u64,
    },
    Digest {
        to: Place,
        caller: Caller,
        half: u32,
        digest: Box<SessionDigest>,
    },
    DigestAnswered {
        place: Place,
        half: u32,
        sequence: u64,
        ok: bool,
    },
    DispatcherWoke {
        place: Place,
        incarnation: u32,
    },
    DispatcherBack {
        place: Place,
        half: u32,
    },
    Question {
        to: Place,
        caller: Caller,
        question: Box<Question>,
    },
    Answered {
        to: Caller,
        answer: Box<Answered>,
    },
    BlocksLook {
        place: Place,
        half: u32,
    },
    BlocksTick {
        place: Place,
        half: u32,
    },
    BlocksRetry {
        place: Place,
        half: u32,
        incarnation: u32,
    },
    BlocksBack {
        place: Place,
        half: u32,
    },
    /// Two manager halves, of which one was cut off by the other.
    Redial {
        a: (Place, u32),
        b: (Place, u32),
    },
    AskSeat {
        place: Place,
        half: u32,
        unanswered: Option<u64>,
    },

    Writer(usize),
    Reader,
    Operator,
    WriteArrives {
        place: Place,
        attempt: Try,
    },
    WriteAnswered {
        attempt: Try,
        result: Written,
    },
    WishArrives {
        place: Place,
        op: OpNumber,
        attempt: u32,
    },
    WishAnswered {
        op: OpNumber,
        attempt: u32,
        result: Result<bool, ErrorBody>,
    },
    WishAgain(OpNumber),
    Wish(NodeId, Role),
    Dismiss(NodeId),
    CutOffTheLeader,

    Register(usize),
    RegisterAsks {
        place: Place,
        asked: Box<registers::Asked>,
    },
    RegisterTold {
        asked: Box<registers::Asked>,
        told: registers::Told,
    },

    Candidate {
        candidate: usize,
        life: u32,
    },
    CandidateAsks {
        place: Place,
        asked: Asked,
    },
    CandidateTold {
        asked: Asked,
        told: Told,
    },
    Process {
        process: usize,
        life: u32,
    },
    FleetAsks {
        place: Place,
        asked: Box<fleet::Asked>,
    },
    FleetTold {
        asked: Box<fleet::Asked>,
        told: Box<fleet::Told>,
    },
    FleetOperator,
    Beat {
        place: Place,
        incarnation: u32,
    },
    ClockWoke {
        place: Place,
        incarnation: u32,
    },

    LateWrite {
        writer: usize,
        write: Write,
        recoveries: u32,
    },
    Liar,
    Watcher(usize),
    Backup,
    /// All managers are lost.
    Disaster,
    /// One goes on alone.
    Recover {
        attempt: u32,
    },
    /// One of those who were lost comes back.
    Straggler,
    Fault,
    Over(Injury),
}

/// Raft messages on their way.
pub struct Mail {
    pub from: Place,
    pub to: Place,
    pub packets: Vec<RaftPacket>,
    pub snapshot: Option<(SnapshotHead, Vec<u8>)>,
    pub sender: u32,
}

/// What the leader is asked, by whoever wants to join, or by a host for one of its agents.
pub enum Question {
    Join,
    Call(PeerCall),
}

/// And answers.
pub enum Answered {
    Certificate(Result<String, ErrorBody>),
    Seat(Result<SeatReply, ErrorBody>),
}

impl Event {
    /// The machine that it happens to: one that is frozen hears of it when it thaws.
    pub fn place(&self) -> Option<Place> {
        use Event as E;
        let place = match self {
            E::Mail(mail) => mail.to,
            E::Answered { to, .. } => to.place,
            E::Tick { place, .. }
            | E::Woke { place, .. }
            | E::Synced { place, .. }
            | E::Local { place, .. }
            | E::Session { place, .. }
            | E::Told { place, .. }
            | E::Look { place, .. }
            | E::RolesWoke { place, .. }
            | E::RolesBack { place, .. }
            | E::AuthorityWoke { place, .. }
            | E::AuthorityBack { place, .. }
            | E::Probed { place, .. }
            | E::Tally { place, .. }
            | E::Agent { place, .. }
            | E::AgentWoke { place, .. }
            | E::AgentHears { place, .. }
            | E::Installed { place, .. }
            | E::Dialled { place, .. }
            | E::Carried { place, .. }
            | E::HostsLook { place, .. }
            | E::HostWoke { place, .. }
            | E::SessionWoke { place, .. }
            | E::CallLate { place, .. }
            | E::Digest { to: place, .. }
            | E::DigestAnswered { place, .. }
            | E::DispatcherWoke { place, .. }
            | E::DispatcherBack { place, .. }
            | E::Question { to: place, .. }
            | E::BlocksLook { place, .. }
            | E::BlocksTick { place, .. }
            | E::BlocksRetry { place, .. }
            | E::BlocksBack { place, .. }
            | E::Redial { b: (place, _), .. }
            | E::AskSeat { place, .. }
            | E::WriteArrives { place, .. }
            | E::WishArrives { place, .. }
            | E::RegisterAsks { place, .. }
            | E::CandidateAsks { place, .. }
            | E::FleetAsks { place, .. }
            | E::Beat { place, .. }
            | E::ClockWoke { place, .. } => *place,
            E::Writer(_) | E::Reader | E::Operator | E::WriteAnswered { .. } | E::WishAnswered { .. } => return None,
            E::Register(_) | E::RegisterTold { .. } => return None,
            E::Candidate { .. } | E::CandidateTold { .. } => return None,
            E::Process { .. } | E::FleetTold { .. } | E::FleetOperator => return None,
            E::LateWrite { .. }
            | E::Liar
            | E::Watcher(_)
            | E::Backup
            | E::Disaster
            | E::Recover { .. }
            | E::Straggler => return None,
            E::Fault | E::Over(_) | E::WishAgain(_) | E::Wish(..) | E::Dismiss(_) | E::CutOffTheLeader => return None,
        };
        Some(place)
    }
}
