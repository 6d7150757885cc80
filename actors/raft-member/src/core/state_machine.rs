//! The state machine: the tables as applied.
//!
//! Owns        the tables. Two things change them: the next entry of the log, and an installed snapshot.
//! Inputs      committed entries, tables of snapshots.
//! Outputs     the outcome of each entry, changes of objects, changes of the Raft configuration.
//! Invariants  MEMBER-2   the Raft configuration follows the applied membership changes; a refused one changes nothing on any member.
//!             Entries are applied in log order, each once: a member that continued after a gap would differ from the others
//!             permanently and unnoticed.

use muster_messages::{CommandRefusal, MembershipChange, ObjectChange, RaftId, Revision, Tables, Term};
use muster_store::{Limits, LogPosition};
use raft::eraftpb::{ConfChange, Entry};

use super::entries::{Content, conf_change, content};
use super::{CoreFault, LogPoint};

#[derive(Default)]
pub(crate) struct StateMachine {
    tables: Tables,
}

/// An applied entry. Its content may have been refused.
pub(crate) struct AppliedEntry {
    pub at: LogPoint,
    pub outcome: Result<(), CommandRefusal>,
    pub membership: Option<Box<MembershipChange>>,
    /// A command about objects alone.
    pub of_objects: bool,
}

impl StateMachine {
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
    /// The index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.tables.revision.0
    }
    pub fn feature_level(&self) -> u32 {
        self.tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level)
    }
    pub fn is_removed(&self, id: RaftId) -> bool {
        self.tables.removed_raft_ids.contains(&id)
    }

    /// A snapshot replaces the state.
    pub fn install(&mut self, tables: Tables) {
        self.tables = tables;
    }

    /// `raft` changes the Raft configuration.
    pub fn apply(
        &mut self,
        entry: &Entry,
        limits: &Limits,
        changes: &mut Vec<ObjectChange>,
        raft: impl FnOnce(&ConfChange) -> Result<(), CommandRefusal>,
    ) -> Result<AppliedEntry, CoreFault> {
        let at = LogPoint { index: entry.index, term: entry.term };
        let (before, revision) = (self.applied(), Revision(at.index));
        if at.index != before + 1 {
            let text = format!("entry {} follows {before}: entries must be applied in order, each once", at.index);
            return Err(CoreFault(text));
        }
        let mut of_objects = false;
        let (outcome, membership) =
            match content(entry).map_err(|e| CoreFault(format!("cannot decode entry {}: {e}", at.index)))? {
                None => {
                    muster_store::apply_empty(&mut self.tables, revision);
                    (Ok(()), None)
                }
                Some(Content::Command1(command)) => {
                    let position = LogPosition { revision, term: Term(at.term) };
                    of_objects = command.is_of_objects();
                    let tables = &mut self.tables;
                    (muster_store::apply_watched_within(limits, tables, position, &command, changes), None)
                }
                Some(Content::Membership1(change)) => {
                    (self.apply_membership(limits, revision, &change, raft), Some(change))
                }
            };
        Ok(AppliedEntry { at, outcome, membership, of_objects })
    }

    /// Decided here, alike on every member. A refused change must not reach raft.
    fn apply_membership(
        &mut self,
        limits: &Limits,
        revision: Revision,
        change: &MembershipChange,
        raft: impl FnOnce(&ConfChange) -> Result<(), CommandRefusal>,
    ) -> Result<(), CommandRefusal> {
        let before = self.tables.clone();
        let outcome = muster_store::apply_membership_within(limits, &mut self.tables, revision, change)
            .and_then(|()| conf_change(&change.kind).map_or(Ok(()), |change| raft(&change)));
        if outcome.is_err() && self.tables.members != before.members {
            self.tables = before;
            muster_store::apply_empty(&mut self.tables, revision);
        }
        outcome
    }
}
