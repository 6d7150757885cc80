//! The messages of Muster's actors, and the values that they carry.
//!
//! - [`model`]: identifiers, records of the replicated state, commands, views, refusals. Plain values.
//! - [`wire`]: versioned bytes for everything that leaves the process.
//! - `protocol`: one message enum per actor, with reply ports; behind the feature `protocol`, so that a core can be built from
//!   `model` alone.
//!
//! This crate depends on no actor.

pub mod model;
#[cfg(feature = "protocol")]
pub mod protocol;
pub mod wire;

pub use model::*;
