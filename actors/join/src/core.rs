//! One client's conversation: what follows each of its frames.
//!
//! Owns        how many frames the client has sent, and whether one of them was a join request.
//! Inputs      its frames; whether a permit was free for one that needs it.
//! Outputs     what answers a frame ([`Next`]).
//! Invariants  a conversation's part of JOIN-4 (see the crate): at most three frames, and one request to the leader, which is the
//!             last frame. The actor limits the time.
//! Why a join request must be the first frame: the gateway charges a source's rate for that frame only.

use std::time::Duration;

use muster_messages::wire::{JoinFrame, JoinReply, JoinRequest};
use muster_messages::{ErrorBody, ErrorCode, OfferedRoot};

/// Frames per conversation: the root or all roots, and retries.
const MAX_FRAMES: usize = 3;

/// Time to retry after a refusal that waiting can change.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What answers a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The root certificate.
    SendRoot,
    /// All roots, as far as this manager knows them: [`all_roots`].
    SendRoots,
    /// What the leader answers to this request.
    AskLeader(JoinRequest),
    /// This refusal.
    Refuse(ErrorBody),
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    frames: usize,
    /// A join request came, which is the last frame in any case.
    over: bool,
}

impl Conversation {
    /// No further frame is read.
    pub fn is_over(&self) -> bool {
        self.over || self.frames >= MAX_FRAMES
    }

    /// Whether this frame, if it is the next one, may be carried to the leader, for which it needs a permit.
    pub fn needs_permit(&self, frame: &JoinFrame) -> bool {
        self.frames == 0 && matches!(frame, JoinFrame::Join(_))
    }

    /// What answers this frame. `has_permit`: a permit was free for it.
    pub fn next(&mut self, frame: JoinFrame, has_permit: bool) -> Next {
        let first = self.frames == 0;
        self.frames += 1;
        self.over = matches!(frame, JoinFrame::Join(_));
        match frame {
            JoinFrame::GetRoot => Next::SendRoot,
            JoinFrame::GetRoots => Next::SendRoots,
            JoinFrame::Join(_) if !first => {
                too_many("a join request must be the first frame of its connection; connect again")
            }
            JoinFrame::Join(_) if !has_permit => too_many("too many nodes are joining through this manager; retry"),
            JoinFrame::Join(request) => Next::AskLeader(request),
        }
    }
}

fn too_many(text: &str) -> Next {
    Next::Refuse(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(RETRY_AFTER))
}

/// The answer with all roots. `None`: not known yet, for which an empty list would be wrong: it says that there was no rotation.
pub fn all_roots(roots: Option<Vec<OfferedRoot>>) -> JoinReply {
    roots.map_or_else(not_known_yet, JoinReply::Roots)
}

fn not_known_yet() -> JoinReply {
    let text = "this manager does not know the cluster's roots yet";
    JoinReply::Refused(ErrorBody::new(ErrorCode::NotKnownHereYet, text).retry_after(RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_messages::{Name, NodeId, RequestId, Secret};

    use super::*;

    fn request() -> JoinRequest {
        JoinRequest {
            request_id: RequestId(1),
            node: NodeId::from_entropy(50),
            token_secret: Secret::new("secret"),
            csr_pem: String::new(),
            name: Name::sanitized("n50"),
            advertise: String::new(),
            release: String::new(),
            labels: BTreeMap::new(),
            rekey: None,
        }
    }

    fn join() -> JoinFrame {
        JoinFrame::Join(request())
    }

    fn refusal(next: Next) -> ErrorBody {
        match next {
            Next::Refuse(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn conversation_ends_after_three_frames() {
        let mut conversation = Conversation::default();
        for (frame, expected) in [
            (JoinFrame::GetRoot, Next::SendRoot),
            (JoinFrame::GetRoots, Next::SendRoots),
            (JoinFrame::GetRoot, Next::SendRoot),
        ] {
            assert!(!conversation.is_over() && !conversation.needs_permit(&frame));
            assert_eq!(conversation.next(frame, false), expected);
        }
        assert!(conversation.is_over());
    }

    #[test]
    fn first_join_request_reaches_the_leader_and_is_the_last_frame() {
        let mut conversation = Conversation::default();
        assert!(conversation.needs_permit(&join()));
        assert_eq!(conversation.next(join(), true), Next::AskLeader(request()));
        assert!(conversation.is_over());
    }

    #[test]
    fn join_request_without_permit_is_refused_for_now() {
        let mut conversation = Conversation::default();
        let full = refusal(conversation.next(join(), false));
        assert_eq!((full.code, full.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
        assert!(full.message.contains("too many nodes") && conversation.is_over());
    }

    #[test]
    fn later_join_request_takes_no_permit_and_is_refused() {
        for before in [JoinFrame::GetRoot, JoinFrame::GetRoots] {
            let mut conversation = Conversation::default();
            conversation.next(before, false);
            assert!(!conversation.needs_permit(&join()), "the leader is not asked");
            let refused = refusal(conversation.next(join(), true));
            assert_eq!((refused.code, refused.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
            assert!(refused.message.contains("first frame") && conversation.is_over());
        }
    }

    #[test]
    fn unknown_roots_are_not_the_same_as_none() {
        assert_eq!(all_roots(Some(Vec::new())), JoinReply::Roots(Vec::new()));
        let JoinReply::Refused(unknown) = all_roots(None) else { panic!("a refusal") };
        assert_eq!((unknown.code, unknown.retry_after_ms), (ErrorCode::NotKnownHereYet, Some(1000)));
    }
}
