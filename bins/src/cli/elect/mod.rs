//! `muster elect`: runs a command only while holding a lease.
//!
//! Invariants  ELECT-5  the command runs only while the lease is held: it is asked to end when leadership is lost, and killed before
//!                      the lease can be another's, also when this process is killed or frozen (its guardian does it).
//!             ELECT-6  the lease is released only when nothing of the command is left.

mod args;
pub mod command;
mod run;

pub use self::args::ElectArgs;
pub(super) use self::run::default_identity;
pub(super) use self::run::run;
