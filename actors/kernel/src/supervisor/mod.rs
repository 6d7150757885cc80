//! The supervisor: starts children, restarts those that fail, stops them in order.
//!
//! Decisions are [`core`]'s; this shell launches, stops and kills actors and keeps the timers. Children are
//! restarted one for one; more failures than the intensity allows end the supervisor itself, and its parent decides.
//! A child that ignores stop and kill is reported as stuck and never holds up its parent.

pub mod core;
mod group;
mod shell;

pub(crate) use self::group::launch_group;
pub use self::shell::{Children, Supervisor};
