//! The certificate authority: its core over every interleaving, and its actor with probes.

#![expect(clippy::unwrap_used, reason = "a failed precondition ends the test")]

mod actor;
mod interleavings;
mod joining;
mod renewal;
mod roots;
mod workloads;
mod world;
