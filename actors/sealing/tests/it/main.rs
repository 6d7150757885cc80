//! Tests of the sealing library.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod backups;
mod keyrings;
mod records;
mod unlock_keys;
