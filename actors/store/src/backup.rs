//! A backup: the replicated state in one file, preceded by a line that describes it.
//!
//! Invariants  BACKUP-1  a truncated file, or one with a changed byte, is detected before it is used.
//!             BACKUP-2  while autolock is on, a backup is sealed under the unlock key: without the key only its first line can be read.
//! It holds everything in the tables, including the root key and the tokens' secrets: its reader can impersonate the
//! cluster.

use muster_messages::{ClusterId, FEATURE_LEVEL, Incarnation, Name, Revision, Tables, Term, WallTime};
use muster_sealing::{UnlockKey, WrongBackup, open_backup, seal_backup};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::snapshot::{self, SnapshotFault};

const FORMAT: &str = "muster-backup/1";
/// A backup of the other format, sealed.
const SEALED: &str = "muster-backup/2";
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
    /// The version of the unlock key under which it is sealed. `None`: it is in clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlock_version: Option<Revision>,
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
    #[error("it has format {0}, but this build reads {FORMAT} and {SEALED}")]
    Format(String),
    #[error("it is truncated: {found} of {wanted} bytes are there")]
    Truncated { wanted: u64, found: u64 },
    #[error("its digest does not match: its content was changed")]
    Digest,
    #[error("it is sealed under version {0} of the cluster's unlock key")]
    Sealed(Revision),
    #[error("it is not sealed")]
    NotSealed,
    #[error("the key does not open it: it is sealed under version {0} of the cluster's unlock key")]
    WrongKey(Revision),
    #[error("it cannot be opened: its content was changed")]
    Forged,
    #[error("the unlock key on record is malformed")]
    Key,
    #[error("cannot decode its state: {0}")]
    State(SnapshotFault),
    #[error("the cluster was at feature level {0}, this build supports {FEATURE_LEVEL}: use the build that it ran")]
    Newer(u32),
    #[error("the cluster was not founded yet")]
    Empty,
}

/// Encodes these tables as a backup, in clear.
///
/// # Errors
/// The cluster was not founded yet.
pub fn encode(tables: &Tables, term: Term, taken_at: WallTime) -> Result<Vec<u8>, BadBackup> {
    let (head, state) = parts(tables, term, taken_at)?;
    Ok(joined(&head, &state))
}

/// The line and the data of a backup in clear.
fn parts(tables: &Tables, term: Term, taken_at: WallTime) -> Result<(BackupHead, Vec<u8>), BadBackup> {
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
        unlock_version: None,
        bytes: state.len() as u64,
        sha256: digest(&state),
    };
    Ok((head, state))
}

/// Encodes these tables for a file: sealed under the unlock key, if autolock is on (BACKUP-2). Each time with a salt of its own: nothing
/// else in this crate gives two results for one state, and simulations use [`encode`].
///
/// # Errors
/// The cluster was not founded yet, or its unlock key is malformed.
pub fn encode_for_file(tables: &Tables, term: Term, taken_at: WallTime) -> Result<Vec<u8>, BadBackup> {
    let (head, state) = parts(tables, term, taken_at)?;
    let clear = joined(&head, &state);
    let Some(key) = &tables.autolock.key else { return Ok(clear) };
    let key = UnlockKey::parse(key.expose()).map_err(|_| BadBackup::Key)?;
    let sealed = seal_backup(&key, &clear);
    let head = BackupHead {
        format: SEALED.to_owned(),
        unlock_version: Some(tables.autolock.version),
        bytes: sealed.len() as u64,
        sha256: digest(&sealed),
        ..head
    };
    Ok(joined(&head, &sealed))
}

/// The line of a backup whose data is complete and unchanged, sealed or not.
///
/// # Errors
/// This build cannot read the backup.
pub fn verify(backup: &[u8]) -> Result<BackupHead, BadBackup> {
    match decode(backup) {
        Err(BadBackup::Sealed(_)) => split(backup).map(|(head, _)| head),
        decoded => decoded.map(|(head, _)| head),
    }
}

/// Decodes a backup that is in clear.
///
/// # Errors
/// It is sealed, or this build cannot read the backup.
pub fn decode(backup: &[u8]) -> Result<(BackupHead, Tables), BadBackup> {
    let (head, state) = split(backup)?;
    if let Some(version) = head.unlock_version {
        return Err(BadBackup::Sealed(version));
    }
    let tables = snapshot::decode(state).map_err(BadBackup::State)?;
    let level = tables.cluster.as_ref().ok_or(BadBackup::Empty)?.feature_level;
    if level > FEATURE_LEVEL { Err(BadBackup::Newer(level)) } else { Ok((head, tables)) }
}

/// Decodes a backup that is sealed, with its key.
///
/// # Errors
/// It is in clear, the key is another one, or this build cannot read the backup.
pub fn decode_sealed(backup: &[u8], key: &UnlockKey) -> Result<(BackupHead, Tables), BadBackup> {
    let (head, sealed) = split(backup)?;
    let version = head.unlock_version.ok_or(BadBackup::NotSealed)?;
    let clear = open_backup(key, sealed).map_err(|why| match why {
        WrongBackup::Key => BadBackup::WrongKey(version),
        WrongBackup::Seal(_) => BadBackup::Forged,
    })?;
    let (inner, tables) = decode(&clear)?;
    // The line is not sealed, and names the cluster to an operator who chooses a file.
    let BackupHead { format, unlock_version, bytes, sha256, .. } = inner.clone();
    if (BackupHead { format, unlock_version, bytes, sha256, ..head }) == inner {
        Ok((inner, tables))
    } else {
        Err(BadBackup::Forged)
    }
}

/// The line and the data, complete and unchanged (BACKUP-1).
fn split(backup: &[u8]) -> Result<(BackupHead, &[u8]), BadBackup> {
    let line = backup.iter().take(MAX_HEAD_BYTES).position(|byte| *byte == b'\n').ok_or(BadBackup::Foreign)?;
    let (head, state) = (&backup[..line], &backup[line + 1..]);
    let named: Named = serde_json::from_slice(head).map_err(|_| BadBackup::Foreign)?;
    if named.format != FORMAT && named.format != SEALED {
        return Err(BadBackup::Format(named.format));
    }
    let head: BackupHead = serde_json::from_slice(head).map_err(|_| BadBackup::Foreign)?;
    if head.unlock_version.is_some() != (head.format == SEALED) {
        return Err(BadBackup::Foreign);
    }
    let found = state.len() as u64;
    if found != head.bytes {
        return Err(BadBackup::Truncated { wanted: head.bytes, found });
    }
    if digest(state) == head.sha256 { Ok((head, state)) } else { Err(BadBackup::Digest) }
}

fn joined(head: &BackupHead, data: &[u8]) -> Vec<u8> {
    let mut backup = serde_json::to_vec(head).expect("a head is plain data");
    backup.push(b'\n');
    backup.extend_from_slice(data);
    backup
}

#[derive(Deserialize)]
struct Named {
    format: String,
}

fn digest(state: &[u8]) -> String {
    Sha256::digest(state).iter().map(|byte| format!("{byte:02x}")).collect()
}
