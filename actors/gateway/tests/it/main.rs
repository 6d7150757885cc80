//! The gateway over real sockets on loopback.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod admission;
mod disconnects;
mod impostors;
mod rotation;
mod support;
mod unauthenticated;
