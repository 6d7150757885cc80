//! Leader election for programs that embed it: a Muster cluster is the judge, or a lease in any Kubernetes API.
//!
//! - [`LeaderElector`] is the actor, [`Candidate`] what it does it for, [`Term`] what the guarded work is handed.
//! - [`Session`] over a [`Link`] is the way to a Muster cluster, [`kubernetes::LeaseLock`] that to a Kubernetes API.
//! - [`core`] decides: two machines, one outside face.
//!
//! See `OVERVIEW.md`.

mod candidacy;
pub mod clock;
pub mod config;
pub mod core;
mod elector;
mod health;
pub mod kubernetes;
pub mod link;
pub mod metrics;
mod ports;
mod session;
mod work;

pub use self::candidacy::{BY_OLDEST_VERSION, BY_PRIORITY, BY_RELEASE, Candidacy, PRIORITY, Standing};
pub use self::clock::{BootTime, Timekeeper};
pub use self::config::{ConfigRefusal, ElectorConfig};
pub use self::core::{ElectorView, Ending, Hold};
pub use self::elector::{Election, LeaderElector, Msg, Setup, StartError, Status};
pub use self::health::{HealthCheck, Unhealthy};
pub use self::link::{Link, Managers, Socket};
pub use self::ports::{Cluster, Lock};
pub use self::session::Session;
pub use self::work::{Candidate, Term};
/// What the signatures here are made of, so that a program needs no further crate for them.
pub use futures_util::future::BoxFuture;
pub use muster_messages::wire::LeaseRef;
