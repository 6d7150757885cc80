//! Windows: how many unanswered calls a peer may have, by kind.
//!
//! Owns        the counts of the current session's unanswered calls, the [`Pace`] of pieces, and when the peer last answered.
//! Inputs      calls sent; how each ended.
//! Outputs     whether another call may be sent; whether the peer is stuck.
//! Invariants  MESH-27  a session is ended for want of answers only after a check that was sent when they were missed: this process
//!                      may have been suspended, or so busy, that it was late itself.

use std::time::Duration;

use muster_messages::Moment;

use super::pace::Pace;

/// Unanswered calls with Raft messages: 8 batches keep a round trip busy (0.8 M items/s measured).
pub const RAFT_WINDOW: usize = 8;
/// Their answers mean only "in the mailbox", which takes a running process milliseconds.
pub const RAFT_DEADLINE: Duration = Duration::from_secs(5);
/// Unanswered calls to services; more wait.
pub const CALL_WINDOW: usize = 64;
pub const PIECE_DEADLINE: Duration = Duration::from_secs(10);
/// The deadline of the check that precedes the end of a session whose peer seems stuck.
pub const CHECK_DEADLINE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Raft,
    /// A member id or identity bindings: few, and outside the windows.
    Announcement,
    /// Whether the peer still answers. Outside the windows, too.
    Check,
    Piece,
    /// A call to a service.
    Call,
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
    calls: usize,
    pace: Pace,
    answered_at: Moment,
    /// A check is on its way.
    checking: bool,
    timed_out: u64,
}

impl Default for Windows {
    fn default() -> Self {
        Self {
            raft: 0,
            pieces: 0,
            calls: 0,
            pace: Pace::default(),
            answered_at: Moment(0),
            checking: false,
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
    /// A call of the current session ended.
    pub fn ended(&mut self, kind: Kind) {
        if let Some(open) = self.open(kind) {
            *open -= 1;
        }
    }
    /// The peer answered a call of the current session.
    pub fn answered(&mut self, now: Moment) {
        (self.answered_at, self.checking) = (now, false);
    }
    /// The peer took a piece of the current snapshot.
    pub fn piece_taken(&mut self, round_trip: Duration) {
        self.pace.answered(round_trip);
    }
    /// A call of the current session got no answer. A peer that answered nothing until the deadline of a Raft call or a piece is
    /// checked. (A call to a service may legitimately take long.)
    pub fn timed_out(&mut self, now: Moment, kind: Kind) -> Suspicion {
        let limit = match kind {
            Kind::Raft | Kind::Announcement | Kind::Check => RAFT_DEADLINE,
            Kind::Piece => PIECE_DEADLINE,
            Kind::Call => return Suspicion::None,
        };
        self.timed_out += 1;
        let is_silent = now.since(self.answered_at) >= limit;
        match kind {
            Kind::Check if is_silent => Suspicion::Stuck,
            _ if is_silent && !std::mem::replace(&mut self.checking, true) => Suspicion::Check,
            _ => Suspicion::None,
        }
    }

    /// The unanswered calls, and how many there may be.
    pub fn of(&self, kind: Kind) -> (usize, usize) {
        match kind {
            Kind::Raft => (self.raft, RAFT_WINDOW),
            Kind::Announcement | Kind::Check => (0, usize::MAX),
            Kind::Piece => (self.pieces, self.pace.window()),
            Kind::Call => (self.calls, CALL_WINDOW),
        }
    }
    /// Calls other than to services that the peer did not answer in time.
    pub fn unanswered(&self) -> u64 {
        self.timed_out
    }

    fn open(&mut self, kind: Kind) -> Option<&mut usize> {
        match kind {
            Kind::Raft => Some(&mut self.raft),
            Kind::Announcement | Kind::Check => None,
            Kind::Piece => Some(&mut self.pieces),
            Kind::Call => Some(&mut self.calls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_window_has_room_again_when_a_call_ended() {
        let mut windows = Windows::default();
        for (kind, window) in [(Kind::Raft, RAFT_WINDOW), (Kind::Piece, 1), (Kind::Call, CALL_WINDOW)] {
            for _ in 0..window {
                assert!(windows.has_room(kind), "{kind:?}");
                windows.sent(kind);
            }
            assert!(!windows.has_room(kind), "{kind:?}");
            windows.ended(kind);
            assert_eq!(windows.of(kind), (window - 1, window));
        }
        windows.sent(Kind::Announcement);
        assert!(windows.has_room(Kind::Announcement));
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

    #[test]
    fn peer_that_missed_a_deadline_is_stuck_after_a_check() {
        let mut windows = Windows::default();
        let at = |seconds| Moment(0) + seconds * SECOND;
        windows.answered(at(1));
        assert_eq!(windows.timed_out(at(5), Kind::Raft), Suspicion::None);
        assert_eq!(windows.timed_out(at(6), Kind::Announcement), Suspicion::Check);
        assert_eq!(windows.timed_out(at(6), Kind::Raft), Suspicion::None, "one check at a time");
        windows.answered(at(7));
        assert_eq!(windows.timed_out(at(8), Kind::Check), Suspicion::None, "the peer has answered another call");
        assert_eq!(windows.timed_out(at(16), Kind::Piece), Suspicion::None);
        assert_eq!(windows.timed_out(at(17), Kind::Piece), Suspicion::Check);
        assert_eq!(windows.timed_out(at(18), Kind::Check), Suspicion::Stuck);
        assert_eq!(windows.timed_out(at(1000), Kind::Call), Suspicion::None);
        assert_eq!(windows.unanswered(), 7);
    }
}
