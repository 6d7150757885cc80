//! The cluster's unlock key, and which managers are sealed under it.

use serde::{Deserialize, Serialize};

use crate::model::{AutoUnlock, Liveness, Name, NodeId, Revision, WallTime};

/// The unlock key with its text: `muster autolock on|rotate|key`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnlockKeyView {
    /// Whether autolock is on. `false`: this is a former key.
    pub enabled: bool,
    pub version: Revision,
    /// The secret text.
    pub key: String,
    /// When it was made.
    pub set_at: WallTime,
    /// In answers to changes. `false`: it was so already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
}

/// `muster autolock off`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutolockOffView {
    pub enabled: bool,
    pub version: Revision,
    pub changed: bool,
}

/// `muster autolock status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutolockView {
    pub enabled: bool,
    /// The revision of the last change. 0: it was never on.
    pub version: Revision,
    /// When it was last changed. `None`: never.
    pub set_at: Option<WallTime>,
    /// Managers, and former ones that may still be sealed.
    pub managers: Vec<ManagerSealView>,
    /// Those that ask for a former key when they start.
    pub needs_old_key: Vec<OldKeyView>,
}

/// How a manager's disk is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SealState {
    Sealed,
    /// Its keyring is sealed, and its private key or its Raft data is still in clear, or under a key that lay in clear.
    Incomplete,
    /// Its keys lie beside its data.
    Clear,
    /// It has not reported since autolock was switched on.
    Unknown,
}

/// What a manager has reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerSealView {
    pub node: NodeId,
    pub name: Name,
    pub state: SealState,
    /// `None`: it has not reported.
    pub version: Option<Revision>,
    pub auto: AutoUnlock,
    /// When it reported.
    pub at: Option<WallTime>,
    pub liveness: Liveness,
}

/// A manager that asks for a former key when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldKeyView {
    pub node: NodeId,
    pub name: Name,
    /// `muster autolock key --version` prints it.
    pub version: Revision,
    /// When that key was made.
    pub since: Option<WallTime>,
}

/// What a locked daemon says of itself: `muster status` there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedView {
    pub locked: bool,
    /// `None`: the certificate cannot be read.
    pub node: Option<NodeId>,
    /// The version of the unlock key that it needs.
    pub version: Revision,
    /// When its keyring file was last written: sealed under that, or changed otherwise since. `None`: unknown.
    pub since: Option<WallTime>,
    /// Why each means to unlock it unattended has failed. `None`: none is configured, or none has been tried yet.
    pub unattended: Option<String>,
}

/// `muster unlock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnlockedView {
    pub unlocked: bool,
    pub version: Revision,
}

impl std::fmt::Debug for UnlockKeyView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnlockKeyView").field("version", &self.version).finish_non_exhaustive()
    }
}
