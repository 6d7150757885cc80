//! The number of the last acknowledged batch, beside the log. See [`super`], "Torn or rotten".
//!
//! Two slots, written in turn, so that a torn one leaves the other. Each: magic, number, checksum. Outside of the
//! directory the checksum also covers the member id, so that the file says nothing about another member's log.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use muster_messages::RaftId;

use super::LogFault;
use super::files::{make_dir, sync_parent};
use crate::core::digest;

const MAGIC: [u8; 8] = *b"MSTRACK1";
/// Far enough apart to be in different sectors.
const SLOTS: [u64; 2] = [0, 4096];

#[derive(Debug)]
pub(crate) struct Acked {
    path: PathBuf,
    file: File,
    of: Option<RaftId>,
    number: u64,
    next_slot: usize,
    unsynced: bool,
    /// The file contained no number: it is new, or was emptied.
    is_new: bool,
}

fn encode(of: Option<RaftId>, number: u64) -> [u8; 32] {
    let mut slot = [0; 32];
    slot[..8].copy_from_slice(&MAGIC);
    slot[8..16].copy_from_slice(&number.to_le_bytes());
    let mut text = slot[..16].to_vec();
    text.extend(of.iter().flat_map(|member_id| member_id.0.to_le_bytes()));
    let sum = digest(&text);
    slot[16..].copy_from_slice(&sum[..16]);
    slot
}

fn decode(of: Option<RaftId>, slot: [u8; 32]) -> Option<u64> {
    let number = u64::from_le_bytes(slot[8..16].try_into().ok()?);
    (slot == encode(of, number)).then_some(number)
}

/// Whether the `acked` of a directory is that of a sealed one.
pub(crate) fn is_sealed(dir: &Path) -> bool {
    dir.join("acked").is_dir()
}

impl Acked {
    /// Opens or creates. A file without a single valid slot is damage: the acknowledged number is unknown.
    /// In a sealed directory `acked` is a folder: a build that cannot open what is sealed reads `acked` before it reads or changes
    /// anything else, and ends there. It would take the log for damaged.
    pub fn open(dir: &Path, is_sealed: bool) -> Result<Self, LogFault> {
        let path = dir.join("acked");
        if !is_sealed {
            return Self::open_at(&path, None);
        }
        make_dir(&path)?;
        Self::open_at(&path.join("number"), None)
    }
    /// The same for another file. A file of another member id counts as damaged.
    pub fn open_at(path: &Path, of: Option<RaftId>) -> Result<Self, LogFault> {
        let path = path.to_owned();
        let exists = path.exists();
        let open = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
        let file = open.map_err(|e| LogFault::io(&path, e))?;
        let length = file.metadata().map_err(|e| LogFault::io(&path, e))?.len();
        if !exists || length == 0 {
            let mut new = Self { path, file, of, number: 0, next_slot: 0, unsynced: false, is_new: true };
            new.record(0)?;
            new.record(0)?;
            new.sync()?;
            sync_parent(&new.path).map_err(|e| LogFault::io(&new.path, e))?;
            return Ok(new);
        }
        let mut slots = [None; 2];
        for (slot, at) in slots.iter_mut().zip(SLOTS) {
            let mut bytes = [0; 32];
            *slot = file.read_exact_at(&mut bytes, at).ok().and_then(|()| decode(of, bytes));
        }
        let newest = slots.iter().copied().enumerate().filter_map(|(i, n)| Some((n?, i))).max();
        let Some((number, slot)) = newest else { return Err(LogFault::damaged(path, "no readable record")) };
        Ok(Self { path, file, of, number, next_slot: 1 - slot, unsynced: false, is_new: false })
    }
    /// Everything up to this batch was acknowledged.
    pub fn number(&self) -> u64 {
        self.number
    }
    pub fn is_new(&self) -> bool {
        self.is_new
    }
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Survives a crash of this process at once, and of the machine after the next `sync`.
    pub fn record(&mut self, number: u64) -> Result<(), LogFault> {
        let written = self.file.write_all_at(&encode(self.of, number), SLOTS[self.next_slot]);
        written.map_err(|e| LogFault::io(&self.path, e))?;
        self.number = number;
        self.next_slot = 1 - self.next_slot;
        self.unsynced = true;
        Ok(())
    }
    /// Whether there was anything to sync.
    pub fn sync(&mut self) -> Result<bool, LogFault> {
        let unsynced = std::mem::take(&mut self.unsynced);
        if unsynced {
            self.file.sync_all().map_err(|e| LogFault::io(&self.path, e))?;
        }
        Ok(unsynced)
    }
}

impl Drop for Acked {
    fn drop(&mut self) {
        // An orderly shutdown leaves nothing to a power loss. If the sync fails, the file is merely older.
        let _older = self.sync();
    }
}
