//! The certificate authority: its core over every interleaving, and its actor with probes.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod actor;
mod interleavings;
mod joining;
mod renewal;
mod world;
