//! What follows from the end of a call to a peer: for the session, and for the sender.
//!
//! Inputs      what the call was for, how it ended, and what the windows say of the peer.
//! Outputs     the [`Consequence`]; for the caller of a service, its result.

use std::time::Duration;

use muster_messages::wire::PeerReply;
use muster_messages::{ErrorBody, ErrorCode, NodeId};

use super::outgoing::PieceEnd;
use super::windows::{Kind, PIECE_DEADLINE, Suspicion};

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Answered(PeerReply),
    TimedOut,
    /// The session ended, or the answer was unreadable.
    Failed,
}

impl End {
    /// The peer acknowledged the message.
    pub fn is_taken(&self) -> bool {
        matches!(self, End::Answered(PeerReply::Taken))
    }
    /// The peer refused the message.
    pub fn is_refused(&self) -> bool {
        matches!(self, End::Answered(PeerReply::Refused { .. }))
    }
    /// What it means for a piece of a snapshot.
    pub fn of_piece(self) -> PieceEnd {
        match self {
            End::Answered(PeerReply::Taken) => PieceEnd::Taken,
            End::Answered(PeerReply::Refused { reason }) => PieceEnd::Refused(reason),
            End::Answered(PeerReply::Answer(_)) | End::Failed => PieceEnd::Lost("the session ended".to_owned()),
            End::TimedOut => PieceEnd::Lost(format!("no answer in {} s", PIECE_DEADLINE.as_secs())),
        }
    }
    /// What the caller of a service of this node receives.
    pub fn result_of(self, node: NodeId) -> Result<Vec<u8>, ErrorBody> {
        match self {
            End::Answered(PeerReply::Answer(result)) => result,
            End::Answered(PeerReply::Refused { reason }) => {
                let text = format!("manager {node} refused the call: {reason}");
                Err(ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(200)))
            }
            End::Answered(PeerReply::Taken) => {
                let text = format!("manager {node} acknowledged the call without an answer");
                Err(ErrorBody::new(ErrorCode::Internal, text))
            }
            End::TimedOut => Err(ErrorBody::new(ErrorCode::TimedOut, format!("manager {node} did not answer in time"))),
            // It was sent: unlike a call without a session, it may have been executed.
            End::Failed => {
                let text = format!("the session with manager {node} ended before it answered");
                Err(ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(200)))
            }
        }
    }
}

/// Why a session ends because of one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    Unanswered,
    MemberIdRejected,
    Closed,
}

/// What the sender learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    None,
    /// The members that the messages were for are unreachable.
    Unreachable,
    /// The transfer: how its piece ended.
    PieceEnded,
    /// The caller of a service: its result.
    Result,
}

/// What follows, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consequence {
    /// A check of the peer is sent.
    pub checks: bool,
    pub session_ends: Option<SessionEnd>,
    pub notice: Notice,
}

/// What follows from the end of a call. `suspicion`: what the windows say of the peer; `None` if the session of the call is not the
/// current one any more.
pub fn consequence(kind: Kind, end: &End, suspicion: Option<Suspicion>) -> Consequence {
    let notice = match kind {
        Kind::Raft if !end.is_taken() => Notice::Unreachable,
        // The transfer of an earlier session has ended with it.
        Kind::Piece if suspicion.is_some() => Notice::PieceEnded,
        Kind::Call(_) => Notice::Result,
        Kind::Raft | Kind::Piece | Kind::Check(_) | Kind::MemberId | Kind::IdentityBindings => Notice::None,
    };
    let session_ends = suspicion.and_then(|suspicion| session_end(kind, end, suspicion));
    Consequence { checks: suspicion == Some(Suspicion::Check), session_ends, notice }
}

fn session_end(kind: Kind, end: &End, suspicion: Suspicion) -> Option<SessionEnd> {
    match (kind, end) {
        _ if suspicion == Suspicion::Stuck => Some(SessionEnd::Unanswered),
        // Without the end of its check a peer would never be checked again.
        (Kind::Check(_), End::Failed) => Some(SessionEnd::Closed),
        (_, End::Answered(PeerReply::Taken)) => None,
        // Rejected or lost: all further messages would be dropped.
        (Kind::MemberId, _) => Some(SessionEnd::MemberIdRejected),
        // The peer may accept a process that this manager does not: the next session begins with the bindings.
        (Kind::IdentityBindings, _) => Some(SessionEnd::Unanswered),
        (Kind::Raft | Kind::Check(_) | Kind::Piece | Kind::Call(_), _) => None,
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::{ErrorMark, Moment};

    use super::*;
    use crate::core::windows::CallClass;

    const CHECK: Kind = Kind::Check(Moment(7));
    const CALL: Kind = Kind::Call(CallClass::Client);
    const KINDS: [Kind; 6] = [Kind::Raft, CHECK, Kind::MemberId, Kind::IdentityBindings, Kind::Piece, CALL];

    fn taken() -> End {
        End::Answered(PeerReply::Taken)
    }
    fn refused() -> End {
        End::Answered(PeerReply::Refused { reason: "full".to_owned() })
    }
    fn answer() -> End {
        End::Answered(PeerReply::Answer(Ok(vec![1])))
    }
    fn ends() -> [End; 5] {
        [taken(), refused(), answer(), End::TimedOut, End::Failed]
    }

    /// For each kind: what ends the session and what the sender learns, by the ways in which a call ends: taken, refused, an answer,
    /// timed out, failed.
    #[test]
    fn each_end_of_each_kind_has_its_consequence() {
        use SessionEnd::{Closed, MemberIdRejected, Unanswered};
        const NEVER: [Option<SessionEnd>; 5] = [None; 5];
        const CHECKED: [Option<SessionEnd>; 5] = [None, None, None, None, Some(Closed)];
        let unless_taken = |why: SessionEnd| [None, Some(why), Some(why), Some(why), Some(why)];
        let lost = [Notice::None, Notice::Unreachable, Notice::Unreachable, Notice::Unreachable, Notice::Unreachable];
        for (kind, endings, notices) in [
            (Kind::Raft, NEVER, lost),
            (CHECK, CHECKED, [Notice::None; 5]),
            (Kind::MemberId, unless_taken(MemberIdRejected), [Notice::None; 5]),
            (Kind::IdentityBindings, unless_taken(Unanswered), [Notice::None; 5]),
            (Kind::Piece, NEVER, [Notice::PieceEnded; 5]),
            (CALL, NEVER, [Notice::Result; 5]),
        ] {
            for ((end, session_ends), notice) in ends().iter().zip(endings).zip(notices) {
                let expected = Consequence { checks: false, session_ends, notice };
                assert_eq!(consequence(kind, end, Some(Suspicion::None)), expected, "{kind:?} {end:?}");
                // The check of a peer that seems stuck changes nothing else.
                let checked = Consequence { checks: true, ..expected };
                assert_eq!(consequence(kind, end, Some(Suspicion::Check)), checked, "{kind:?} {end:?}");
                let stuck = Consequence { session_ends: Some(Unanswered), ..expected };
                assert_eq!(consequence(kind, end, Some(Suspicion::Stuck)), stuck, "{kind:?} {end:?}");
            }
        }
    }

    #[test]
    fn call_of_an_earlier_session_ends_no_session() {
        for (kind, end) in KINDS.into_iter().flat_map(|kind| ends().map(|end| (kind, end))) {
            let Consequence { checks, session_ends, notice } = consequence(kind, &end, None);
            assert_eq!((checks, session_ends), (false, None), "{kind:?} {end:?}");
            let expected = match kind {
                Kind::Raft if end != taken() => Notice::Unreachable,
                Kind::Call(_) => Notice::Result,
                _ => Notice::None,
            };
            assert_eq!(notice, expected, "{kind:?} {end:?}");
        }
    }

    #[test]
    fn only_a_refusal_counts_as_refused() {
        assert_eq!(ends().map(|end| end.is_refused()), [false, true, false, false, false]);
        assert_eq!(ends().map(|end| end.is_taken()), [true, false, false, false, false]);
    }

    #[test]
    fn a_piece_is_taken_refused_or_lost() {
        let lost = |why: &str| PieceEnd::Lost(why.to_owned());
        let expected = [
            PieceEnd::Taken,
            PieceEnd::Refused("full".to_owned()),
            lost("the session ended"),
            lost("no answer in 10 s"),
            lost("the session ended"),
        ];
        assert_eq!(ends().map(End::of_piece), expected);
    }

    #[test]
    fn caller_learns_how_its_call_ended() {
        let node = NodeId::from_entropy(2);
        let error = ErrorBody::new(ErrorCode::NotFound, "no such node");
        assert_eq!(answer().result_of(node), Ok(vec![1]));
        assert_eq!(End::Answered(PeerReply::Answer(Err(error.clone()))).result_of(node), Err(error));
        for (end, code, text, again) in [
            (taken(), ErrorCode::Internal, "acknowledged the call without an answer", false),
            (refused(), ErrorCode::Unreachable, "refused the call: full", true),
            (End::TimedOut, ErrorCode::TimedOut, "did not answer in time", false),
            (End::Failed, ErrorCode::Unreachable, "ended before it answered", true),
        ] {
            let body = end.result_of(node).unwrap_err();
            assert_eq!((body.code, body.retry_after_ms.is_some()), (code, again), "{body}");
            assert!(body.message.contains(text) && body.message.contains(&node.to_string()), "{body}");
            assert!(!body.is_marked(ErrorMark::NotSent), "it may have been carried out: {body}");
        }
    }
}
