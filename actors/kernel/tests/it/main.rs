//! Supervision, fences and introspection with real actors.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod fences;
mod introspection;
mod levels;
mod parts;
mod restarts;
mod supervision;
