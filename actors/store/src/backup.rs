//! A backup: the replicated state in one file, preceded by a line that describes it.
//!
//! Invariants  BACKUP-1  a truncated file, or one with a changed byte, is detected before it is used.
//! It holds everything in the tables, including the root key and the tokens' secrets: its owner can impersonate the
//! cluster.

use muster_messages::{ClusterId, FEATURE_LEVEL, Incarnation, Name, Revision, Tables, Term, WallTime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::snapshot::{self, SnapshotFault};

const FORMAT: &str = "muster-backup/1";
/// The longest first line that is read; a line takes some 400 bytes.
const MAX_HEAD_BYTES: usize = 4096;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHead {
    pub format: String,
    pub cluster: ClusterId,
    pub name: Name,
    pub incarnation: Incarnation,
    pub revision: Revision,
    pub term: Term,
    pub taken_at: WallTime,
    /// Of the data after the line.
    pub bytes: u64,
    /// SHA-256 of the data after the line, in lower-case hexadecimal.
    pub sha256: String,
}

/// Why a file is not a usable backup.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBackup {
    #[error("it is not a backup of a Muster cluster")]
    Foreign,
    #[error("it has format {0}, but this build reads {FORMAT}")]
    Format(String),
    #[error("it is truncated: {found} of {wanted} bytes are there")]
    Truncated { wanted: u64, found: u64 },
    #[error("its digest does not match: its content was changed")]
    Digest,
    #[error("cannot decode its state: {0}")]
    State(SnapshotFault),
    #[error("the cluster was at feature level {0}, this build supports {FEATURE_LEVEL}: use the build that it ran")]
    Newer(u32),
    #[error("the cluster was not founded yet")]
    Empty,
}

/// Encodes these tables as a backup.
pub fn encode(tables: &Tables, term: Term, taken_at: WallTime) -> Result<Vec<u8>, BadBackup> {
    let cluster = tables.cluster.as_ref().ok_or(BadBackup::Empty)?;
    let state = snapshot::encode(tables);
    let head = BackupHead {
        format: FORMAT.to_owned(),
        cluster: cluster.id,
        name: cluster.name.clone(),
        incarnation: cluster.incarnation,
        revision: tables.revision,
        term,
        taken_at,
        bytes: state.len() as u64,
        sha256: digest(&state),
    };
    let mut backup = serde_json::to_vec(&head).expect("a head is plain data");
    backup.push(b'\n');
    backup.extend(state);
    Ok(backup)
}

/// Decodes a backup.
pub fn decode(backup: &[u8]) -> Result<(BackupHead, Tables), BadBackup> {
    let line = backup.iter().take(MAX_HEAD_BYTES).position(|byte| *byte == b'\n').ok_or(BadBackup::Foreign)?;
    let (head, state) = (&backup[..line], &backup[line + 1..]);
    let named: Named = serde_json::from_slice(head).map_err(|_| BadBackup::Foreign)?;
    if named.format != FORMAT {
        return Err(BadBackup::Format(named.format));
    }
    let head: BackupHead = serde_json::from_slice(head).map_err(|_| BadBackup::Foreign)?;
    let found = state.len() as u64;
    if found != head.bytes {
        return Err(BadBackup::Truncated { wanted: head.bytes, found });
    }
    if digest(state) != head.sha256 {
        return Err(BadBackup::Digest);
    }
    let tables = snapshot::decode(state).map_err(BadBackup::State)?;
    let level = tables.cluster.as_ref().ok_or(BadBackup::Empty)?.feature_level;
    if level > FEATURE_LEVEL { Err(BadBackup::Newer(level)) } else { Ok((head, tables)) }
}

#[derive(Deserialize)]
struct Named {
    format: String,
}

fn digest(state: &[u8]) -> String {
    Sha256::digest(state).iter().map(|byte| format!("{byte:02x}")).collect()
}
