//! Applying committed entries.

use muster_messages::{CommandRefusal, Moment, Revision, SeatChange, SeatChangeKind, Term};
use muster_store::Place;
use raft::eraftpb::Entry;
use raft::{INVALID_ID, StateRole};

use super::entries::{Content, conf_change, content};
use super::log::entry_bytes;
use super::{CoreFault, LogPoint, Notice, RaftCore};

impl RaftCore {
    pub(super) fn apply(&mut self, now: Moment, committed: Vec<Entry>) -> Result<(), CoreFault> {
        if committed.is_empty() {
            return Ok(());
        }
        let mut unseated = false;
        for entry in committed {
            if self.outgrown().is_some() {
                break;
            }
            let at = LogPoint { index: entry.index, term: entry.term };
            let before = self.tables.revision.0;
            if at.index != before + 1 {
                // A member that went on would differ from the others for ever, and nobody would notice.
                let text = format!("entry {} follows {before}: entries are applied in order, each once", at.index);
                return Err(CoreFault(text));
            }
            self.bytes_since_snapshot += entry_bytes(&entry);
            self.size.applied(entry_bytes(&entry));
            let outcome =
                match content(&entry).map_err(|e| CoreFault(format!("entry {} cannot be read: {e}", at.index)))? {
                    None => {
                        muster_store::apply_empty(&mut self.tables, Revision(at.index));
                        Ok(())
                    }
                    Some(Content::Command1(command)) => {
                        let place = Place { revision: Revision(at.index), term: Term(at.term) };
                        let (limits, changes) = (&self.config.limits, &mut self.out.changes);
                        muster_store::apply_watched_within(limits, &mut self.tables, place, &command, changes)
                    }
                    Some(Content::Seat1(change)) => {
                        let outcome = self.apply_seat(at, &change);
                        unseated |= outcome.is_ok() && self.removes_us(&change);
                        outcome
                    }
                };
            let seat = self.seat.as_mut().expect("entries come from a seat");
            seat.raw.mut_store().set_applied(at);
            self.consider_digest();
            self.proposals.applied(at, &outcome, &mut self.out.answers);
        }
        self.seat.as_mut().expect("entries come from a seat").raw.advance_apply_to(self.tables.revision.0);
        if self.outgrown().is_some() {
            self.step_down_if_outgrown(now);
        }
        if unseated {
            self.leave(now);
        }
        Ok(())
    }

    /// Judged here, by every member alike. A refused change must not reach raft.
    fn apply_seat(&mut self, at: LogPoint, change: &SeatChange) -> Result<(), CommandRefusal> {
        let before = self.tables.clone();
        let judged = muster_store::apply_seat_within(&self.config.limits, &mut self.tables, Revision(at.index), change);
        let outcome = judged.and_then(|()| {
            let Some(change) = conf_change(&change.kind) else { return Ok(()) };
            let seat = self.seat.as_mut().expect("entries come from a seat");
            // Raft may build a snapshot message in here: it is completed when it leaves, from the state as it is then.
            let conf =
                seat.raw.apply_conf_change(&change).map_err(|e| CommandRefusal::Stale { what: e.to_string() })?;
            seat.raw.mut_store().set_conf(conf);
            Ok(())
        });
        if let Err(refusal) = &outcome {
            if self.tables.members != before.members {
                self.tables = before;
                muster_store::apply_empty(&mut self.tables, Revision(at.index));
            }
            self.out.notices.push(Notice::SeatRefused { why: refusal.to_string() });
        }
        outcome
    }

    fn removes_us(&self, change: &SeatChange) -> bool {
        let ours = self.seat.as_ref().map(|s| s.id);
        matches!(&change.kind, SeatChangeKind::Remove { raft_id } if Some(*raft_id) == ours)
    }

    /// Our seat is gone. A leader has told the others of the commit in the same round; it leads no longer, because
    /// raft must not commit anything as a leader that is no member.
    fn leave(&mut self, now: Moment) {
        let seat = self.seat.as_mut().expect("entries come from a seat");
        seat.removed = true;
        seat.hint = None;
        let id = seat.id;
        if seat.raw.raft.state == StateRole::Leader {
            let term = seat.raw.raft.term;
            seat.raw.raft.become_follower(term, INVALID_ID);
        }
        self.out.notices.push(Notice::Unseated { raft_id: id });
        self.settle(now);
    }
}
