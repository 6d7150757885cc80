//! The content of a log entry: a versioned command, or a versioned membership change in the context of a
//! configuration entry.

use muster_messages::wire::{WireError, decode, encode};
use muster_messages::{Command, MembershipChange, MembershipChangeKind};
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, Entry, EntryType};
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
enum Written<'a> {
    Command1(&'a Command),
    Membership1(&'a MembershipChange),
}

/// The request that an entry carries.
#[derive(Deserialize)]
pub(crate) enum Content {
    Command1(Box<Command>),
    Membership1(Box<MembershipChange>),
}

pub(crate) fn command_entry(command: &Command) -> Result<Entry, WireError> {
    let data = encode(&Written::Command1(command))?;
    Ok(Entry { data: data.into(), ..Entry::default() })
}

/// `raft` reads the kind and the id of the configuration change; the core reads the context.
pub(crate) fn membership_entry(change: &MembershipChange) -> Result<Entry, WireError> {
    let context = encode(&Written::Membership1(change))?;
    let data = conf_change(&change.kind)
        .unwrap_or_default()
        .write_to_bytes()
        .map_err(|e| WireError::Malformed(e.to_string()))?;
    let mut entry = Entry { data: data.into(), context: context.into(), ..Entry::default() };
    entry.set_entry_type(EntryType::EntryConfChange);
    Ok(entry)
}

/// The Raft configuration change of a membership change, if there is one.
pub(crate) fn conf_change(kind: &MembershipChangeKind) -> Option<ConfChange> {
    let (change_type, id) = match kind {
        MembershipChangeKind::AddLearner { raft_id, .. } => (ConfChangeType::AddLearnerNode, raft_id),
        MembershipChangeKind::PromoteLearner { raft_id, .. } => (ConfChangeType::AddNode, raft_id),
        MembershipChangeKind::Remove { raft_id } => (ConfChangeType::RemoveNode, raft_id),
        MembershipChangeKind::SetAddress { .. } => return None,
    };
    let mut change = ConfChange { node_id: id.0, ..ConfChange::default() };
    change.set_change_type(change_type);
    Some(change)
}

/// `None`: an empty entry (a leader's first, or a configuration change that raft replaced).
pub(crate) fn content(entry: &Entry) -> Result<Option<Content>, WireError> {
    let bytes = match entry.get_entry_type() {
        EntryType::EntryNormal => &entry.data,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => &entry.context,
    };
    if bytes.is_empty() { Ok(None) } else { decode(bytes).map(Some) }
}
