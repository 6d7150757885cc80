//! Autolock: keeps this manager's keyring at the replicated version of the unlock key. Runs in each manager runtime.
//!
//! Owns        nothing that outlives it: what is left to do follows from the replicated state and from the keyring.
//! Inputs      the local replica: the unlock key, and what is on record of this manager; results of writing and reporting.
//! Outputs     the keyring's new version; a report of it to the leader.
//! Invariants  SEAL-11  a version is reported only once the keyring is on disk with it. A crash at any point costs time, and no key.
//! SEAL-6 is the keyring's: an older version changes nothing, and an equal one with another key is a fault, which is shown.
//! Why not the Raft member, which applies the change: a disk that is full must not stop the log, and a keyring that cannot be written is
//! tried again for as long as it takes.

pub mod core;
mod keyring;
mod shell;

pub use self::keyring::{FollowFault, Followed, KeyringPort, OnDisk, SealedFiles};
pub use self::shell::{AutolockShell, Msg, Ports};
