//! Repair of a last record that a power loss tore: sectors reach the disk in any order, so that its end may be there and its middle
//! not.
//!
//! raft-engine drops a last record whose head or end is incomplete. It reads the entries of a record only on demand, and reports a
//! log as corrupt whose last record lacks some of them, although that write was never acknowledged. Such a record is cut off here,
//! before the log is opened. If it was acknowledged after all, the number in `acked` shows it. A record that is followed by another
//! one is never torn: the disk had it before the next one was begun.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// How a raft-engine file begins; its version follows, and from version 2 on an alignment.
const MAGIC: &[u8] = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5";
/// Head of a record: its length and kind, and where its entries end.
const HEAD: usize = 16;
const CHECKSUM: usize = 4;

/// Cuts a torn record off the newest file. Blocks. True: there was one.
pub(super) fn drop_torn_record(log: &Path) -> io::Result<bool> {
    let Some(newest) = newest_file(log)? else { return Ok(false) };
    let Some(at) = torn_record(&fs::read(&newest)?) else { return Ok(false) };
    let file = File::options().write(true).open(&newest)?;
    file.set_len(at as u64)?;
    file.sync_all()?;
    Ok(true)
}

fn newest_file(log: &Path) -> io::Result<Option<PathBuf>> {
    let listing = match fs::read_dir(log) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        listing => listing?,
    };
    let files = listing.flatten().map(|entry| entry.path());
    Ok(files.filter(|file| file.extension().is_some_and(|e| e == "raftlog")).max())
}

/// Where the last record begins, if it is complete in length but its entries are not whole.
fn torn_record(file: &[u8]) -> Option<usize> {
    let version = number(file.strip_prefix(MAGIC)?)?;
    let mut at = MAGIC.len() + if version > 1 { 16 } else { 8 };
    loop {
        let (entries_end, length) = head(file.get(at..)?)?;
        let record = file.get(at..at.checked_add(length)?)?;
        if !are_whole(&record[HEAD..entries_end]) {
            let is_last = head(&file[at + length..]).is_none();
            return is_last.then_some(at);
        }
        at += length;
    }
}

/// Where the entries of this record end, and how long it is; `None`: no further record.
fn head(record: &[u8]) -> Option<(usize, usize)> {
    let length = usize::try_from(number(record)? >> 8).ok()?;
    let entries_end = usize::try_from(number(record.get(8..)?)?).ok()?;
    (HEAD <= entries_end && entries_end <= length).then_some((entries_end, length))
}

fn are_whole(entries: &[u8]) -> bool {
    let Some((data, checksum)) = entries.split_last_chunk::<CHECKSUM>() else { return entries.is_empty() };
    crc32fast::hash(data) == u32::from_le_bytes(*checksum)
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}
