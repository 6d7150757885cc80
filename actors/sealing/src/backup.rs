//! Backups under the unlock key, for reading where no keyring is.
//!
//! ```text
//! salt 32 | check 8 | a file as `seal_chunks` writes it, by a key that follows from the unlock key and the salt
//! ```
//!
//! Why a check: it tells another key from damage, and 8 bytes of a derived key say nothing about it.

use crate::crypto::{DataKey, random};
use crate::keyring::{KeyId, KeyUse};
use crate::record::{WrongSeal, open_chunks, seal_chunks};
use crate::unlock_key::UnlockKey;

const SALT_LEN: usize = 32;
const CHECK_LEN: usize = 8;
/// What is authenticated beside the text.
const PLACE: &[u8] = b"muster-backup/2";

/// Why a sealed backup does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongBackup {
    /// The key is not the backup's.
    #[error("it was sealed under another key")]
    Key,
    /// Its content is damaged, or sealed by a newer release.
    #[error(transparent)]
    Seal(#[from] WrongSeal),
}

fn data_key(key: &UnlockKey, salt: &[u8]) -> DataKey {
    DataKey { id: KeyId(0), for_use: KeyUse::Backup, key: key.derive(salt, "muster-backup/2") }
}

fn check(key: &UnlockKey, salt: &[u8]) -> [u8; CHECK_LEN] {
    let derived = key.derive(salt, "muster-backup-check/1");
    *derived.expose().first_chunk().expect("a key is longer than its check")
}

/// Seals a text under the unlock key.
pub fn seal_backup(key: &UnlockKey, text: &[u8]) -> Vec<u8> {
    let mut salt = [0; SALT_LEN];
    random(&mut salt);
    let mut sealed = [&salt[..], &check(key, &salt)].concat();
    let written = seal_chunks(&data_key(key, &salt), PLACE, text, |part| {
        sealed.extend_from_slice(part);
        Ok(())
    });
    written.expect("a buffer in memory accepts every write");
    sealed
}

/// The text that [`seal_backup`] sealed.
///
/// # Errors
/// It was sealed under another key, or is not what was sealed.
pub fn open_backup(key: &UnlockKey, sealed: &[u8]) -> Result<Vec<u8>, WrongBackup> {
    let (salt, rest) = sealed.split_at_checked(SALT_LEN).ok_or(WrongSeal::Short)?;
    let (found, file) = rest.split_at_checked(CHECK_LEN).ok_or(WrongSeal::Short)?;
    if found != check(key, salt) {
        return Err(WrongBackup::Key);
    }
    Ok(open_chunks(&[data_key(key, salt)], PLACE, file.to_vec())?)
}
