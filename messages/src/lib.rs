//! The messages of Muster's actors, and the values that they carry.
//!
//! - [`base`]: what any actor works with, of Muster or not: times, random numbers, errors, the live actor tree, and with the feature
//!   `protocol` reply ports.
//! - `model`: identifiers, records of the replicated state, commands, views, refusals. Plain values.
//! - `wire`: versioned bytes for everything that leaves the process.
//! - `frames`, with the feature of that name: those bytes over any stream.
//! - `protocol`, with the feature of that name: one message enum per actor.
//!
//! This crate depends on no actor. The feature `model` is everything about clusters; without it, only `base` is left. A core needs only `model`.
//!
#![doc = include_str!("../README.md")]

#[deny(missing_docs)]
pub mod base;
#[cfg(feature = "frames")]
#[deny(missing_docs)]
pub mod frames;
#[cfg(feature = "model")]
pub mod model;
#[cfg(all(feature = "model", feature = "protocol"))]
pub mod protocol;
#[cfg(feature = "model")]
pub mod wire;

pub use base::*;
#[cfg(feature = "model")]
pub use model::*;
