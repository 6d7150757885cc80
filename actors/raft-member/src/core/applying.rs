//! Applying committed entries.

use muster_messages::{CommandRefusal, MembershipChange, MembershipChangeKind, Moment, Revision, Term};
use muster_store::LogPosition;
use raft::eraftpb::Entry;

use super::entries::{Content, conf_change, content};
use super::internals::Internals;
use super::log::entry_bytes;
use super::{CoreFault, LogPoint, Notice, RaftCore};

impl RaftCore {
    pub(super) fn apply(&mut self, now: Moment, committed: Vec<Entry>) -> Result<(), CoreFault> {
        if committed.is_empty() {
            return Ok(());
        }
        let mut member_removed = false;
        for entry in committed {
            if self.incompatible().is_some() {
                break;
            }
            let at = LogPoint { index: entry.index, term: entry.term };
            let before = self.tables.revision.0;
            if at.index != before + 1 {
                // A member that continued would differ from the others permanently and unnoticed.
                let text = format!("entry {} follows {before}: entries must be applied in order, each once", at.index);
                return Err(CoreFault(text));
            }
            self.bytes_since_snapshot += entry_bytes(&entry);
            self.size.applied(entry_bytes(&entry));
            let outcome =
                match content(&entry).map_err(|e| CoreFault(format!("cannot decode entry {}: {e}", at.index)))? {
                    None => {
                        muster_store::apply_empty(&mut self.tables, Revision(at.index));
                        Ok(())
                    }
                    Some(Content::Command1(command)) => {
                        let position = LogPosition { revision: Revision(at.index), term: Term(at.term) };
                        let (limits, changes) = (&self.config.limits, &mut self.out.changes);
                        muster_store::apply_watched_within(limits, &mut self.tables, position, &command, changes)
                    }
                    Some(Content::Membership1(change)) => {
                        let outcome = self.apply_membership(at, &change);
                        member_removed |= outcome.is_ok() && self.removes_us(&change);
                        outcome
                    }
                };
            let member = self.member.as_mut().expect("only a member has entries");
            member.raw.mut_store().set_applied(at);
            self.consider_digest();
            self.proposals.applied(at, &outcome, &mut self.out.answers);
        }
        self.member.as_mut().expect("only a member has entries").raw.advance_apply_to(self.tables.revision.0);
        if self.incompatible().is_some() {
            self.step_down_if_incompatible(now);
        }
        if member_removed {
            self.leave(now);
        }
        Ok(())
    }

    /// Decided here, alike on every member. A refused change must not reach raft.
    fn apply_membership(&mut self, at: LogPoint, change: &MembershipChange) -> Result<(), CommandRefusal> {
        let before = self.tables.clone();
        let checked =
            muster_store::apply_membership_within(&self.config.limits, &mut self.tables, Revision(at.index), change);
        let outcome = checked.and_then(|()| {
            let Some(change) = conf_change(&change.kind) else { return Ok(()) };
            let member = self.member.as_mut().expect("only a member has entries");
            // Raft may build a snapshot message here. It is completed when it is sent, from the state at that time.
            let conf =
                member.raw.apply_conf_change(&change).map_err(|e| CommandRefusal::Stale { what: e.to_string() })?;
            member.raw.mut_store().set_conf(conf);
            Ok(())
        });
        if let Err(refusal) = &outcome {
            if self.tables.members != before.members {
                self.tables = before;
                muster_store::apply_empty(&mut self.tables, Revision(at.index));
            }
            self.out.notices.push(Notice::MembershipRefused { why: refusal.to_string() });
        }
        outcome
    }

    fn removes_us(&self, change: &MembershipChange) -> bool {
        let ours = self.member.as_ref().map(|s| s.id);
        matches!(&change.kind, MembershipChangeKind::Remove { raft_id } if Some(*raft_id) == ours)
    }

    /// This member was removed. A leader has sent the commit to the others in the same round; it steps down, because
    /// raft must commit nothing as a leader that is not a member.
    fn leave(&mut self, now: Moment) {
        let member = self.member.as_mut().expect("only a member has entries");
        member.removed = true;
        member.hint = None;
        let id = member.id;
        if member.raw.leads() {
            member.raw.step_down();
        }
        self.out.notices.push(Notice::MemberRemoved { raft_id: id });
        self.settle(now);
    }
}
