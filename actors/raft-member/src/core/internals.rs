//! Internals: what this crate reads and changes behind `RawNode`, whose own methods do not offer it, each with its reason. A new
//! version of the raft crate is checked against this list. A tidy test keeps other files from reaching behind `RawNode`.

use raft::eraftpb::Message;
use raft::{INVALID_ID, ProgressTracker, RawNode, StateRole};

use super::log::MemLog;

/// The reads: raft's status copies all progress, which is too much for what every input asks.
pub(super) trait Internals {
    fn role(&self) -> StateRole;
    fn leads(&self) -> bool {
        self.role() == StateRole::Leader
    }
    fn term(&self) -> u64;
    /// `INVALID_ID`: none.
    fn leader_id(&self) -> u64;
    fn committed(&self) -> u64;
    fn last_index(&self) -> u64;
    fn tracker(&self) -> &ProgressTracker;
    fn is_only_voter(&self) -> bool {
        self.tracker().is_singleton()
    }
    /// A voter without a pending snapshot.
    fn promotable(&self) -> bool;
    /// A member without a vote starts no election, so it must notice by itself that its leader is silent.
    fn passed_election_timeout(&self) -> bool;
    /// Raft drops proposals during a transfer, so they wait.
    fn is_transferring(&self) -> bool;
    /// Raft turns a second change into an empty entry, so it is refused before.
    fn has_pending_conf(&self) -> bool;
    /// Raft drops reads before it has committed an entry of its term, so they wait.
    fn has_committed_in_its_term(&self) -> bool;
    /// The snapshot that raft wants installed, which may be an earlier one not yet handed to the disk.
    fn wanted_snapshot(&self) -> Option<u64>;
    /// Whether a candidate whose log ends here may win this member's vote.
    fn is_up_to_date(&self, index: u64, term: u64) -> bool;

    /// Without a leader in the same term: the leader's disk is slow, it is incompatible or removed; or a follower's leader is
    /// certainly gone, and with check-quorum the follower would ignore pre-votes while it has one.
    fn step_down(&mut self);
    /// Raft samples from the thread's generator, and a simulation must be reproducible.
    fn set_election_ticks(&mut self, ticks: usize);
    fn abort_transfer(&mut self);
    /// Raft sends the request once. This is the same transfer: the time until raft gives up continues.
    fn repeat_transfer(&mut self, to: u64);
    /// Several entries by one message: `RawNode` proposes one, and refuses to step a proposal.
    fn propose_all(&mut self, proposal: Message) -> raft::Result<()>;
    /// `skip_bcast_commit` is on, because raft would send a message to each follower at every commit.
    fn announce_commit(&mut self);
    /// A heartbeat out of turn.
    fn send_heartbeat(&mut self, heartbeat: Message);
    /// The peer's session has begun: resume at once instead of with the next heartbeat.
    fn resume(&mut self, peer: u64);
    fn send_append(&mut self, peer: u64);
    /// To a member whose log is empty. Raft would first probe it with the end of the leader's log, and wait for the rejection, a round
    /// trip.
    fn send_first_append(&mut self, peer: u64);
    /// A peer's next index must stay above its matched index (raft 0.7.0 lets a late rejection push it below). True: it was not.
    fn repair_next_index(&mut self, peer: u64) -> bool;
    /// For an injected bug.
    fn forget_vote(&mut self);
}

impl Internals for RawNode<MemLog> {
    fn role(&self) -> StateRole {
        self.raft.state
    }
    fn term(&self) -> u64 {
        self.raft.term
    }
    fn leader_id(&self) -> u64 {
        self.raft.leader_id
    }
    fn committed(&self) -> u64 {
        self.raft.raft_log.committed
    }
    fn last_index(&self) -> u64 {
        self.raft.raft_log.last_index()
    }
    fn tracker(&self) -> &ProgressTracker {
        self.raft.prs()
    }
    fn promotable(&self) -> bool {
        self.raft.promotable()
    }
    fn passed_election_timeout(&self) -> bool {
        self.raft.pass_election_timeout()
    }
    fn is_transferring(&self) -> bool {
        self.raft.lead_transferee.is_some()
    }
    fn has_pending_conf(&self) -> bool {
        self.raft.has_pending_conf()
    }
    fn has_committed_in_its_term(&self) -> bool {
        self.raft.commit_to_current_term()
    }
    fn wanted_snapshot(&self) -> Option<u64> {
        self.raft.snap().map(|snapshot| snapshot.get_metadata().index)
    }
    fn is_up_to_date(&self, index: u64, term: u64) -> bool {
        self.raft.raft_log.is_up_to_date(index, term)
    }
    fn step_down(&mut self) {
        let term = self.raft.term;
        self.raft.become_follower(term, INVALID_ID);
    }
    fn set_election_ticks(&mut self, ticks: usize) {
        self.raft.set_randomized_election_timeout(ticks);
    }
    fn abort_transfer(&mut self) {
        self.raft.abort_leader_transfer();
    }
    fn repeat_transfer(&mut self, to: u64) {
        let elapsed = self.raft.election_elapsed;
        self.raft.abort_leader_transfer();
        self.transfer_leader(to);
        self.raft.election_elapsed = elapsed;
    }
    fn propose_all(&mut self, proposal: Message) -> raft::Result<()> {
        self.raft.step(proposal)
    }
    fn announce_commit(&mut self) {
        self.raft.bcast_append();
    }
    fn send_heartbeat(&mut self, heartbeat: Message) {
        self.raft.msgs.push(heartbeat);
    }
    fn resume(&mut self, peer: u64) {
        if let Some(progress) = self.raft.mut_prs().get_mut(peer) {
            progress.resume();
        }
    }
    fn send_append(&mut self, peer: u64) {
        self.raft.send_append(peer);
    }
    fn send_first_append(&mut self, peer: u64) {
        self.raft.msgs.retain(|message| message.to != peer);
        if let Some(progress) = self.raft.mut_prs().get_mut(peer) {
            progress.next_idx = progress.matched + 1;
            progress.resume();
        }
        self.raft.send_append(peer);
    }
    fn repair_next_index(&mut self, peer: u64) -> bool {
        match self.raft.mut_prs().get_mut(peer) {
            Some(progress) if progress.next_idx <= progress.matched => {
                progress.next_idx = progress.matched + 1;
                true
            }
            _ => false,
        }
    }
    fn forget_vote(&mut self) {
        self.raft.vote = INVALID_ID;
    }
}
