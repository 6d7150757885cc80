//! Release-gated reconcilers on the side of nodes and programs: which process runs what, how it runs, and which members may
//! serve meanwhile.
//!
//! - [`reconcilers_spec`] runs everything that a release defines, as part of a tree; [`Embedded`] does so in a tree of its own.
//! - [`Admission`] takes a program into a scope: announced, admitted, serving, gone. [`GateWatch`] only observes.
//! - [`ReconcilerSpec`] describes what is to be applied; [`Handler`] is a program's own code as an action.
//! - [`core`] decides locally; the cluster validates every step.
//!
//! See `OVERVIEW.md`.

mod action;
mod action_slot;
mod admission;
mod campaign;
mod candidates;
mod cluster_requests;
pub mod core;
mod elect;
mod embedded;
mod gate_watch;
mod member;
mod member_lease;
mod membership;
mod participants;
pub mod ports;
mod reconcilers;
mod releases;
mod run_view;
mod runner;
mod spec;
mod wiring;

pub use muster_elector::{Hold, Link, Managers, Socket, StartError};
pub use muster_messages::{Release, Triple};

pub use self::admission::{Admission, NotServing, ServingGuard, Waiting};
pub use self::core::admission::AdmissionState;
pub use self::core::eligibility::EligibilityTiming;
pub use self::core::run::{Outcome, Tally};
pub use self::embedded::Embedded;
pub use self::gate_watch::{GateSeen, GateStatus, GateWatch};
pub use self::member::{LeaseTiming, Leave, Member, MemberSetup, MemberView};
pub use self::membership::member_spec;
pub use self::ports::{
    ApplyCtx, Cluster, CommandEnd, CommandExit, CommandOrder, CommandRunner, GRACE, Handler, HandlerError,
    MAX_HEAD_BYTES, MAX_OUTPUT_BYTES,
};
pub use self::reconcilers::{Reconcilers, reconcilers_spec};
pub use self::releases::{Declared, NOT_INSTALLED, Releases};
pub use self::run_view::RunView;
pub use self::spec::ReconcilerSpec;
pub use self::wiring::Setup;
