//! The result of a sequence of writes: the meaning of a `Durable` on every disk.

use std::sync::Arc;

use muster_messages::RaftId;
use muster_messages::wire::SnapshotHead;

use super::LogFault;
use crate::core::{Durable, Entry, HardMark, LogPoint, Recovered, digest};

#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    pub member_id: Option<RaftId>,
    pub hard: HardMark,
    pub snapshot: Option<(SnapshotHead, Arc<Vec<u8>>)>,
    pub truncated: LogPoint,
    pub entries: Vec<Entry>,
}

impl Image {
    /// `stored` returns the data of a snapshot that was written beside the log.
    pub fn apply(&mut self, write: &Durable, stored: impl Fn(&SnapshotHead) -> Option<Arc<Vec<u8>>>) {
        if let Some(member_id) = write.start_over {
            *self = Self { member_id: Some(member_id), ..Self::default() };
        }
        if let Some((head, data)) = &write.install {
            self.snapshot = Some((head.clone(), Arc::clone(data)));
            self.truncated = LogPoint { index: head.index, term: head.term };
            self.entries.clear();
        }
        self.hard = write.hard;
        if let Some(first) = write.entries.first() {
            let keep = first.index.saturating_sub(self.truncated.index + 1) as usize;
            self.entries.truncate(keep);
            self.entries.extend(write.entries.iter().cloned());
        }
        if let Some(compact) = &write.compact {
            let data = stored(&compact.head).expect("a snapshot is stored before it is named");
            self.snapshot = Some((compact.head.clone(), data));
            let gone = compact.keep_after.index.saturating_sub(self.truncated.index) as usize;
            self.entries.drain(..gone.min(self.entries.len()));
            self.truncated = compact.keep_after;
        }
    }

    pub fn recovered(&self) -> Result<Recovered, LogFault> {
        let snapshot = match &self.snapshot {
            None => None,
            Some((head, data)) if digest(data) == head.digest => {
                let tables = muster_store::snapshot::decode(data).map_err(|e| LogFault::of_snapshot("snapshot", &e))?;
                Some((head.clone(), tables))
            }
            Some(_) => return Err(LogFault::damaged("snapshot", "its digest does not match")),
        };
        Ok(Recovered {
            member_id: self.member_id,
            hard: self.hard,
            snapshot,
            truncated: self.truncated,
            entries: self.entries.clone(),
        })
    }
}
