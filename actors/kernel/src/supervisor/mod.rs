//! The supervisor: starts children, restarts those that fail, stops them in order.
//!
//! Decisions are [`core`]'s; the shell launches, stops and kills actors and keeps the timers. Who restarts with a child
//! that failed is the group's [strategy](crate::Strategy); more failures than the intensity allows end the supervisor
//! itself, children first, and its parent decides. A child that ignores stop and kill is shown as stuck, at a path of its
//! own, and never holds up its parent.

mod children;
pub mod core;
mod group;
mod root;
mod shell;

pub use self::children::Children;
pub(crate) use self::children::Report;
pub(crate) use self::group::launch_group;
pub use self::root::Supervisor;
