//! Scenarios of reconcilers against a cluster with the real state: `muster-store` decides, and its invariants are checked after
//! every entry.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod admission;
mod chains;
mod cluster;
mod crash_points;
#[expect(dead_code, reason = "an example of the documentation: compiled, never run")]
mod example;
mod fleet;
mod histories;
mod judge;
mod nodes;
mod records;
mod releases;
mod terms;
