//! A backup: the replicated state in one file, with a line before it that says what it is.
//!
//! Keeps  BACKUP-1  a file that was cut off, or in which a byte has changed, is found before anything is made of it.
//! It holds what the tables hold, hence the root key and the tokens' secrets: whoever has it can be the cluster.

use muster_messages::{ClusterId, FEATURE_LEVEL, Incarnation, Name, Revision, Tables, Term, WallTime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::snapshot::{self, SnapshotFault};

const FORMAT: &str = "muster-backup/1";
/// The longest first line that is looked at; one takes some 400 bytes.
const MAX_HEAD: usize = 4096;

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
    /// Of what follows the line.
    pub bytes: u64,
    /// SHA-256 of what follows the line, in lower-case hexadecimal.
    pub sha256: String,
}

/// A file that is no backup to go on with.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBackup {
    #[error("it is no backup of a Muster cluster")]
    Foreign,
    #[error("it is of format {0}, this build reads {FORMAT}")]
    Format(String),
    #[error("it was cut off: {found} of {wanted} bytes are there")]
    CutOff { wanted: u64, found: u64 },
    #[error("its digest does not match: something in it was changed")]
    Digest,
    #[error("its state cannot be read: {0}")]
    State(SnapshotFault),
    #[error("the cluster was at feature level {0}, this build speaks {FEATURE_LEVEL}: use the build that it ran")]
    Newer(u32),
    #[error("the cluster was not founded yet")]
    Empty,
}

/// A backup of these tables.
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

/// What a backup is and holds.
pub fn decode(backup: &[u8]) -> Result<(BackupHead, Tables), BadBackup> {
    let line = backup.iter().take(MAX_HEAD).position(|byte| *byte == b'\n').ok_or(BadBackup::Foreign)?;
    let (head, state) = (&backup[..line], &backup[line + 1..]);
    let named: Named = serde_json::from_slice(head).map_err(|_| BadBackup::Foreign)?;
    if named.format != FORMAT {
        return Err(BadBackup::Format(named.format));
    }
    let head: BackupHead = serde_json::from_slice(head).map_err(|_| BadBackup::Foreign)?;
    let found = state.len() as u64;
    if found != head.bytes {
        return Err(BadBackup::CutOff { wanted: head.bytes, found });
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
