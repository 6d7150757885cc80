//! The elector against a native cluster, and on the Kubernetes API.

#![expect(clippy::unwrap_used, reason = "a test ends where what it relies on fails")]

mod elector;
mod kubernetes;
