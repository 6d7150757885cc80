//! What the actor needs of a keyring.

use std::sync::Arc;

use muster_messages::{AutoUnlock, Revision, Secret};
use muster_sealing::{KeyringFault, Keys, KeysStatus, Protected, UnlockKey};

/// A directory of an earlier build is converted when its Raft member opens it, and gets its keyring then.
const IN_CLEAR: &str = "this manager's disk is still in clear: it is sealed when the manager is restarted";

/// How the keyring took a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It is on disk now.
    Written,
    /// It was there already, with this key.
    Already,
    /// The keyring is of this later version: the replica is behind.
    Later(Revision),
}

/// Why it did not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowFault {
    /// SEAL-6. No attempt with this version helps.
    #[error("version {0} of the unlock key is in the keyring already, with another key")]
    OtherKey(Revision),
    /// No build that wrote this state would have; no attempt with this version helps.
    #[error("the replicated unlock key cannot be read: {0}")]
    BadKey(String),
    /// Worth another attempt.
    #[error("{0}")]
    Failed(String),
}

/// A keyring. Calls block.
pub trait KeyringPort: Send + Sync + 'static {
    /// Seals it under this version of the key, or opens it (`None`), with one atomic write. After a fault it is as before.
    fn follow(&self, version: Revision, key: Option<&Secret>) -> Result<Followed, FollowFault>;
    /// Seals this manager's files under the newest keys of the keyring as far as that is not done, and returns whether all are.
    fn seal_files(&self) -> bool;
    /// How this manager gets its key at its next start, as configured.
    fn unlocks_by(&self) -> AutoUnlock;
}

/// What the keyring seals. Calls block.
pub trait SealedFiles: Send + Sync {
    /// See [`KeyringPort::seal_files`]. Seals what it can. A fault is this implementation's to report.
    fn seal_all(&self) -> bool;
}

/// The keyring on disk, and how the next start gets its key.
#[derive(Clone)]
pub struct OnDisk {
    pub keys: Keys,
    pub unlock: AutoUnlock,
    pub files: Arc<dyn SealedFiles>,
}

impl KeyringPort for OnDisk {
    fn follow(&self, version: Revision, key: Option<&Secret>) -> Result<Followed, FollowFault> {
        let key = key.map(|key| UnlockKey::parse(key.expose())).transpose();
        let key = key.map_err(|bad| FollowFault::BadKey(bad.to_string()))?;
        match self.keys.protect(version.0, key.as_ref()) {
            Ok(Protected::Changed) => Ok(Followed::Written),
            Ok(Protected::Unchanged) => Ok(Followed::Already),
            Ok(Protected::Stale) => Ok(Followed::Later(match self.keys.status() {
                KeysStatus::Open { version, .. } | KeysStatus::Locked { version } => Revision(version),
                KeysStatus::Absent => version,
            })),
            Err(KeyringFault::Conflict { .. }) => Err(FollowFault::OtherKey(version)),
            Err(KeyringFault::Absent) => Err(FollowFault::Failed(IN_CLEAR.to_owned())),
            Err(other) => Err(FollowFault::Failed(other.to_string())),
        }
    }
    fn seal_files(&self) -> bool {
        self.files.seal_all()
    }
    fn unlocks_by(&self) -> AutoUnlock {
        self.unlock
    }
}
