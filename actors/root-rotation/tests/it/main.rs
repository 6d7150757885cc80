//! The root rotation: its core against the store, with nodes that acknowledge and renew, or do not.

#![expect(clippy::unwrap_used, reason = "a failed precondition ends the test")]

mod actor;
mod interleavings;
mod steps;
mod upstream;
mod waves;
mod world;
