//! Simulated runs: samples, everything, and runs in which a promise must break.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod breaks;
mod stories;
mod universe;
