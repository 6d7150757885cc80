//! Leader election for programs that embed it, decided by a Muster cluster or by a lease in any Kubernetes API.
//!
//! - [`LeaderElector`] is the actor, [`Candidate`] the program that it elects, [`Term`] what the guarded work receives.
//! - [`Session`] over a [`Link`] connects to a Muster cluster, [`kubernetes::LeaseLock`] to a Kubernetes API.
//! - `core` decides: two state machines with one interface.
//!
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod candidacy;
pub mod clock;
pub mod config;
mod core;
mod elector;
mod handle;
mod health;
pub mod kubernetes;
mod leadership;
pub mod link;
mod machine;
#[cfg(feature = "managers")]
mod managers;
pub mod metrics;
mod msg;
mod ports;
mod session;
mod tasks;
mod view;
mod work;

pub use self::candidacy::{BY_OLDEST_VERSION, BY_PRIORITY, BY_RELEASE, Candidacy, PRIORITY, RunningCandidacy};
pub use self::clock::{BootTime, Timekeeper};
pub use self::config::{ConfigRefusal, ElectorConfig};
pub use self::core::{ElectorView, Ending, Hold, LockError, Record, Versioned};
pub use self::handle::{Election, LeaderElector, Setup, StartError, Status};
pub use self::health::{HealthCheck, Unhealthy};
pub use self::link::{Link, Socket};
#[cfg(feature = "managers")]
pub use self::managers::Managers;
pub use self::ports::{Cluster, Lock};
pub use self::session::Session;
pub use self::work::{Candidate, Term};
/// Types in the signatures of this crate, so that a program needs no further crate for them.
pub use futures_util::future::BoxFuture;
#[cfg(feature = "managers")]
pub use muster_gateway::Dialer;
pub use muster_kernel::{CancellationToken, Spec};
pub use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
pub use muster_messages::{ErrorBody, FencingToken, MicroTime, Moment, SessionId};
pub use prometheus_client;
