//! Autolock: keeps this manager's keyring at the replicated version of the unlock key. Runs in each manager runtime.
//!
//! Owns        nothing that outlives it: what is left to do follows from the replicated state and from the keyring.
//! Inputs      the local replica: the unlock key, and what is on record of this manager; results of writing and reporting.
//! Outputs     the keyring's new version; a report of it to the leader.
//! Invariants  SEAL-1   a version is reported once the keyring is on disk with it, and not before.
//!             SEAL-6   an older version changes nothing, and an equal one with another key is a fault, which is shown.
//!             SEAL-10  a crash at any point costs time, and no key.
//! Why not the Raft member, which applies the change: a disk that is full must not stop the log, and a keyring that cannot be written is
//! tried again for as long as it takes.

pub mod core;
mod keyring;
mod shell;

pub use self::keyring::{FollowFault, Followed, KeyringPort, OnDisk};
pub use self::shell::{AutolockShell, Msg, Ports};
