//! Certificates, handshakes and identity files.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod certificates;
mod fixture;
mod handshake;
mod identity_files;
mod sealed_files;
mod trust;
mod upstream;
