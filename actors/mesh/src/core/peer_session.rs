//! The session that the calls to a peer use, as far as it decides what is sent.
//!
//! Owns        the member id to which the peer attributes the messages of the session.
//! Inputs      the session of each new link; the member id of each message.
//! Outputs     what a new link changes ([`Relink`]); the announcement that precedes a message.
//! Why a member id is announced: a session that is older than this manager's member id need not be reopened.

use muster_messages::RaftId;

use super::links::SessionNumber;

/// What a new link changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relink {
    /// It leads through the same session: the open calls still count.
    Same,
    /// It leads through another session: the open calls and the snapshot in transfer belong to the old one. What waits is sent through
    /// the new one.
    Other,
    /// No session remains. Besides, what waits cannot be sent.
    Gone,
}

/// Compares the sessions of the present link and of the new one.
pub fn relink(present: Option<SessionNumber>, new: Option<SessionNumber>) -> Relink {
    match new {
        None => Relink::Gone,
        Some(_) if new == present => Relink::Same,
        Some(_) => Relink::Other,
    }
}

/// The member id to which the peer attributes this manager's messages in the present session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced(Option<RaftId>);

impl Announced {
    /// In a session whose hello named this member id.
    pub fn by_hello(member_id: Option<RaftId>) -> Self {
        Self(member_id)
    }

    /// Before a message from this member id: the id to announce first, if it is new to the peer. It is announced once, because without an
    /// answer the session ends. `None`: a batch without messages.
    pub fn due(&mut self, sender: Option<RaftId>) -> Option<RaftId> {
        let new = sender.filter(|sender| self.0 != Some(*sender))?;
        self.0 = Some(new);
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_leads_through_the_same_session_another_or_none() {
        for (present, new, expected) in [
            (Some(7), Some(7), Relink::Same),
            (Some(7), Some(8), Relink::Other),
            (Some(8), Some(7), Relink::Other),
            (None, Some(7), Relink::Other),
            (Some(7), None, Relink::Gone),
            (None, None, Relink::Gone),
        ] {
            assert_eq!(relink(present, new), expected, "{present:?} {new:?}");
        }
    }

    #[test]
    fn new_member_id_is_announced_once_before_its_messages() {
        let (old, new) = (Some(RaftId(3)), Some(RaftId(9)));
        let mut announced = Announced::by_hello(old);
        assert_eq!((announced.due(old), announced.due(None)), (None, None), "the hello named it; no message");
        assert_eq!((announced.due(new), announced.due(new)), (new, None));
        assert_eq!(announced.due(None), None);
        assert_eq!(announced.due(new), None, "a batch without messages changes nothing");
        assert_eq!(announced.due(old), old, "messages of the former id were still waiting");
    }

    #[test]
    fn session_older_than_the_member_id_gets_an_announcement() {
        let first = Some(RaftId(3));
        for mut announced in [Announced::default(), Announced::by_hello(None)] {
            assert_eq!((announced.due(None), announced.due(first), announced.due(first)), (None, first, None));
        }
    }
}
