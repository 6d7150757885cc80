//! The store's promises, tested from outside.

#![expect(clippy::unwrap_used, reason = "these are tests, also outside their test functions")]

mod authorities;
mod autolock;
mod autopilot;
mod backup;
mod certificates;
mod commands;
mod feature_level;
mod gates;
mod golden_log;
mod growth;
mod history;
mod identity;
mod invariants;
mod many;
mod membership;
mod objects;
mod properties;
mod records;
mod recovery;
mod requests;
mod snapshot;
mod upstream;
mod workloads;
mod world;
