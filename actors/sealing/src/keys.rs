//! The keys of this node: the keyring on disk, and what is open of it in memory.
//!
//! Owns        `identity/keyring.json`. One handle per process, whose clones share one state: the file has one writer.
//! Invariants  SEAL-2  nothing is written under a key that is not durable in the keyring: the file is replaced and its folder synced first.
//!             SEAL-5  a wrong key is distinguished from damage, and neither deletes or changes anything.
//! Calls that change the keyring block: they write a small file. Those that read it do not.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::crypto::DataKey;
use crate::files;
use crate::keyring::{KeyId, KeyUse, Keyring, KeyringFault, OpenKeyring, Protected, UnlockRefusal};
use crate::unlock_key::UnlockKey;

/// The name of the file in the identity folder.
pub const KEYRING: &str = "keyring.json";

/// The name of a keyring that only data that was set aside still needs. Further ones have a number before the end.
pub const SET_ASIDE: &str = "keyring.set-aside.json";
/// What the names of all of them begin with.
const SET_ASIDE_PREFIX: &str = "keyring.set-aside";

/// Deletes the keyrings that were set aside in this folder: the data that they sealed is gone.
pub fn delete_set_aside(identity: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(identity)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(SET_ASIDE_PREFIX) {
            files::remove_durably(&entry.path())?;
        }
    }
    Ok(())
}

/// A name that is free: data may have been set aside before, under another keyring.
fn free_name(folder: &Path) -> String {
    let numbered = (2..).map(|n| format!("{SET_ASIDE_PREFIX}.{n}.json"));
    let mut names = std::iter::once(SET_ASIDE.to_owned()).chain(numbered);
    names.find(|name| !folder.join(name).exists()).expect("a directory has finitely many files")
}

/// Whether the keys of a node can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysStatus {
    /// No keyring: a worker, or a node that has nothing sealed yet.
    Absent,
    /// Sealed with this version of the unlock key, which was not given yet.
    Locked {
        /// The version of the unlock key that it needs.
        version: u64,
    },
    /// Usable. `sealed`: the file opens only with version `version` of the unlock key; otherwise with a key that lies beside it.
    Open {
        /// The version of the unlock key.
        version: u64,
        /// Whether only that key opens the file.
        sealed: bool,
    },
}

enum State {
    Absent,
    Locked(Keyring),
    Open(OpenKeyring),
}

struct Inner {
    path: PathBuf,
    /// Held while the file is changed. Readers of the state do not wait for the disk: the Raft member reads it with every tick.
    writing: Mutex<()>,
    state: Mutex<State>,
}

/// See the module. Clones share one state.
#[derive(Clone)]
pub struct Keys(Arc<Inner>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({}, {:?})", self.0.path.display(), self.status())
    }
}

impl Keys {
    /// Reads the keyring of an identity folder. A clear slot opens it at once.
    pub fn open(identity: &Path) -> Result<Self, KeyringFault> {
        let path = identity.join(KEYRING);
        let state = read_state(&path)?;
        Ok(Self(Arc::new(Inner { path, writing: Mutex::new(()), state: Mutex::new(state) })))
    }

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The state of the keyring, without its keys.
    pub fn status(&self) -> KeysStatus {
        match &*self.state() {
            State::Absent => KeysStatus::Absent,
            State::Locked(keyring) => KeysStatus::Locked { version: keyring.version() },
            State::Open(keyring) => KeysStatus::Open { version: keyring.version(), sealed: keyring.is_sealed() },
        }
    }

    /// Opens a locked keyring. Repeated with the right key: `NotLocked`. Nothing on disk changes.
    pub fn unlock(&self, key: &UnlockKey) -> Result<(), UnlockRefusal> {
        let _only_writer = self.writing();
        let mut state = self.state();
        let State::Locked(keyring) = &*state else { return Err(UnlockRefusal::NotLocked) };
        *state = State::Open(keyring.unlock(key)?);
        Ok(())
    }

    /// Creates a keyring with a clear slot, if there is none. The caller has checked that nothing is sealed: a new keyring opens
    /// nothing that was sealed before.
    pub fn ensure(&self) -> Result<(), KeyringFault> {
        let _only_writer = self.writing();
        match self.status() {
            KeysStatus::Locked { version } => Err(KeyringFault::Locked { version }),
            KeysStatus::Open { .. } => Ok(()),
            KeysStatus::Absent => {
                let keyring = OpenKeyring::create();
                self.write(&keyring)?;
                *self.state() = State::Open(keyring);
                Ok(())
            }
        }
    }

    /// Seals the keyring with this version of the cluster's unlock key, or opens it (`None`). Repeated: `Unchanged`. Late: `Stale`.
    /// An equal version with another key: `Conflict`.
    /// An unlock key also makes new data keys: the former ones lay in clear, or are opened by the former unlock key in an earlier copy of
    /// the file. What they sealed is sealed anew by its owner.
    pub fn protect(&self, version: u64, key: Option<&UnlockKey>) -> Result<Protected, KeyringFault> {
        self.change(|keyring| {
            let done = keyring.protect(version, key)?;
            Ok((done == Protected::Changed, done))
        })
    }

    /// A new data key: what is sealed with an older one is sealed anew by its owner.
    pub fn add_key(&self, for_use: KeyUse) -> Result<KeyId, KeyringFault> {
        self.change(|keyring| Ok((true, keyring.add_key(for_use))))
    }

    /// Drops the older keys of a use that no file needs any more. SEAL-3: the caller has looked.
    pub fn drop_keys(&self, for_use: KeyUse, in_use: &[KeyId]) -> Result<(), KeyringFault> {
        self.change(|keyring| Ok((keyring.drop_keys(for_use, in_use), ())))
    }

    /// Drops the keys of a use that are older than this one. SEAL-3: the caller has sealed everything with it, or with a newer one.
    pub fn drop_older_than(&self, for_use: KeyUse, oldest: KeyId) -> Result<(), KeyringFault> {
        self.change(|keyring| Ok((keyring.drop_older_than(for_use, oldest), ())))
    }

    /// All keys of a use, the newest last. Never empty.
    pub fn of(&self, for_use: KeyUse) -> Result<Vec<DataKey>, KeyringFault> {
        match &*self.state() {
            State::Absent => Err(KeyringFault::Absent),
            State::Locked(keyring) => Err(KeyringFault::Locked { version: keyring.version() }),
            State::Open(keyring) => Ok(keyring.keys(for_use)),
        }
    }

    /// The newest key of a use. `None`: the keyring is not open.
    pub fn newest(&self, for_use: KeyUse) -> Option<KeyId> {
        if let State::Open(keyring) = &*self.state() { keyring.newest(for_use) } else { None }
    }

    /// The random name of the keyring. Records are bound to it.
    pub fn id(&self) -> Result<String, KeyringFault> {
        match &*self.state() {
            State::Absent => Err(KeyringFault::Absent),
            State::Locked(keyring) => Err(KeyringFault::Locked { version: keyring.version() }),
            State::Open(keyring) => Ok(keyring.id().to_owned()),
        }
    }

    /// Deletes the keyring: what it sealed can never be opened again. Absent: no effect.
    pub fn remove(&self) -> Result<(), KeyringFault> {
        self.end(files::remove_durably)
    }

    /// Renames the keyring to [`SET_ASIDE`]: what it sealed stays readable with it, and this node can get another one. Absent: no effect.
    pub fn set_aside(&self) -> Result<(), KeyringFault> {
        match self.status() {
            KeysStatus::Absent => Ok(()),
            KeysStatus::Locked { .. } | KeysStatus::Open { .. } => {
                self.end(|path| files::rename_durably(path, &free_name(path.parent().unwrap_or(Path::new("")))))
            }
        }
    }

    fn end(&self, act: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), KeyringFault> {
        let _only_writer = self.writing();
        let ended = act(&self.0.path).map_err(io_fault);
        // The file may be gone although its folder could not be synced: nothing more is sealed with keys that are not on disk (SEAL-2).
        if ended.is_ok() || self.0.path.try_exists().is_ok_and(|exists| !exists) {
            *self.state() = State::Absent;
        }
        ended
    }

    /// Changes a copy, writes it, and only then uses it.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut OpenKeyring) -> Result<(bool, T), KeyringFault>,
    ) -> Result<T, KeyringFault> {
        let _only_writer = self.writing();
        let mut keyring = match &*self.state() {
            State::Absent => return Err(KeyringFault::Absent),
            State::Locked(keyring) => return Err(KeyringFault::Locked { version: keyring.version() }),
            State::Open(keyring) => keyring.clone(),
        };
        let (changed, result) = change(&mut keyring)?;
        if changed {
            self.write(&keyring)?;
            *self.state() = State::Open(keyring);
        }
        Ok(result)
    }

    fn write(&self, keyring: &OpenKeyring) -> Result<(), KeyringFault> {
        if let Some(folder) = self.0.path.parent() {
            files::private_folder(folder).map_err(io_fault)?;
        }
        files::write_atomic(&self.0.path, &keyring.text()).map_err(io_fault)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.0.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_state(path: &Path) -> Result<State, KeyringFault> {
    let Some(text) = files::read_bytes(path).map_err(io_fault)? else { return Ok(State::Absent) };
    let keyring = Keyring::parse(&text)?;
    match keyring.open_clear() {
        Some(open) => open.map(State::Open),
        None => Ok(State::Locked(keyring)),
    }
}

fn io_fault(error: std::io::Error) -> KeyringFault {
    KeyringFault::Io(error.to_string())
}
