//! The replicated state as bytes, for disks and for members that are too far behind for the log.
//!
//! The encoding is a versioned enum: a process reads every version it knows, and writes a newer one only once
//! the cluster's feature level says that every manager reads it. Integrity is the caller's: it keeps a digest beside the bytes.

use muster_messages::Tables;
use muster_messages::wire::{WireError, decode_stored, encode_stored};
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
enum Written<'a> {
    V1(&'a Tables),
}

#[derive(Deserialize)]
enum Read {
    V1(Box<Tables>),
}

/// Bytes that are no snapshot this process can read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unreadable snapshot of {bytes} bytes")]
pub struct SnapshotFault {
    pub bytes: usize,
    #[source]
    pub source: WireError,
}

/// Encodes the tables. Equal tables give equal bytes, on every member.
pub fn encode(tables: &Tables) -> Vec<u8> {
    encode_stored(&Written::V1(tables)).expect("every table has an encoding")
}

/// Decodes what [`encode`] wrote.
pub fn decode(bytes: &[u8]) -> Result<Tables, SnapshotFault> {
    match decode_stored(bytes) {
        Ok(Read::V1(tables)) => Ok(*tables),
        Err(source) => Err(SnapshotFault { bytes: bytes.len(), source }),
    }
}
