//! Windows: how many unanswered calls a peer may have, by kind.
//!
//! Owns        the counts of the current session's unanswered calls, the [`Pace`] of pieces, and when the peer last answered.
//! Inputs      calls sent; how each ended.
//! Outputs     whether another call may be sent; whether the peer is stuck.
//! Invariants  MESH-27  a session whose Raft messages or pieces of a snapshot get no answer is ended only after a check, which is
//!                      sent when the answers are missed and whose deadline is noticed in time: this process may have been
//!                      suspended, or so busy, that it was late itself.
//! What a check shows: that the peer's RPC endpoint answers. Whether its Raft member does, Raft itself notices.
//! Why an announcement without an answer ends the session without a check (MESH-21): it must be sent again, and the next session
//! begins with it.

use std::time::Duration;

use muster_messages::Moment;
use muster_messages::wire::PeerCall;
use serde_json::{Value, json};

use super::call_end::End;
use super::pace::Pace;

/// Unanswered calls with Raft messages: 8 batches keep a round trip busy (0.8 M items/s measured).
pub const RAFT_WINDOW: usize = 8;
/// Their answers mean only "in the mailbox", which takes a running process milliseconds.
pub const RAFT_DEADLINE: Duration = Duration::from_secs(5);
/// Unanswered calls to services for clients; more wait.
pub const CLIENT_CALL_WINDOW: usize = 64;
/// Those for Muster's own actors and for operators.
pub const OWN_CALL_WINDOW: usize = 32;
pub const PIECE_DEADLINE: Duration = Duration::from_secs(10);
/// The deadline of the check that precedes the end of a session whose peer seems stuck. If this process notices its end only after
/// twice that time, it was late itself.
pub const CHECK_DEADLINE: Duration = Duration::from_secs(1);

/// For whom a call to a service is made. Each class has a window of its own: clients' calls may take the leader long, and a node's certificate,
/// a membership, or an operator's request must not wait behind hundreds of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallClass {
    /// What keeps the cluster going, and operators' requests.
    Own,
    /// Whatever others may cause in any number: requests, joins with any token, certificates of workloads, and reads of actors, which do not
    /// say who reads.
    Client,
}

impl CallClass {
    /// Those of a process's own work first.
    pub const ALL: [CallClass; 2] = [CallClass::Own, CallClass::Client];

    pub fn of(call: &PeerCall) -> Self {
        match call {
            PeerCall::Api { caller, .. } if caller.is_operator() => CallClass::Own,
            PeerCall::Api { .. } | PeerCall::Join { .. } | PeerCall::SignWorkload { .. } | PeerCall::Actors(_) => {
                CallClass::Client
            }
            PeerCall::SignNode { .. }
            | PeerCall::SignPinned { .. }
            | PeerCall::Membership { .. }
            | PeerCall::ReportManager { .. }
            | PeerCall::TrustRoots { .. }
            | PeerCall::ReportSeal(_)
            | PeerCall::Sessions(_)
            | PeerCall::Clock => CallClass::Own,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Raft,
    /// Announcements: few, and outside the windows.
    MemberId,
    IdentityBindings,
    /// Whether the peer still answers; when it was sent. Outside the windows, too.
    Check(Moment),
    Piece,
    /// A call to a service.
    Call(CallClass),
}

/// What the missing answer to a call says of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    None,
    /// It seems stuck: a check decides.
    Check,
    Stuck,
}

#[derive(Clone, Debug)]
pub struct Windows {
    raft: usize,
    pieces: usize,
    own_calls: usize,
    client_calls: usize,
    pace: Pace,
    answered_at: Moment,
    /// When the current check was sent. `None`: the peer has answered since, or no check was needed.
    check: Option<Moment>,
    timed_out: u64,
}

impl Default for Windows {
    fn default() -> Self {
        Self {
            raft: 0,
            pieces: 0,
            own_calls: 0,
            client_calls: 0,
            pace: Pace::default(),
            answered_at: Moment(0),
            check: None,
            timed_out: 0,
        }
    }
}

impl Windows {
    /// Another session begins: the unanswered calls of the old one no longer count.
    pub fn reset(&mut self, now: Moment) {
        *self = Self { answered_at: now, timed_out: self.timed_out, ..Self::default() };
    }

    pub fn has_room(&self, kind: Kind) -> bool {
        let (open, window) = self.of(kind);
        open < window
    }
    pub fn sent(&mut self, kind: Kind) {
        if let Some(open) = self.open(kind) {
            *open += 1;
        }
    }
    /// A call of the current session ended. What that says of the peer: if it seems stuck, send the check now.
    pub fn call_ended(&mut self, now: Moment, kind: Kind, end: &End) -> Suspicion {
        self.ended(kind);
        match end {
            End::Answered(_) => {
                self.answered(now);
                Suspicion::None
            }
            End::TimedOut => self.timed_out(now, kind),
            // The end of the session is reported separately.
            End::Failed => Suspicion::None,
        }
    }
    fn ended(&mut self, kind: Kind) {
        if let Some(open) = self.open(kind) {
            *open -= 1;
        }
    }
    fn answered(&mut self, now: Moment) {
        (self.answered_at, self.check) = (now, None);
    }
    /// The peer took a piece of the current snapshot.
    pub fn piece_taken(&mut self, round_trip: Duration) {
        self.pace.answered(round_trip);
    }
    /// A peer that answered nothing until the deadline of a Raft call or a piece is checked. (A call to a service may legitimately
    /// take long.)
    fn timed_out(&mut self, now: Moment, kind: Kind) -> Suspicion {
        let limit = match kind {
            Kind::Raft | Kind::MemberId | Kind::IdentityBindings | Kind::Check(_) => RAFT_DEADLINE,
            Kind::Piece => PIECE_DEADLINE,
            Kind::Call(_) => return Suspicion::None,
        };
        self.timed_out += 1;
        if now.since(self.answered_at) < limit {
            return Suspicion::None;
        }
        match (kind, self.check) {
            // An earlier check: since then the peer has answered.
            (Kind::Check(sent), current) if current != Some(sent) => Suspicion::None,
            (Kind::Check(sent), _) if now.since(sent) <= 2 * CHECK_DEADLINE => Suspicion::Stuck,
            // A check that was noticed late is repeated.
            (Kind::Check(_), _) | (_, None) => {
                self.check = Some(now);
                Suspicion::Check
            }
            (_, Some(_)) => Suspicion::None,
        }
    }

    /// The unanswered calls, and how many there may be.
    pub fn of(&self, kind: Kind) -> (usize, usize) {
        match kind {
            Kind::Raft => (self.raft, RAFT_WINDOW),
            Kind::MemberId | Kind::IdentityBindings | Kind::Check(_) => (0, usize::MAX),
            Kind::Piece => (self.pieces, self.pace.window()),
            Kind::Call(CallClass::Own) => (self.own_calls, OWN_CALL_WINDOW),
            Kind::Call(CallClass::Client) => (self.client_calls, CLIENT_CALL_WINDOW),
        }
    }
    /// For the live tree.
    pub fn view(&self) -> Value {
        json!({
            "raft": self.of(Kind::Raft),
            "calls": self.of(Kind::Call(CallClass::Own)),
            "client_calls": self.of(Kind::Call(CallClass::Client)),
            "pieces": self.of(Kind::Piece),
        })
    }
    /// Calls other than to services that the peer did not answer in time.
    pub fn unanswered(&self) -> u64 {
        self.timed_out
    }

    fn open(&mut self, kind: Kind) -> Option<&mut usize> {
        match kind {
            Kind::Raft => Some(&mut self.raft),
            Kind::MemberId | Kind::IdentityBindings | Kind::Check(_) => None,
            Kind::Piece => Some(&mut self.pieces),
            Kind::Call(CallClass::Own) => Some(&mut self.own_calls),
            Kind::Call(CallClass::Client) => Some(&mut self.client_calls),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::wire::{ActorsAsk, ActorsCall, PeerReply, Request};
    use muster_messages::{NodeId, Principal, RequestId};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_window_has_room_again_when_a_call_ended() {
        let mut windows = Windows::default();
        for (kind, window) in [
            (Kind::Raft, RAFT_WINDOW),
            (Kind::Piece, 1),
            (Kind::Call(CallClass::Client), CLIENT_CALL_WINDOW),
            (Kind::Call(CallClass::Own), OWN_CALL_WINDOW),
        ] {
            for _ in 0..window {
                assert!(windows.has_room(kind), "{kind:?}");
                windows.sent(kind);
            }
            assert!(!windows.has_room(kind), "{kind:?}");
            windows.ended(kind);
            assert_eq!(windows.of(kind), (window - 1, window));
        }
        for kind in [Kind::MemberId, Kind::IdentityBindings, Kind::Check(at(1))] {
            windows.sent(kind);
            assert!(windows.has_room(kind));
        }
    }

    #[test]
    fn what_others_cause_in_any_number_is_of_the_class_of_clients() {
        let request = Request::NodeList { fresh: true };
        let by = |caller| PeerCall::Api { caller, request_id: RequestId(1), timeout_ms: 1, request: request.clone() };
        let name = || "ann".parse().expect("a name");
        let clients = [Principal::User(name()), Principal::Reader(name()), Principal::Anonymous];
        for caller in clients.into_iter().chain([Principal::Node(NodeId::from_entropy(1))]) {
            assert_eq!(CallClass::of(&by(caller.clone())), CallClass::Client, "{caller}");
        }
        let read = PeerCall::Actors(ActorsCall { node: NodeId::from_entropy(1), ask: ActorsAsk::Tree });
        assert_eq!(CallClass::of(&read), CallClass::Client);
        for call in [by(Principal::Operator), by(Principal::Admin(name())), PeerCall::Clock] {
            assert_eq!(CallClass::of(&call), CallClass::Own, "{call:?}");
        }
    }

    #[test]
    fn new_session_begins_with_empty_windows() {
        let mut windows = Windows::default();
        windows.sent(Kind::Raft);
        windows.sent(Kind::Piece);
        windows.piece_taken(SECOND / 100);
        assert_eq!(windows.timed_out(Moment(0) + RAFT_DEADLINE, Kind::Raft), Suspicion::Check);
        windows.reset(Moment(0) + 2 * RAFT_DEADLINE);
        assert_eq!((windows.of(Kind::Raft).0, windows.of(Kind::Piece)), (0, (0, 1)));
        assert_eq!(windows.unanswered(), 1, "counted since the peer actor started");
        assert_eq!(windows.timed_out(Moment(0) + 3 * RAFT_DEADLINE - SECOND, Kind::Raft), Suspicion::None);
        assert_eq!(windows.timed_out(Moment(0) + 3 * RAFT_DEADLINE, Kind::Raft), Suspicion::Check);
    }

    fn at(seconds: u32) -> Moment {
        Moment(0) + seconds * SECOND
    }

    #[test]
    fn peer_that_missed_a_deadline_is_stuck_after_a_check() {
        let mut windows = Windows::default();
        windows.answered(at(1));
        assert_eq!(windows.timed_out(at(5), Kind::Raft), Suspicion::None);
        assert_eq!(windows.timed_out(at(6), Kind::MemberId), Suspicion::Check);
        assert_eq!(windows.timed_out(at(6), Kind::Raft), Suspicion::None, "one check at a time");
        windows.answered(at(7));
        assert_eq!(windows.timed_out(at(8), Kind::Check(at(6))), Suspicion::None, "the peer has answered another call");
        assert_eq!(windows.timed_out(at(16), Kind::Piece), Suspicion::None);
        assert_eq!(windows.timed_out(at(17), Kind::Piece), Suspicion::Check);
        assert_eq!(windows.timed_out(at(18), Kind::Check(at(17))), Suspicion::Stuck);
        assert_eq!(windows.timed_out(at(1000), Kind::Call(CallClass::Own)), Suspicion::None);
        assert_eq!(windows.unanswered(), 7);
    }

    /// This process stood still during the check: the answer may be in the socket.
    #[test]
    fn check_that_was_noticed_late_is_repeated() {
        let mut windows = Windows::default();
        assert_eq!(windows.timed_out(at(17), Kind::Raft), Suspicion::Check);
        assert_eq!(windows.timed_out(at(30), Kind::Check(at(17))), Suspicion::Check);
        assert_eq!(windows.timed_out(at(30), Kind::Raft), Suspicion::None, "one check at a time");
        assert_eq!(windows.timed_out(at(31), Kind::Check(at(30))), Suspicion::Stuck);
    }

    /// The peer answered a call after the first check was sent, and this process stood still then.
    #[test]
    fn end_of_an_earlier_check_says_nothing_of_the_next() {
        let mut windows = Windows::default();
        assert_eq!(windows.timed_out(at(5), Kind::Raft), Suspicion::Check);
        windows.answered(at(5) + SECOND / 2);
        assert_eq!(windows.timed_out(at(20), Kind::Raft), Suspicion::Check);
        assert_eq!(windows.timed_out(at(20), Kind::Check(at(5))), Suspicion::None);
        assert_eq!(windows.timed_out(at(21), Kind::Check(at(20))), Suspicion::Stuck);
    }

    #[test]
    fn each_end_makes_room_and_an_answer_clears_suspicion() {
        let mut windows = Windows::default();
        let answers =
            [PeerReply::Taken, PeerReply::Refused { reason: "full".to_owned() }, PeerReply::Answer(Ok(vec![]))];
        let ends = answers.map(End::Answered).into_iter().chain([End::Failed, End::TimedOut]);
        for (end, seconds) in ends.zip(1..) {
            windows.sent(Kind::Raft);
            assert_eq!(windows.call_ended(at(seconds), Kind::Raft, &end), Suspicion::None, "{end:?}");
            assert_eq!(windows.of(Kind::Raft).0, 0, "{end:?}");
        }
        assert_eq!(windows.unanswered(), 1);
        // The last answer came at 3 s.
        let timed_out = |windows: &mut Windows, seconds, kind| {
            windows.sent(kind);
            windows.call_ended(at(seconds), kind, &End::TimedOut)
        };
        assert_eq!(timed_out(&mut windows, 8, Kind::Raft), Suspicion::Check);
        let check = Kind::Check(at(8));
        assert_eq!(windows.call_ended(at(9), check, &End::Failed), Suspicion::None, "the session ends");
        assert_eq!(timed_out(&mut windows, 9, check), Suspicion::Stuck);
        assert_eq!(windows.call_ended(at(9), check, &End::Answered(PeerReply::Taken)), Suspicion::None);
        assert_eq!(timed_out(&mut windows, 13, Kind::Raft), Suspicion::None, "it has answered at 9 s");
        assert_eq!(timed_out(&mut windows, 14, Kind::Raft), Suspicion::Check);
    }
}
