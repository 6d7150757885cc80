//! Autolock: its core against a model keyring and the store, and the actor with a keyring on disk.

#![expect(clippy::unwrap_used, reason = "a failed precondition ends the test")]

mod actor;
mod interleavings;
mod steps;
mod world;
