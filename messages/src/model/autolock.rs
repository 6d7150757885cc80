//! Autolock: the key that managers need at every start, shared by all of them.
//!
//! Owns        the unlock key and its version, the former keys that a manager may still be sealed under, and what each manager has
//!             reported. Nothing of a rotation in progress is stored: what is left to do follows from these.
//! Invariants: SEAL-9 and SEAL-10.

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::{NodeId, Revision, Secret, WallTime};

/// The most former keys on record. A manager that is away keeps them all: it may have been stopped under any of them.
pub const MAX_FORMER_KEYS: usize = 16;

/// A key that the cluster no longer uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerKey {
    pub version: Revision,
    pub key: Secret,
    pub set_at: WallTime,
}

/// How a manager gets its key when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoUnlock {
    /// A person enters it.
    #[default]
    None,
    /// `--unlock-key-file`.
    File,
    /// A credential of the service manager.
    Credential,
    /// The output of `[unlock] command`.
    Command,
}

/// What a manager's keyring was when it was last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The change of autolock that it follows.
    pub version: Revision,
    /// `false`: its keys lie in clear.
    pub sealed: bool,
    /// The private key and the Raft data are sealed under the newest keys of the keyring. Otherwise some is in clear, or under a key that
    /// may have lain in clear.
    pub files_sealed: bool,
    pub unlock: AutoUnlock,
}

/// A manager's report of its keyring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealReport {
    pub seal: Seal,
    pub at: WallTime,
}

/// The unlock key, and who is sealed under it. All empty until autolock is switched on for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autolock {
    /// The revision of the last change. 0: it was never on.
    pub version: Revision,
    /// `None`: off.
    pub key: Option<Secret>,
    pub set_at: WallTime,
    /// Oldest first.
    pub previous: Vec<FormerKey>,
    /// The newest report of each manager, and of a former one until it has a worker's certificate.
    pub seals: OrdMap<NodeId, SealReport>,
}

impl Autolock {
    pub fn is_on(&self) -> bool {
        self.key.is_some()
    }
    /// The key of this version, as far as it is on record, and when it was set.
    pub fn key_of(&self, version: Revision) -> Option<(&Secret, WallTime)> {
        if version == self.version {
            return self.key.as_ref().map(|key| (key, self.set_at));
        }
        let former = self.previous.iter().find(|former| former.version == version);
        former.map(|former| (&former.key, former.set_at))
    }
}

/// A change of autolock. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on. The proposer draws the key; the version is the revision at
/// which it is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AutolockChange {
    /// Already on: no change, and the key stays.
    Enable { key: Secret },
    /// Refused as `NotEnabled` while it is off.
    Rotate { key: Secret },
    /// Already off: no change.
    Disable,
    /// A manager's keyring is on disk as it says. An older version than the one on record: no change. Refused as `Stale` for a worker,
    /// and for a version that is not known yet.
    Sealed { node: NodeId, seal: Seal },
}

/// Why a change of autolock is refused, besides `Stale`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AutolockRefusal {
    #[error("autolock is off; `muster autolock on` makes a key")]
    NotEnabled,
    #[error(
        "{MAX_FORMER_KEYS} former keys are kept already, for node {node} among others, which has not reported a newer one: \
         let it return, or demote or remove it"
    )]
    TooManyKeys { node: NodeId },
}
