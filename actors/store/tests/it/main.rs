//! What the store promises, told from outside.

#![expect(clippy::unwrap_used, reason = "these are tests, also outside their test functions")]

mod backup;
mod commands;
mod feature_level;
mod gates;
mod history;
mod invariants;
mod many;
mod objects;
mod properties;
mod records;
mod recovery;
mod seats;
mod snapshot;
mod world;
