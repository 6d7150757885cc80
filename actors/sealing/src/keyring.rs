//! The keyring of a node, as values: `identity/keyring.json`.
//!
//! ```text
//! { "v": 1, "sum": SHA-256 of the keyring, "check": HMAC of it under the master key,
//!   "keyring": { "id", "version", "slots": [ {"kind":"clear","key"} | {"kind":"unlock","version","wrapped"}
//!                                           | {"kind":"local","how","wrapped"} ],       each holds the master key
//!                "keys": [ {"id","use":"raft"|"identity","wrapped"}, … ] } }              each wrapped by the master key
//! ```
//!
//! `sum` finds damage without a key, `check` finds changes with it. So a keyring whose sum matches and that no slot opens was given a
//! wrong key. It changes as a whole: a new unlock key comes with a new master key, under which all keys are wrapped anew.
//!
//! Invariants  SEAL-6  the version of a keyring only grows; a version names one unlock key, or none.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::crypto::{DataKey, SecretKey, from_hex, hex, random, sha256};
use crate::unlock_key::UnlockKey;

const FORMAT: u32 = 1;
/// Purpose of the key that authenticates a keyring.
const CHECK: &str = "muster-keyring/1";

/// The number of a data key. Random, so that a key of another keyring, or of an older copy of this one, is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// What a data key seals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyUse {
    /// The Raft log and its snapshots.
    Raft,
    /// Private keys and other secrets of the node.
    Identity,
    /// A backup. Never in a keyring: its key follows from the unlock key.
    Backup,
}

impl KeyUse {
    pub(crate) fn purpose(self) -> &'static str {
        match self {
            Self::Raft => "muster-raft/1",
            Self::Identity => "muster-identity/1",
            Self::Backup => "muster-backup-file/1",
        }
    }
}

/// Why a file is not a keyring that this build can use. Quotes none of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringFault {
    /// The file is damaged; where.
    #[error("the keyring is damaged: {0}")]
    Damaged(&'static str),
    /// A newer release wrote it, in this format.
    #[error("the keyring has format {0}, and this build supports format {FORMAT}: use the build that wrote it")]
    Newer(u32),
    /// It has an unlock slot, and no key was given.
    #[error("the keyring is locked, with version {version} of the cluster's unlock key")]
    Locked {
        /// The version of the unlock key that it needs.
        version: u64,
    },
    /// SEAL-6. The replicated state contradicts itself, or is another cluster's.
    #[error("version {version} of the unlock key is already in the keyring, with another key")]
    Conflict {
        /// The version that both keys claim.
        version: u64,
    },
    /// The file is missing, and something is sealed with its keys.
    #[error(
        "the keyring is missing: put the file back from a backup of this node, or remove the node from the cluster, empty the data \
         directory and join again"
    )]
    Absent,
    /// The operating system's reason.
    #[error("the keyring cannot be read or written: {0}")]
    Io(String),
}

/// Why a keyring stays locked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnlockRefusal {
    /// The key of another version, or of another cluster.
    #[error("this is not version {version} of the cluster's unlock key, with which this node is sealed")]
    WrongKey {
        /// The version of the unlock key that it needs.
        version: u64,
    },
    /// It is open already.
    #[error("the keyring is not locked")]
    NotLocked,
    /// The keyring cannot be used at all.
    #[error(transparent)]
    Fault(#[from] KeyringFault),
}

/// What [`Keys::protect`](crate::Keys::protect) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protected {
    /// The keyring has a new master key.
    Changed,
    /// It was already so.
    Unchanged,
    /// The version is older than the keyring's.
    Stale,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Slot {
    /// Autolock is off.
    Clear {
        key: String,
    },
    Unlock {
        version: u64,
        wrapped: String,
    },
    /// A secret of this machine, for unattended starts. Not yet made: see docs/gaps.md.
    Local {
        how: String,
        wrapped: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrappedKey {
    id: KeyId,
    #[serde(rename = "use")]
    for_use: KeyUse,
    wrapped: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    id: String,
    /// Of the cluster's unlock key, with which the slots agree; also after it was switched off.
    version: u64,
    slots: Vec<Slot>,
    keys: Vec<WrappedKey>,
}

impl Body {
    fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a keyring serializes as JSON")
    }
}

#[derive(Serialize, Deserialize)]
struct Format {
    v: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    v: u32,
    sum: String,
    check: String,
    keyring: Body,
}

/// A keyring as it was read: undamaged, and not yet open.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keyring {
    body: Body,
    check: Vec<u8>,
}

impl Keyring {
    pub fn parse(text: &[u8]) -> Result<Self, KeyringFault> {
        let damaged = KeyringFault::Damaged;
        let Format { v } = serde_json::from_slice(text).map_err(|_| damaged("it is not a keyring"))?;
        if v > FORMAT {
            return Err(KeyringFault::Newer(v));
        }
        let file: File = serde_json::from_slice(text).map_err(|_| damaged("it is not a complete keyring"))?;
        if hex(&sha256(&file.keyring.text())) != file.sum {
            return Err(damaged("its checksum does not match"));
        }
        let check = from_hex(&file.check).ok_or(damaged("its authentication code cannot be read"))?;
        Ok(Self { body: file.keyring, check })
    }
    pub fn version(&self) -> u64 {
        self.body.version
    }
    /// The version of the unlock slot.
    pub fn locked_version(&self) -> Option<u64> {
        let of = |slot: &Slot| if let Slot::Unlock { version, .. } = slot { Some(*version) } else { None };
        self.body.slots.iter().find_map(of)
    }
    /// Opens by the clear slot. `None`: there is none.
    pub fn open_clear(&self) -> Option<Result<OpenKeyring, KeyringFault>> {
        let clear = |slot: &Slot| if let Slot::Clear { key } = slot { Some(key.clone()) } else { None };
        let text = self.body.slots.iter().find_map(clear)?;
        let key = from_hex(&text).map(zeroize::Zeroizing::new).and_then(|key| SecretKey::from_slice(&key));
        Some(key.ok_or(KeyringFault::Damaged("its clear slot cannot be read")).and_then(|key| self.open(key)))
    }
    /// Opens by the unlock slot.
    pub fn unlock(&self, key: &UnlockKey) -> Result<OpenKeyring, UnlockRefusal> {
        let version = self.locked_version().ok_or(UnlockRefusal::NotLocked)?;
        let master = self.master_of(key).ok_or(UnlockRefusal::WrongKey { version })?;
        Ok(self.open(master)?)
    }
    fn master_of(&self, key: &UnlockKey) -> Option<SecretKey> {
        let kek = key.kek(self.body.id.as_bytes());
        self.body.slots.iter().find_map(|slot| match slot {
            Slot::Unlock { version, wrapped } => {
                kek.unwrap_key(&about_master(&self.body.id, *version), &from_hex(wrapped)?)
            }
            Slot::Clear { .. } | Slot::Local { .. } => None,
        })
    }
    fn open(&self, master: SecretKey) -> Result<OpenKeyring, KeyringFault> {
        let damaged = KeyringFault::Damaged;
        if !master.derive(self.body.id.as_bytes(), CHECK).verifies(&self.body.text(), &self.check) {
            return Err(damaged("it was changed: its authentication code does not match"));
        }
        let open = |wrapped: &WrappedKey| {
            let WrappedKey { id, for_use, wrapped } = wrapped;
            let key = master.unwrap_key(&about_key(&self.body.id, *id, *for_use), &from_hex(wrapped)?)?;
            Some(DataKey { id: *id, for_use: *for_use, key })
        };
        let keys: Option<Vec<DataKey>> = self.body.keys.iter().map(open).collect();
        let keys = keys.ok_or(damaged("one of its keys cannot be opened"))?;
        Ok(OpenKeyring { stored: self.clone(), master, keys })
    }
}

fn about_master(keyring: &str, version: u64) -> String {
    format!("{keyring} master {version}")
}
fn about_key(keyring: &str, id: KeyId, for_use: KeyUse) -> String {
    format!("{keyring} key {id} {}", for_use.purpose())
}

/// An open keyring. Its changes are values: [`crate::Keys`] writes them before they take effect (SEAL-2).
#[derive(Clone)]
pub(crate) struct OpenKeyring {
    stored: Keyring,
    master: SecretKey,
    keys: Vec<DataKey>,
}

impl OpenKeyring {
    /// A new keyring with a clear slot.
    pub fn create() -> Self {
        let mut id = [0; 16];
        random(&mut id);
        let body = Body { id: hex(&id), version: 0, slots: vec![], keys: vec![] };
        let keys = vec![new_key(KeyUse::Raft, &[]), new_key(KeyUse::Identity, &[])];
        let stored = Keyring { body, check: vec![] };
        Self { stored, master: SecretKey::new_random(), keys }.sealed(0, None)
    }
    /// Its random name. Records are bound to it.
    pub fn id(&self) -> &str {
        &self.stored.body.id
    }
    pub fn version(&self) -> u64 {
        self.stored.version()
    }
    pub fn is_sealed(&self) -> bool {
        self.stored.locked_version().is_some()
    }
    /// All keys of a use, the newest last.
    pub fn keys(&self, for_use: KeyUse) -> Vec<DataKey> {
        self.keys.iter().filter(|key| key.for_use == for_use).cloned().collect()
    }
    pub fn newest(&self, for_use: KeyUse) -> Option<KeyId> {
        self.keys.iter().rfind(|key| key.for_use == for_use).map(DataKey::id)
    }
    /// The file.
    pub fn text(&self) -> Vec<u8> {
        let keyring = self.stored.body.clone();
        let sum = hex(&sha256(&keyring.text()));
        let file = File { v: FORMAT, sum, check: hex(&self.stored.check), keyring };
        serde_json::to_vec_pretty(&file).expect("a keyring serializes as JSON")
    }

    /// The cluster's unlock key of this version, or none: a new master key under it. SEAL-6: an older version changes nothing, and
    /// an equal one with another key is a fault. With an unlock key, data gets new keys: the former ones lay in clear, or are opened by
    /// the former unlock key in an earlier copy of the file.
    pub fn protect(&mut self, version: u64, key: Option<&UnlockKey>) -> Result<Protected, KeyringFault> {
        if version < self.version() {
            return Ok(Protected::Stale);
        }
        if version == self.version() {
            let same = match key {
                None => !self.is_sealed(),
                Some(key) => self.stored.master_of(key).is_some(),
            };
            return if same { Ok(Protected::Unchanged) } else { Err(KeyringFault::Conflict { version }) };
        }
        if key.is_some() {
            self.add_key(KeyUse::Raft);
            self.add_key(KeyUse::Identity);
        }
        self.master = SecretKey::new_random();
        *self = self.clone().sealed(version, key);
        Ok(Protected::Changed)
    }

    /// A new key for new data. What was sealed before still needs the older ones.
    pub fn add_key(&mut self, for_use: KeyUse) -> KeyId {
        let key = new_key(for_use, &self.keys);
        let id = key.id;
        self.keys.push(key);
        *self = self.clone().rewrapped();
        id
    }

    /// Drops all keys of a use except the newest and those in use. True: there were some.
    pub fn drop_keys(&mut self, for_use: KeyUse, in_use: &[KeyId]) -> bool {
        let newest = self.newest(for_use);
        let before = self.keys.len();
        self.keys.retain(|key| key.for_use != for_use || Some(key.id) == newest || in_use.contains(&key.id));
        let dropped = self.keys.len() < before;
        if dropped {
            *self = self.clone().rewrapped();
        }
        dropped
    }

    /// Drops the keys of a use that are older than this one. True: there were some.
    pub fn drop_older_than(&mut self, for_use: KeyUse, oldest: KeyId) -> bool {
        let Some(oldest) = self.keys.iter().position(|key| key.id == oldest) else { return false };
        let older = self.keys.drain(..oldest).collect::<Vec<_>>();
        let before = older.len();
        let kept: Vec<DataKey> = older.into_iter().filter(|key| key.for_use != for_use).collect();
        let dropped = kept.len() < before;
        self.keys.splice(..0, kept);
        if dropped {
            *self = self.clone().rewrapped();
        }
        dropped
    }

    /// With slots for the present master key.
    fn sealed(mut self, version: u64, key: Option<&UnlockKey>) -> Self {
        let body = &mut self.stored.body;
        body.version = version;
        body.slots = vec![match key {
            None => Slot::Clear { key: hex(self.master.expose()) },
            Some(key) => {
                let wrapped = key.kek(body.id.as_bytes()).wrap(&about_master(&body.id, version), &self.master);
                Slot::Unlock { version, wrapped: hex(&wrapped) }
            }
        }];
        self.rewrapped()
    }

    /// With all keys wrapped by the present master key, and authenticated.
    fn rewrapped(mut self) -> Self {
        let body = &mut self.stored.body;
        let wrap = |key: &DataKey| WrappedKey {
            id: key.id,
            for_use: key.for_use,
            wrapped: hex(&self.master.wrap(&about_key(&body.id, key.id, key.for_use), &key.key)),
        };
        body.keys = self.keys.iter().map(wrap).collect();
        self.stored.check = self.master.derive(body.id.as_bytes(), CHECK).mac(&body.text()).to_vec();
        self
    }
}

fn new_key(for_use: KeyUse, besides: &[DataKey]) -> DataKey {
    loop {
        let mut id = [0; 4];
        random(&mut id);
        let id = KeyId(u32::from_be_bytes(id));
        if id.0 != 0 && besides.iter().all(|key| key.id != id) {
            return DataKey { id, for_use, key: SecretKey::new_random() };
        }
    }
}
