//! How a directory is sealed: its description `seal.json`, and what seals and opens its records.
//!
//! Owns        `seal.json`: keyring, data key and a random name of the directory. Written before any data.
//! Invariants  SEAL-1  nothing secret of a sealed directory is in clear: the content of entries, `meta`, and snapshots are sealed records.
//!             SEAL-8  a directory is entirely under one key: it is rewritten as a whole (`reseal`), never record by record.
//! The places of records (see `muster_sealing`) begin with the names of keyring and directory, so that no record opens in another
//! directory. The index, term and kind of an entry are part of its place, and its data and context are one record.

use std::fs;
use std::path::{Path, PathBuf};

use muster_sealing::{
    DataKey, KeyId, KeyUse, KeyringFault, Keys, Opener, Sealer, WrongSeal, files, hex, open_chunks, seal_chunks,
};
use raft::eraftpb::EntryType;
use serde::{Deserialize, Serialize};

use super::reseal::{behind_links, parent_of};
use super::{FaultKind, LogFault};
use crate::core::{Entry, digest};

pub(super) const FILE: &str = "seal.json";
const FORMAT: u32 = 1;

/// The content of `seal.json`. Nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SealHead {
    v: u32,
    keyring: String,
    pub key: KeyId,
    /// Random: distinguishes this directory from every other one of the node.
    directory: String,
    /// Of the other members.
    sum: String,
}

impl SealHead {
    fn new(keyring: String, key: KeyId) -> Self {
        let directory = format!("{:032x}", rand::random::<u128>());
        let mut head = Self { v: FORMAT, keyring, key, directory, sum: String::new() };
        head.sum = head.expected_sum();
        head
    }
    fn expected_sum(&self) -> String {
        let text = format!("{} {} {} {}", self.v, self.keyring, self.key, self.directory);
        hex(&digest(text.as_bytes())[..16])
    }
    /// Of this directory. `None`: it is not sealed.
    pub fn of(dir: &Path) -> Result<Option<Self>, LogFault> {
        let path = dir.join(FILE);
        let Some(text) = files::read_bytes(&path).map_err(|e| LogFault::io(&path, e))? else { return Ok(None) };
        #[derive(Deserialize)]
        struct Format {
            v: u32,
        }
        let unreadable = |_| LogFault::damaged(&path, "the description of the seal cannot be read");
        let Format { v } = serde_json::from_slice(&text).map_err(unreadable)?;
        if v > FORMAT {
            let why = format!("the directory is sealed in format {v}, and this build supports format {FORMAT}");
            return Err(LogFault { file: path, why, kind: FaultKind::Newer });
        }
        let head: Self = serde_json::from_slice(&text).map_err(unreadable)?;
        if head.sum != head.expected_sum() {
            return Err(LogFault::damaged(path, "the checksum of the seal's description does not match"));
        }
        Ok(Some(head))
    }
}

/// The seal of one directory, for one reader or writer: it seals with a salt of its own.
pub(crate) struct Seal {
    place: Vec<u8>,
    key: DataKey,
    sealer: Sealer,
    opener: Opener,
}

impl Seal {
    /// Of this directory. `None`: it is not sealed.
    pub fn of(dir: &Path, keys: &Keys) -> Result<Option<Self>, LogFault> {
        let Some(head) = SealHead::of(dir)? else { return Ok(None) };
        Self::open(dir, &head, keys).map(Some)
    }

    /// Makes an empty directory a sealed one, under the newest key.
    pub fn begin(dir: &Path, keys: &Keys) -> Result<Self, LogFault> {
        let no_key = |fault| no_key(keys.path(), &fault);
        let id = keys.id().map_err(no_key)?;
        let newest = newest_key(keys).map_err(no_key)?;
        let head = SealHead::new(id, newest.id());
        let path = dir.join(FILE);
        let text = serde_json::to_vec(&head).map_err(|e| LogFault::io(&path, e))?;
        files::write_atomic(&path, &text).map_err(|e| LogFault::io(&path, e))?;
        Self::open(dir, &head, keys)
    }

    fn open(dir: &Path, head: &SealHead, keys: &Keys) -> Result<Self, LogFault> {
        let of_other = || {
            let why = format!(
                "the directory is sealed with key {}, which is not in {}: that file is of another time or another node. Put the one back \
                 that belongs to this directory, or remove the node from the cluster, empty the data directory and join again",
                head.key,
                keys.path().display()
            );
            LogFault { file: dir.join(FILE), why, kind: FaultKind::NoKey }
        };
        let id = keys.id().map_err(|fault| no_key(keys.path(), &fault))?;
        let all = keys.of(KeyUse::Raft).map_err(|fault| no_key(keys.path(), &fault))?;
        let key = all.into_iter().find(|key| key.id() == head.key && id == head.keyring).ok_or_else(of_other)?;
        let place = [head.keyring.as_bytes(), b"/", head.directory.as_bytes(), b"/"].concat();
        let (sealer, opener) = (Sealer::new(&key), Opener::new(vec![key.clone()]));
        Ok(Self { place, key, sealer, opener })
    }

    /// Whether a newer key is to be used: the directory is rewritten.
    pub fn is_outdated(&self, keys: &Keys) -> bool {
        keys.newest(KeyUse::Raft).is_some_and(|newest| newest != self.key.id())
    }

    fn place(&self, kind: &str, numbers: &[u64]) -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|number| number.to_be_bytes());
        self.place.iter().copied().chain(kind.bytes()).chain(numbers).collect()
    }

    pub fn seal_meta(&mut self, text: &[u8]) -> Vec<u8> {
        let place = self.place("meta", &[]);
        self.sealer.seal(&place, text)
    }
    pub fn open_meta(&mut self, record: &[u8]) -> Result<Vec<u8>, WrongSeal> {
        let place = self.place("meta", &[]);
        self.opener.open(&place, record)
    }

    fn entry_place(&self, group: u64, entry: &Entry) -> Vec<u8> {
        self.place("entry", &[group, entry.index, entry.term, entry.entry_type as u64])
    }
    /// An entry as it is stored.
    pub fn seal_entry(&mut self, group: u64, entry: &Entry) -> Entry {
        let place = self.entry_place(group, entry);
        let context = u32::try_from(entry.context.len()).expect("entries are smaller than 4 GiB");
        let text = [&context.to_be_bytes()[..], &entry.context, &entry.data].concat();
        let mut stored = bare(entry);
        stored.data = self.sealer.seal(&place, &text).into();
        stored
    }
    /// An entry as it was before.
    pub fn open_entry(&mut self, group: u64, stored: &Entry) -> Result<Entry, WrongSeal> {
        let place = self.entry_place(group, stored);
        let text = self.opener.open(&place, &stored.data)?;
        let (length, rest) = text.split_first_chunk().ok_or(WrongSeal::Forged)?;
        let (context, data) = rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or(WrongSeal::Forged)?;
        let mut entry = bare(stored);
        entry.context = context.to_vec().into();
        entry.data = data.to_vec().into();
        Ok(entry)
    }

    /// For snapshots, which are written on other threads.
    pub fn for_files(&self) -> FileSeal {
        FileSeal { place: self.place.clone(), key: self.key.clone() }
    }
}

/// Without data and context.
fn bare(entry: &Entry) -> Entry {
    let mut bare = Entry::default();
    bare.set_entry_type(entry.get_entry_type());
    (bare.index, bare.term, bare.sync_log) = (entry.index, entry.term, entry.sync_log);
    debug_assert!(matches!(
        entry.entry_type,
        EntryType::EntryNormal | EntryType::EntryConfChange | EntryType::EntryConfChangeV2
    ));
    bare
}

/// Seals and opens the snapshot files of one directory.
#[derive(Clone, Debug)]
pub(crate) struct FileSeal {
    place: Vec<u8>,
    key: DataKey,
}

impl FileSeal {
    fn place(&self, index: u64, term: u64) -> Vec<u8> {
        let numbers = [index, term].into_iter().flat_map(u64::to_be_bytes);
        self.place.iter().copied().chain(*b"snapshot").chain(numbers).collect()
    }
    pub fn write(
        &self,
        (index, term): (u64, u64),
        text: &[u8],
        write: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        seal_chunks(&self.key, &self.place(index, term), text, write)
    }
    pub fn open(&self, (index, term): (u64, u64), path: &Path, file: Vec<u8>) -> Result<Vec<u8>, LogFault> {
        let keys = std::slice::from_ref(&self.key);
        open_chunks(keys, &self.place(index, term), file).map_err(|why| fault_of(path.to_owned(), why))
    }
    pub fn key(&self) -> KeyId {
        self.key.id()
    }
    /// Part of the names of this directory's snapshots: a late write of another directory of the same name is another file.
    pub fn mark(&self) -> &[u8] {
        &self.place
    }
}

pub(super) fn fault_of(file: PathBuf, why: WrongSeal) -> LogFault {
    // The format of all records is in the description of the directory: a record of another format, or key, is damage.
    LogFault::damaged(file, why)
}

fn newest_key(keys: &Keys) -> Result<DataKey, KeyringFault> {
    keys.of(KeyUse::Raft)?.pop().ok_or(KeyringFault::Damaged("it has no key for Raft data"))
}

pub(super) fn no_key(file: &Path, fault: &KeyringFault) -> LogFault {
    LogFault { file: file.to_owned(), why: fault.to_string(), kind: FaultKind::NoKey }
}

/// The keys that this directory and those beside it are sealed with: those that are kept for a while, too. With a symbolic link, both those
/// beside the link and those beside what it names.
pub(crate) fn keys_in_use(dir: &Path) -> Result<Vec<KeyId>, LogFault> {
    let mut keys = Vec::new();
    for dir in [dir, &behind_links(dir)] {
        let parent = parent_of(dir);
        let io = |e| LogFault::io(parent, e);
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        for entry in fs::read_dir(parent).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let is_ours = path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(&*name));
            if is_ours && path.is_dir() {
                keys.extend(SealHead::of(&path)?.map(|head| head.key));
            }
        }
    }
    Ok(keys)
}
