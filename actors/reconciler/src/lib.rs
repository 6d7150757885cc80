//! Release-gated reconcilers, the side of nodes and programs: who runs what, how it is run, and who may serve meanwhile.
//!
//! - [`reconcilers_spec`] runs whatever a release has definitions of, as part of a tree; [`Embedded`] as a tree of its own.
//! - [`Admission`] takes a program into a scope: announced, admitted, serving, gone. [`GateWatch`] only looks.
//! - [`ReconcilerSpec`] describes what is to be applied; [`Handler`] is a program's own code as an action.
//! - [`core`] decides; the cluster judges.
//!
//! See `OVERVIEW.md`.

mod admission;
mod asking;
mod bench;
mod candidates;
pub mod core;
mod elect;
mod embedded;
mod gate_watch;
mod membership;
mod participants;
pub mod ports;
mod reconcilers;
mod runner;
mod spec;
mod wiring;

pub use muster_elector::{Hold, Link, Managers, Socket, StartError};
pub use muster_messages::{Release, Triple};

pub use self::admission::{Admission, NotServing, ServingGuard, Waiting};
pub use self::core::admission::Standing;
pub use self::core::eligibility::Patience;
pub use self::core::run::Outcome;
pub use self::embedded::Embedded;
pub use self::gate_watch::{GateSeen, GateStatus, GateWatch};
pub use self::membership::{LeaseTiming, Leave, Member, MemberSetup, MemberView, member_spec};
pub use self::ports::{
    ApplyCtx, Cluster, CommandEnd, CommandExit, CommandOrder, CommandRunner, GRACE, Handler, HandlerError, MOST_OUTPUT,
};
pub use self::reconcilers::{Reconcilers, reconcilers_spec};
pub use self::spec::ReconcilerSpec;
pub use self::wiring::Setup;
