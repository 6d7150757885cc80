//! The watched values that an agent has published for the rest of its process.
//!
//! Owns        the last value of each.

use super::{Effect, SessionStatus};
use crate::status::{ManagerWanted, NodeTrouble};

/// `None`: not published yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Published {
    wanted: Option<ManagerWanted>,
    trouble: Option<Option<NodeTrouble>>,
    session: Option<Option<SessionStatus>>,
}

impl Published {
    /// Publishes what differs from the last values.
    pub fn update(
        &mut self,
        session: Option<SessionStatus>,
        trouble: Option<NodeTrouble>,
        wanted: ManagerWanted,
        out: &mut Vec<Effect>,
    ) {
        if self.session.as_ref() != Some(&session) {
            self.session = Some(session.clone());
            out.push(Effect::PublishSession(session));
        }
        if self.trouble.as_ref() != Some(&trouble) {
            self.trouble = Some(trouble.clone());
            out.push(Effect::PublishTrouble(trouble));
        }
        if self.wanted.as_ref() != Some(&wanted) {
            self.wanted = Some(wanted.clone());
            out.push(Effect::PublishWanted(wanted));
        }
    }
}
