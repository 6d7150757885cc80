//! Attacks on a real cluster.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod floods;
mod http;
mod identity;
mod joining;
mod mesh;
mod rushes;
