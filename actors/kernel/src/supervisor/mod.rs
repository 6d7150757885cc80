//! The supervisor: starts children, restarts those that fail, stops them in order.
//!
//! [`core`] decides; the shell, with its [`state`], launches, stops and kills actors and keeps the timers. The group's
//! [strategy](crate::Strategy) says which children restart with a failed one. More failures than the intensity allows end
//! the supervisor itself, children first, and its parent decides. A child that ignores stop and kill is shown as stuck,
//! at its own path, and never blocks its parent.

mod child;
mod child_table;
mod children;
mod core;
mod group;
mod root;
mod runs;
mod shell;
mod state;

pub use self::children::Children;
pub(crate) use self::children::Report;
pub(crate) use self::group::launch_group;
pub use self::root::Supervisor;
