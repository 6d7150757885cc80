//! What the replicated state says about reconcilers, in the contract's terms: pure functions of one replica.
//!
//! Inputs      tables.
//! Outputs     status, plans, the views of candidates and participants, which definitions are valid.
//! Invariants  VIEW-1  everything is as of one revision of one replica: nothing is read twice.
//!             VIEW-2  a participant that waits gets the reason, and the command that would help.
//! The gates' own rules are not here: they are enforced where entries are applied (`muster-store`).

mod changes;
mod define;
mod objects;
mod options;
mod runs;
mod status;
mod view;

pub use self::changes::{ObjectFilter, object_changes};
pub use self::define::{
    BadDefinition, MAX_LEASE_MS, MAX_STEP_NAME_BYTES, MIN_LEASE_MS, digest, fault_of_progress, fault_of_run, sealed,
    sound_object,
};
pub use self::objects::{Waves, Write, drift};
pub use self::runs::{run, run_view, runs};
pub use self::status::{history, member, members, object, plan, status, status_definition, statuses};
pub use self::view::{admission, definitions, runner_view, selection_changed};
