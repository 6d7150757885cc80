//! Packets: Muster's form of the `raft` crate's messages, and the checks that keep a peer from making the crate panic.
//!
//! The crate trusts its input: an index beyond the log, a message of the wrong shape or an empty proposal ends the
//! process. Each kind is therefore checked against what the crate does with it; packets that fail are dropped and
//! counted.

use std::collections::BTreeSet;

use muster_messages::RaftId;
use muster_messages::wire::{EntryKind, PacketKind, RaftEntry, RaftPacket, SnapshotHead};
use raft::RawNode;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

use super::internals::Internals;
use super::log::{MemLog, conf_state};
use super::writes::Settling;

/// No honest counter gets here; above it arithmetic could overflow.
const MAX_COUNTER: u64 = 1 << 62;
/// Read contexts are 24 bytes.
const MAX_CONTEXT: usize = 64;

/// Why a packet was dropped: the counter's name.
pub(crate) type Dropped = &'static str;

fn kind_of(t: MessageType) -> Option<PacketKind> {
    Some(match t {
        MessageType::MsgAppend => PacketKind::Append,
        MessageType::MsgAppendResponse => PacketKind::AppendResponse,
        MessageType::MsgRequestVote => PacketKind::RequestVote,
        MessageType::MsgRequestVoteResponse => PacketKind::RequestVoteResponse,
        MessageType::MsgRequestPreVote => PacketKind::RequestPreVote,
        MessageType::MsgRequestPreVoteResponse => PacketKind::RequestPreVoteResponse,
        MessageType::MsgHeartbeat => PacketKind::Heartbeat,
        MessageType::MsgHeartbeatResponse => PacketKind::HeartbeatResponse,
        MessageType::MsgSnapshot => PacketKind::Snapshot,
        MessageType::MsgTransferLeader => PacketKind::TransferLeader,
        MessageType::MsgTimeoutNow => PacketKind::TimeoutNow,
        MessageType::MsgReadIndex => PacketKind::ReadIndex,
        MessageType::MsgReadIndexResp => PacketKind::ReadIndexResponse,
        _ => return None,
    })
}

/// `None`: not one of the crate's messages.
fn type_of(kind: PacketKind) -> Option<MessageType> {
    Some(match kind {
        PacketKind::Append => MessageType::MsgAppend,
        PacketKind::AppendResponse => MessageType::MsgAppendResponse,
        PacketKind::RequestVote => MessageType::MsgRequestVote,
        PacketKind::RequestVoteResponse => MessageType::MsgRequestVoteResponse,
        PacketKind::RequestPreVote => MessageType::MsgRequestPreVote,
        PacketKind::RequestPreVoteResponse => MessageType::MsgRequestPreVoteResponse,
        PacketKind::Heartbeat => MessageType::MsgHeartbeat,
        PacketKind::HeartbeatResponse => MessageType::MsgHeartbeatResponse,
        PacketKind::Snapshot => MessageType::MsgSnapshot,
        PacketKind::TransferLeader => MessageType::MsgTransferLeader,
        PacketKind::TimeoutNow => MessageType::MsgTimeoutNow,
        PacketKind::ReadIndex => MessageType::MsgReadIndex,
        PacketKind::ReadIndexResponse => MessageType::MsgReadIndexResp,
        PacketKind::StateDigest => return None,
    })
}

fn entry_out(e: &Entry) -> RaftEntry {
    RaftEntry {
        kind: match e.get_entry_type() {
            EntryType::EntryNormal => EntryKind::Normal,
            EntryType::EntryConfChange => EntryKind::ConfChange,
            EntryType::EntryConfChangeV2 => EntryKind::ConfChangeV2,
        },
        term: e.term,
        index: e.index,
        data: e.data.to_vec(),
        context: e.context.to_vec(),
    }
}

fn entry_in(e: RaftEntry) -> Entry {
    let mut entry = Entry::default();
    entry.set_entry_type(match e.kind {
        EntryKind::Normal => EntryType::EntryNormal,
        EntryKind::ConfChange => EntryType::EntryConfChange,
        EntryKind::ConfChangeV2 => EntryType::EntryConfChangeV2,
    });
    entry.term = e.term;
    entry.index = e.index;
    entry.data = e.data.into();
    entry.context = e.context.into();
    entry
}

/// A message of the crate as a packet. `None`: a message that members do not exchange.
pub(crate) fn outgoing(m: &Message) -> Option<RaftPacket> {
    Some(RaftPacket {
        kind: kind_of(m.get_msg_type())?,
        from: RaftId(m.from),
        to: RaftId(m.to),
        term: m.term,
        log_term: m.log_term,
        index: m.index,
        commit: m.commit,
        commit_term: m.commit_term,
        entries: m.entries.iter().map(entry_out).collect(),
        snapshot: None,
        request_snapshot: m.request_snapshot,
        reject: m.reject,
        reject_hint: m.reject_hint,
        context: m.context.to_vec(),
        priority: m.priority,
    })
}

/// The digest of a state, or the leader's notice that it is wrong. See `digests`.
pub(crate) fn state_digest(
    from: RaftId,
    to: RaftId,
    term: u64,
    index: u64,
    digest: [u8; 32],
    wrong: bool,
) -> RaftPacket {
    RaftPacket {
        kind: PacketKind::StateDigest,
        from,
        to,
        term,
        log_term: 0,
        index,
        commit: 0,
        commit_term: 0,
        entries: Vec::new(),
        snapshot: None,
        request_snapshot: 0,
        reject: wrong,
        reject_hint: 0,
        context: digest.to_vec(),
        priority: 0,
    }
}

/// A checked packet as the crate's message, if it is one of the crate's.
pub(crate) fn incoming(p: RaftPacket) -> Option<Message> {
    let mut m = Message::default();
    m.set_msg_type(type_of(p.kind)?);
    m.from = p.from.0;
    m.to = p.to.0;
    m.term = p.term;
    m.log_term = p.log_term;
    m.index = p.index;
    m.commit = p.commit;
    m.commit_term = p.commit_term;
    m.set_entries(p.entries.into_iter().map(entry_in).collect::<Vec<_>>().into());
    m.reject = p.reject;
    m.reject_hint = p.reject_hint;
    m.context = p.context.into();
    m.priority = p.priority;
    if let Some(head) = p.snapshot {
        let mut snapshot = Snapshot::default();
        let meta = snapshot.mut_metadata();
        meta.index = head.index;
        meta.term = head.term;
        meta.set_conf_state(conf_state(&head.voters, &head.learners));
        m.set_snapshot(snapshot);
    }
    Some(m)
}

/// The packets by which a leader gives this node its member id.
pub(crate) fn is_from_leader(kind: PacketKind) -> bool {
    matches!(kind, PacketKind::Append | PacketKind::Heartbeat | PacketKind::Snapshot)
}

/// Checks that need only the packet.
pub(crate) fn well_formed(p: &RaftPacket) -> Result<(), Dropped> {
    let counters = [p.from.0, p.to.0, p.term, p.log_term, p.index, p.commit, p.commit_term, p.reject_hint];
    let sane = counters.iter().all(|n| *n < MAX_COUNTER) && p.from.0 != 0 && p.from != p.to;
    let local = p.kind == PacketKind::ReadIndex; // forwarded without a term
    let shape = match p.kind {
        PacketKind::Append => entries_join(p),
        PacketKind::Snapshot => p.snapshot.as_ref().is_some_and(|head| head_is_sound(head, p.to)),
        PacketKind::ReadIndex | PacketKind::ReadIndexResponse => {
            p.entries.len() == 1 && p.entries[0].data.len() <= MAX_CONTEXT && p.entries[0].index < MAX_COUNTER
        }
        PacketKind::StateDigest => p.entries.is_empty() && p.context.len() == 32,
        PacketKind::TransferLeader => return Err("not_from_a_peer"),
        _ => p.entries.is_empty(),
    };
    let right_term = (p.term == 0) == local;
    let extras = (p.kind == PacketKind::Snapshot || p.snapshot.is_none())
        && p.request_snapshot == 0
        && p.context.len() <= MAX_CONTEXT;
    if sane && shape && right_term && extras { Ok(()) } else { Err("ill_formed") }
}

/// Entries follow `index` without a gap, in terms that only grow, none above the sender's.
fn entries_join(p: &RaftPacket) -> bool {
    let mut term = p.log_term;
    let joined = p.entries.iter().enumerate().all(|(i, e)| {
        let ok = e.index == p.index + 1 + i as u64 && e.term >= term && e.term > 0;
        term = e.term;
        ok
    });
    joined && term <= p.term && (p.index == 0) == (p.log_term == 0)
}

fn head_is_sound(head: &SnapshotHead, to: RaftId) -> bool {
    let all: Vec<u64> = head.voters.iter().chain(&head.learners).copied().collect();
    let distinct: BTreeSet<u64> = all.iter().copied().collect();
    let in_range = head.index > 0 && head.index < MAX_COUNTER && head.term > 0 && head.term < MAX_COUNTER;
    in_range
        && !head.voters.is_empty()
        && distinct.len() == all.len()
        && !distinct.contains(&0)
        && distinct.contains(&to.0)
}

/// Checks that need this member's state. `settling`: own entries or an own snapshot are not durable yet.
pub(crate) fn acceptable(p: &RaftPacket, raw: &RawNode<MemLog>, settling: Settling) -> Result<(), Dropped> {
    let current = p.term >= raw.term();
    let last = raw.last_index();
    let from_leader = p.from.0 == raw.leader_id() && p.term == raw.term();
    let fine = match p.kind {
        // A commit beyond the own log would be fatal. An honest leader announces only what this member has
        // acknowledged.
        PacketKind::Heartbeat => !current || p.commit <= last,
        PacketKind::AppendResponse => p.reject || p.index <= last,
        // Becoming leader with entries in flight is fatal. Own requests leave after them, so an answer cannot overtake.
        PacketKind::RequestVoteResponse => settling == Settling::Nothing,
        // Only the current leader may make this member campaign, and not while a snapshot is being written. A lone
        // voter would become leader at once.
        PacketKind::TimeoutNow => {
            from_leader && settling < Settling::Snapshot && (settling == Settling::Nothing || !raw.is_only_voter())
        }
        // A follower would forward it, again and again.
        PacketKind::ReadIndex => raw.leads() && raw.tracker().get(p.from.0).is_some(),
        PacketKind::ReadIndexResponse => from_leader,
        PacketKind::Snapshot => settling != Settling::Snapshot,
        _ => true,
    };
    if fine { Ok(()) } else { Err("out_of_place") }
}
