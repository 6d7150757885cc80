//! What the store promises, told from outside.

#![expect(clippy::unwrap_used, reason = "these are tests, also outside their test functions")]

mod backup;
mod certificates;
mod commands;
mod feature_level;
mod gates;
mod golden_log;
mod history;
mod identity;
mod invariants;
mod many;
mod objects;
mod properties;
mod records;
mod recovery;
mod requests;
mod seats;
mod snapshot;
mod world;
