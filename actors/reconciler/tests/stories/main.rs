//! Stories of reconcilers against a cluster whose state is the real one: `muster-store` judges, and its invariants are
//! checked after every entry.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod admission;
mod cluster;
mod everywhere;
#[expect(dead_code, reason = "an example of the documentation: compiled, never run")]
mod example;
mod fleet;
mod histories;
mod judge;
mod nodes;
