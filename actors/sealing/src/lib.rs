//! Sealing: what is secret on a manager's disk is encrypted and authenticated.
//!
//! A library without an actor. Everything is pure except [`files`] and [`Keys`], which owns `identity/keyring.json`.
//!
//! ```text
//! unlock key ──► KEK ──┐
//! clear slot ──────────┴─► master key ──► data keys ──► one key per writer ──► records, chunks of a file
//! ```
//!
//! Why one small file for all keys: it is replaced atomically, so keys and what wraps them cannot contradict each other.

#![deny(missing_docs)]

mod backup;
mod crypto;
pub mod files;
mod keyring;
mod keys;
mod record;
mod secret_file;
mod unlock_key;

pub use self::backup::{WrongBackup, open_backup, seal_backup};
pub use self::crypto::{DataKey, hex};
pub use self::keyring::{KeyId, KeyUse, KeyringFault, Protected, UnlockRefusal};
pub use self::keys::{KEYRING, Keys, KeysStatus, SET_ASIDE, delete_set_aside};
pub use self::record::{Opener, RECORD_OVERHEAD, Sealer, WrongSeal, open_chunks, seal_chunks};
pub use self::secret_file::{is_sealed_text, key_of_text, open_text, seal_text};
pub use self::unlock_key::{BadUnlockKey, UnlockKey};
