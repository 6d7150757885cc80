//! What a peer actor reports to the raft member, which has timeouts of its own for what is lost because its mailbox is full.

use muster_kernel::Recipient;
use muster_messages::RaftId;
use muster_messages::protocol::RaftMemberMsg;

use crate::core::outgoing::Report;

pub struct RaftReports {
    raft: Recipient<RaftMemberMsg>,
    unreachable: u64,
}

impl RaftReports {
    pub fn new(raft: Recipient<RaftMemberMsg>) -> Self {
        Self { raft, unreachable: 0 }
    }

    pub fn unreachable(&mut self, member_ids: Vec<RaftId>) {
        for to in member_ids {
            self.unreachable += 1;
            // Lost: the next one is reported again.
            let _full = self.raft.tell(RaftMemberMsg::Unreachable { to });
        }
    }
    pub fn unreachable_count(&self) -> u64 {
        self.unreachable
    }

    pub fn snapshot(&self, report: Option<Report>) {
        let msg = match report {
            Some(Report::Progress { to, index }) => RaftMemberMsg::SnapshotProgress { to, index },
            Some(Report::Ended { to, index, outcome }) => RaftMemberMsg::SnapshotSent { to, index, outcome },
            None => return,
        };
        let _full = self.raft.tell(msg);
    }
}
