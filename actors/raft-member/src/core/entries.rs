//! What a log entry carries: a versioned command, or a versioned seat change in a configuration entry's context.

use muster_messages::wire::{WireError, decode, encode};
use muster_messages::{Command, SeatChange, SeatChangeKind};
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, Entry, EntryType};
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
enum Written<'a> {
    Command1(&'a Command),
    Seat1(&'a SeatChange),
}

/// What an entry asks for.
#[derive(Deserialize)]
pub(crate) enum Content {
    Command1(Box<Command>),
    Seat1(Box<SeatChange>),
}

pub(crate) fn command_entry(command: &Command) -> Result<Entry, WireError> {
    let data = encode(&Written::Command1(command))?;
    Ok(Entry { data: data.into(), ..Entry::default() })
}

/// `raft` reads the kind and the id to know that the configuration changes; we read the context.
pub(crate) fn seat_entry(change: &SeatChange) -> Result<Entry, WireError> {
    let context = encode(&Written::Seat1(change))?;
    let data = conf_change(&change.kind)
        .unwrap_or_default()
        .write_to_bytes()
        .map_err(|e| WireError::Malformed(e.to_string()))?;
    let mut entry = Entry { data: data.into(), context: context.into(), ..Entry::default() };
    entry.set_entry_type(EntryType::EntryConfChange);
    Ok(entry)
}

/// The change of the Raft configuration behind a seat change, if there is one.
pub(crate) fn conf_change(kind: &SeatChangeKind) -> Option<ConfChange> {
    let (change_type, id) = match kind {
        SeatChangeKind::AddLearner { raft_id, .. } => (ConfChangeType::AddLearnerNode, raft_id),
        SeatChangeKind::PromoteLearner { raft_id, .. } => (ConfChangeType::AddNode, raft_id),
        SeatChangeKind::Remove { raft_id } => (ConfChangeType::RemoveNode, raft_id),
        SeatChangeKind::SetAddress { .. } => return None,
    };
    let mut change = ConfChange { node_id: id.0, ..ConfChange::default() };
    change.set_change_type(change_type);
    Some(change)
}

/// `None`: an entry that carries nothing (a leader's first, or a configuration change that raft replaced).
pub(crate) fn content(entry: &Entry) -> Result<Option<Content>, WireError> {
    let bytes = match entry.get_entry_type() {
        EntryType::EntryNormal => &entry.data,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => &entry.context,
    };
    if bytes.is_empty() { Ok(None) } else { decode(bytes).map(Some) }
}
