//! A received snapshot on its way into this member: first until raft has decided, then until it is durable.
//!
//! Owns        the snapshot that raft considers, and the one that is being written.
//! Invariants  raft installs exactly the snapshot that is kept for it; its tables become the state only once it is durable.

use std::sync::Arc;

use muster_messages::Tables;
use muster_messages::wire::SnapshotHead;
use raft::RawNode;
use raft::eraftpb::ConfState;

use super::LogPoint;
use super::log::{MemLog, conf_state};

pub(crate) type ReceivedSnapshot = (SnapshotHead, Tables, Arc<Vec<u8>>);

#[derive(Default)]
pub(crate) struct Installation {
    considered: Option<ReceivedSnapshot>,
    writing: Option<Installing>,
}

struct Installing {
    write: u64,
    at: LogPoint,
    conf: ConfState,
    tables: Tables,
}

impl Installation {
    /// Keeps the snapshot at the index that raft wants, the received one or an earlier one.
    pub fn consider(&mut self, received: Option<ReceivedSnapshot>, wanted: Option<u64>) {
        let mut candidates = received.into_iter().chain(self.considered.take());
        self.considered = candidates.find(|(head, ..)| Some(head.index) == wanted);
    }
    /// Raft installs the snapshot at `index`: it replaces the log, and is written with this write.
    pub fn begin(&mut self, write: u64, index: u64, log: &mut MemLog) -> (SnapshotHead, Arc<Vec<u8>>) {
        let (head, tables, data) = self.considered.take().expect("raft installs the received snapshot");
        assert_eq!(index, head.index, "raft installs the snapshot kept for it");
        let at = LogPoint { index, term: head.term };
        log.install(at);
        let conf = conf_state(&head.voters, &head.learners);
        self.writing = Some(Installing { write, at, conf, tables });
        (head, data)
    }
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }
    /// The disk has everything up to this write. Returns the tables and the position of the snapshot, if that includes it.
    pub fn persisted(&mut self, number: u64, raw: &mut RawNode<MemLog>) -> Option<(Tables, u64)> {
        let done = self.writing.take_if(|installing| installing.write <= number)?;
        raw.advance_apply_to(done.at.index);
        raw.mut_store().set_applied(done.at);
        raw.mut_store().set_conf(done.conf);
        Some((done.tables, done.at.index))
    }
}
