//! What the replicated state says about reconcilers, in the words of the contract: pure functions of one copy.
//!
//! Owns   nothing.   Hears  tables.   Says  status, plans, what a candidate or participant goes by, which definitions are sound.
//! Keeps  VIEW-1  everything is as of one revision of one copy: nothing is read twice.
//!        VIEW-2  whoever waits is told why, and which command would help.
//! The gates' own rules are not here: they are judged where entries are applied (`muster-store`).

mod define;
mod objects;
mod status;
mod view;

pub use self::define::{BadDefinition, digest, fault_of_progress, sealed, sound_object};
pub use self::objects::{Waves, Write, drift};
pub use self::status::{history, member, members, object, plan, shown_definition, status, statuses};
pub use self::view::{admission, definitions, runner_view};
